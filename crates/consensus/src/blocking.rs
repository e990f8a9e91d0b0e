//! Where work that blocks is done: snapshots, far reads of the log, files of peers. Handed in from outside, because a
//! thread pool is the one part of a runtime that is never deterministic: the simulation does such work on its one
//! thread, and lets time pass.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

/// A piece of work.
pub type Work = Box<dyn FnOnce() + Send>;

/// A place for work that blocks.
#[async_trait]
pub trait Blocking: Send + Sync + 'static {
    /// Does the work, even if the caller stops waiting once it has begun. An error: it was not done, or not completely.
    async fn run(&self, work: Work) -> io::Result<()>;

    /// As [`run`](Self::run), for work that takes long and may take longer on a busy machine.
    async fn run_in_background(&self, work: Work) -> io::Result<()> {
        self.run(work).await
    }
}

/// The runtime's threads for such work.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockingPool;

#[async_trait]
impl Blocking for BlockingPool {
    async fn run(&self, work: Work) -> io::Result<()> {
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
    }

    async fn run_in_background(&self, work: Work) -> io::Result<()> {
        self.run(Box::new(move || with_low_priority(work))).await
    }
}

/// How much the priority of a thread is lowered: beside a thread of ordinary priority that is busy, it gets a tenth of
/// the processor.
const NICE: i32 = 10;

/// Does the work on a thread of low priority, so that encoding a large state takes no processor from requests where
/// there are few. The priority of a thread can be lowered and not raised again, so the thread is for this work alone.
/// Where there is no thread to be had, this one does the work.
pub fn with_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = Mutex::new(Some(work));
    let take = || work.lock().take().map(|work| work());
    let low = || {
        // On Linux this is the thread alone. Where it is not allowed, the work is done at the ordinary priority.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICE);
        take()
    };
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("background".into()).spawn_scoped(scope, low);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => take(),
        }
    });
    done.unwrap_or_else(|| unreachable!("the work is taken once"))
}

/// Does `work` there and returns its result.
pub async fn blocking<T: Send + 'static>(
    place: &dyn Blocking,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (work, result) = returning(work);
    place.run(work).await?;
    result()
}

/// The same in the background.
pub async fn blocking_in_background<T: Send + 'static>(
    place: &dyn Blocking,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (work, result) = returning(work);
    place.run_in_background(work).await?;
    result()
}

/// The work, and what gives its result once it is done.
fn returning<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> (Work, impl FnOnce() -> io::Result<T>) {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let work = Box::new(move || *slot.lock() = Some(work()));
    (work, move || result.lock().take().unwrap_or_else(|| Err(io::Error::other("the work was not done"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_pool_gives_the_result_the_error_and_the_panic() {
        assert_eq!(blocking(&BlockingPool, || Ok(7)).await.unwrap(), 7);
        assert!(blocking::<()>(&BlockingPool, || Err(io::Error::other("no"))).await.is_err());
        assert!(blocking::<()>(&BlockingPool, || panic!("on purpose")).await.is_err());
        assert!(blocking_in_background::<()>(&BlockingPool, || panic!("on purpose")).await.is_err());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn work_in_the_background_has_a_low_priority_and_leaves_it_to_nobody() {
        let priority = || Ok(rustix::process::getpriority_process(None)?);
        let ordinary = priority().unwrap();
        let lowered = (ordinary + NICE).min(19);
        assert_eq!(blocking_in_background(&BlockingPool, priority).await.unwrap(), lowered);
        assert_eq!(blocking(&BlockingPool, priority).await.unwrap(), ordinary);
    }
}
