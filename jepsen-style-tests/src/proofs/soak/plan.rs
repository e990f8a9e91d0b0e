//! When what happens: four equal quarters with the same faults at the same offsets. The first is the warm-up; the other
//! three are compared, so that like is compared with like whatever a restart does to memory.

use std::time::Duration;

/// Shorter ones show nothing.
pub(super) const SHORTEST: Duration = Duration::from_secs(120);
/// In a long run a fault comes so often.
const FAULT_EVERY: Duration = Duration::from_secs(110);
/// In a short one there are so many faults in a quarter, where each has this much time.
const FEW_FAULTS: u32 = 4;
const LEAST_TIME: Duration = Duration::from_secs(15);
const LIVES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(20));
const SAMPLE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// What is done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// `kill -9`, and started again.
    Kill,
    /// SIGTERM, and started again when it has ended.
    Terminate,
    /// SIGSTOP, and SIGCONT a few seconds later.
    Pause,
}

/// Which node. One of the three is never ended: what leaks in a process shows there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// The node that is never ended.
    Lasting,
    /// One of the two others.
    First,
    /// The other one.
    Second,
}

/// A fault of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedFault {
    pub(super) kind: FaultKind,
    pub(super) victim: Victim,
    /// Whether leadership is handed to the victim first.
    pub(super) leading: bool,
}

const fn planned(kind: FaultKind, victim: Victim, leading: bool) -> PlannedFault {
    PlannedFault { kind, victim, leading }
}

/// A quarter begins with these, in this order, and repeats them.
const FAULTS: [PlannedFault; 6] = [
    planned(FaultKind::Kill, Victim::First, true),
    planned(FaultKind::Terminate, Victim::Second, false),
    planned(FaultKind::Pause, Victim::Lasting, true),
    planned(FaultKind::Kill, Victim::Second, true),
    planned(FaultKind::Kill, Victim::First, false),
    planned(FaultKind::Kill, Victim::Second, false),
];

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    quarter: Duration,
    faults: u32,
}

impl Plan {
    /// The plan of a run of that length; at least [`SHORTEST`].
    pub(super) fn of(length: Duration) -> Self {
        let quarter = length.max(SHORTEST) / 4;
        let fits = |each: Duration| u32::try_from(quarter.as_secs() / each.as_secs()).unwrap_or(u32::MAX);
        Self { quarter, faults: fits(FAULT_EVERY).max(fits(LEAST_TIME).min(FEW_FAULTS)).max(1) }
    }

    /// The whole time.
    pub(super) fn length(&self) -> Duration {
        self.quarter * 4
    }

    /// The warm-up: the first quarter.
    pub(super) fn warm_up(&self) -> Duration {
        self.quarter
    }

    /// From one fault to the next.
    pub(super) fn interval(&self) -> Duration {
        self.quarter / self.faults
    }

    /// How long a client's session lives before it is closed and another is opened at the client's own node. So clients
    /// come back to a node that was down, and each node has as many connections as before.
    pub(super) fn session_life(&self) -> Duration {
        (self.interval() / 5).clamp(LIVES.0, LIVES.1)
    }

    /// How long after a fault the clients may need to be back at their own nodes.
    pub(super) fn settles_within(&self) -> Duration {
        self.session_life() + Duration::from_secs(2)
    }

    /// From one sample to the next.
    pub(super) fn sample_every(&self) -> Duration {
        (self.length() / 600).clamp(SAMPLE.0, SAMPLE.1)
    }

    /// All faults and when they begin, counted from the beginning of the run.
    pub(super) fn faults(&self) -> impl Iterator<Item = (Duration, PlannedFault)> + use<> {
        let (quarter, interval, faults) = (self.quarter, self.interval(), self.faults);
        let in_quarter = move |number: u32| {
            let fault = FAULTS[number as usize % FAULTS.len()];
            (interval * number, fault)
        };
        (0..4u32)
            .flat_map(move |at| (0..faults).map(in_quarter).map(move |(offset, fault)| (quarter * at + offset, fault)))
    }

    /// Whether thresholds must be small for snapshots to be taken often enough.
    pub(super) fn is_short(&self) -> bool {
        self.quarter < FAULT_EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(count: u64) -> Plan {
        Plan::of(Duration::from_secs(count * 60))
    }

    #[test]
    fn quarters_have_the_same_faults_at_the_same_offsets() {
        for plan in [minutes(2), minutes(15), minutes(30), minutes(24 * 60)] {
            let all: Vec<_> = plan.faults().collect();
            let each = all.len() / 4;
            for (number, (at, fault)) in all.iter().enumerate() {
                let (offset, same) = all[number % each];
                let quarter = u32::try_from(number / each).unwrap();
                assert_eq!((*at, *fault), (offset + plan.warm_up() * quarter, same));
            }
            assert!(all.iter().all(|(at, _)| *at + plan.interval() <= plan.length() + Duration::from_millis(1)));
            assert!(plan.interval() > plan.settles_within() + Duration::from_secs(5), "calm time is left: {plan:?}");
        }
    }

    #[test]
    fn a_long_run_has_a_fault_every_few_minutes_and_a_short_one_some() {
        assert_eq!(minutes(24 * 60).faults().count(), 4 * 196);
        assert_eq!(minutes(30).faults().count(), 4 * 4);
        assert_eq!(minutes(15).faults().count(), 4 * 4);
        assert_eq!(minutes(2).faults().count(), 4 * 2);
        assert_eq!(minutes(0), minutes(2), "never shorter");
    }

    #[test]
    fn the_lasting_node_is_never_ended() {
        let ended = FAULTS.iter().filter(|fault| fault.kind != FaultKind::Pause);
        assert!(ended.clone().all(|fault| fault.victim != Victim::Lasting));
        for victim in [Victim::First, Victim::Second] {
            assert!(ended.clone().any(|fault| fault.victim == victim && fault.leading));
        }
    }
}
