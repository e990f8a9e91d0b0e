//! A backup as it comes from a node. The client checks nothing of it: see `lockkeeper_api::backup`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use lockkeeper_api::Problem;
use lockkeeper_api::backup::SIZE_HEADER;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::endpoints::Endpoints;
use crate::error::{Error, Tried};
use crate::tls;
use crate::transport::{BodyPieces, root_cause, without_problem};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A node that sends nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(20);

/// A backup that a node sends.
pub struct BackupDownload {
    endpoints: Arc<Endpoints>,
    index: usize,
    endpoint: String,
    size: Option<u64>,
    pieces: BodyPieces,
}

impl BackupDownload {
    /// About how many bytes will come; the backup may be smaller or larger.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The node that sends it.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The next bytes; `None` after the last ones.
    ///
    /// # Errors
    /// The node has stopped sending, and what came is not whole. The next backup is asked of another endpoint.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        let why = match timeout(SILENCE, self.pieces.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(piece))) => return Some(Ok(piece)),
            Ok(Some(Err(error))) => root_cause(&error),
            Err(_) => format!("nothing came for {} s", SILENCE.as_secs()),
        };
        self.endpoints.move_on_from(self.index);
        let why = format!("the backup broke off: {why}");
        Some(Err(Error::Unreachable { tried: vec![Tried { endpoint: self.endpoint.clone(), why, code: None }] }))
    }
}

/// How one attempt at an endpoint ended.
enum DownloadStart {
    Sends(BackupDownload),
    /// Another endpoint may serve.
    Failed(Tried),
    Ended(Error),
}

impl Client {
    /// Asks a node for a backup: everything that was acknowledged before this call. If one endpoint cannot serve, the
    /// next is asked, for as long as [`Options::patience`](crate::Options).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn backup(&self) -> Result<BackupDownload, Error> {
        let (began, mut pause, mut tried) = (Instant::now(), FIRST_PAUSE, Vec::<Tried>::new());
        self.context.compare_endpoints(self.context.options.patience).await?;
        loop {
            let index = self.context.endpoints.preferred();
            match self.begin_backup(index).await {
                DownloadStart::Sends(download) => return Ok(download),
                DownloadStart::Ended(error) => return Err(error),
                DownloadStart::Failed(failed) => {
                    tried.retain(|earlier| earlier.endpoint != failed.endpoint);
                    tried.push(failed);
                }
            }
            if began.elapsed() >= self.context.options.patience {
                return Err(Error::Unreachable { tried });
            }
            self.context.endpoints.move_on_from(index);
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn begin_backup(&self, index: usize) -> DownloadStart {
        let endpoint = self.context.endpoints.at(index).to_string();
        let failed = |why| DownloadStart::Failed(Tried { endpoint: endpoint.clone(), why, code: None });
        let request = self.context.to_one_cluster(self.context.http.get(format!("{endpoint}/v1/snapshot"))).send();
        let response = match timeout(self.context.options.attempt_timeout, request).await {
            Err(_) => return failed("no answer in time".into()),
            Ok(Err(error)) => return failed(tls::failure(&error).unwrap_or_else(|| root_cause(&error))),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_success() {
            let size = response.headers().get(SIZE_HEADER).and_then(|size| size.to_str().ok()?.parse().ok());
            let (endpoints, pieces) = (self.context.endpoints.clone(), Box::pin(response.bytes_stream()));
            return DownloadStart::Sends(BackupDownload { endpoints, index, endpoint, size, pieces });
        }
        let body = response.bytes().await.unwrap_or_default();
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if problem.code.is_transient() => failed(problem.to_string()),
            Ok(problem) => {
                self.context.leave_other_cluster(index, problem.code);
                DownloadStart::Ended(Error::Refused(Box::new(problem)))
            }
            Err(_) => DownloadStart::Ended(Error::NotLockkeeper { endpoint, why: without_problem(status, &body) }),
        }
    }
}
