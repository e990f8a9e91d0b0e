//! The client's handle: endpoints, connections, options, and on whose behalf it speaks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::Credential;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::endpoints::{Endpoint, EndpointError, Endpoints};
use crate::error::Error;
use crate::routes::Paging;
use crate::stream::StreamHandle;

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long to wait for a connection to one endpoint.
    pub connect_timeout: Duration,
    /// How long to wait for the answer of one endpoint, on top of the time that the request itself asks to wait.
    pub attempt_timeout: Duration,
    /// How long to go on trying endpoints while none can serve, on top of the time that the request itself asks to wait.
    pub patience: Duration,
    /// While a request waits in a lock's queue, how often to ask its node whether it is alive. A node that does not answer
    /// twice in a row is given up, and the request is taken to the next under the same request id.
    pub liveness_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            liveness_interval: Duration::from_secs(2),
        }
    }
}

/// Request ids whose answers have arrived, to be told to the cluster with the next change so that it may forget them. The cluster
/// remembers 256 answers of a session and takes as many ids at a time. When more than this wait to be told, the oldest are dropped:
/// their answers are the ones that the cluster has forgotten, or is about to forget, by itself.
const MAX_ACKNOWLEDGEMENTS: usize = 240;
/// Told at a time in a header. A server may be set to take no more than 4 KiB of headers; what is left goes with the next change.
pub(crate) const MAX_ACKNOWLEDGED_IN_HEADER: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Acknowledgements(Mutex<VecDeque<Uuid>>);

impl Acknowledgements {
    pub(crate) fn answered(&self, id: Uuid) {
        let mut ids = self.0.lock();
        if ids.len() == MAX_ACKNOWLEDGEMENTS {
            ids.pop_front();
        }
        ids.push_back(id);
    }

    /// The oldest, up to so many.
    pub(crate) fn take(&self, most: usize) -> Vec<Uuid> {
        let mut ids = self.0.lock();
        let count = ids.len().min(most);
        ids.drain(..count).collect()
    }
}

/// On whose behalf requests are made.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) credential: Credential,
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    /// Where to run what is handed over from outside of a runtime.
    pub(crate) runtime: Option<Handle>,
}

/// A handle on the cluster; clones share connections and the endpoint they prefer.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) options: Arc<Options>,
    pub(crate) identity: Option<Identity>,
    /// Over which its session speaks, as long as there is one.
    pub(crate) stream: Option<Arc<StreamHandle>>,
}

impl Client {
    /// A client of the cluster that is reached there. Connects when first used.
    ///
    /// # Errors
    /// An endpoint that cannot be used, or none.
    pub fn new(endpoints: impl IntoIterator<Item = impl AsRef<str>>, options: Options) -> Result<Self, EndpointError> {
        let endpoints = Endpoints::new(endpoints)?;
        let http = reqwest::Client::builder()
            // A proxy between a holder and its cluster would be one more thing that can lie about who is alive.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .connect_timeout(options.connect_timeout)
            // Below the server's own idle timeout, so that it is this side that closes.
            .pool_idle_timeout(Duration::from_secs(15))
            .user_agent(concat!("lockkeeper/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| EndpointError::Bad { text: "http client".into(), why: e.to_string() })?;
        Ok(Self { http, endpoints: Arc::new(endpoints), options: Arc::new(options), identity: None, stream: None })
    }

    /// A client with the usual [`Options`], once an endpoint has answered.
    ///
    /// # Errors
    /// [`Error::Refused`] for endpoints that cannot be used, [`Error::Unreachable`] if none answers; otherwise see [`Error`].
    pub async fn connect(endpoints: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let bad = |why: EndpointError| Error::refused(lockkeeper_api::Code::BadRequest, why.to_string());
        let client = Self::new(endpoints, Options::default()).map_err(bad)?;
        client.sessions(&Paging { limit: Some(1), ..Paging::default() }).await?;
        Ok(client)
    }

    /// The same client, speaking for that session.
    #[must_use]
    pub fn as_session(&self, credential: Credential) -> Self {
        let identity = Identity { credential, acknowledgements: Arc::default(), runtime: Handle::try_current().ok() };
        Self { identity: Some(identity), stream: None, ..self.clone() }
    }

    /// Where the cluster is reached.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.endpoints.all()
    }

    /// The endpoint that is turned to first.
    pub fn preferred(&self) -> &Endpoint {
        self.endpoints.at(self.endpoints.preferred())
    }

    /// A client of that one endpoint alone, with the same connections and identity.
    ///
    /// # Errors
    /// The endpoint cannot be used.
    pub fn only(&self, endpoint: &Endpoint) -> Result<Self, EndpointError> {
        Ok(Self { endpoints: Arc::new(Endpoints::new([endpoint.as_str()])?), stream: None, ..self.clone() })
    }

    /// The same client, asking over that stream what its session asks.
    pub(crate) fn over(self, stream: Arc<StreamHandle>) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The same client, which does not tell the cluster what it was answered: a try of an earlier call that is still on its way
    /// somewhere must go on finding that answer.
    pub(crate) fn unacknowledging(&self) -> Self {
        let identity = self.identity.clone().map(|identity| Identity { acknowledgements: Arc::default(), ..identity });
        Self { identity, stream: None, ..self.clone() }
    }

    pub(crate) fn answered(&self, request_id: Option<Uuid>) {
        if let (Some(identity), Some(id)) = (&self.identity, request_id) {
            identity.acknowledgements.answered(id);
        }
    }

    pub(crate) fn credential(&self) -> Result<Credential, Error> {
        let missing =
            || Error::refused(lockkeeper_api::Code::SessionRequired, "this call needs a client with a session");
        self.identity.as_ref().map(|identity| identity.credential).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_bounded_and_the_oldest_go_first() {
        let told = Acknowledgements::default();
        let ids: Vec<Uuid> = (0..MAX_ACKNOWLEDGEMENTS + 10).map(|_| Uuid::new_v4()).collect();
        ids.iter().for_each(|id| told.answered(*id));
        assert_eq!(told.take(64), ids[10..74]);
        assert_eq!(told.take(usize::MAX), ids[74..], "what did not fit goes with the next");
        assert!(told.take(1).is_empty());
    }
}
