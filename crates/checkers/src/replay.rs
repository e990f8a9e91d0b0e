//! What a queue did over its life, rebuilt step by step, and the stays of clients that held.

use std::collections::BTreeMap;

use crate::lives::{Life, transactions};
use crate::name;
use crate::queue::Queue;

/// A waiting request came to hold because others went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The transaction in which they went.
    pub zxid: u64,
    /// The request.
    pub token: u64,
}

/// What a queue did over its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Waiting requests that came to hold. Each of them is due one notification, and nobody else is due any.
    pub promotions: Vec<Promotion>,
    /// Requests that held from when they were created.
    pub at_once: usize,
    /// Requests that went without ever having held: each wakes its successor at most.
    pub went_waiting: usize,
    /// The most wake-ups that the queue accounts for: one for each request whose blocker went, and one for each that
    /// came to a permit. A server that counts more wakes waiters in vain.
    pub wake_ups: usize,
    /// The most that held at a time.
    pub most: usize,
    /// Those that are in the queue at the end.
    pub left: usize,
}

/// Replays the queue of these requests, transaction by transaction.
pub fn replay(requests: &[Life]) -> Replay {
    let mut replay = Replay::default();
    let mut queue: Queue<()> = Queue::default();
    for (zxid, changes) in transactions(requests) {
        // A life ends after it has begun.
        let Ok(moves) = queue.transaction(zxid, changes, |_| ()) else { continue };
        replay.wake_ups += moves.freed.len();
        let waiting = moves.went.iter().filter(|went| went.entry.name.keeps_place_of.is_none() && !went.held);
        replay.went_waiting += waiting.count();
        for entry in moves.gained {
            if entry.token == zxid {
                replay.at_once += 1;
            } else {
                replay.wake_ups += usize::from(entry.name.mode.permits().is_some());
                replay.promotions.push(Promotion { zxid, token: entry.token });
            }
        }
        replay.most = replay.most.max(queue.holding());
    }
    replay.left = queue.entries().count();
    replay
}

/// Checks what clients did while they held: each created nodes named `t<token>-…` in a directory after it was
/// granted, and deleted them before it released. At no zxid are there more than `permits`, and each client's request
/// was among the foremost of its queue all the while. Gives the most at a time.
///
/// # Errors
/// Says who was inside when.
pub fn inside(requests: &[Life], insides: &[Life], permits: usize) -> Result<usize, String> {
    let mut ends: Vec<(u64, bool)> = Vec::new();
    let queue: Vec<(u64, &Life)> =
        requests.iter().filter_map(|request| Some((name::parse(&request.name)?.sequence, request))).collect();
    let by_token: BTreeMap<u64, (u64, &Life)> = queue.iter().map(|place| (place.1.token, *place)).collect();
    for life in insides {
        let token = token_of(&life.name).ok_or_else(|| format!("{} names no token", life.name))?;
        let Some(&(sequence, request)) = by_token.get(&token) else {
            return Err(format!("{} is inside under token {token}, which is none of the queue's", life.name));
        };
        if request.token > life.token || !request.stands_after(life.token) {
            return Err(format!("token {token} was inside at {} without a place in the queue", life.token));
        }
        let before = queue.iter().filter(|(other, place)| (*other, &place.name) < (sequence, &request.name));
        let ahead = before.filter(|(_, place)| place.stands_after(life.token)).count();
        if ahead >= permits {
            return Err(format!("token {token} was inside at {} with {ahead} requests before it", life.token));
        }
        if let (Some(gone), left) = (request.gone, life.gone)
            && left.is_none_or(|left| left > gone)
        {
            return Err(format!("token {token} was still inside when its place went at {gone}"));
        }
        ends.push((life.token, true));
        ends.extend(life.gone.map(|gone| (gone, false)));
    }
    // Within one transaction clients leave before others enter.
    ends.sort_unstable();
    let (mut now, mut most) = (0usize, 0);
    for (zxid, enters) in ends {
        now = if enters { now + 1 } else { now.saturating_sub(1) };
        if now > permits {
            return Err(format!("{now} were inside at {zxid}, with {permits} permits"));
        }
        most = most.max(now);
    }
    Ok(most)
}

/// The token in `t<token>-…`.
pub fn token_of(name: &str) -> Option<u64> {
    name.strip_prefix('t')?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(token: u64, gone: u64) -> Life {
        named(&format!("_c_x-lock-{token:010}"), token, gone)
    }

    fn permit(token: u64, gone: u64) -> Life {
        named(&format!("_c_x-permit-2-{token:010}"), token, gone)
    }

    fn named(name: &str, token: u64, gone: u64) -> Life {
        Life { name: name.into(), token, gone: (gone > 0).then_some(gone) }
    }

    fn visit(token: u64, from: u64, to: u64) -> Life {
        named(&format!("t{token}-c1"), from, to)
    }

    #[test]
    fn an_exclusive_queue() {
        // 10 holds at once; 11 and 12 wait; 11 dies waiting; 12 is promoted when 10 goes; 30 finds it free.
        let requests = [life(10, 20), life(11, 15), life(12, 25), life(30, 0)];
        let replay = replay(&requests);
        assert_eq!(replay.promotions, [Promotion { zxid: 20, token: 12 }]);
        assert_eq!((replay.at_once, replay.went_waiting, replay.most, replay.left), (2, 1, 1, 1));
    }

    #[test]
    fn permits_freed_together_promote_as_many() {
        let replay = replay(&[permit(1, 10), permit(2, 10), permit(3, 0), permit(4, 0), permit(5, 0)]);
        assert_eq!(replay.promotions.iter().map(|p| p.token).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((replay.at_once, replay.most, replay.left), (2, 2, 3));
    }

    #[test]
    fn readers_come_in_together_and_a_downgrade_is_no_new_request() {
        let replay = replay(&[
            named("a-__WRIT__0000000000", 5, 8),
            named("a-__READ__0000000000", 8, 20),
            named("b-__READ__0000000001", 6, 21),
            named("c-__WRIT__0000000002", 7, 30),
        ]);
        let promoted: Vec<_> = replay.promotions.iter().map(|promotion| (promotion.zxid, promotion.token)).collect();
        assert_eq!(promoted, [(8, 6), (21, 7)]);
        assert_eq!((replay.at_once, replay.went_waiting, replay.most, replay.left), (1, 0, 2, 0));
    }

    #[test]
    fn a_kept_place_is_waited_for_and_holds_nothing() {
        let replay = replay(&[
            named("_c_00000000-0000-0000-0000-00000000000a-delay-100-lock-0000000000", 5, 9),
            named("delay-100-5-lock-0000000000", 9, 15),
            life(6, 0),
        ]);
        assert_eq!(replay.promotions, [Promotion { zxid: 15, token: 6 }]);
        assert_eq!((replay.at_once, replay.went_waiting, replay.most, replay.left), (1, 0, 1, 1));
    }

    #[test]
    fn clients_inside_hold() {
        let requests = [life(1, 10), life(2, 12), life(3, 14)];
        assert_eq!(inside(&requests, &[visit(1, 4, 9), visit(2, 5, 11), visit(3, 10, 13)], 2), Ok(2));
        let judged = |visits: &[Life], permits| inside(&requests, visits, permits).unwrap_err();
        assert!(judged(&[visit(1, 4, 9), visit(3, 8, 13)], 2).contains("2 requests before it"));
        assert!(judged(&[visit(7, 4, 9)], 2).contains("none of the queue's"));
        assert!(judged(&[visit(1, 11, 12)], 2).contains("without a place"));
        assert!(judged(&[visit(1, 4, 11)], 2).contains("still inside"));
        // Stands on its own: too many at a time, although each alone stands well in its queue.
        let twice = [visit(1, 4, 9), visit(1, 5, 9), visit(2, 6, 9)];
        assert!(judged(&twice, 2).contains("3 were inside"));
        assert_eq!(
            inside(&requests, &[visit(1, 4, 10), visit(2, 10, 12)], 1),
            Ok(1),
            "left and entered in one transaction"
        );
    }
}
