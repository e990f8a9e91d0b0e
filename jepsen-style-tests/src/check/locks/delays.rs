//! Lock delays: a holder whose session expired leaves its place behind, and nobody holds before the delay has passed.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::places::Place;

use super::Queues;
use super::lock_history::{Hold, LockHistory};
use crate::check::Check;
use crate::history::Completion;

const PROMISES: &str = "P1";
const FEWEST: usize = 3;

fn place_of<'a>(queues: &'a Queues, hold: &Hold) -> Option<(&'a String, &'a Place)> {
    let (lock, places) = queues.get_key_value(hold.asks.locks.first()?)?;
    Some((lock, places.get(hold.token)?))
}

/// Each holder that died leaves a kept place behind, in the transaction that ended its session; no other does.
pub(super) fn kept_when_dead(told: &LockHistory, queues: &Queues, seen_us: &BTreeMap<u64, u64>) -> Check {
    const NAME: &str = "a dead holder's place is kept";
    let (mut dead, mut released) = (0, 0);
    for hold in told.holds.iter().filter(|hold| hold.asks.delay_ms > 0) {
        let Some((_, place)) = place_of(queues, hold) else { continue };
        let closed_by = |gone: u64| {
            let session = told.session_of(hold);
            seen_us.get(&gone).map_or(session.closing_us.is_some(), |seen| session.closed_by(*seen))
        };
        let wrong = match (hold.released.map(|change| change.ended), place.kept_from, place.gone) {
            (None | Some(Completion::Fail), None, Some(gone)) if !closed_by(gone) => {
                Some(format!("its holder died, and it went at {gone} without a delay"))
            }
            (Some(Completion::Ok), Some(from), _) => {
                Some(format!("it was given back, and its place kept from {from} on"))
            }
            (None | Some(Completion::Fail), Some(_), _) => {
                dead += 1;
                None
            }
            (Some(Completion::Ok), None, _) => {
                released += 1;
                None
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            let detail = format!("token {}: {wrong}", hold.token);
            let lines = vec![hold.line(), format!("{place:?}")];
            return Check { at_us: Some(hold.granted_us), ..Check::invalid(NAME, PROMISES, detail, lines) };
        }
    }
    let detail = format!("{dead} holders died and their places were kept; {released} gave back, without a delay");
    if dead < FEWEST { Check::unknown(NAME, PROMISES, detail) } else { Check::valid(NAME, PROMISES, detail) }
}

/// By the replicated clock: what a holder made that came after a kept place is not older than the end of the delay; and
/// the delay is as long as was asked for.
pub(super) fn not_before_the_delay(told: &LockHistory, queues: &Queues, seen_us: &BTreeMap<u64, u64>) -> Check {
    const NAME: &str = "nobody before the delay, by the replicated clock";
    let mut looked = 0;
    // Where no watch told of it, the moment is that of the last grant: in a run that has one at all, somewhere after
    // it.
    let last_us = told.holds.last().map(|hold| hold.granted_us);
    let moment = |zxid: Option<u64>| zxid.and_then(|zxid| seen_us.get(&zxid).copied()).or(last_us);
    for kept in &told.kept {
        let Some(place) = queues.get(&kept.lock).and_then(|places| places.get(kept.dead)) else { continue };
        if kept.until_ms != kept.since_ms + u64::from(place.delay_ms) {
            let detail =
                format!("the place of token {} is kept from {} until {} ms", kept.dead, kept.since_ms, kept.until_ms);
            let lines = vec![format!("{kept:?}"), format!("{place:?}")];
            return Check { at_us: moment(place.kept_from), ..Check::invalid(NAME, PROMISES, detail, lines) };
        }
        let from = place.kept_from.unwrap_or(u64::MAX);
        let after = told.marks.iter().filter(|(under, _, zxid)| *zxid > from && under.locks.contains(&kept.lock));
        // Whoever was marked after that and had it before held beside the dead one, which others find.
        for (under, marked, zxid) in after {
            looked += 1;
            if marked.clock_ms < kept.until_ms {
                let detail = format!(
                    "token {} held {} ms before the delay of token {} was over",
                    under.token,
                    kept.until_ms - marked.clock_ms,
                    kept.dead
                );
                let lines =
                    vec![format!("{kept:?}"), format!("zxid {zxid}: {under:?} {marked:?}"), format!("{place:?}")];
                return Check { at_us: moment(Some(*zxid)), ..Check::invalid(NAME, PROMISES, detail, lines) };
            }
        }
    }
    // Several may see the same.
    let seen = told.kept.iter().map(|kept| kept.dead).collect::<BTreeSet<u64>>().len();
    let detail = format!("{seen} kept places seen, {looked} later holders compared");
    if seen < FEWEST || looked == 0 {
        Check::unknown(NAME, PROMISES, detail)
    } else {
        Check::valid(NAME, PROMISES, detail)
    }
}

/// By this machine's clock: the place went no sooner than the delay after the dead holder's keeper was last sure. None
/// where a node's clock was put wrong: delays follow the replicated one.
pub(super) fn long_enough(
    told: &LockHistory,
    queues: &Queues,
    seen_us: &BTreeMap<u64, u64>,
    clocks_right: bool,
) -> Option<Check> {
    const NAME: &str = "nobody before the delay, by the clock";
    if !clocks_right {
        return None;
    }
    let (mut looked, mut soonest_ms) = (0, u64::MAX);
    for hold in told.holds.iter().filter(|hold| hold.asks.delay_ms > 0) {
        let Some((_, place)) = place_of(queues, hold) else { continue };
        let (Some(_), Some(gone)) = (place.kept_from, place.gone) else { continue };
        let (Some(seen), sure_us) = (seen_us.get(&gone), told.session_of(hold).until_us) else { continue };
        // The replicated clock counts milliseconds.
        let soonest_us = sure_us + u64::from(hold.asks.delay_ms - 1) * 1_000;
        looked += 1;
        if *seen < soonest_us {
            let detail = format!("the place of token {} was free {} us too soon", hold.token, soonest_us - seen);
            let check = Check::invalid(NAME, PROMISES, detail, vec![hold.line(), format!("{place:?}")]);
            return Some(Check { at_us: Some(*seen), ..check });
        }
        soonest_ms = soonest_ms.min((seen - soonest_us) / 1_000);
    }
    Some(match looked {
        0 => Check::unknown(NAME, PROMISES, "no place of a dead holder was seen to be free again"),
        _ => {
            Check::valid(NAME, PROMISES, format!("{looked} places, the soonest free {soonest_ms} ms after it could be"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{change, delayed_queue, hold};
    use super::*;
    use crate::check::Verdict;
    use crate::history::SessionLife;
    use crate::history::ops::{ClockReading, KeptPlace, TokenRef};

    fn of_l(requests: &[(u64, Option<u64>, u64)]) -> Queues {
        Queues::from([("l".to_owned(), delayed_queue("l", 1_000, requests))])
    }

    const SEEN: [(u64, u64); 2] = [(15, 1_500), (25, 2_500)];

    /// Three holders that died, whose places were kept from 1, 2 and 3 above their tokens on.
    fn dead_holder() -> (LockHistory, Queues) {
        let mut holds = [10, 20, 30].map(hold).to_vec();
        holds.iter_mut().for_each(|hold| hold.asks.delay_ms = 1_000);
        let places = [10, 20, 30].map(|token| (token, Some(token + 1), token + 5));
        let kept = [10, 20, 30].map(|dead| KeptPlace {
            lock: "l".into(),
            dead,
            since_ms: dead * 1_000,
            until_ms: dead * 1_000 + 1_000,
        });
        (LockHistory { holds, kept: kept.to_vec(), ..LockHistory::default() }, of_l(&places))
    }

    #[test]
    fn a_dead_holder_without_a_delay_is_found() {
        let kept_when_dead = |told: &LockHistory, queues: &Queues| kept_when_dead(told, queues, &SEEN.into());
        let (mut told, queues) = dead_holder();
        assert_eq!(kept_when_dead(&told, &queues).verdict, Verdict::Valid);
        let queues = of_l(&[(10, None, 15)]);
        assert_eq!(kept_when_dead(&told, &queues).verdict, Verdict::Invalid);
        told.sessions.insert(10, SessionLife { closing_us: Some(1_500), ..SessionLife::default() });
        assert_eq!(kept_when_dead(&told, &queues).verdict, Verdict::Unknown, "it was closed, and nobody died");
        told.sessions.insert(10, SessionLife { closing_us: Some(1_501), ..SessionLife::default() });
        let late = kept_when_dead(&told, &queues);
        assert_eq!(late.verdict, Verdict::Invalid, "closed when it was over, which does not explain it");
        told.sessions.clear();
        let mut released = told.clone();
        released.holds[0].released = change(5, Completion::Ok, None);
        assert_eq!(kept_when_dead(&released, &queues).verdict, Verdict::Unknown, "given back, and nobody died");
        let (_, queues) = dead_holder();
        assert_eq!(kept_when_dead(&released, &queues).verdict, Verdict::Invalid, "given back, and kept all the same");
    }

    #[test]
    fn who_comes_too_soon_is_found() {
        let (mut told, queues) = dead_holder();
        let not_before_the_delay = |told: &LockHistory, queues: &Queues| {
            let check = not_before_the_delay(told, queues, &SEEN.into());
            assert_eq!(check.verdict == Verdict::Invalid, check.at_us.is_some(), "{check:?}");
            check
        };
        assert_eq!(not_before_the_delay(&told, &queues).verdict, Verdict::Unknown, "nobody came after");
        let under = TokenRef { locks: vec!["l".into()], token: 40, session: 4 };
        told.marks.push((under, ClockReading { clock_ms: 31_000 }, 41));
        assert_eq!(not_before_the_delay(&told, &queues).verdict, Verdict::Valid);
        let mut often = told.clone();
        often.kept = vec![told.kept[0].clone(); 3];
        assert_eq!(not_before_the_delay(&often, &queues).verdict, Verdict::Unknown, "three times the same is one");
        told.marks[0].1.clock_ms -= 1;
        assert_eq!(not_before_the_delay(&told, &queues).verdict, Verdict::Invalid);
        told.marks[0].1.clock_ms += 1;
        told.kept[1].until_ms -= 1;
        assert_eq!(not_before_the_delay(&told, &queues).verdict, Verdict::Invalid, "shorter than was asked for");
    }

    #[test]
    fn a_delay_that_is_too_short_is_found() {
        let (mut told, queues) = dead_holder();
        told.sessions.insert(10, SessionLife { until_us: 2_000_000, ..SessionLife::default() });
        let judged =
            |seen, right| long_enough(&told, &queues, &BTreeMap::from([(15, seen)]), right).map(|check| check.verdict);
        assert_eq!(judged(2_999_000, true), Some(Verdict::Valid));
        assert_eq!(judged(2_998_999, true), Some(Verdict::Invalid));
        assert_eq!(judged(2_998_999, false), None, "the replicated clock is not this one");
        let unseen = long_enough(&told, &queues, &BTreeMap::new(), true).unwrap();
        assert_eq!(unseen.verdict, Verdict::Unknown, "no place was seen to go");
    }
}
