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
}

/// The runtime's threads for such work.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockingPool;

#[async_trait]
impl Blocking for BlockingPool {
    async fn run(&self, work: Work) -> io::Result<()> {
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
    }
}

/// Does `work` there and returns its result.
pub async fn blocking<T: Send + 'static>(
    place: &dyn Blocking,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    place.run(Box::new(move || *slot.lock() = Some(work()))).await?;
    let done = result.lock().take();
    done.unwrap_or_else(|| Err(io::Error::other("the work was not done")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_pool_gives_the_result_the_error_and_the_panic() {
        assert_eq!(blocking(&BlockingPool, || Ok(7)).await.unwrap(), 7);
        assert!(blocking::<()>(&BlockingPool, || Err(io::Error::other("no"))).await.is_err());
        assert!(blocking::<()>(&BlockingPool, || panic!("on purpose")).await.is_err());
    }
}
