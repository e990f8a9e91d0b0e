//! Which cluster a client is of: the first one that answers it. Endpoints of two clusters would each grant a lock, so
//! a client must never take answers of both.
//!
//! Each request names the known cluster, and a node of another one refuses it. Before the first request of a client
//! with several endpoints, all of them are asked at the same time. One that does not answer in time is compared by its
//! first answer to a later request, if the client ever sends it one.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockkeeper_api::{CLUSTER_HEADER, ClusterIdentity, Code, Problem};
use parking_lot::Mutex;
use reqwest::RequestBuilder;
use reqwest::header::{HeaderMap, HeaderValue};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep_until};

use crate::context::Context;
use crate::endpoints::Endpoint;
use crate::error::Error;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct OneCluster {
    known: Mutex<Option<(ClusterIdentity, HeaderValue)>>,
    compared: OnceCell<()>,
}

impl OneCluster {
    /// Notes the cluster that an answer names.
    ///
    /// # Errors
    /// [`Code::OtherCluster`] if it is not the known one.
    pub(crate) fn note(&self, endpoint: &Endpoint, headers: &HeaderMap) -> Result<(), Box<Problem>> {
        let Some((named, header)) = headers.get(CLUSTER_HEADER).and_then(|header| {
            let text = header.to_str().ok()?;
            Some((ClusterIdentity::parse(text), header))
        }) else {
            return Ok(());
        };
        let mut known = self.known.lock();
        match &*known {
            Some((known, _)) if known.differs_from(&named) => {
                let detail = format!(
                    "{endpoint} belongs to cluster {named}, and this client is of cluster {known}: let all endpoints \
                     be of one cluster; if {known} was restored or recovered as {named}, restart the client"
                );
                Err(Box::new(Problem::new(Code::OtherCluster, detail)))
            }
            Some((known, _)) if known.uid.is_some() || named.uid.is_none() => Ok(()),
            _ => {
                *known = Some((named, header.clone()));
                Ok(())
            }
        }
    }

    /// The header that names the known cluster.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        self.known.lock().as_ref().map(|(_, header)| header.clone())
    }
}

impl Context {
    /// The request, naming the known cluster.
    pub(crate) fn to_one_cluster(&self, request: RequestBuilder) -> RequestBuilder {
        match self.cluster.header() {
            Some(header) => request.header(CLUSTER_HEADER, header),
            None => request,
        }
    }

    /// Asks all endpoints for their cluster, once in the client's life.
    ///
    /// # Errors
    /// [`Code::OtherCluster`] if they belong to two.
    pub(crate) async fn compare_endpoints(&self) -> Result<(), Error> {
        if self.endpoints.all().len() < 2 {
            return Ok(());
        }
        self.cluster.compared.get_or_try_init(|| self.ask_all()).await.copied()
    }

    /// After the first answer the other endpoints have as long again, and at least half of the connect timeout: a node
    /// that is gone must not delay a client for longer.
    async fn ask_all(&self) -> Result<(), Error> {
        let ask = |endpoint: &'_ Endpoint| {
            let answer = self.http.get(format!("{endpoint}/healthz")).send();
            let endpoint = endpoint.clone();
            async move { (endpoint, answer.await) }
        };
        let mut asked: FuturesUnordered<_> = self.endpoints.all().iter().map(ask).collect();
        let began = Instant::now();
        let limit = self.options.connect_timeout;
        let (mut until, mut is_first) = (began + limit, true);
        loop {
            tokio::select! {
                answer = asked.next() => match answer {
                    None => return Ok(()),
                    Some((_, Err(_))) => {}
                    Some((endpoint, Ok(answer))) => {
                        self.cluster.note(&endpoint, answer.headers()).map_err(Error::Refused)?;
                        if std::mem::take(&mut is_first) {
                            until = until.min(Instant::now() + began.elapsed().max(limit / 2));
                        }
                    }
                },
                () = sleep_until(until) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_cluster_is_refused_with_the_names_and_uids_of_both() {
        let (cluster, endpoint) = (OneCluster::default(), Endpoint::parse("b:1").unwrap());
        let note = |text: &str| {
            let header = HeaderValue::from_str(text).unwrap();
            cluster.note(&endpoint, &HeaderMap::from_iter([(CLUSTER_HEADER.parse().unwrap(), header)]))
        };
        assert!(cluster.note(&endpoint, &HeaderMap::new()).is_ok() && cluster.header().is_none());
        assert!(note("local").is_ok());
        assert!(note("dev").is_err(), "below the feature level that has uids, the names tell");
        assert!(note("local/01").is_ok() && note("local").is_ok() && note("local/01").is_ok());
        assert_eq!(cluster.header().unwrap(), "local/01");
        let problem = note("local/02").unwrap_err();
        assert_eq!(problem.code, Code::OtherCluster);
        assert!(["http://b:1", "local/01", "local/02"].iter().all(|name| problem.detail.contains(name)), "{problem}");
        assert_eq!(cluster.header().unwrap(), "local/01", "the first one stays");
    }
}
