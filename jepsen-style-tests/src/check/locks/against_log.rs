//! Compares the clients' answers with the queues in the log: exact, by zxid, whatever the clocks say.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::places::{Place, Places};

use super::Queues;
use super::lock_history::{Hold, LockHistory};
use crate::check::Check;
use crate::history::Completion;
use crate::history::FaultRecord;

/// Every grant that a client was told is a request of the queue, and held at the zxid of the answer: all that stood
/// before it had gone by then, and that is both exclusion and first come, first served. Nobody's request went before
/// one that stood before it and was in its way.
pub fn granted_in_order(told: &LockHistory, queues: &Queues) -> Check {
    const NAME: &str = "grants in the order of the log";
    const PROMISES: &str = "P1 P2 P4";
    let (mut looked, nobody) = (0, Places::default());
    for hold in &told.holds {
        for lock in &hold.asks.locks {
            let places = queues.get(lock).unwrap_or(&nobody);
            // Where the answer names no point, it must have held right before it went, or at the end. A token that the
            // log does not have was never anybody's.
            let gone = places.get(hold.token).and_then(Place::owner_gone);
            let at = hold.zxid.unwrap_or(gone.map_or(u64::MAX, |gone| gone.saturating_sub(1)));
            if let Err(why) = places.holds_after(hold.token, at) {
                return Check {
                    at_us: Some(hold.granted_us),
                    ..Check::invalid(NAME, PROMISES, why, vec![hold.line()])
                };
            }
            looked += 1;
        }
    }
    match looked {
        0 => Check::unknown(NAME, PROMISES, "nobody was granted anything"),
        _ => Check::valid(NAME, PROMISES, format!("{looked} grants, each held in the log when it was told")),
    }
}

/// Every acknowledged release is in the log, at the zxid that was told; nothing that was released has a delay; and what
/// was certainly not released stands until its session ended.
pub fn released_in_log(told: &LockHistory, queues: &Queues) -> Check {
    const NAME: &str = "releases in the log";
    const PROMISES: &str = "P4";
    let (mut looked, mut by_zxid) = (0, 0);
    for hold in &told.holds {
        let Some(change) = hold.released.filter(|change| change.ended == Completion::Ok) else { continue };
        for lock in &hold.asks.locks {
            let place = queues.get(lock).and_then(|places| places.get(hold.token));
            // That it is missing is for `granted_in_order` to tell.
            let Some(place) = place else { continue };
            looked += 1;
            let wrong = match (place.gone, change.zxid) {
                (None, _) => Some("and still stands in the queue at the end".to_owned()),
                (Some(_), _) if place.kept_from.is_some() => {
                    Some("and yet its place was kept, as of a dead holder".into())
                }
                (Some(gone), Some(zxid)) if gone != zxid => Some(format!("at zxid {zxid}, and went at {gone}")),
                (Some(_), zxid) => {
                    by_zxid += usize::from(zxid.is_some());
                    None
                }
            };
            if let Some(wrong) = wrong {
                let detail = format!("token {} of {lock} was given back {wrong}", hold.token);
                let at_us = Some(change.asked_us);
                return Check {
                    at_us,
                    ..Check::invalid(NAME, PROMISES, detail, vec![hold.line(), format!("{place:?}")])
                };
            }
        }
    }
    let detail = format!("{looked} acknowledged releases, {by_zxid} of them compared by zxid");
    if looked == 0 { Check::unknown(NAME, PROMISES, detail) } else { Check::valid(NAME, PROMISES, detail) }
}

/// The cluster's answers to "does this token hold?" are those of the log at the zxid of the answer. None where nobody
/// asked.
pub fn verified_in_log(told: &LockHistory, queues: &Queues) -> Option<Check> {
    const NAME: &str = "verified as in the log";
    const PROMISES: &str = "P1 P7";
    let (mut held, mut not, nobody) = (0, 0, Places::default());
    for asked in &told.verifies {
        let (Some(yes), Some(zxid), Some(lock)) = (asked.yes, asked.zxid, asked.under.locks.first()) else { continue };
        let places = queues.get(lock).unwrap_or(&nobody);
        let token = asked.under.token;
        if places.holds_after(token, zxid).is_ok() != yes {
            let detail =
                format!("{lock}: token {token} was said to hold: {yes}, at zxid {zxid}; the log says otherwise");
            let place = places.get(token).map(|place| format!("{place:?}"));
            let lines =
                vec![format!("{} us: client {} asked", asked.asked_us, asked.client), place.unwrap_or_default()];
            return Some(Check { at_us: Some(asked.asked_us), ..Check::invalid(NAME, PROMISES, detail, lines) });
        }
        if yes { held += 1 } else { not += 1 }
    }
    match (told.verifies.len(), held + not) {
        (0, _) => None,
        (asked, 0) => Some(Check::unknown(NAME, PROMISES, format!("asked {asked} times, and never answered"))),
        _ => Some(Check::valid(NAME, PROMISES, format!("{held} tokens said to hold and {not} said not to"))),
    }
}

/// What a session held goes in the transaction that ends the session, neither before (but by its own release) nor
/// after. None where nothing went with one; but where clients were killed or stopped, something must have.
pub fn gone_with_session(
    told: &LockHistory,
    queues: &Queues,
    ends: &BTreeMap<u64, u64>,
    faults: &[FaultRecord],
) -> Option<Check> {
    const NAME: &str = "locks go with their session, at once";
    const PROMISES: &str = "P6";
    let mut looked = 0;
    for hold in &told.holds {
        let Some(end) = ends.get(&hold.asks.session) else { continue };
        for lock in &hold.asks.locks {
            let Some(place) = queues.get(lock).and_then(|places| places.get(hold.token)) else { continue };
            let gone = place.owner_gone();
            looked += usize::from(gone == Some(*end));
            if gone.is_none_or(|gone| gone > *end) {
                let detail = format!(
                    "the session of token {} ended at {end}, and its place in {lock} went at {gone:?}",
                    hold.token
                );
                let lines = vec![hold.line(), format!("{place:?}")];
                return Some(Check { at_us: Some(hold.granted_us), ..Check::invalid(NAME, PROMISES, detail, lines) });
            }
            let let_go = hold.released.is_some_and(|change| change.ended != Completion::Fail)
                || told.forced_us(hold.token).is_some();
            if !let_go && gone.is_some_and(|gone| gone < *end) {
                let detail = format!(
                    "token {} was not given back, and went at {gone:?}, before its session ended at {end}",
                    hold.token
                );
                let lines = vec![hold.line(), format!("{place:?}")];
                return Some(Check { at_us: Some(hold.granted_us), ..Check::invalid(NAME, PROMISES, detail, lines) });
            }
        }
    }
    let at_an_end: BTreeSet<u64> = ends.values().copied().collect();
    let places = queues.values().flat_map(Places::all).filter_map(Place::owner_gone);
    let in_line = places.filter(|gone| at_an_end.contains(gone)).count().saturating_sub(looked);
    let detail = format!(
        "{} sessions seen to end; {looked} locks went with one, and {in_line} requests of which nobody was told",
        ends.len()
    );
    match looked {
        0 if super::clients_died(faults) => Some(Check::unknown(NAME, PROMISES, detail)),
        0 => None,
        _ => Some(Check::valid(NAME, PROMISES, detail)),
    }
}

/// Nobody gives back what is another's. None where nobody was refused.
pub fn refused_to_others(told: &LockHistory, queues: &Queues) -> Option<Check> {
    const NAME: &str = "nobody frees another's lock";
    const PROMISES: &str = "P1";
    for tried in &told.steals {
        if tried.yes != Some(true) {
            continue;
        }
        let detail = format!(
            "client {} (session {:x}) gave back token {}, which was another's",
            tried.client, tried.under.session, tried.under.token
        );
        let owner = told.holds.iter().find(|hold| hold.token == tried.under.token).map(Hold::line);
        let places = tried.under.locks.first().and_then(|lock| queues.get(lock));
        let place = places.and_then(|places| places.get(tried.under.token)).map(|place| format!("{place:?}"));
        let lines = owner.into_iter().chain(place).collect();
        return Some(Check { at_us: Some(tried.asked_us), ..Check::invalid(NAME, PROMISES, detail, lines) });
    }
    let forced = told.forced.iter().filter(|force| force.yes == Some(true)).count();
    let refused = told.steals.iter().filter(|tried| tried.yes == Some(false)).count();
    let detail =
        format!("{refused} of {} tries refused, the others unknown; {forced} taken by force", told.steals.len());
    (refused > 0).then(|| Check::valid(NAME, PROMISES, detail))
}

#[cfg(test)]
mod tests {
    use super::super::lock_history::TokenAnswer;
    use super::super::testing::{change, fault, hold, queues, told};
    use super::*;
    use crate::check::Verdict;
    use crate::history::ops::TokenRef;

    fn of_l(requests: &[(u64, u64)]) -> Queues {
        queues(&[("l", requests)])
    }

    fn hold_at(token: u64, zxid: impl Into<Option<u64>>) -> Hold {
        Hold { zxid: zxid.into(), ..hold(token) }
    }

    fn answered(token: u64, zxid: u64, yes: bool) -> TokenAnswer {
        let under = TokenRef { locks: vec!["l".into()], token, session: 9 };
        TokenAnswer { client: 1, under, asked_us: 1, ended: Completion::Ok, yes: Some(yes), zxid: Some(zxid) }
    }

    #[test]
    fn grants_out_of_order_or_out_of_nothing_are_found() {
        let log = of_l(&[(5, 20), (6, 12), (7, 30)]);
        let judged = |hold: Hold| granted_in_order(&told(&[hold]), &log).verdict;
        assert_eq!((judged(hold_at(5, 5)), judged(hold_at(7, 20))), (Verdict::Valid, Verdict::Valid));
        assert_eq!(judged(hold_at(7, 19)), Verdict::Invalid, "while 5 held");
        assert_eq!(
            judged(hold_at(8, 40)),
            Verdict::Invalid,
            "a token from nowhere: an acknowledged grant that was lost"
        );
        assert_eq!(judged(hold_at(5, 20)), Verdict::Invalid, "said to hold after it had gone");
        assert_eq!(judged(hold_at(6, None)), Verdict::Invalid, "it went before it could hold");
        assert_eq!(judged(hold_at(5, None)), Verdict::Valid);
        let lost = judged(hold_at(8, None));
        assert_eq!(lost, Verdict::Invalid, "lost, and its answer named no point in the order");
        assert_eq!(granted_in_order(&told(&[]), &log).verdict, Verdict::Unknown, "nothing granted");
        let left = of_l(&[(5, 0), (6, 0)]);
        let judged = |token| granted_in_order(&told(&[hold_at(token, None)]), &left).verdict;
        assert_eq!((judged(5), judged(6)), (Verdict::Valid, Verdict::Invalid), "those who are left at the end");
    }

    #[test]
    fn releases_that_did_not_happen_are_found() {
        let released = |zxid| told(&[Hold { released: change(9, Completion::Ok, zxid), ..hold(5) }]);
        let judged = |zxid, gone| released_in_log(&released(zxid), &of_l(&[(5, gone)])).verdict;
        assert_eq!((judged(Some(9), 9), judged(None, 9)), (Verdict::Valid, Verdict::Valid));
        assert_eq!((judged(Some(9), 0), judged(Some(9), 10)), (Verdict::Invalid, Verdict::Invalid));
    }

    #[test]
    fn wrong_words_on_tokens_are_found() {
        let log = of_l(&[(5, 20), (6, 30)]);
        let judged = |token, zxid, yes| {
            let told = LockHistory { verifies: vec![answered(token, zxid, yes)], ..LockHistory::default() };
            verified_in_log(&told, &log).unwrap().verdict
        };
        assert_eq!(verified_in_log(&LockHistory::default(), &log), None, "nobody asked, so nothing is said");
        let unanswered = TokenAnswer { ended: Completion::Info, yes: None, ..answered(5, 10, true) };
        let silent = LockHistory { verifies: vec![unanswered], ..LockHistory::default() };
        assert_eq!(verified_in_log(&silent, &log).unwrap().verdict, Verdict::Unknown);
        assert_eq!(
            (judged(5, 10, true), judged(6, 10, false), judged(5, 20, false)),
            (Verdict::Valid, Verdict::Valid, Verdict::Valid)
        );
        assert_eq!(
            (judged(5, 10, false), judged(6, 10, true), judged(5, 20, true)),
            (Verdict::Invalid, Verdict::Invalid, Verdict::Invalid)
        );
    }

    #[test]
    fn who_frees_another_s_lock_is_found() {
        let judged = |freed| {
            let told = LockHistory { steals: vec![answered(5, 10, freed)], ..LockHistory::default() };
            refused_to_others(&told, &of_l(&[(5, 10)])).unwrap().verdict
        };
        assert_eq!(refused_to_others(&LockHistory::default(), &of_l(&[(5, 10)])), None);
        assert_eq!((judged(false), judged(true)), (Verdict::Valid, Verdict::Invalid));
    }

    #[test]
    fn what_does_not_go_with_its_session_is_found() {
        let judged = |gone, released: Option<Completion>| {
            let released = released.and_then(|ended| change(9, ended, None));
            let told = told(&[Hold { released, ..hold(5) }]);
            let faults = [fault("client-pause", 1, 2)];
            let ends = BTreeMap::from([(5, 20)]);
            let without = gone_with_session(&told, &of_l(&[(5, gone)]), &ends, &[]).map(|check| check.verdict);
            let with = gone_with_session(&told, &of_l(&[(5, gone)]), &ends, &faults).unwrap().verdict;
            assert_eq!(without, Some(with).filter(|verdict| *verdict != Verdict::Unknown));
            with
        };
        assert_eq!(
            (judged(20, None), judged(12, Some(Completion::Ok)), judged(12, Some(Completion::Info))),
            (Verdict::Valid, Verdict::Unknown, Verdict::Unknown),
            "where nothing went with its session, nothing is shown, and a client that was stopped was to show it"
        );
        assert_eq!(
            (judged(21, None), judged(0, Some(Completion::Info))),
            (Verdict::Invalid, Verdict::Invalid),
            "it outlived its session"
        );
        assert_eq!(
            (judged(19, None), judged(19, Some(Completion::Fail))),
            (Verdict::Invalid, Verdict::Invalid),
            "taken before its time"
        );
    }
}
