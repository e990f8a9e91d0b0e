//! Many callers, one round: whoever comes while a round is under way shares the next one.
//!
//! A round that began before a caller came must never answer that caller: it may know less than the caller has a right to.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::{Bound, NodeError};
use crate::replica::Replica;

type Round<T> = Box<dyn Fn() -> Pin<Box<dyn Future<Output = T> + Send>> + Send + Sync>;

/// See the module's text. A clone is the same thing.
pub(crate) struct Rounds<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    name: &'static str,
    replica: Weak<Replica>,
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
    /// Should a round panic, this node cannot go on: whoever waits would wait for ever.
    pub(crate) fn new<F>(
        name: &'static str,
        replica: &Arc<Replica>,
        max_waiting: usize,
        round: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let line = Mutex::new(Line { waiting: Vec::new(), running: false });
        let (round, replica): (Round<T>, _) = (Box::new(move || Box::pin(round())), Arc::downgrade(replica));
        Self { inner: Arc::new(Inner { name, replica, round, line, max_waiting }) }
    }

    /// The result of a round that began after this call.
    pub(crate) async fn join(&self) -> Result<T, NodeError> {
        let (sender, receiver) = oneshot::channel();
        let first = {
            let mut line = self.inner.line.lock();
            if line.waiting.len() >= self.inner.max_waiting {
                return Err(NodeError::overloaded(Bound::Reads));
            }
            line.waiting.push(sender);
            !std::mem::replace(&mut line.running, true)
        };
        if first {
            // A task of its own: the caller who happens to come first may be dropped.
            drop(self.inner.replica.upgrade().map(|replica| replica.tasks.spawn(run(self.inner.clone()))));
        }
        receiver.await.map_err(|_| NodeError::ShuttingDown)
    }
}

/// Says so if its round panics, and lets nobody wait for it.
struct Alarm<T>(Arc<Inner<T>>);

impl<T> Drop for Alarm<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let mut line = self.0.line.lock();
        line.running = false;
        line.waiting.clear();
        drop(line);
        if let Some(replica) = self.0.replica.upgrade() {
            replica.tasks.fail(format!("the node's {} has panicked; start again, and report this", self.0.name));
        }
    }
}

async fn run<T: Clone>(inner: Arc<Inner<T>>) {
    let _alarm = Alarm(inner.clone());
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
    use crate::config::NodeConfig;
    use crate::time::clock::SystemClock;

    fn replica(fatal: impl Fn(String) + Send + Sync + 'static) -> Arc<Replica> {
        let config = NodeConfig::new(lockkeeper_consensus::Config::new("test", 1, [(1, "here".to_owned())].into()));
        Replica::new(&config, 1, Arc::new(SystemClock::default()), Arc::new(fatal))
    }

    #[tokio::test]
    async fn who_comes_during_a_round_gets_the_next() {
        let (started, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
        let rounds = Rounds::new("test", &replica(|why| panic!("{why}")), 1_000, {
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
        let rounds = Rounds::new("test", &replica(|why| panic!("{why}")), 0, || async {});
        assert_eq!(rounds.join().await, Err(NodeError::overloaded(Bound::Reads)));
    }

    #[tokio::test]
    async fn a_round_that_panics_is_heard_of_and_nobody_waits_for_it() {
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let replica = replica(move |why| told.send(why).expect("heard"));
        let rounds = Rounds::new("stumbler", &replica, 10, || async { panic!("on purpose") });
        for _ in 0..2 {
            assert_eq!(rounds.join().await, Err::<(), _>(NodeError::ShuttingDown));
            assert!(heard.recv().await.expect("told").contains("stumbler"));
        }
    }
}
