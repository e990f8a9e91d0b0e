//! Many callers, one round: whoever comes while a round is under way shares the next one.
//!
//! A round that began before a caller came must never answer that caller: it may know less than the caller has a right to.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::NodeError;

type Round<T> = Box<dyn Fn() -> Pin<Box<dyn Future<Output = T> + Send>> + Send + Sync>;

/// See the module's text. A clone is the same thing.
pub(crate) struct Rounds<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    round: Round<T>,
    line: Mutex<Line<T>>,
    max_waiting: usize,
}

struct Line<T> {
    waiting: Vec<oneshot::Sender<T>>,
    running: bool,
}

impl<T> Clone for Rounds<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Clone + Send + 'static> Rounds<T> {
    pub(crate) fn new<F>(max_waiting: usize, round: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let line = Mutex::new(Line { waiting: Vec::new(), running: false });
        Self { inner: Arc::new(Inner { round: Box::new(move || Box::pin(round())), line, max_waiting }) }
    }

    /// The result of a round that began after this call.
    pub(crate) async fn join(&self) -> Result<T, NodeError> {
        let (sender, receiver) = oneshot::channel();
        let first = {
            let mut line = self.inner.line.lock();
            if line.waiting.len() >= self.inner.max_waiting {
                return Err(NodeError::overloaded());
            }
            line.waiting.push(sender);
            !std::mem::replace(&mut line.running, true)
        };
        if first {
            // A task of its own: the caller who happens to come first may be dropped.
            tokio::spawn(run(self.inner.clone()));
        }
        receiver.await.map_err(|_| NodeError::ShuttingDown)
    }
}

async fn run<T: Clone>(inner: Arc<Inner<T>>) {
    loop {
        let waiting = {
            let mut line = inner.line.lock();
            if line.waiting.is_empty() {
                line.running = false;
                return;
            }
            std::mem::take(&mut line.waiting)
        };
        let result = (inner.round)().await;
        for caller in waiting {
            let _ = caller.send(result.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn who_comes_during_a_round_gets_the_next() {
        let (started, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
        let rounds = Rounds::new(1_000, {
            let (started, gate) = (started.clone(), gate.clone());
            move || {
                let number = started.fetch_add(1, Ordering::SeqCst) + 1;
                let gate = gate.clone();
                async move {
                    gate.acquire().await.expect("open").forget();
                    number
                }
            }
        });
        let first = tokio::spawn({
            let rounds = rounds.clone();
            async move { rounds.join().await }
        });
        while started.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let others: Vec<_> = (0..100)
            .map(|_| {
                let rounds = rounds.clone();
                tokio::spawn(async move { rounds.join().await })
            })
            .collect();
        while rounds.inner.line.lock().waiting.len() < 100 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(first.await.expect("ran"), Ok(1));
        for other in join_all(others).await {
            assert_eq!(other.expect("ran"), Ok(2));
        }
        assert_eq!(started.load(Ordering::SeqCst), 2);
        assert!(!rounds.inner.line.lock().running);
    }

    #[tokio::test]
    async fn the_line_is_bounded() {
        let rounds = Rounds::new(0, || async {});
        assert_eq!(rounds.join().await, Err(NodeError::overloaded()));
    }
}
