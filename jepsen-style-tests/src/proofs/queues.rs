//! Checks that nothing is left in the queues of locks once nobody asks any more.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::verdict::{Failed, broken};

/// Waits until nobody holds these locks or waits for them, for as long as the sessions of killed clients may take to
/// end. A request that is still there then was left behind. Returns how long it took.
///
/// # Errors
/// Something was left behind.
pub(super) async fn empty<S: AsRef<str>>(cluster: &Cluster, locks: &[S], within: Duration) -> Result<Duration, Failed> {
    let begun = Instant::now();
    for lock in locks {
        loop {
            match cluster.api(1).lock(lock.as_ref()).await {
                Ok(view) if view.value.holders.is_empty() && view.value.waiting == 0 => break,
                // The directory of a lock that nobody wants is reaped.
                Err(failure) if failure.code().is_some() => break,
                other if begun.elapsed() > within => {
                    return broken(format!(
                        "orphans stand in the queue of {} {within:?} after the last wait ended: {other:?}",
                        lock.as_ref()
                    ));
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    Ok(begun.elapsed())
}
