//! The feature levels that members announce: the highest that a node supports and that its operator allows.
//!
//! A node announces its level behind its claim and behind its answer to a claim (see [`crate::claim_exchange`]).
//! Each start of a member exchanges claims anew, so this node knows the level of the program that a member runs now, or
//! nothing if the two have not met since.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::admission::claim::StartId;

/// See the module's text.
pub(crate) struct AnnouncedLevels {
    /// This node's own.
    pub(crate) own: u32,
    /// The levels of other members, with the number of the start in which each was announced.
    others: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl AnnouncedLevels {
    pub(crate) fn new(own: u32) -> AnnouncedLevels {
        AnnouncedLevels { own, others: Mutex::default() }
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

    /// All levels that this node knows, its own as that of `node`.
    pub(crate) fn all(&self, node: u64) -> BTreeMap<u64, u32> {
        let others = self.others.lock();
        let others = others.iter().map(|(node, (_, level))| (*node, *level));
        others.chain([(node, self.own)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(number: u64) -> StartId {
        StartId { number, boot: 7 }
    }

    #[test]
    fn the_latest_start_of_a_member_counts() {
        let levels = AnnouncedLevels::new(2);
        levels.note(3, start(5), 2);
        levels.note(3, start(4), 1);
        assert_eq!(levels.all(1), BTreeMap::from([(1, 2), (3, 2)]));
        levels.note(3, start(6), 1);
        assert_eq!(levels.all(1), BTreeMap::from([(1, 2), (3, 1)]));
        levels.forget(3);
        assert_eq!(levels.all(1), BTreeMap::from([(1, 2)]));
    }
}
