//! Which cluster a client is of: the first one that answers it. Endpoints of two clusters would each grant a lock, so
//! a client must never take answers of both.
//!
//! Each request names the known cluster, and a node of another one refuses it. Before the first request of a client
//! with several endpoints, all of them are asked at the same time, until one has answered. Another one that does not
//! answer in time is compared by its first answer to a later request, if the client ever sends it one.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockkeeper_api::{CLUSTER_HEADER, Code};
use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use tokio::time::{Instant, sleep_until};

use crate::context::Context;
use crate::endpoints::Endpoint;
use crate::error::Error;
use crate::known_cluster::KnownCluster;

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
        if self.endpoints.all().len() < 2 || self.cluster.is_compared() {
            return Ok(());
        }
        let answers = self.ask_all(self.options.connect_timeout.min(patience / 2)).await;
        // With each other first: which of two clusters answered first must not stay known.
        for cluster in [&KnownCluster::default(), &*self.cluster] {
            let note = |(endpoint, headers): &(Endpoint, HeaderMap)| cluster.note(endpoint, headers);
            answers.iter().try_for_each(note).map_err(Error::Refused)?;
        }
        if !answers.is_empty() {
            self.cluster.set_compared();
        }
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
