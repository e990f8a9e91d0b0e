//! The queue of a lock over a whole history: who was in it from when until when, and who held at which zxid.

use std::collections::BTreeSet;

use crate::lives::{Life, NodeEvent, lives, transactions};
use crate::name::LockMode;
use crate::queue::{Came, Queue, Went};

/// A request, from when it was made until its place was free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The zxid that created it.
    pub token: u64,
    /// How it asks.
    pub mode: LockMode,
    /// The lock delay that it asks for.
    pub delay_ms: u32,
    /// From when on a writer was a reader.
    pub reader_from: Option<u64>,
    /// From when on the place was kept for a dead holder: nobody holds by it, and nobody passes it.
    pub kept_from: Option<u64>,
    /// When the place was free.
    pub gone: Option<u64>,
}

impl Place {
    /// When its owner's request went.
    pub fn owner_gone(&self) -> Option<u64> {
        self.kept_from.or(self.gone)
    }
}

/// The places of a lock, in the order of their tokens, and who held when.
#[derive(Clone, Debug, Default)]
pub struct Places {
    places: Vec<Place>,
    queue: Queue<()>,
}

/// Reads the places of a lock in the log.
///
/// # Errors
/// The log has a hole, or a place is kept for no request.
pub fn places(events: &BTreeSet<NodeEvent>, lock: &str) -> Result<Places, String> {
    Places::of(&lives(events, &format!("/locks/{lock}"))?)
}

impl Places {
    /// Those of the lives of a lock's children.
    ///
    /// # Errors
    /// A place is kept for no request.
    pub fn of(lives: &[Life]) -> Result<Self, String> {
        let mut read = Self::default();
        for (zxid, changes) in transactions(lives) {
            let moves = read.queue.transaction(zxid, changes, |_| ())?;
            for Went { entry, .. } in moves.went {
                if let Some(place) = read.get_mut(entry.name.keeps_place_of.unwrap_or(entry.token)) {
                    place.gone = Some(zxid);
                }
            }
            for Came { entry, is_renamed } in moves.came {
                let kept_for = entry.name.keeps_place_of;
                if kept_for.is_none() && !is_renamed {
                    let (token, mode, delay_ms) = (entry.token, entry.name.mode, entry.name.delay_ms);
                    read.places.push(Place { token, mode, delay_ms, reader_from: None, kept_from: None, gone: None });
                    continue;
                }
                let of = read.get_mut(kept_for.unwrap_or(entry.token)).filter(|place| place.gone == Some(zxid));
                let of =
                    of.ok_or_else(|| format!("at {zxid} a place is kept for {kept_for:?}, which did not go then"))?;
                of.gone = None;
                *(if is_renamed { &mut of.reader_from } else { &mut of.kept_from }) = Some(zxid);
            }
        }
        Ok(read)
    }

    /// All of them.
    pub fn all(&self) -> &[Place] {
        &self.places
    }

    /// The request with this token.
    pub fn get(&self, token: u64) -> Option<&Place> {
        let at = self.places.binary_search_by_key(&token, |place| place.token).ok()?;
        self.places.get(at)
    }

    fn get_mut(&mut self, token: u64) -> Option<&mut Place> {
        let at = self.places.binary_search_by_key(&token, |place| place.token).ok()?;
        self.places.get_mut(at)
    }

    /// From which zxid on the request held.
    pub fn held_from(&self, token: u64) -> Option<u64> {
        self.queue.held_from(token)
    }

    /// Checks that `token` holds right after that zxid.
    ///
    /// # Errors
    /// Says who held instead, or that it was not in the queue.
    pub fn holds_after(&self, token: u64, zxid: u64) -> Result<(), String> {
        let Some(own) = self.get(token) else { return Err(format!("token {token} is none of the queue's")) };
        if self.queue.held_at(token, zxid) {
            return Ok(());
        }
        if own.owner_gone().is_some_and(|gone| gone <= zxid) {
            return Err(format!("the request of token {token} had gone at {:?}, before {zxid}", own.owner_gone()));
        }
        let before = self.places.iter().take_while(|place| place.token < token);
        let before = before.filter(|place| place.gone.is_none_or(|gone| gone > zxid));
        let who: Vec<String> =
            before.map(|place| format!("token {} ({:?}, gone at {:?})", place.token, place.mode, place.gone)).collect();
        Err(format!("right after zxid {zxid} token {token} stood behind {}", who.join(", ")))
    }
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

    fn made(list: &[(u64, bool, String)]) -> Places {
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
        assert_eq!(queue.holds_after(5, 5), Ok(()));
        assert_eq!(queue.holds_after(6, 9), Ok(()));
        assert!(queue.holds_after(6, 8).unwrap_err().contains("behind token 5"));
        assert!(queue.holds_after(5, 9).unwrap_err().contains("had gone"));
        assert!(queue.holds_after(7, 9).unwrap_err().contains("none of the queue's"));
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
        assert_eq!(queue.all().len(), 3, "a downgrade is no new request");
        assert_eq!((queue.all()[0].reader_from, queue.all()[0].gone), (Some(8), Some(20)));
        assert!(queue.holds_after(6, 7).is_err());
        assert_eq!((queue.holds_after(5, 8), queue.holds_after(6, 8)), (Ok(()), Ok(())));
        assert!(queue.holds_after(7, 20).unwrap_err().contains("behind token 6"));
        assert_eq!(queue.holds_after(7, 21), Ok(()));
    }

    #[test]
    fn permits_are_counted_and_kept_places_are_passed_by_nobody() {
        let queue = made(&[
            (5, true, format!("{A}permit-2-0000000000")),
            (6, true, format!("{B}permit-2-0000000001")),
            (7, true, format!("{C}permit-2-0000000002")),
            (9, false, format!("{B}permit-2-0000000001")),
        ]);
        assert_eq!(queue.holds_after(6, 7), Ok(()));
        assert!(queue.holds_after(7, 8).unwrap_err().contains("token 5"));
        assert_eq!(queue.holds_after(7, 9), Ok(()));

        let delayed = made(&[
            (5, true, format!("{A}delay-1500-lock-0000000000")),
            (6, true, format!("{B}lock-0000000001")),
            (9, false, format!("{A}delay-1500-lock-0000000000")),
            (9, true, "delay-1500-5-lock-0000000000".to_owned()),
            (15, false, "delay-1500-5-lock-0000000000".to_owned()),
        ]);
        assert_eq!((delayed.all().len(), delayed.all()[0].kept_from, delayed.all()[0].gone), (2, Some(9), Some(15)));
        assert!(delayed.holds_after(5, 9).unwrap_err().contains("had gone"), "the dead one holds nothing");
        assert!(delayed.holds_after(6, 14).is_err());
        assert_eq!(delayed.holds_after(6, 15), Ok(()));
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
        assert_eq!((queue.all()[0].kept_from, queue.held_from(6), queue.held_from(7)), (Some(9), Some(6), None));
        assert_eq!(queue.holds_after(6, 9), Ok(()));
        assert!(queue.holds_after(7, 20).unwrap_err().contains("behind token 5"));
        assert!(queue.holds_after(8, 21).unwrap_err().contains("behind token 5"));
        list.push((30, false, "delay-100-5-__WRIT__0000000001".to_owned()));
        assert_eq!(made(&list).holds_after(8, 30), Ok(()));
    }

    /// Only the writer's own name, renamed, is the writer.
    #[test]
    fn a_reader_that_comes_when_a_writer_goes_is_no_downgrade() {
        let queue = made(&[
            (5, true, format!("{A}__WRIT__0000000000")),
            (8, false, format!("{A}__WRIT__0000000000")),
            (8, true, format!("{B}__READ__0000000000")),
        ]);
        assert_eq!((queue.all().len(), queue.all()[0].reader_from), (2, None));
    }
}
