//! P3: deleting a node wakes only the waiters whose blocker it was. The servers count the waiters that they wake, and
//! the log shows who waited.
//!
//! Only the calm before the first fault is counted: later a counter may be lost with its process.

use std::collections::BTreeSet;

use lockkeeper_checkers::lives::{NodeEvent, lives};
use lockkeeper_checkers::name;
use lockkeeper_checkers::replay::replay;

use crate::check::Check;
use crate::history::Recorded;
use crate::history::WakeUps;

const NAME: &str = "a release wakes its successor alone";

/// The client library may send a call again while its first attempt still waits: then both are woken. Each client does
/// so once at most in a short calm, and seldom in a long one.
fn repeats(owed: u64, clients: u32) -> u64 {
    owed.min(u64::from(clients) + owed / 8)
}

/// Whether the servers woke no more waiters than the queues account for. Nothing is said of a run without wake-ups.
pub(super) fn no_herd(run: &Recorded) -> Option<Check> {
    let (counted, until) = match &run.wake_ups {
        WakeUps::Counted { counted, until } => (*counted, *until),
        WakeUps::NotCounted(why) => return Some(Check::not_checked(NAME, "P3", why)),
    };
    let owed = match accounted_for(&run.log, until) {
        Ok(0) if counted == 0 => return None,
        Ok(owed) => owed,
        Err(why) => return Some(Check::unknown(NAME, "P3", why)),
    };
    let detail = format!("{counted} wake-ups counted up to zxid {until}; the queues account for {owed}");
    Some(if counted == 0 {
        Check::not_checked(NAME, "P3", detail)
    } else if counted <= owed + repeats(owed, run.clients) {
        Check::valid(NAME, "P3", detail)
    } else {
        let at_us = run.seen_us.range(..=until).next_back().map(|(_, at_us)| *at_us);
        Check { at_us, ..Check::invalid(NAME, "P3", detail, Vec::new()) }
    })
}

/// How many wake-ups the queues of all locks account for, up to this zxid.
fn accounted_for(log: &BTreeSet<NodeEvent>, until: u64) -> Result<u64, String> {
    let log: BTreeSet<NodeEvent> = log.iter().filter(|event| event.zxid <= until).cloned().collect();
    let request = |event: &NodeEvent| {
        let (lock, name) = name::lock_and_name(&event.path)?;
        name::parse(name).map(|_| format!("/locks/{lock}"))
    };
    let directories: BTreeSet<String> = log.iter().filter_map(request).collect();
    let mut owed = 0;
    for directory in directories {
        owed += replay(&lives(&log, &directory)?).wake_ups as u64;
    }
    Ok(owed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    /// Two exclusive requests that wait behind a third, and three permits of a semaphore of two. All go, in order.
    fn run(counted: u64) -> Recorded {
        let exclusive = |n: u64| format!("/locks/a/_c_00000000-0000-4000-8000-00000000000{n}-lock-000000000{n}");
        let permit = |n: u64| format!("/locks/s/_c_00000000-0000-4000-8000-00000000000{n}-permit-2-000000000{n}");
        let paths: Vec<String> = (0..3).map(exclusive).chain((0..3).map(permit)).collect();
        let came = (1..).zip(&paths).map(|(zxid, path)| NodeEvent { zxid, created: true, path: path.clone() });
        let went = (11..).zip(&paths).map(|(zxid, path)| NodeEvent { zxid, created: false, path: path.clone() });
        let log = came.chain(went).collect();
        let seen_us = [(1, 100)].into();
        Recorded { log, seen_us, wake_ups: WakeUps::Counted { counted, until: 16 }, clients: 1, ..Recorded::default() }
    }

    #[test]
    fn a_herd_is_found() {
        let verdict = |counted| no_herd(&run(counted)).map(|check| check.verdict);
        assert_eq!(accounted_for(&run(0).log, 16), Ok(3));
        assert_eq!(accounted_for(&run(0).log, 11), Ok(1), "what came later is not counted");
        assert_eq!(verdict(0), Some(Verdict::NotChecked), "the counter stands still");
        assert_eq!(verdict(3), Some(Verdict::Valid));
        assert_eq!(verdict(4), Some(Verdict::Valid), "one was sent again");
        assert_eq!(verdict(6), Some(Verdict::Invalid), "each release woke two");
        assert!(no_herd(&run(6)).unwrap().at_us.is_some());
        assert_eq!(no_herd(&Recorded::default()).unwrap().verdict, Verdict::NotChecked, "nobody counted");
        let idle = WakeUps::Counted { counted: 0, until: 16 };
        assert!(no_herd(&Recorded { wake_ups: idle, ..Recorded::default() }).is_none(), "nobody waited");
    }
}
