//! Logs an entry that took long to apply: every later entry waited for it, and so did every read.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Batch, Command, LockOp, NodeOp, Op};
use parking_lot::Mutex;

/// How long an entry may take.
const BUDGET: Duration = Duration::from_millis(20);
/// The least time between two log lines.
const EVERY: Duration = Duration::from_secs(10);

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct SlowApply(Mutex<LogThrottle>);

#[derive(Debug, Default)]
struct LogThrottle {
    /// Nothing is logged before this.
    next: Duration,
    /// Slow entries since the last line that were not logged.
    suppressed: u64,
}

impl SlowApply {
    /// Applying an entry took so long and ended at `now`.
    pub(crate) fn record(&self, batch: &Batch, took: Duration, now: Duration) {
        if took <= BUDGET {
            return;
        }
        metrics::counter!("lockkeeper_slow_applies_total").increment(1);
        let mut throttle = self.0.lock();
        if now < throttle.next {
            throttle.suppressed += 1;
            return;
        }
        let suppressed = std::mem::take(&mut throttle.suppressed);
        throttle.next = now + EVERY;
        tracing::warn!(
            took_ms = took.as_millis() as u64,
            budget_ms = BUDGET.as_millis() as u64,
            commands = %contents(batch),
            unreported = suppressed,
            "an entry of the log took long to apply; all other requests waited for it"
        );
    }
}

/// How many commands there are of each kind.
fn contents(batch: &Batch) -> String {
    let mut kinds = BTreeMap::<&str, usize>::new();
    batch.commands.iter().for_each(|command| *kinds.entry(kind_of(command)).or_default() += 1);
    kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")
}

fn kind_of(command: &Command) -> &'static str {
    match command {
        Command::OpenSession { .. } | Command::OpenSessionAs { .. } => "open-session",
        Command::CloseSession { .. } => "close-session",
        Command::ExpireSessions { .. } => "expire-sessions",
        Command::EndUnauthorised { .. } => "end-unauthorised",
        Command::Reap { .. } => "reap",
        Command::AttachSession { .. } => "attach-session",
        Command::RecordTokenUses { .. } => "record-token-uses",
        Command::RaiseFeatureLevel { .. } => "raise-feature-level",
        Command::SetClusterUid { .. } => "set-cluster-uid",
        Command::Do { op, .. } => match op {
            Op::Node(NodeOp::Create { .. }) => "create",
            Op::Node(NodeOp::Delete { .. }) => "delete",
            Op::Node(NodeOp::SetData { .. } | NodeOp::Add { .. }) => "set-data",
            Op::Node(NodeOp::SetAcl { .. }) => "set-acl",
            Op::Multi(_) => "multi",
            Op::Lock(LockOp::Acquire { .. } | LockOp::AcquireReentrant { .. }) => "acquire",
            Op::Lock(
                LockOp::Release { .. } | LockOp::Withdraw { .. } | LockOp::Abandon { .. } | LockOp::ForceRelease { .. },
            ) => "release",
            Op::Gate(_) => "gate",
            Op::Access(_) => "access",
            Op::Rate(_) => "rate",
            Op::Node(NodeOp::Check { .. } | NodeOp::CheckLock { .. })
            | Op::Lock(LockOp::Downgrade { .. } | LockOp::Claim { .. }) => "other",
        },
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{NodeId, Origin, SessionId};

    use super::*;

    #[test]
    fn what_an_entry_holds_is_named_and_lines_are_bounded() {
        let close = || Command::CloseSession { session: SessionId(1) };
        let commands = vec![close(), Command::Reap { paths: Vec::new() }, close()];
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: 1 };
        let batch = Batch::consecutive(origin, 1, commands);
        assert_eq!(contents(&batch), "close-session 2, reap 1");
        let slow = SlowApply::default();
        let at = |seconds| slow.record(&batch, Duration::from_millis(21), Duration::from_secs(seconds));
        let throttle = || {
            let throttle = slow.0.lock();
            (throttle.next, throttle.suppressed)
        };
        slow.record(&batch, BUDGET, Duration::ZERO);
        assert_eq!(throttle(), (Duration::ZERO, 0), "that was within the budget");
        [1, 2, 10].into_iter().for_each(at);
        assert_eq!(throttle(), (Duration::from_secs(11), 2));
        at(11);
        assert_eq!(throttle(), (Duration::from_secs(21), 0));
    }
}
