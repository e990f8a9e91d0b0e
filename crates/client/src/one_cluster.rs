//! Which cluster a client is of: the first one that answers it. Endpoints of two clusters would each grant a lock, so
//! a client must never take answers of both.
//!
//! Each request names the known cluster, and a node of another one refuses it. Before the first request of a client
//! with several endpoints, all of them are asked at the same time, until one has answered. Another one that does not
//! answer in time is compared by its first answer to a later request, if the client ever sends it one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockkeeper_api::{CLUSTER_HEADER, ClusterIdentity, Code, Problem};
use parking_lot::Mutex;
use reqwest::RequestBuilder;
use reqwest::header::{HeaderMap, HeaderValue};
use tokio::time::{Instant, sleep_until};

use crate::context::Context;
use crate::endpoints::Endpoint;
use crate::error::Error;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct OneCluster {
    known: Mutex<Option<(ClusterIdentity, HeaderValue)>>,
    /// Whether the endpoints that answer were compared.
    compared: AtomicBool,
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

    /// Asks all endpoints for their cluster, until one has answered: once in the client's life as a rule. Leaves half
    /// of the caller's patience for what it wants to do.
    ///
    /// # Errors
    /// [`Code::OtherCluster`] if they belong to two. The next call compares again: the wrong one may be replaced by
    /// then.
    pub(crate) async fn compare_endpoints(&self, patience: Duration) -> Result<(), Error> {
        if self.endpoints.all().len() < 2 || self.cluster.compared.load(Ordering::Relaxed) {
            return Ok(());
        }
        let answers = self.ask_all(self.options.connect_timeout.min(patience / 2)).await;
        // With each other first: which of two clusters answered first must not stay known.
        for cluster in [&OneCluster::default(), &*self.cluster] {
            let note = |(endpoint, headers): &(Endpoint, HeaderMap)| cluster.note(endpoint, headers);
            answers.iter().try_for_each(note).map_err(Error::Refused)?;
        }
        self.cluster.compared.fetch_or(!answers.is_empty(), Ordering::Relaxed);
        Ok(())
    }

    /// Lets the next call begin at another endpoint after this one turned out to be of another cluster.
    pub(crate) fn leave_other_cluster(&self, index: usize, code: Code) {
        if code == Code::OtherCluster {
            self.endpoints.move_on_from(index);
        }
    }

    /// After the first answer the other endpoints have as long again, and at least half of the limit: a node that is
    /// gone must not delay a client for longer.
    async fn ask_all(&self, limit: Duration) -> Vec<(Endpoint, HeaderMap)> {
        let ask = |endpoint: &'_ Endpoint| {
            let answer = self.http.get(format!("{endpoint}/healthz")).send();
            let endpoint = endpoint.clone();
            async move { (endpoint, answer.await) }
        };
        let mut asked: FuturesUnordered<_> = self.endpoints.all().iter().map(ask).collect();
        let began = Instant::now();
        let (mut until, mut answers) = (began + limit, Vec::new());
        loop {
            tokio::select! {
                answer = asked.next() => match answer {
                    None => return answers,
                    Some((_, Err(_))) => {}
                    Some((endpoint, Ok(answer))) => {
                        if answers.is_empty() {
                            until = until.min(Instant::now() + began.elapsed().max(limit / 2));
                        }
                        answers.push((endpoint, answer.headers().clone()));
                    }
                },
                () = sleep_until(until) => return answers,
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
