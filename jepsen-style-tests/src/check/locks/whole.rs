//! Checks locks that are held together: their requests come in one transaction and go in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use super::Queues;
use super::lock_history::{Hold, LockHistory};
use crate::check::Check;

/// The requests of a token stand in the queues of exactly the locks that were asked for, came in one transaction (its
/// zxid is the token) and went in one: in a release, in the library's taking back, or with their session. No workload
/// breaks a part of them by force.
pub(super) fn whole(told: &LockHistory, queues: &Queues) -> Check {
    const NAME: &str = "joint locks come and go whole";
    const PROMISES: &str = "P1 P6";
    let mut by_token: BTreeMap<u64, BTreeMap<&str, Option<u64>>> = BTreeMap::new();
    for (lock, places) in queues {
        for place in places.all() {
            by_token.entry(place.token).or_default().insert(lock, place.gone);
        }
    }
    for (token, parts) in &by_token {
        let ends: BTreeSet<Option<u64>> = parts.values().copied().collect();
        if ends.len() > 1 {
            let at_us = told.holds.iter().find(|hold| hold.token == *token).map(|hold| hold.granted_us);
            let detail = format!("the requests of token {token} went one by one");
            return Check { at_us, ..Check::invalid(NAME, PROMISES, detail, vec![format!("{parts:?}")]) };
        }
    }
    let mut together = 0;
    for hold in &told.holds {
        let want: BTreeSet<&str> = hold.asks.locks.iter().map(String::as_str).collect();
        let have: BTreeSet<&str> = by_token.get(&hold.token).into_iter().flat_map(BTreeMap::keys).copied().collect();
        if want != have {
            let detail = format!("token {} was granted for {want:?} and stands in {have:?}", hold.token);
            return Check {
                at_us: Some(hold.granted_us),
                ..Check::invalid(NAME, PROMISES, detail, vec![Hold::line(hold)])
            };
        }
        together += usize::from(want.len() > 1);
    }
    let detail = format!("{} requests in the log, {together} joint grants told", by_token.len());
    if together == 0 { Check::unknown(NAME, PROMISES, detail) } else { Check::valid(NAME, PROMISES, detail) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{hold, queues, told};
    use super::*;
    use crate::check::Verdict;

    fn granted(token: u64, locks: &[&str]) -> LockHistory {
        let mut hold = hold(token);
        hold.asks.locks = locks.iter().map(|lock| (*lock).to_owned()).collect();
        told(&[hold])
    }

    #[test]
    fn parts_are_found() {
        let queues = |a: &[(u64, u64)], b: &[(u64, u64)]| queues(&[("a", a), ("b", b)]);
        let both = granted(5, &["b", "a"]);
        assert_eq!(whole(&both, &queues(&[(5, 9)], &[(5, 9), (6, 7)])).verdict, Verdict::Valid);
        let apart = whole(&both, &queues(&[(5, 9)], &[(5, 8)]));
        assert_eq!((apart.verdict, apart.at_us), (Verdict::Invalid, Some(2)), "went one by one");
        assert_eq!(whole(&granted(5, &["a"]), &queues(&[(5, 9)], &[])).verdict, Verdict::Unknown, "none was joint");
        let unasked = whole(&both, &queues(&[(5, 9), (6, 10)], &[(5, 9), (6, 11)]));
        assert_eq!(unasked.verdict, Verdict::Invalid, "even if nobody was told");
        assert_eq!(whole(&both, &queues(&[(5, 9)], &[])).verdict, Verdict::Invalid, "came in part");
        assert_eq!(
            whole(&granted(5, &["a"]), &queues(&[(5, 9)], &[(5, 9)])).verdict,
            Verdict::Invalid,
            "more than asked for"
        );
    }
}
