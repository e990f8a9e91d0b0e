//! The queue of a lock over a whole history: who was in it from when until when, and who held at which zxid.

use std::collections::{BTreeMap, BTreeSet};

use crate::lives::{Life, NodeEvent, lives};
use crate::name::{self, LockMode};
use crate::queue::blocker;

/// A request, from when it was made until its place was free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The zxid that created it.
    pub token: u64,
    /// Its sequence.
    pub sequence: u64,
    /// How it asks.
    pub mode: LockMode,
    /// The lock delay that it asks for.
    pub delay_ms: u32,
    /// From when on a writer was a reader.
    pub reader_from: Option<u64>,
    /// From when on the place was kept for a dead holder: nobody holds by it, and nobody passes it.
    pub kept_from: Option<u64>,
    /// The sequence of the node that keeps the place: behind the readers that held, where the holder was one.
    pub kept_sequence: u64,
    /// When the place was free.
    pub gone: Option<u64>,
}

impl Place {
    /// A request that is there for ever, whose sequence is its token.
    pub fn of(token: u64, mode: LockMode) -> Self {
        Self {
            token,
            sequence: token,
            mode,
            delay_ms: 0,
            reader_from: None,
            kept_from: None,
            kept_sequence: token,
            gone: None,
        }
    }

    /// Whether it was there right after that zxid.
    pub fn stands_after(&self, zxid: u64) -> bool {
        self.token <= zxid && self.gone.is_none_or(|gone| gone > zxid)
    }

    /// When its owner's request went.
    pub fn owner_gone(&self) -> Option<u64> {
        self.kept_from.or(self.gone)
    }

    fn is_kept_after(&self, zxid: u64) -> bool {
        self.kept_from.is_some_and(|from| from <= zxid)
    }

    /// How it blocked others right after that zxid.
    fn mode_after(&self, zxid: u64) -> LockMode {
        if self.is_kept_after(zxid) && self.mode.permits().is_none() {
            LockMode::Exclusive
        } else if self.reader_from.is_some_and(|from| from <= zxid) {
            LockMode::Shared
        } else {
            self.mode
        }
    }

    /// Its place in the order of the queue right after that zxid. A reader's name sorts before that of a kept place.
    fn order_after(&self, zxid: u64) -> (u64, bool, u64) {
        let kept = self.is_kept_after(zxid);
        (if kept { self.kept_sequence } else { self.sequence }, kept, self.token)
    }
}

/// The places of a lock, in the order of their tokens.
///
/// # Errors
/// The log has a hole, or a place is kept for no request.
pub fn places(events: &BTreeSet<NodeEvent>, lock: &str) -> Result<Vec<Place>, String> {
    let mut places: Vec<Place> = Vec::new();
    let mut writers: BTreeMap<u64, (usize, String)> = BTreeMap::new();
    let mut lived: Vec<Life> = lives(events, &format!("/locks/{lock}"))?;
    lived.sort_by_key(|life| life.token);
    for life in lived {
        let Some(name) = name::parse(&life.name) else { continue };
        if let Some(dead) = name.keeps_place_of {
            let of = places.iter_mut().find(|place| place.token == dead && place.gone == Some(life.token));
            let of = of.ok_or_else(|| format!("{} keeps the place of a request that did not go then", life.name))?;
            (of.kept_from, of.kept_sequence, of.gone) = (Some(life.token), name.sequence, life.gone);
            continue;
        }
        let writer = writers.get(&name.sequence).filter(|(_, writer)| name::is_downgrade(writer, &life.name));
        if let Some(of) = writer.map(|(at, _)| &mut places[*at]).filter(|of| of.gone == Some(life.token)) {
            (of.reader_from, of.gone) = (Some(life.token), life.gone);
            continue;
        }
        if name.mode == LockMode::Write {
            writers.insert(name.sequence, (places.len(), life.name.clone()));
        }
        places.push(Place {
            sequence: name.sequence,
            delay_ms: name.delay_ms,
            kept_sequence: name.sequence,
            gone: life.gone,
            ..Place::of(life.token, name.mode)
        });
    }
    Ok(places)
}

/// Checks that `token` holds right after that zxid.
///
/// # Errors
/// Says who stood before it, or that it was not in the queue.
pub fn holds_after(places: &[Place], token: u64, zxid: u64) -> Result<(), String> {
    let Some(own) = places.iter().find(|place| place.token == token) else {
        return Err(format!("token {token} is none of the queue's"));
    };
    if !own.stands_after(zxid) || own.is_kept_after(zxid) {
        return Err(format!("the request of token {token} had gone at {:?}, before {zxid}", own.owner_gone()));
    }
    let standing = places.iter().take_while(|place| place.token <= zxid).filter(|place| place.stands_after(zxid));
    let mut before: Vec<&Place> = standing.filter(|place| place.order_after(zxid) < own.order_after(zxid)).collect();
    before.sort_by_key(|place| place.order_after(zxid));
    let modes: Vec<LockMode> = before.iter().map(|place| place.mode_after(zxid)).collect();
    if blocker(&modes, own.mode_after(zxid)).is_none() {
        return Ok(());
    }
    let who: Vec<String> = before
        .iter()
        .map(|place| format!("token {} ({:?}, gone at {:?})", place.token, place.mode_after(zxid), place.gone))
        .collect();
    Err(format!("right after zxid {zxid} token {token} stood behind {}", who.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(list: &[(u64, bool, &str)]) -> BTreeSet<NodeEvent> {
        let event = |(zxid, created, name): &(u64, bool, &str)| NodeEvent {
            zxid: *zxid,
            created: *created,
            path: format!("/locks/l/{name}"),
        };
        list.iter().map(event).collect()
    }

    const A: &str = "_c_00000000-0000-0000-0000-00000000000a-";
    const B: &str = "_c_00000000-0000-0000-0000-00000000000b-";
    const C: &str = "_c_00000000-0000-0000-0000-00000000000c-";

    fn made(list: &[(u64, bool, String)]) -> Vec<Place> {
        let list: Vec<(u64, bool, &str)> = list.iter().map(|(z, c, n)| (*z, *c, n.as_str())).collect();
        places(&log(&list), "l").unwrap()
    }

    #[test]
    fn the_first_holds_and_nobody_else() {
        let queue = made(&[
            (5, true, format!("{A}lock-0000000000")),
            (6, true, format!("{B}lock-0000000001")),
            (9, false, format!("{A}lock-0000000000")),
        ]);
        assert_eq!(holds_after(&queue, 5, 5), Ok(()));
        assert_eq!(holds_after(&queue, 6, 9), Ok(()));
        assert!(holds_after(&queue, 6, 8).unwrap_err().contains("behind token 5"));
        assert!(holds_after(&queue, 5, 9).unwrap_err().contains("had gone"));
        assert!(holds_after(&queue, 7, 9).unwrap_err().contains("none of the queue's"));
    }

    #[test]
    fn readers_hold_together_and_no_writer_beside_them() {
        let queue = made(&[
            (5, true, format!("{A}__WRIT__0000000000")),
            (6, true, format!("{B}__READ__0000000001")),
            (7, true, format!("{C}__WRIT__0000000002")),
            (8, false, format!("{A}__WRIT__0000000000")),
            (8, true, format!("{A}__READ__0000000000")),
            (20, false, format!("{A}__READ__0000000000")),
            (21, false, format!("{B}__READ__0000000001")),
        ]);
        assert_eq!(queue.len(), 3, "a downgrade is no new request");
        assert_eq!((queue[0].reader_from, queue[0].gone), (Some(8), Some(20)));
        assert!(holds_after(&queue, 6, 7).is_err());
        assert_eq!((holds_after(&queue, 5, 8), holds_after(&queue, 6, 8)), (Ok(()), Ok(())));
        assert!(holds_after(&queue, 7, 20).unwrap_err().contains("behind token 6"));
        assert_eq!(holds_after(&queue, 7, 21), Ok(()));
    }

    #[test]
    fn permits_are_counted_and_kept_places_are_passed_by_nobody() {
        let queue = made(&[
            (5, true, format!("{A}permit-2-0000000000")),
            (6, true, format!("{B}permit-2-0000000001")),
            (7, true, format!("{C}permit-2-0000000002")),
            (9, false, format!("{B}permit-2-0000000001")),
        ]);
        assert_eq!(holds_after(&queue, 6, 7), Ok(()));
        assert!(holds_after(&queue, 7, 8).unwrap_err().contains("token 5"));
        assert_eq!(holds_after(&queue, 7, 9), Ok(()));

        let delayed = made(&[
            (5, true, format!("{A}delay-1500-lock-0000000000")),
            (6, true, format!("{B}lock-0000000001")),
            (9, false, format!("{A}delay-1500-lock-0000000000")),
            (9, true, "delay-1500-5-lock-0000000000".to_owned()),
            (15, false, "delay-1500-5-lock-0000000000".to_owned()),
        ]);
        assert_eq!((delayed.len(), delayed[0].kept_from, delayed[0].gone), (2, Some(9), Some(15)));
        assert!(holds_after(&delayed, 5, 9).unwrap_err().contains("had gone"), "the dead one holds nothing");
        assert!(holds_after(&delayed, 6, 14).is_err());
        assert_eq!(holds_after(&delayed, 6, 15), Ok(()));
        let nobodys = log(&[(9, true, "delay-1500-5-lock-0000000000")]);
        assert!(places(&nobodys, "l").unwrap_err().contains("did not go then"));
    }

    /// A reader's place is kept behind the readers that hold with it: they go on, and nobody else comes in.
    #[test]
    fn a_kept_readers_place_does_not_block_the_readers_before_it() {
        let mut list = vec![
            (5, true, format!("{A}delay-100-__READ__0000000000")),
            (6, true, format!("{B}__READ__0000000001")),
            (7, true, format!("{C}__WRIT__0000000002")),
            (8, true, format!("{C}__READ__0000000003")),
            (9, false, format!("{A}delay-100-__READ__0000000000")),
            (9, true, "delay-100-5-__WRIT__0000000001".to_owned()),
            (20, false, format!("{B}__READ__0000000001")),
            (21, false, format!("{C}__WRIT__0000000002")),
        ];
        let queue = made(&list);
        assert_eq!((queue[0].kept_from, queue[0].sequence, queue[0].kept_sequence), (Some(9), 0, 1));
        assert_eq!(holds_after(&queue, 6, 9), Ok(()));
        assert!(holds_after(&queue, 7, 20).unwrap_err().contains("behind token 5"));
        assert!(holds_after(&queue, 8, 21).unwrap_err().contains("behind token 5"));
        list.push((30, false, "delay-100-5-__WRIT__0000000001".to_owned()));
        assert_eq!(holds_after(&made(&list), 8, 30), Ok(()));
    }

    /// Only the writer's own name, renamed, is the writer.
    #[test]
    fn a_reader_that_comes_when_a_writer_goes_is_no_downgrade() {
        let queue = made(&[
            (5, true, format!("{A}__WRIT__0000000000")),
            (8, false, format!("{A}__WRIT__0000000000")),
            (8, true, format!("{B}__READ__0000000000")),
        ]);
        assert_eq!((queue.len(), queue[0].reader_from), (2, None));
    }
}
