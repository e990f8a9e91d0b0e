//! Clients and observers in the background.

use crate::proofs::prelude::*;

/// Tasks that go on until they are stopped. Each has a token by which it sees that. Dropped, they are broken off.
pub(super) struct Tasks<T> {
    stop: CancellationToken,
    running: JoinSet<T>,
}

impl<T: 'static> Default for Tasks<T> {
    fn default() -> Self {
        Self { stop: CancellationToken::new(), running: JoinSet::new() }
    }
}

impl<T: Send + 'static> Tasks<T> {
    /// Starts one.
    pub(super) fn start<F>(&mut self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.running.spawn(task(self.stop.clone()));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Stops them, and gives what each has come to.
    pub(super) async fn end(mut self) -> Result<Vec<T>, Failed> {
        self.stop.cancel();
        let mut ended = Vec::new();
        while let Some(task) = self.running.join_next().await {
            ended.push(task.or_broken("a client broke off")?);
        }
        Ok(ended)
    }

    /// The same within a bound: what does not end then hangs.
    pub(super) async fn end_within(self, within: Duration) -> Result<Vec<T>, Failed> {
        match tokio::time::timeout(within, self.end()).await {
            Ok(ended) => ended,
            Err(_) => broken(format!("clients hang {within:?} after they were stopped")),
        }
    }
}
