//! Compares the clients' answers with each other on the clock that all processes of the machine share. An invocation is
//! stamped before the request is sent and an answer after it arrived, so a contradiction found here is real, however
//! late a process recorded it.

use std::collections::{BTreeMap, BTreeSet};

use super::lock_history::{Hold, LockHistory};
use crate::check::Check;
use crate::history::Completion;
use crate::history::FaultRecord;
use crate::tokens;

/// Tokens are unique for each lock, and no grant that was told before another was asked for has the larger one.
pub fn tokens_rise(told: &LockHistory) -> Check {
    const NAME: &str = "tokens unique and rising";
    const PROMISES: &str = "P1";
    let one_lock = |hold: &Hold, lock: &String| tokens::TokenGrant {
        lock: lock.clone(),
        token: hold.token,
        asked: hold.asked_us,
        granted: hold.granted_us,
        released: None,
    };
    let grants: Vec<tokens::TokenGrant<u64>> =
        told.holds.iter().flat_map(|hold| hold.asks.locks.iter().map(|lock| one_lock(hold, lock))).collect();
    match tokens::check(&grants) {
        Ok(()) if grants.is_empty() => Check::unknown(NAME, PROMISES, "nobody was granted anything"),
        Ok(()) => Check::valid(NAME, PROMISES, format!("{} grants", grants.len())),
        Err(why) => {
            let of = |hold: &&Hold| why.contains(&format!("token {} ", hold.token));
            let wrong: Vec<&Hold> = told.holds.iter().filter(of).collect();
            let at_us = wrong.iter().map(|hold| hold.granted_us).max();
            Check { at_us, ..Check::invalid(NAME, PROMISES, why, wrong.into_iter().map(Hold::line).collect()) }
        }
    }
}

/// Two grants that exclude each other were held at the same moment: from when a client was told, to the last moment at
/// which its own guard, the cluster, or an acknowledged release says that it still held. What a holder that was stopped
/// did after its guard had run out is only counted: that is for the resource to refuse.
pub fn never_both(told: &LockHistory) -> Check {
    const NAME: &str = "no more holders than allowed, by the clock";
    const PROMISES: &str = "P1 P11";
    let mut sure: BTreeMap<u64, (u64, &'static str)> = BTreeMap::new();
    let mut still = |token: u64, at_us: u64, who: &'static str| {
        let last = sure.entry(token).or_default();
        *last = (*last).max((at_us, who));
    };
    for look in told.looks.iter().filter(|look| look.yes == Some(false)) {
        // That it was taken by force, the cluster tells its holder afterwards.
        if told.forced_us(look.under.token).is_some_and(|forced| forced < look.asked_us) {
            continue;
        }
        still(look.under.token, look.asked_us, "its guard said that it is not lost");
    }
    for verify in told.verifies.iter().filter(|verify| verify.yes == Some(true)) {
        still(verify.under.token, verify.asked_us, "the cluster said that it holds");
    }
    for hold in &told.holds {
        for change in hold.released.iter().chain(&hold.downgraded).filter(|change| change.ended == Completion::Ok) {
            still(hold.token, change.asked_us, "it had not been given back");
        }
    }
    let mut lines = Lines::default();
    for hold in &told.holds {
        if let Some((until_us, _)) = sure.get(&hold.token) {
            lines.add(hold, *until_us);
        }
    }
    if let Some((earlier, later)) = lines.too_many().first() {
        let (until_us, why) = sure.get(&earlier.token).copied().unwrap_or_default();
        let detail = format!(
            "token {} was told, and {} us later token {} still held: {why}",
            later.token,
            until_us.saturating_sub(later.granted_us),
            earlier.token
        );
        let proof = format!("{until_us} us: of token {}: {why}", earlier.token);
        let shown = vec![earlier.line(), later.line(), proof];
        return Check { at_us: Some(later.granted_us), ..Check::invalid(NAME, PROMISES, detail, shown) };
    }
    let mut believed = Lines::default();
    for hold in &told.holds {
        believed.add(hold, hold.released.map_or(hold.granted_us, |change| change.asked_us));
    }
    let overran: BTreeSet<u64> = believed.too_many().iter().map(|(earlier, _)| earlier.token).collect();
    let forced = overran.iter().filter(|token| told.forced_us(**token).is_some()).count();
    let detail = format!(
        "{} guards asked, none said that it holds when another had been told; {} holders that were stopped or slow \
            came to give back what another had by then, {forced} from whom it had been taken by force",
        told.looks.len(),
        overran.len() - forced
    );
    // Whoever gave back or was asked says until when it held.
    if sure.is_empty() { Check::unknown(NAME, PROMISES, detail) } else { Check::valid(NAME, PROMISES, detail) }
}

/// Who held what from when until when.
#[derive(Default)]
struct Lines<'a> {
    locks: BTreeMap<&'a str, Vec<Stay<'a>>>,
}

#[derive(Clone, Copy)]
struct Stay<'a> {
    from_us: u64,
    until_us: u64,
    alone: bool,
    hold: &'a Hold,
}

impl<'a> Lines<'a> {
    fn add(&mut self, hold: &'a Hold, until_us: u64) {
        let reader_from = hold.downgraded.map_or(u64::MAX, |change| change.asked_us);
        let alone =
            Stay { from_us: hold.granted_us, until_us: until_us.min(reader_from), alone: hold.is_alone(), hold };
        // Whether or not it has become a reader, it holds at least as one.
        let shared = Stay { from_us: reader_from.max(hold.granted_us), until_us, alone: false, hold };
        for lock in &hold.asks.locks {
            let stays = self.locks.entry(lock).or_default();
            stays.extend([alone, shared].into_iter().filter(|stay| stay.from_us < stay.until_us));
        }
    }

    /// Pairs of which one came while there was no room beside the other.
    fn too_many(&self) -> Vec<(&'a Hold, &'a Hold)> {
        let mut found = Vec::new();
        for stays in self.locks.values() {
            let mut in_order = stays.clone();
            in_order.sort_by_key(|stay| stay.from_us);
            let mut inside: Vec<Stay<'_>> = Vec::new();
            for stay in in_order {
                inside.retain(|other| other.until_us > stay.from_us && other.hold.token != stay.hold.token);
                let room = match stay.hold.asks.permits {
                    Some(permits) => inside.len() < usize::from(permits),
                    None => inside.is_empty() || !stay.alone && inside.iter().all(|other| !other.alone),
                };
                // The one that ends last shows it best.
                if let (false, Some(other)) = (room, inside.iter().max_by_key(|other| (other.alone, other.until_us))) {
                    found.push((other.hold, stay.hold));
                }
                inside.push(stay);
            }
        }
        found
    }
}

/// A session was not ended, but by its client, before its keeper was told that it is sure to live: the log shows its
/// end, and the first watch that told of that did so after. The client's guard counts a margin less, so it said lost
/// before. What a client closes when a call of it has failed may have been over by then; so only a closing that was
/// begun before the end was seen explains it.
pub fn not_ended_early(
    told: &LockHistory,
    ends: &BTreeMap<u64, u64>,
    seen_us: &BTreeMap<u64, u64>,
    faults: &[FaultRecord],
) -> Option<Check> {
    const NAME: &str = "no session ended early";
    const PROMISES: &str = "P5 P11";
    let (mut expired, mut told_first, mut closest_us) = (0_usize, 0_usize, u64::MAX);
    for (number, session) in &told.sessions {
        let Some(seen) = ends.get(number).and_then(|end| seen_us.get(end)) else { continue };
        if session.closed_by(*seen) || session.until_us == 0 {
            continue;
        }
        expired += 1;
        told_first += usize::from(session.lost_us.is_some_and(|lost| lost < *seen));
        if *seen < session.until_us {
            let early = session.until_us - seen;
            let detail = format!("session {number:x} was ended at least {early} us before it could be");
            let sure = format!("{} us: until then its keeper was sure of it", session.until_us);
            let held = told.holds.iter().rfind(|hold| hold.asks.session == *number).map(Hold::line);
            let lines = held.into_iter().chain([format!("{seen} us: the log shows its end"), sure]).collect();
            return Some(Check { at_us: Some(*seen), ..Check::invalid(NAME, PROMISES, detail, lines) });
        }
        closest_us = closest_us.min(seen - session.until_us);
    }
    if expired == 0 {
        return super::clients_died(faults).then(|| Check::unknown(NAME, PROMISES, "no session was seen to expire"));
    }
    let detail = format!(
        "{expired} sessions expired, the soonest {} ms after it could be; {told_first} clients told it first, the \
            others were stopped, dead or gone",
        closest_us / 1_000
    );
    Some(Check::valid(NAME, PROMISES, detail))
}

#[cfg(test)]
mod tests {
    use lockkeeper_client::api::locks::Mode;

    use super::super::lock_history::TokenAnswer;
    use super::super::testing::{change, fault, hold_from, told};
    use super::*;
    use crate::check::Verdict;
    use crate::history::SessionLife;
    use crate::history::ops::TokenRef;

    fn hold(token: u64, mode: Mode, granted_us: u64, released_us: u64) -> Hold {
        let mut hold = hold_from(token, granted_us);
        (hold.asks.mode, hold.asks.permits) = (mode, (mode == Mode::Permit).then_some(2));
        hold.released = change(released_us, Completion::Ok, None).filter(|change| change.asked_us > 0);
        hold
    }

    fn not_lost(token: u64, asked_us: u64) -> TokenAnswer {
        let under = TokenRef { locks: vec!["l".into()], token, session: token };
        TokenAnswer { client: 1, under, asked_us, ended: Completion::Ok, yes: Some(false), zxid: None }
    }

    #[test]
    fn tokens_that_fall_are_found() {
        use Mode::Exclusive;
        assert_eq!(
            tokens_rise(&told(&[hold(5, Exclusive, 10, 20), hold(9, Exclusive, 30, 40)])).verdict,
            Verdict::Valid
        );
        let fell = tokens_rise(&told(&[hold(9, Exclusive, 10, 20), hold(5, Exclusive, 30, 40)]));
        assert_eq!((fell.verdict, fell.counterexample.len()), (Verdict::Invalid, 2));
    }

    #[test]
    fn nobody_holds_beside_an_exclusive_holder() {
        use Mode::Exclusive;
        let judged = |told: &LockHistory| never_both(told).verdict;
        assert_eq!(judged(&told(&[hold(5, Exclusive, 10, 20), hold(9, Exclusive, 20, 40)])), Verdict::Valid);
        assert_eq!(judged(&told(&[hold(5, Exclusive, 10, 20), hold(9, Exclusive, 19, 40)])), Verdict::Invalid);
        // Whoever was stopped and is not given back is no proof; that its guard says it holds is.
        let mut stopped = told(&[hold(5, Exclusive, 10, 0), hold(9, Exclusive, 20, 40)]);
        assert_eq!(judged(&stopped), Verdict::Valid);
        stopped.looks.push(not_lost(5, 20));
        assert_eq!(judged(&stopped), Verdict::Valid);
        stopped.looks.push(not_lost(5, 21));
        assert_eq!(judged(&stopped), Verdict::Invalid, "the guard kept silent");
        stopped.forced.push(TokenAnswer { yes: Some(true), ..not_lost(5, 15) });
        assert_eq!(judged(&stopped), Verdict::Valid, "it was taken by force, which is told afterwards");
        let mut refused = told(&[hold(5, Exclusive, 10, 30), hold(9, Exclusive, 20, 40)]);
        refused.holds[0].released = change(30, Completion::Fail, None);
        let counted = never_both(&refused);
        assert!(counted.verdict == Verdict::Valid && counted.detail.contains("; 1 holders"), "{counted:?}");
    }

    #[test]
    fn readers_share_and_permits_are_counted() {
        use Mode::{Permit, Shared, Write};
        let judged = |holds: &[Hold]| never_both(&told(holds)).verdict;
        assert_eq!(judged(&[hold(5, Shared, 10, 30), hold(6, Shared, 15, 40)]), Verdict::Valid);
        assert_eq!(judged(&[hold(5, Shared, 10, 30), hold(6, Write, 15, 40)]), Verdict::Invalid);
        assert_eq!(judged(&[hold(5, Write, 10, 30), hold(6, Shared, 15, 40)]), Verdict::Invalid);
        let mut down = hold(5, Write, 10, 30);
        down.downgraded = change(14, Completion::Ok, None);
        assert_eq!(judged(&[down.clone(), hold(6, Shared, 15, 40)]), Verdict::Valid);
        assert_eq!(judged(&[down, hold(6, Write, 15, 40)]), Verdict::Invalid);
        let permits = [hold(5, Permit, 10, 30), hold(6, Permit, 11, 30), hold(7, Permit, 30, 40)];
        assert_eq!(judged(&permits), Verdict::Valid);
        assert_eq!(judged(&[permits[0].clone(), permits[1].clone(), hold(7, Permit, 29, 40)]), Verdict::Invalid);
    }

    #[test]
    fn a_session_that_ends_too_soon_is_found() {
        let mut one = told(&[hold(5, Mode::Exclusive, 10, 0)]);
        one.sessions.insert(5, SessionLife { until_us: 2_000, lost_us: Some(1_800), ..SessionLife::default() });
        let ends = BTreeMap::from([(5, 8)]);
        let judged = |told: &LockHistory, seen| {
            not_ended_early(told, &ends, &BTreeMap::from([(8, seen)]), &[]).map(|c| c.verdict)
        };
        assert_eq!(judged(&one, 2_000), Some(Verdict::Valid));
        assert_eq!(judged(&one, 1_999), Some(Verdict::Invalid));
        one.sessions.entry(5).or_default().closing_us = Some(1_500);
        assert_eq!(judged(&one, 1_999), None, "its client closed it, and nothing is left to be judged");
        one.sessions.entry(5).or_default().closing_us = Some(1_998);
        assert_eq!(judged(&one, 1_997), Some(Verdict::Invalid), "it was over, a call failed, and so it was closed");
        let client_kill = [fault("client-kill", 1, 2)];
        let nothing = not_ended_early(&told(&[]), &ends, &BTreeMap::new(), &client_kill);
        assert_eq!(nothing.map(|check| check.verdict), Some(Verdict::Unknown), "clients were killed");
    }
}
