//! One client's turn and its records: asked, then granted or given up, then lost or given back.

use std::future::Future;
use std::time::Duration;

use lockkeeper_client::{Error, Guard};
use tokio::time::timeout;

use super::failed;
use crate::record::{WorkerEvent, tell};

/// What came of asking.
pub(super) enum TurnOutcome<K> {
    /// It is this client's turn.
    Granted(Guard<K>),
    /// The call failed; there may be another try.
    Failed,
    /// The time is over.
    Over,
}

/// Asks for these locks by waiting for `wait`. When the time that is left is over the wait is dropped, which takes the
/// request out of the queue.
pub(super) async fn ask<K>(
    client: u32,
    doing: &str,
    left: Duration,
    locks: Vec<String>,
    wait: impl Future<Output = Result<Guard<K>, Error>>,
) -> TurnOutcome<K> {
    tell(client, WorkerEvent::Asking);
    match timeout(left, wait).await {
        Ok(Ok(guard)) => {
            tell(client, WorkerEvent::Granted { locks, token: guard.token() });
            TurnOutcome::Granted(guard)
        }
        Ok(Err(error)) => {
            failed(client, doing, &error).await;
            TurnOutcome::Failed
        }
        Err(_) => {
            tell(client, WorkerEvent::GaveUp);
            TurnOutcome::Over
        }
    }
}

/// Whether the guard says that the turn is lost.
pub(super) async fn is_lost<K>(client: u32, guard: &Guard<K>) -> bool {
    let lost = guard.is_lost();
    if lost {
        tell(client, WorkerEvent::Lost { token: guard.token(), why: guard.lost().await });
    }
    lost
}

/// Ends the turn.
pub(super) async fn let_go<K>(client: u32, guard: Guard<K>) {
    tell(client, WorkerEvent::Letting { token: guard.token() });
    if let Err(error) = guard.release().await {
        failed(client, "release", &error).await;
    }
}
