//! The cluster that a client knows. See `one_cluster.rs`.

use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_api::{CLUSTER_HEADER, ClusterIdentity, Code, Problem};
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderValue};

use crate::endpoints::Endpoint;

/// The cluster of a client: the first one that answered it.
#[derive(Debug, Default)]
pub(crate) struct KnownCluster {
    known: Mutex<Option<(ClusterIdentity, HeaderValue)>>,
    /// Whether the endpoints that answer were compared.
    compared: AtomicBool,
}

impl KnownCluster {
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

    /// Whether the endpoints that answer were compared.
    pub(crate) fn is_compared(&self) -> bool {
        self.compared.load(Ordering::Relaxed)
    }

    /// Notes that they were.
    pub(crate) fn set_compared(&self) {
        self.compared.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_cluster_is_refused_with_the_names_and_uids_of_both() {
        let (cluster, endpoint) = (KnownCluster::default(), Endpoint::parse("b:1").unwrap());
        let note = |text: &str| {
            let header = HeaderValue::from_str(text).unwrap();
            cluster.note(&endpoint, &HeaderMap::from_iter([(CLUSTER_HEADER.parse().unwrap(), header)]))
        };
        assert!(cluster.note(&endpoint, &HeaderMap::new()).is_ok() && cluster.header().is_none());
        assert!(note("local").is_ok());
        assert!(note("dev").is_err(), "without uids, the names tell");
        assert!(note("local/01").is_ok() && note("local").is_ok() && note("local/01").is_ok());
        assert_eq!(cluster.header().unwrap(), "local/01");
        let problem = note("local/02").unwrap_err();
        assert_eq!(problem.code, Code::OtherCluster);
        assert!(["http://b:1", "local/01", "local/02"].iter().all(|name| problem.detail.contains(name)), "{problem}");
        assert_eq!(cluster.header().unwrap(), "local/01", "the first one stays");
    }
}
