//! How soon one batch of large commands may follow another. Each command waits for those of one batch before it, and a
//! megabyte takes many times as long as a small command: if one large batch came right after the other, every small
//! command would meet one (promise P13).

use std::time::Duration;

/// The pause after a large batch, in times of what it took.
const PAUSE: u32 = 4;
/// The longest pause: a batch may have taken long because there was no leader.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Nobody is spared a wait where nobody else has changed anything for so long.
const OTHERS_FOR: Duration = Duration::from_secs(1);

/// See the module's text. Times are those of a monotonic clock.
#[derive(Debug, Default)]
pub(super) struct LargePace {
    sent_at: Duration,
    /// The state's zxid after the last large batch.
    zxid: u64,
    /// When changes were last seen that no large batch of this node had made.
    others_at: Option<Duration>,
    next_at: Duration,
}

impl LargePace {
    /// A large batch was sent.
    pub(super) fn sent(&mut self, now: Duration) {
        self.sent_at = now;
    }

    /// The large batch of so many commands was applied; `zxid` is the state's.
    pub(super) fn applied(&mut self, now: Duration, zxid: u64, commands: u64) {
        if zxid.saturating_sub(self.zxid) > commands {
            self.others_at = Some(now);
        }
        self.zxid = zxid;
        if self.others_at.is_some_and(|at| now.saturating_sub(at) < OTHERS_FOR) {
            let took = now.saturating_sub(self.sent_at);
            self.next_at = now + took.saturating_mul(PAUSE).min(LONGEST_PAUSE);
        }
    }

    /// When the next large batch may be sent, if that is later than now.
    pub(super) fn waits_until(&self, now: Duration) -> Option<Duration> {
        (self.next_at > now).then_some(self.next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_pause_follows_while_others_change_something() {
        let mut pace = LargePace::default();
        let mut took = |from, to, zxid, commands| {
            pace.sent(ms(from));
            pace.applied(ms(to), zxid, commands);
            pace.waits_until(ms(to)).map(|until| until - ms(to))
        };
        assert_eq!(took(1_000, 1_010, 50, 1), Some(ms(40)), "the zxids before it are those of others");
        assert_eq!(took(1_050, 1_060, 51, 1), Some(ms(40)), "it was so a moment ago");
        assert_eq!(took(2_100, 2_110, 53, 2), None, "nobody else for a second");
        assert_eq!(took(2_200, 2_203, 56, 2), Some(ms(12)));
        assert_eq!(took(3_000, 9_000, 58, 1), Some(LONGEST_PAUSE));
        assert_eq!(pace.waits_until(ms(9_249)), Some(ms(9_250)));
        assert_eq!(pace.waits_until(ms(9_250)), None);
    }
}
