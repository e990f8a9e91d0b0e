//! Whether the node that a long wait was entrusted to is still alive.
//!
//! A frozen node, or a host that is gone, closes no connection: without asking, a waiter would sit there until its wait is
//! over, while two living nodes could serve it.

use std::future::pending;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::endpoints::Endpoint;

const FAILURES_IN_A_ROW: u32 = 2;

impl Client {
    /// Completes when the endpoint has failed to answer twice in a row; never for a request that does not wait, or where
    /// there is no other endpoint to go to.
    pub(crate) async fn dead(&self, endpoint: &Endpoint, wait: Duration) {
        let every = self.options.liveness_interval;
        if wait < every || self.endpoints.all().len() < 2 {
            return pending().await;
        }
        let mut failures = 0;
        while failures < FAILURES_IN_A_ROW {
            sleep(every).await;
            let question = self.http.get(format!("{endpoint}/healthz")).send();
            match timeout(every, question).await {
                Ok(Ok(_)) => failures = 0,
                _ => failures += 1,
            }
        }
    }
}
