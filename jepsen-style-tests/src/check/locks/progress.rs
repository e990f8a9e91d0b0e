//! That things go on, come to an end, and that there was enough of them to say so.

use std::collections::BTreeMap;

use crate::check::locks::names::LockMode;

use super::told::{Hold, Told};
use super::{Place, Queues, holds_after};
use crate::check::Check;
use crate::history::{Ended, History};
use crate::nemesis::FaultRecord;
use crate::workload::tells::{self, View};

/// How long after a fault was taken off somebody must have been granted something.
const AGAIN_WITHIN_US: u64 = 15_000_000;
const FEWEST_GRANTS: usize = 20;
/// How long after a fault was taken off its consequences may be felt.
const SHADOW_US: u64 = 8_000_000;
/// Longer than any session takes to expire and any delay to pass.
const STANDSTILL_US: u64 = 10_000_000;
/// Less than clients with much patience wait.
const TOLD_WITHIN_US: u64 = 2_500_000;

/// After each fault somebody is granted something again.
pub fn goes_on(told: &Told, faults: &[FaultRecord], history: &History) -> Check {
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
                return Check { at_us: Some(fault.ended_us), ..Check::invalid(NAME, PROMISES, detail, vec![line]) };
            }
        }
    }
    Check::valid(NAME, PROMISES, format!("{looked} faults, at most {} ms until the next grant", slowest_us / 1_000))
}

/// Whether a moment is in nobody's shadow: no fault was on, and the last one has been off for long enough.
fn calm(faults: &[FaultRecord], from_us: u64, to_us: u64) -> bool {
    faults.iter().all(|fault| to_us < fault.began_us || from_us > fault.ended_us + SHADOW_US)
}

/// While no fault is on, somebody is granted something all the time.
pub fn no_standstill(told: &Told, faults: &[FaultRecord]) -> Check {
    const NAME: &str = "no standstill";
    const PROMISES: &str = "P2";
    let gaps = told.holds.windows(2).map(|pair| (pair[0].granted_us, pair[1].granted_us));
    let longest = gaps.filter(|(from, to)| calm(faults, *from, *to)).max_by_key(|(from, to)| to - from);
    let Some((from_us, to_us)) = longest else { return Check::valid(NAME, PROMISES, "there was no calm") };
    let detail = format!("the longest time without a grant while all was well: {} ms", (to_us - from_us) / 1_000);
    if to_us - from_us > STANDSTILL_US {
        let line = format!("nothing from {from_us} us to {to_us} us");
        return Check { at_us: Some(from_us), ..Check::invalid(NAME, PROMISES, detail, vec![line]) };
    }
    Check::valid(NAME, PROMISES, detail)
}

/// From when the log had a waiting request hold until its client was told: a wake-up that was lost takes until the client's patience is
/// over. Judged while no fault is on.
pub fn handed_over(told: &Told, queues: &Queues, seen_us: &BTreeMap<u64, u64>, faults: &[FaultRecord]) -> Check {
    const NAME: &str = "waiters are told";
    const PROMISES: &str = "P2 P3";
    let mut took: Vec<(u64, &Hold)> = Vec::new();
    let one_lock = told.holds.iter().filter(|hold| hold.asks.locks.len() == 1);
    for hold in one_lock {
        let Some(places) = hold.asks.locks.first().and_then(|lock| queues.get(lock)) else { continue };
        let Some(from) = held_from(places, hold) else { continue };
        let Some(from_us) = seen_us.get(&from) else { continue };
        if calm(faults, *from_us, hold.granted_us) {
            took.push((hold.granted_us.saturating_sub(*from_us), hold));
        }
    }
    took.sort_unstable_by_key(|(us, _)| *us);
    let at = |share: usize| took.get(took.len().saturating_sub(1) * share / 100).map_or(0, |(us, _)| us / 1_000);
    let detail =
        format!("{} hand-overs while all was well, ms: p50 {}, p99 {}, max {}", took.len(), at(50), at(99), at(100));
    match took.last() {
        Some((us, hold)) if *us > TOLD_WITHIN_US => {
            Check { at_us: Some(hold.granted_us), ..Check::invalid(NAME, PROMISES, detail, vec![hold.line()]) }
        }
        _ => Check::valid(NAME, PROMISES, detail),
    }
}

/// The zxid from which on a request that had to wait held.
fn held_from(places: &[Place], hold: &Hold) -> Option<u64> {
    if holds_after(places, hold.token, hold.token).is_ok() {
        return None;
    }
    let ends = places.iter().take_while(|place| place.token < hold.token);
    let ends = ends.flat_map(|place| [place.gone, place.reader_from]).flatten();
    let mut ends: Vec<u64> = ends.filter(|at| *at > hold.token && hold.zxid.is_none_or(|zxid| *at <= zxid)).collect();
    ends.sort_unstable();
    ends.into_iter().find(|at| holds_after(places, hold.token, *at).is_ok())
}

/// At the end nobody is left in the queues: neither as the cluster tells, nor in the log.
pub fn all_gone(history: &History, queues: &Queues) -> Check {
    const NAME: &str = "nobody is left behind";
    const PROMISES: &str = "P2 P6";
    let ops = history.ops();
    for (lock, places) in queues {
        let mut views = ops.iter().filter(|op| op.what == tells::VIEW && op.input.as_str() == Some(lock));
        let Some(last) = views.rfind(|op| op.ended == Ended::Ok) else {
            return Check::unknown(NAME, PROMISES, format!("nobody looked at the end of {lock}"));
        };
        match last.answer::<View>() {
            Ok(Some(view)) if view.holders.is_empty() && view.waiting == 0 => {}
            Ok(Some(view)) => {
                let left = |token: &u64| format!("{:?}", places.iter().find(|place| place.token == *token));
                let lines = view.holders.iter().map(left).collect();
                return Check::invalid(
                    NAME,
                    PROMISES,
                    format!("long after the last client had gone, {lock} stood so: {view:?}"),
                    lines,
                );
            }
            Ok(None) | Err(_) => {
                return Check::unknown(NAME, PROMISES, format!("the last look at {lock} cannot be read"));
            }
        }
        if let Some(left) = places.iter().find(|place| place.gone.is_none()) {
            return Check::invalid(
                NAME,
                PROMISES,
                format!("{lock}: a request is left in the log"),
                vec![format!("{left:?}")],
            );
        }
    }
    Check::valid(NAME, PROMISES, format!("{} queues, empty in the end", queues.len()))
}

/// Too little contention shows nothing.
pub fn enough(told: &Told, queues: &Queues) -> Check {
    const NAME: &str = "enough happened";
    let requests: usize = queues.values().map(Vec::len).sum();
    let waited = queues.values().map(|places| {
        let in_line = places.windows(2).filter(|pair| pair[0].gone.is_none_or(|gone| gone > pair[1].token));
        in_line.filter(|pair| pair[1].mode != LockMode::Shared || pair[0].mode != LockMode::Shared).count()
    });
    let waited: usize = waited.sum();
    let expired = told.holds.iter().filter(|hold| hold.released.is_none()).count();
    let detail = format!(
        "{} grants told, {} requests fruitless and {} of unknown outcome; {requests} requests in the log, {waited} of which had to wait; \
         {expired} grants never given back",
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
    use lockkeeper_client::api::locks::Mode;
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::history::{Event, Kind};
    use crate::workload::tells::Asks;

    fn hold(token: u64, granted_us: u64) -> Hold {
        let locks = vec!["l".to_owned()];
        let asks = Asks { locks, mode: Mode::Exclusive, wait_ms: 0, session: 1, permits: None, delay_ms: 0 };
        let (client, zxid, asked_us) = (1, Some(token + 1), granted_us - 5);
        Hold { client, asks, token, zxid, asked_us, granted_us, released: None, downgraded: None }
    }

    fn told(granted_us: &[u64]) -> Told {
        let holds = (0..).zip(granted_us).map(|(at, granted_us)| hold(at * 10, *granted_us)).collect();
        Told { holds, ..Told::default() }
    }

    fn fault(began_us: u64, ended_us: u64) -> FaultRecord {
        let (nemesis, what, evidence) = ("kill-leader".into(), String::new(), Vec::new());
        FaultRecord { nemesis, what, began_us, ended_us, evidence, bit: true, stops_holders: false }
    }

    const S: u64 = 1_000_000;

    #[test]
    fn a_cluster_that_does_not_come_back_is_found() {
        let ended = |at_us| {
            let event =
                Event { at_us, client: 1, op: 0, kind: Kind::Told, what: "x".into(), value: json!(1), zxid: None };
            History::new(vec![event])
        };
        let judged = |told: &Told, until| goes_on(told, &[fault(5 * S, 10 * S)], &ended(until)).verdict;
        assert_eq!(judged(&told(&[S, 12 * S]), 60 * S), Verdict::Valid);
        assert_eq!(judged(&told(&[S, 26 * S]), 60 * S), Verdict::Invalid, "late");
        assert_eq!(judged(&told(&[S]), 60 * S), Verdict::Invalid, "never");
        assert_eq!(judged(&told(&[S]), 12 * S), Verdict::Valid, "nobody asked for long enough to say");
    }

    #[test]
    fn standstill_is_found_where_no_fault_explains_it() {
        assert_eq!(no_standstill(&told(&[S, 5 * S, 9 * S]), &[]).verdict, Verdict::Valid);
        assert_eq!(no_standstill(&told(&[S, 12 * S]), &[]).verdict, Verdict::Invalid);
        assert_eq!(no_standstill(&told(&[S, 12 * S]), &[fault(2 * S, 6 * S)]).verdict, Verdict::Valid);
    }

    #[test]
    fn a_lost_wake_up_is_found() {
        let place = |token, gone| Place {
            token,
            mode: LockMode::Exclusive,
            delay_ms: 0,
            reader_from: None,
            kept_from: None,
            gone: Some(gone),
        };
        let queues = Queues::from([("l".to_owned(), vec![place(5, 20), place(6, 30)])]);
        let waited = |granted_us| {
            let told = Told { holds: vec![Hold { zxid: Some(20), ..hold(6, granted_us) }], ..Told::default() };
            handed_over(&told, &queues, &BTreeMap::from([(20, 10 * S)]), &[])
        };
        assert_eq!(waited(11 * S).verdict, Verdict::Valid);
        assert!(waited(11 * S).detail.contains("1 hand-overs"));
        assert_eq!(waited(14 * S).verdict, Verdict::Invalid);
    }

    #[test]
    fn who_is_left_behind_is_found() {
        let view = |view: View| {
            let event = |at_us, kind, value| Event {
                at_us,
                client: 1,
                op: 1,
                kind,
                what: tells::VIEW.into(),
                value,
                zxid: None,
            };
            History::new(vec![event(1, Kind::Invoke, json!("l")), event(2, Kind::Ok, json!(view))])
        };
        let queues = Queues::from([("l".to_owned(), Vec::new())]);
        let empty = View { holders: Vec::new(), waiting: 0 };
        assert_eq!(all_gone(&view(empty.clone()), &queues).verdict, Verdict::Valid);
        assert_eq!(all_gone(&view(View { waiting: 1, ..empty.clone() }), &queues).verdict, Verdict::Invalid);
        assert_eq!(all_gone(&view(View { holders: vec![5], waiting: 0 }), &queues).verdict, Verdict::Invalid);
        assert_eq!(all_gone(&History::default(), &queues).verdict, Verdict::Unknown);
        assert_eq!(enough(&Told::default(), &queues).verdict, Verdict::Unknown);
    }
}
