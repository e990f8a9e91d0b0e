//! The feature levels that members announce: the highest that a node supports and that its operator allows.
//!
//! A node announces its level behind its claim and behind its answer to a claim (see [`crate::peer::claim_exchange`]).
//! Programs of version 0.1 announce none and ignore that of others. Each start of a member exchanges claims anew, so
//! this node knows the level of the program that a member runs now, or nothing if the two have not met since.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::log::codec::invalid;
use crate::peer::directory_claim::StartId;
use crate::peer::wire;

/// The level of programs of version 0.1, which announce none.
pub(crate) const FIRST_LEVEL: u32 = 1;

/// See the module's text.
pub(crate) struct AnnouncedLevels {
    own: u32,
    /// The levels of other members, with the number of the start in which each was announced.
    others: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl AnnouncedLevels {
    pub(crate) fn new(own: u32) -> AnnouncedLevels {
        AnnouncedLevels { own, others: Mutex::default() }
    }

    /// A claim or an answer to one, with this node's level behind it.
    pub(crate) fn encode<T: Serialize>(&self, message: &T) -> io::Result<Bytes> {
        wire::encode(&(message, self.own))
    }

    /// Notes the level that a member announced in one of its starts; an old message changes nothing.
    pub(crate) fn note(&self, node: u64, start: StartId, level: u32) {
        let mut others = self.others.lock();
        let known = others.entry(node).or_insert((start.number, level));
        if known.0 <= start.number {
            *known = (start.number, level);
        }
    }

    pub(crate) fn forget(&self, node: u64) {
        self.others.lock().remove(&node);
    }

    /// The level that a member of the cluster has announced to this node.
    pub(crate) fn of(&self, node: u64) -> Option<u32> {
        self.others.lock().get(&node).map(|(_, level)| *level)
    }

    /// All levels that this node knows, its own as that of `node`.
    pub(crate) fn all(&self, node: u64) -> BTreeMap<u64, u32> {
        let others = self.others.lock();
        let others = others.iter().map(|(node, (_, level))| (*node, *level));
        others.chain([(node, self.own)]).collect()
    }
}

/// A claim or an answer to one, and the level that its sender announces.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<(T, u32)> {
    let (message, rest) = wire::decode_head(body)?;
    if rest.is_empty() {
        return Ok((message, FIRST_LEVEL));
    }
    let level = postcard::from_bytes(rest).ok().filter(|level| *level >= FIRST_LEVEL);
    Ok((message, level.ok_or_else(|| invalid("feature level"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(number: u64) -> StartId {
        StartId { number, boot: 7 }
    }

    #[test]
    fn a_level_is_read_behind_a_message_and_ignored_by_programs_that_know_of_none() {
        let message = (7_u64, String::from("claim"));
        let announced = AnnouncedLevels::new(300).encode(&message).unwrap();
        assert_eq!(decode::<(u64, String)>(&announced).unwrap(), (message.clone(), 300));
        assert_eq!(wire::decode::<(u64, String)>(&announced).unwrap(), message);
        let without = wire::encode(&message).unwrap();
        assert_eq!(decode::<(u64, String)>(&without).unwrap(), (message, FIRST_LEVEL));
        assert!(decode::<(u64, String)>(&[&without[..], &[0]].concat()).is_err(), "there is no level 0");
        assert!(decode::<(u64, String)>(&[&without[..], &[0x80]].concat()).is_err(), "cut off");
    }

    #[test]
    fn the_latest_start_of_a_member_counts() {
        let levels = AnnouncedLevels::new(2);
        levels.note(3, start(5), 2);
        levels.note(3, start(4), 1);
        assert_eq!(levels.of(3), Some(2));
        levels.note(3, start(6), 1);
        assert_eq!(levels.all(1), BTreeMap::from([(1, 2), (3, 1)]));
        levels.forget(3);
        assert_eq!(levels.of(3), None);
    }
}
