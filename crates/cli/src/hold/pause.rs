//! Whether this process stood still, frozen by a signal or with its virtual machine. Time that passed meanwhile says
//! nothing about the cluster.

use std::pin::pin;
use std::time::Duration;

use lockkeeper_client::Moment;
use tokio::time::sleep;

const TICK: Duration = Duration::from_millis(100);
/// A timer may be so late without a pause of the process.
const LATE: Duration = Duration::from_millis(400);

/// Detects that a wait took longer than it was meant to.
pub(super) struct PauseCheck {
    due: Moment,
}

impl PauseCheck {
    /// Before a wait of at most `longest`.
    pub(super) fn before(longest: Duration) -> Self {
        Self { due: Moment::now() + longest }
    }

    /// After it.
    pub(super) fn is_paused(&self) -> bool {
        !(self.due + LATE).until(Moment::now()).is_zero()
    }
}

/// Awaits the work. Also returns whether this process stood still meanwhile.
pub(super) async fn noting_pauses<T>(work: impl Future<Output = T>) -> (T, bool) {
    let mut work = pin!(work);
    let mut paused = false;
    loop {
        let check = PauseCheck::before(TICK);
        let done = tokio::select! {
            biased;
            done = &mut work => Some(done),
            () = sleep(TICK) => None,
        };
        paused |= check.is_paused();
        if let Some(done) = done {
            return (done, paused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_is_noted() {
        assert!(!noting_pauses(std::future::ready(())).await.1);
        let standing_still = async {
            sleep(TICK / 2).await;
            std::thread::sleep(TICK + LATE * 2);
        };
        assert!(noting_pauses(standing_still).await.1);
    }
}
