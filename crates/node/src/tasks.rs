//! The tasks of a node that go on beside its callers. None is detached: a shutdown stops and joins them all.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Called once, with one line, when this node cannot go on.
pub(crate) type FatalHook = Arc<dyn Fn(String) + Send + Sync>;

/// See the module's text. A clone is the same set of tasks.
#[derive(Clone)]
pub(crate) struct Tasks {
    running: TaskTracker,
    stop: CancellationToken,
    fatal: FatalHook,
}

impl Tasks {
    pub(crate) fn new(fatal: FatalHook) -> Self {
        Self { running: TaskTracker::new(), stop: CancellationToken::new(), fatal }
    }

    /// Runs a task until it ends or the node stops; then its result is `None`.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.running.spawn(self.stop.clone().run_until_cancelled_owned(task))
    }

    /// Runs a task that learns itself that the node stops ([`Tasks::until_stopped`]), and ends then.
    pub(crate) fn spawn_on(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn_on(task, runtime);
    }

    /// Runs a task that this node cannot do without: if it panics, the process is told to end.
    pub(crate) fn spawn_vital(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let this = self.clone();
        self.spawn(async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                this.fail(format!("the node's {name} has panicked; start again, and report this"));
            }
        });
    }

    /// The result of `work`, or `None` if the node stops before.
    pub(crate) async fn until_stopped<F: Future>(&self, work: F) -> Option<F::Output> {
        self.stop.run_until_cancelled(work).await
    }

    pub(crate) fn are_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells the process that this node cannot go on.
    pub(crate) fn fail(&self, why: String) {
        (self.fatal)(why);
    }

    /// From here on every task ends at its next await.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.running.close();
    }

    /// Waits until all tasks have ended, after [`stop`](Self::stop).
    pub(crate) async fn join(&self) {
        self.running.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_vital_task_that_panics_ends_the_node_and_one_that_is_stopped_does_not() {
        let (failed, mut failures) = mpsc::unbounded_channel();
        let tasks = Tasks::new(Arc::new(move |why| failed.send(why).unwrap()));
        tasks.spawn_vital("idler", std::future::pending());
        tasks.spawn_vital("stumbler", async { panic!("on purpose") });
        assert!(failures.recv().await.unwrap().contains("stumbler"));
        tasks.stop();
        tasks.join().await;
        assert!(failures.try_recv().is_err(), "stopping is no failure");
    }
}
