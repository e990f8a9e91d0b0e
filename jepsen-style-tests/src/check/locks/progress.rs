//! That things go on, come to an end, and that there was enough of them to say so.

use lockkeeper_core::lock::LockMode;

use super::Queues;
use super::told::Told;
use crate::check::Check;
use crate::history::{Ended, History};
use crate::nemesis::FaultRecord;
use crate::workload::tells::{self, View};

/// How long after a fault was taken off somebody must have been granted something.
const AGAIN_WITHIN_US: u64 = 15_000_000;
const FEWEST_GRANTS: usize = 20;

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

/// At the end nobody is left in the queues: neither as the cluster tells, nor in the log.
pub fn all_gone(history: &History, queues: &Queues) -> Check {
    const NAME: &str = "nobody is left behind";
    const PROMISES: &str = "P2 P6";
    let ops = history.ops();
    for (lock, places) in queues {
        let views = ops.iter().filter(|op| op.what == tells::VIEW && op.input.as_str() == Some(lock));
        let Some(last) = views.filter(|op| op.ended == Ended::Ok).last() else {
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
