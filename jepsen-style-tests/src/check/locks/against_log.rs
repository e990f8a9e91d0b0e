//! What clients were told, against the queues in the log: exact, by zxid, whatever the clocks say.

use super::Queues;
use super::places::{Place, holds_after};
use super::told::{Hold, Told};
use crate::check::Check;
use crate::history::Ended;

/// Every grant that a client was told is a request of the queue, and held at the zxid of the answer: all that stood before it had gone by
/// then, and that is both exclusion and first come, first served. Nobody's request went before one that stood before it and was in its way.
pub fn granted_in_order(told: &Told, queues: &Queues) -> Check {
    const NAME: &str = "grants in the order of the log";
    const PROMISES: &str = "P1 P2 P4";
    let mut looked = 0;
    for hold in &told.holds {
        for lock in &hold.asks.locks {
            let places = queues.get(lock).map(Vec::as_slice).unwrap_or_default();
            // Where the answer names no point, it must have held right before it went.
            let gone = place_of(places, hold.token).and_then(Place::owner_gone);
            let Some(at) = hold.zxid.or(gone.map(|gone| gone.saturating_sub(1))) else { continue };
            if let Err(why) = holds_after(places, hold.token, at) {
                return Check {
                    at_us: Some(hold.granted_us),
                    ..Check::invalid(NAME, PROMISES, why, vec![hold.line()])
                };
            }
            looked += 1;
        }
    }
    Check::valid(NAME, PROMISES, format!("{looked} grants, each held in the log at the zxid of its answer"))
}

/// Every acknowledged release is in the log, at the zxid that was told; nothing that was released has a delay; and what was certainly
/// not released stands until its session ended.
pub fn released_in_log(told: &Told, queues: &Queues) -> Check {
    const NAME: &str = "releases in the log";
    const PROMISES: &str = "P4";
    let (mut looked, mut by_zxid) = (0, 0);
    for hold in &told.holds {
        let Some(change) = hold.released.filter(|change| change.ended == Ended::Ok) else { continue };
        for lock in &hold.asks.locks {
            let place = queues.get(lock).and_then(|places| place_of(places, hold.token));
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
    Check::valid(NAME, PROMISES, format!("{looked} acknowledged releases, {by_zxid} of them compared by zxid"))
}

/// The cluster's answers to "does this token hold?" are those of the log at the zxid of the answer.
pub fn verified_in_log(told: &Told, queues: &Queues) -> Check {
    const NAME: &str = "verified as in the log";
    const PROMISES: &str = "P1 P7";
    let (mut held, mut not) = (0, 0);
    for asked in &told.verifies {
        let (Some(yes), Some(zxid), Some(lock)) = (asked.yes, asked.zxid, asked.under.locks.first()) else { continue };
        let places = queues.get(lock).map(Vec::as_slice).unwrap_or_default();
        let token = asked.under.token;
        if holds_after(places, token, zxid).is_ok() != yes {
            let detail =
                format!("{lock}: token {token} was said to hold: {yes}, at zxid {zxid}; the log says otherwise");
            let place = place_of(places, token).map(|place| format!("{place:?}"));
            let lines =
                vec![format!("{} us: client {} asked", asked.asked_us, asked.client), place.unwrap_or_default()];
            return Check { at_us: Some(asked.asked_us), ..Check::invalid(NAME, PROMISES, detail, lines) };
        }
        if yes { held += 1 } else { not += 1 }
    }
    Check::valid(NAME, PROMISES, format!("{held} tokens said to hold and {not} said not to"))
}

/// Nobody gives back what is another's.
pub fn refused_to_others(told: &Told, queues: &Queues) -> Check {
    const NAME: &str = "nobody frees another's lock";
    const PROMISES: &str = "P1";
    for tried in &told.steals {
        if tried.ended != Ended::Ok {
            continue;
        }
        let detail = format!(
            "client {} (session {:x}) gave back token {}, which was another's",
            tried.client, tried.under.session, tried.under.token
        );
        let owner = told.holds.iter().find(|hold| hold.token == tried.under.token).map(Hold::line);
        let place = tried.under.locks.first().and_then(|lock| queues.get(lock));
        let place = place.and_then(|places| place_of(places, tried.under.token)).map(|place| format!("{place:?}"));
        let lines = owner.into_iter().chain(place).collect();
        return Check { at_us: Some(tried.asked_us), ..Check::invalid(NAME, PROMISES, detail, lines) };
    }
    let refused = told.steals.iter().filter(|tried| tried.ended == Ended::Fail).count();
    Check::valid(NAME, PROMISES, format!("{refused} of {} tries refused, the others unknown", told.steals.len()))
}

fn place_of(places: &[Place], token: u64) -> Option<&Place> {
    places.iter().find(|place| place.token == token)
}
