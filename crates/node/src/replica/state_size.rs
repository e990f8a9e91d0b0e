//! The alarm for a replicated state that nears its size limit, at which changes that add to it are refused.

use std::sync::atomic::{AtomicBool, Ordering};

/// Percent of the limit at which the alarm goes on, and below which it goes off.
const ON_PERCENT: u64 = 80;
const OFF_PERCENT: u64 = 75;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct StateSize {
    limit: u64,
    alarm: AtomicBool,
}

impl StateSize {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, alarm: AtomicBool::new(false) }
    }

    /// Notes the size of the state, and logs when the alarm goes on or off.
    pub(crate) fn record(&self, bytes: u64) {
        let percent = self.percent(bytes);
        let was_on = self.alarm.load(Ordering::Relaxed);
        let is_on = percent >= if was_on { OFF_PERCENT } else { ON_PERCENT };
        if is_on == was_on {
            return;
        }
        self.alarm.store(is_on, Ordering::Relaxed);
        if is_on {
            tracing::warn!(bytes, limit = self.limit, percent, "{NEARLY_FULL}");
        } else {
            tracing::info!(bytes, limit = self.limit, percent, "the replicated state has room again");
        }
    }

    fn percent(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(100) / self.limit.max(1)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The alarm, in words, while it is on.
    pub(crate) fn alarm(&self, bytes: u64) -> Option<String> {
        let is_on = self.alarm.load(Ordering::Relaxed);
        is_on.then(|| format!("{NEARLY_FULL} ({bytes} of {} bytes, {} %)", self.limit, self.percent(bytes)))
    }
}

const NEARLY_FULL: &str = "the replicated state is nearly as large as limits.state_mib allows; when it is, changes \
     that add to it are refused: delete nodes that nobody needs, or raise limits.state_mib on every node";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alarm_goes_off_before_the_limit_and_does_not_flicker() {
        let size = StateSize::new(1_000);
        let at = |bytes| {
            size.record(bytes);
            size.alarm(bytes).is_some()
        };
        assert!(!at(799));
        assert!(at(800) && at(760) && at(2_000));
        assert!(!at(749) && !at(790));
        size.record(900);
        assert!(size.alarm(900).is_some_and(|words| words.contains("limits.state_mib") && words.contains("90 %")));
    }
}
