//! Retries while the cluster has no leader: at each change of leadership, at growing intervals, and until a deadline.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_consensus::Leadership;
use tokio::sync::watch;

use crate::error::NodeError;
use crate::time::clock::Clock;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The pauses between the attempts of one request, or of a task that never gives up.
pub(crate) struct Backoff {
    clock: Arc<dyn Clock>,
    leadership: watch::Receiver<Leadership>,
    deadline: Duration,
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new(clock: Arc<dyn Clock>, leadership: watch::Receiver<Leadership>, limit: Duration) -> Self {
        let deadline = clock.now().saturating_add(limit);
        Self { clock, leadership, deadline, pause: FIRST_PAUSE }
    }

    /// For a task that retries until it is stopped.
    pub(crate) fn endless(clock: Arc<dyn Clock>, leadership: watch::Receiver<Leadership>) -> Self {
        Self::new(clock, leadership, Duration::MAX)
    }

    /// An attempt succeeded: the next pause is a short one again.
    pub(crate) fn reset(&mut self) {
        self.pause = FIRST_PAUSE;
        self.leadership.mark_unchanged();
    }

    /// Waits for a pause, or until leadership changes; fails once the deadline has passed.
    pub(crate) async fn wait(&mut self) -> Result<(), NodeError> {
        let now = self.clock.now();
        if now >= self.deadline {
            return Err(NodeError::no_leader());
        }
        let until = now.saturating_add(self.pause).min(self.deadline);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            Ok(()) = self.leadership.changed() => {}
            () = self.clock.sleep_until(until) => {}
        }
        Ok(())
    }
}
