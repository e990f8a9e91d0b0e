//! Whether this process stood still, frozen by a signal or with its virtual machine. Time that passed meanwhile says
//! nothing about the cluster.

use std::pin::pin;
use std::time::Duration;

use lockkeeper_client::Moment;
use tokio::time::sleep;

const TICK: Duration = Duration::from_millis(100);
/// A timer may be so late without a pause of the process.
const LATE: Duration = Duration::from_millis(400);
/// How often work in doubt is repeated.
const MOST_REPEATS: u32 = 3;

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
async fn noting_pauses<T>(work: impl Future<Output = T>) -> (T, bool) {
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

/// Does work whose result is in doubt if this process stood still meanwhile, and then does it once more: a few times at
/// most, because a machine that is always late must end too. Also returns whether the result is still in doubt.
pub(super) async fn again_after_pauses<T>(
    mut work: impl AsyncFnMut() -> T,
    can_come_of_pause: impl Fn(&T) -> bool,
) -> (T, bool) {
    let mut more = MOST_REPEATS;
    loop {
        let (done, paused) = noting_pauses(work()).await;
        let in_doubt = paused && can_come_of_pause(&done);
        if !in_doubt || more == 0 {
            return (done, in_doubt);
        }
        more -= 1;
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

    #[tokio::test]
    async fn work_in_doubt_is_repeated_a_few_times() {
        // What each attempt returns, and whether this process stands still meanwhile.
        for (attempts, expected) in [
            (&[(1, false), (2, false)][..], (1, false)),
            (&[(1, true), (2, false)], (2, false)),
            (&[(20, true), (2, false)], (20, false)),
            (&[(1, true), (2, true), (3, true), (4, true), (5, true)], (4, true)),
        ] {
            let mut attempts = attempts.iter();
            let work = async || {
                let (result, stands_still) = *attempts.next().unwrap();
                if stands_still {
                    std::thread::sleep(TICK + LATE + TICK);
                }
                result
            };
            assert_eq!(again_after_pauses(work, |result: &i32| *result < 10).await, expected);
        }
    }
}
