//! Checks that work goes on, that queues become empty at the end, and that enough happened for the other checks to mean
//! something.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_checkers::name::LockMode;
use lockkeeper_checkers::places::Places;

use super::Queues;
use super::lock_history::{Hold, LockHistory};
use crate::check::Check;
use crate::history::FaultRecord;
use crate::history::ops::{self, QueueView};
use crate::history::{Completion, History};
use crate::stats::nearest_rank;

/// How long after a fault was taken off somebody must have been granted something.
const AGAIN_WITHIN_US: u64 = 15_000_000;
const FEWEST_GRANTS: usize = 20;
/// How long after a fault was taken off, and a session has had the time to expire, its consequences may be felt.
const SHADOW_US: u64 = 1_500_000;
/// Longer than any session takes to expire and any delay to pass.
const STANDSTILL_US: u64 = 10_000_000;
/// Less than clients with much patience wait.
const TOLD_WITHIN_US: u64 = 2_500_000;

/// After each fault somebody is granted something again. None where there was no fault.
pub fn goes_on(told: &LockHistory, faults: &[FaultRecord], history: &History) -> Option<Check> {
    const NAME: &str = "goes on after each fault";
    const PROMISES: &str = "P10";
    let last_us = told.holds.iter().map(|hold| hold.asked_us).max().unwrap_or(0);
    let mut slowest_us = 0;
    let mut looked = 0;
    for fault in faults {
        let next = told.holds.iter().find(|hold| hold.asked_us > fault.ended_us || hold.granted_us > fault.ended_us);
        let waited_us = next.map(|next| next.granted_us.saturating_sub(fault.ended_us));
        // Clients that stopped asking soon after cannot show it.
        let asked_until = history.events().last().map_or(last_us, |event| event.at_us);
        match waited_us {
            Some(waited) if waited <= AGAIN_WITHIN_US => {
                looked += 1;
                slowest_us = slowest_us.max(waited);
            }
            None if asked_until < fault.ended_us + AGAIN_WITHIN_US => {}
            waited => {
                let detail = match waited {
                    Some(waited) => format!("{} ms until somebody was granted something", waited / 1_000),
                    None => "nobody was granted anything any more".into(),
                };
                let line = format!("{} us: {} ({}) taken off", fault.ended_us, fault.nemesis, fault.what);
                let check = Check::invalid(NAME, PROMISES, detail, vec![line]);
                return Some(Check { at_us: Some(fault.ended_us), ..check });
            }
        }
    }
    let detail = format!("{looked} faults, at most {} ms until the next grant", slowest_us / 1_000);
    match (faults.len(), looked) {
        (0, _) => None,
        (_, 0) => Some(Check::unknown(NAME, PROMISES, "nobody asked for long enough after a fault")),
        _ => Some(Check::valid(NAME, PROMISES, detail)),
    }
}

/// The times in which no fault was on and none had consequences: sessions that it cost have expired, and their
/// successors have come.
pub struct CalmPeriods<'a> {
    faults: &'a [FaultRecord],
    shadow_us: u64,
}

impl<'a> CalmPeriods<'a> {
    /// Between these faults, where sessions live for so long.
    pub fn between(faults: &'a [FaultRecord], ttl: Duration) -> Self {
        Self { faults, shadow_us: u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX).saturating_add(SHADOW_US) }
    }

    fn is(&self, from_us: u64, to_us: u64) -> bool {
        let after = |fault: &FaultRecord| from_us > fault.ended_us.saturating_add(self.shadow_us);
        self.faults.iter().all(|fault| to_us < fault.began_us || after(fault))
    }
}

/// While no fault is on, somebody is granted something all the time. None where there was no such time.
pub fn no_standstill(told: &LockHistory, calm: &CalmPeriods<'_>) -> Option<Check> {
    const NAME: &str = "no standstill";
    const PROMISES: &str = "P2";
    let gaps = told.holds.windows(2).map(|pair| (pair[0].granted_us, pair[1].granted_us));
    let (from_us, to_us) = gaps.filter(|(from, to)| calm.is(*from, *to)).max_by_key(|(from, to)| to - from)?;
    let detail = format!("the longest time without a grant while all was well: {} ms", (to_us - from_us) / 1_000);
    if to_us - from_us > STANDSTILL_US {
        let line = format!("nothing from {from_us} us to {to_us} us");
        return Some(Check { at_us: Some(from_us), ..Check::invalid(NAME, PROMISES, detail, vec![line]) });
    }
    Some(Check::valid(NAME, PROMISES, detail))
}

/// Measures hand-overs: from the zxid at which a waiting request held until its client had the answer. A lost wake-up
/// takes until the client's wait is over. Judged while no fault is on; none where there was no such time.
pub fn handed_over(
    told: &LockHistory,
    queues: &Queues,
    seen_us: &BTreeMap<u64, u64>,
    calm: &CalmPeriods<'_>,
) -> Option<Check> {
    const NAME: &str = "waiters are told";
    const PROMISES: &str = "P2";
    let mut took: Vec<(u64, &Hold)> = Vec::new();
    for hold in &told.holds {
        let Some(from_us) = held_from(queues, hold).and_then(|from| seen_us.get(&from)) else { continue };
        if calm.is(*from_us, hold.granted_us) {
            took.push((hold.granted_us.saturating_sub(*from_us), hold));
        }
    }
    took.sort_unstable_by_key(|(us, _)| *us);
    let at = |percent| nearest_rank(&took, percent).map_or(0, |(us, _)| us / 1_000);
    let detail =
        format!("{} hand-overs while all was well, ms: p50 {}, p99 {}, max {}", took.len(), at(50), at(99), at(100));
    match took.last() {
        Some((us, hold)) if *us > TOLD_WITHIN_US => {
            Some(Check { at_us: Some(hold.granted_us), ..Check::invalid(NAME, PROMISES, detail, vec![hold.line()]) })
        }
        Some(_) => Some(Check::valid(NAME, PROMISES, detail)),
        // If nobody was ever answered, there is no hand-over to be seen.
        None if told.holds.iter().any(|hold| calm.is(hold.asked_us, hold.granted_us)) => {
            Some(Check::unknown(NAME, PROMISES, detail))
        }
        None => None,
    }
}

/// The zxid from which on a request that had to wait held, all of its locks.
fn held_from(queues: &Queues, hold: &Hold) -> Option<u64> {
    let of = |lock: &String| queues.get(lock).and_then(|places| held_one_from(places, hold));
    hold.asks.locks.iter().filter_map(of).max()
}

fn held_one_from(places: &Places, hold: &Hold) -> Option<u64> {
    let from = places.held_from(hold.token)?;
    (from > hold.token && hold.zxid.is_none_or(|zxid| from <= zxid)).then_some(from)
}

/// At the end nobody is left in the queues, by the cluster's answers and by the log.
pub fn all_gone(history: &History, queues: &Queues, seen_us: &BTreeMap<u64, u64>) -> Check {
    const NAME: &str = "nobody is left behind";
    const PROMISES: &str = "P2 P6";
    let ops = history.ops();
    let left_behind = |at_us: Option<u64>, detail: String, lines: Vec<String>| {
        let check = Check::invalid(NAME, PROMISES, detail, lines);
        // A run has an end, and if nothing else is known, that is where somebody was found.
        Check { at_us: at_us.or_else(|| history.events().last().map(|event| event.at_us)), ..check }
    };
    for (lock, places) in queues {
        let mut views = ops.iter().filter(|op| op.what == ops::VIEW && op.input.as_str() == Some(lock));
        let Some(last) = views.rfind(|op| op.ended == Completion::Ok) else {
            return Check::unknown(NAME, PROMISES, format!("nobody looked at the end of {lock}"));
        };
        match last.answer::<QueueView>() {
            Ok(Some(view)) if view.holders.is_empty() && view.waiting == 0 => {}
            Ok(Some(view)) => {
                let left = |token: &u64| format!("{:?}", places.get(*token));
                let lines = view.holders.iter().map(left).collect();
                let detail = format!("long after the last client had gone, {lock} stood so: {view:?}");
                return left_behind(last.completed_us, detail, lines);
            }
            Ok(None) | Err(_) => {
                return Check::unknown(NAME, PROMISES, format!("the last look at {lock} cannot be read"));
            }
        }
        if let Some(left) = places.all().iter().find(|place| place.gone.is_none()) {
            let detail = format!("{lock}: a request is left in the log");
            return left_behind(seen_us.get(&left.token).copied(), detail, vec![format!("{left:?}")]);
        }
    }
    Check::valid(NAME, PROMISES, format!("{} queues, empty in the end", queues.len()))
}

/// Too little contention shows nothing.
pub fn enough(told: &LockHistory, queues: &Queues) -> Check {
    const NAME: &str = "enough happened";
    let requests: usize = queues.values().map(|places| places.all().len()).sum();
    let waited = queues.values().map(|places| {
        let in_line = places.all().windows(2).filter(|pair| pair[0].gone.is_none_or(|gone| gone > pair[1].token));
        in_line.filter(|pair| pair[1].mode != LockMode::Shared || pair[0].mode != LockMode::Shared).count()
    });
    let waited: usize = waited.sum();
    let expired = told.holds.iter().filter(|hold| hold.released.is_none()).count();
    let detail = format!(
        "{} grants told, {} requests fruitless and {} of unknown outcome; {requests} requests in the log, {waited} of \
            which had to wait; {expired} grants never given back",
        told.holds.len(),
        told.fruitless,
        told.unknown
    );
    if told.holds.len() < FEWEST_GRANTS || waited < FEWEST_GRANTS / 2 {
        return Check::unknown(NAME, "", detail);
    }
    Check::valid(NAME, "", detail)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{self, fault, queues};
    use super::*;
    use crate::check::Verdict;
    use crate::history::{Event, EventKind};

    fn hold(token: u64, granted_us: u64) -> Hold {
        Hold { zxid: Some(token + 1), ..testing::hold_from(token, granted_us) }
    }

    fn told(granted_us: &[u64]) -> LockHistory {
        let holds = (0..).zip(granted_us).map(|(at, granted_us)| hold(at * 10, *granted_us)).collect();
        LockHistory { holds, ..LockHistory::default() }
    }

    const S: u64 = 1_000_000;

    #[test]
    fn a_cluster_that_does_not_come_back_is_found() {
        let ended = |at_us| {
            let event =
                Event { at_us, client: 1, op: 0, kind: EventKind::Note, what: "x".into(), value: json!(1), zxid: None };
            History::new(vec![event])
        };
        let faults = [fault("kill-leader", 5 * S, 10 * S)];
        let judged = |told: &LockHistory, until| goes_on(told, &faults, &ended(until)).unwrap().verdict;
        assert_eq!(judged(&told(&[S, 12 * S]), 60 * S), Verdict::Valid);
        assert_eq!(judged(&told(&[S, 26 * S]), 60 * S), Verdict::Invalid, "late");
        assert_eq!(judged(&told(&[S]), 60 * S), Verdict::Invalid, "never");
        assert_eq!(judged(&told(&[S]), 12 * S), Verdict::Unknown, "nobody asked for long enough to say");
        assert_eq!(goes_on(&told(&[S]), &[], &ended(S)), None, "there was no fault");
    }

    #[test]
    fn standstill_is_found_where_no_fault_explains_it() {
        let judged = |granted_us: &[u64], faults: &[FaultRecord]| {
            no_standstill(&told(granted_us), &CalmPeriods::between(faults, TTL)).map(|check| check.verdict)
        };
        assert_eq!(judged(&[S, 5 * S, 9 * S], &[]), Some(Verdict::Valid));
        assert_eq!(judged(&[S, 12 * S], &[]), Some(Verdict::Invalid));
        let fault = [fault("kill-leader", 2 * S, 6 * S)];
        assert_eq!(judged(&[S, 12 * S], &fault), None, "there was no calm");
        // Sessions live for 2 s: whoever waited for one to expire has come 3.5 s after the fault.
        assert_eq!(judged(&[S, 9 * S, 20 * S], &fault), None);
        assert_eq!(judged(&[S, 10 * S, 21 * S], &fault), Some(Verdict::Invalid), "and so this is nobody's shadow");
    }

    const TTL: Duration = Duration::from_secs(2);

    #[test]
    fn a_lost_wake_up_is_found() {
        let one = queues(&[("l", &[(5, 20), (6, 30)])]);
        let judged = |hold: Hold, faults: &[FaultRecord]| {
            let told = LockHistory { holds: vec![hold], ..LockHistory::default() };
            handed_over(&told, &one, &BTreeMap::from([(20, 10 * S), (25, 13 * S)]), &CalmPeriods::between(faults, TTL))
        };
        let waited = |granted_us, faults: &[FaultRecord]| {
            judged(Hold { zxid: Some(20), asked_us: 9 * S, ..hold(6, granted_us) }, faults).map(|check| check.verdict)
        };
        assert_eq!(waited(11 * S, &[]), Some(Verdict::Valid));
        assert_eq!(waited(14 * S, &[]), Some(Verdict::Invalid));
        // The fault was off for longer than a session lives and somebody needs to be told of it.
        assert_eq!(waited(14 * S, &[fault("kill-one", S, 6 * S)]), Some(Verdict::Invalid), "lost after a fault");
        assert_eq!(waited(14 * S, &[fault("kill-one", S, 7 * S)]), None, "in its shadow");
        assert_eq!(judged(hold(5, 9 * S), &[]).unwrap().verdict, Verdict::Unknown, "nobody who had waited was told");
        // Of two that are held together it is the later that counts.
        let both = queues(&[("l", &[(5, 20), (6, 30)]), ("m", &[(4, 25), (6, 30)])]);
        let mut joint = Hold { zxid: Some(25), ..hold(6, 14 * S) };
        joint.asks.locks.push("m".into());
        assert_eq!((held_from(&one, &joint), held_from(&both, &joint)), (Some(20), Some(25)));
    }

    #[test]
    fn who_is_left_behind_is_found() {
        let view = |view: QueueView| {
            let event =
                |at_us, kind, value| Event { at_us, client: 1, op: 1, kind, what: ops::VIEW.into(), value, zxid: None };
            History::new(vec![event(1, EventKind::Invoke, json!("l")), event(2, EventKind::Ok, json!(view))])
        };
        let nobody = queues(&[("l", &[])]);
        let empty = QueueView { holders: Vec::new(), waiting: 0 };
        let judged = |history: &History, queues: &Queues| {
            let check = all_gone(history, queues, &BTreeMap::new());
            assert_eq!(check.verdict == Verdict::Invalid, check.at_us.is_some(), "{check:?}");
            check.verdict
        };
        assert_eq!(judged(&view(empty.clone()), &nobody), Verdict::Valid);
        assert_eq!(judged(&view(QueueView { waiting: 1, ..empty.clone() }), &nobody), Verdict::Invalid);
        assert_eq!(judged(&view(QueueView { holders: vec![5], waiting: 0 }), &nobody), Verdict::Invalid);
        assert_eq!(judged(&History::default(), &nobody), Verdict::Unknown);
        assert_eq!(judged(&view(empty), &queues(&[("l", &[(5, 0)])])), Verdict::Invalid);
        assert_eq!(enough(&LockHistory::default(), &nobody).verdict, Verdict::Unknown);
    }
}
