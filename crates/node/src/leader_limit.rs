//! How long a caller lets its work wait for the leader. The limit goes with the task that polls the work; a task that
//! it starts has it only through [`within_same_leader_limit`]; those that clean up after the caller do not.

use std::time::Duration;

tokio::task_local! {
    static LIMIT: Duration;
}

/// Does the work of a caller for whom each wait for the leader ends after `limit`, if the node's own limit is longer.
pub fn within_leader_limit<F: Future>(limit: Duration, work: F) -> impl Future<Output = F::Output> {
    LIMIT.scope(limit, work)
}

/// The same for work that goes on in a task of its own, under the limit of the caller whose task this is.
pub fn within_same_leader_limit<F: Future>(work: F) -> impl Future<Output = F::Output> {
    LIMIT.scope(shortened(Duration::MAX), work)
}

/// The node's own limit, or the caller's if that is shorter.
pub(crate) fn shortened(own: Duration) -> Duration {
    LIMIT.try_with(|limit| own.min(*limit)).unwrap_or(own)
}
