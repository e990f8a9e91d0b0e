//! A lock's queue as the log has it: who stood in it from when until when, and who held at which point. The rules are written down here
//! once more, from the names of the requests alone; nothing of them comes from the code that is on trial.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{self, LockMode};
use crate::judge::queue::{Event, Life, lives};

/// One request's place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The zxid that created it: its token.
    pub token: u64,
    /// How it asks.
    pub mode: LockMode,
    /// The lock delay that it asked for.
    pub delay_ms: u32,
    /// From when on a writer was a reader.
    pub reader_from: Option<u64>,
    /// From when on the place was kept for a dead holder: nobody holds by it, and nobody passes it.
    pub kept_from: Option<u64>,
    /// When it was free.
    pub gone: Option<u64>,
}

impl Place {
    /// Whether it stood right after that zxid.
    pub fn stands_after(&self, zxid: u64) -> bool {
        self.token <= zxid && self.gone.is_none_or(|gone| gone > zxid)
    }

    /// When its owner's request went.
    pub fn owner_gone(&self) -> Option<u64> {
        self.kept_from.or(self.gone)
    }

    /// How it stood in others' way right after that zxid.
    fn mode_after(&self, zxid: u64) -> LockMode {
        match (self.kept_from, self.reader_from) {
            // A kept place is passed by nobody.
            (Some(from), _) if from <= zxid && self.mode.permits().is_none() => LockMode::Exclusive,
            (_, Some(from)) if from <= zxid => LockMode::Shared,
            _ => self.mode,
        }
    }
}

/// The places of a lock, in the order of their tokens, which is that of the queue.
///
/// # Errors
/// The log has a hole, or a kept place is nobody's.
pub fn places(events: &BTreeSet<Event>, lock: &str) -> Result<Vec<Place>, String> {
    let mut places: Vec<Place> = Vec::new();
    let mut writers: BTreeMap<u64, usize> = BTreeMap::new();
    let mut lived: Vec<Life> = lives(events, &format!("/locks/{lock}"))?;
    lived.sort_by_key(|life| life.token);
    for life in lived {
        let Some(name) = names::parse(&life.name) else { continue };
        if let Some(dead) = name.keeps_place_of {
            let of = places.iter_mut().find(|place| place.token == dead && place.gone == Some(life.token));
            let of = of.ok_or_else(|| format!("{} keeps the place of a request that did not go then", life.name))?;
            (of.kept_from, of.gone) = (Some(life.token), life.gone);
            continue;
        }
        // A writer that becomes a reader keeps its sequence and its token, and gets another name.
        let was = (name.mode == LockMode::Shared).then(|| writers.get(&name.sequence)).flatten();
        if let Some(of) = was.and_then(|at| places.get_mut(*at)).filter(|of| of.gone == Some(life.token)) {
            (of.reader_from, of.gone) = (Some(life.token), life.gone);
            continue;
        }
        if name.mode == LockMode::Write {
            writers.insert(name.sequence, places.len());
        }
        places.push(Place {
            token: life.token,
            mode: name.mode,
            delay_ms: name.delay_ms,
            reader_from: None,
            kept_from: None,
            gone: life.gone,
        });
    }
    Ok(places)
}

/// Why `token` does not hold right after that zxid, if it does not.
///
/// # Errors
/// Says who stood before it, or that it did not stand there at all.
pub fn holds_after(places: &[Place], token: u64, zxid: u64) -> Result<(), String> {
    let Some(own) = places.iter().find(|place| place.token == token) else {
        return Err(format!("token {token} is none of the queue's"));
    };
    if !own.stands_after(zxid) || own.kept_from.is_some_and(|from| from <= zxid) {
        return Err(format!("the request of token {token} had gone at {:?}, before {zxid}", own.owner_gone()));
    }
    let before = places.iter().take_while(|place| place.token < token).filter(|place| place.stands_after(zxid));
    let allowed = match own.mode_after(zxid) {
        LockMode::Permit(permits) => usize::from(permits),
        _ => 1,
    };
    let reads = own.mode_after(zxid) == LockMode::Shared;
    let in_the_way: Vec<&Place> = before.filter(|place| !reads || place.mode_after(zxid) != LockMode::Shared).collect();
    if in_the_way.len() < allowed {
        return Ok(());
    }
    let who: Vec<String> = in_the_way
        .iter()
        .map(|place| format!("token {} ({:?}, gone at {:?})", place.token, place.mode_after(zxid), place.gone))
        .collect();
    Err(format!("right after zxid {zxid} token {token} stood behind {}", who.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(list: &[(u64, bool, &str)]) -> BTreeSet<Event> {
        let event = |(zxid, created, name): &(u64, bool, &str)| Event {
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
}
