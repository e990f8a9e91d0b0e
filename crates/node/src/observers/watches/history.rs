//! The last events of this replica, so that a watch can resume where it broke off (promise P8).
//!
//! Bounded by count and by bytes. It must never hand out a history with a hole: it refuses a zxid whose later events
//! it no longer has, or never had because a snapshot skipped them.

use std::collections::VecDeque;
use std::sync::Arc;

use lockkeeper_core::{AclEntry, NodeEventKind, NodePath, Zxid};
use lockkeeper_mutants::invariant;

/// A change at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// When, in the replicated order. The events of one transaction share it.
    pub zxid: Zxid,
    /// The kind of change.
    pub kind: NodeEventKind,
    /// The path.
    pub path: NodePath,
    /// The access control list of the node: a caller that may not read the node must not receive the event.
    pub acl: Arc<[AclEntry]>,
}

impl WatchEvent {
    fn bytes(&self) -> usize {
        self.path.as_str().len() + size_of::<Self>()
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct History {
    events: VecDeque<WatchEvent>,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
    /// The history has every event with a larger zxid.
    complete_after: Zxid,
}

impl History {
    pub(crate) fn new(max_events: usize, max_bytes: usize) -> Self {
        Self { events: VecDeque::new(), bytes: 0, max_events, max_bytes, complete_after: Zxid(0) }
    }

    /// Forgets all events: none up to `zxid` can be resumed from.
    pub(crate) fn start_over(&mut self, zxid: Zxid) {
        self.events.clear();
        self.bytes = 0;
        self.complete_after = zxid;
    }

    /// Adds an event; they come in zxid order. The oldest are dropped first, so that the bounds always hold.
    pub(crate) fn push(&mut self, event: WatchEvent) {
        let last = self.events.back().map_or(self.complete_after, |last| last.zxid);
        invariant!(last <= event.zxid, "watch events come in the order of their zxids");
        self.bytes += event.bytes();
        while self.events.len() >= self.max_events || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.bytes();
            // The rest of that transaction counts as dropped too: half of it would be a hole.
            self.complete_after = oldest.zxid;
        }
        self.events.push_back(event);
    }

    /// Every event after `zxid`, or else the first zxid from which a watch can resume.
    pub(crate) fn after(&self, zxid: Zxid) -> Result<impl Iterator<Item = &WatchEvent>, Zxid> {
        if zxid < self.complete_after {
            return Err(self.complete_after);
        }
        let start = self.events.partition_point(|event| event.zxid <= zxid);
        Ok(self.events.range(start..))
    }

    /// The first zxid from which a watch can resume.
    pub(crate) fn oldest(&self) -> Zxid {
        self.complete_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(zxid: u64) -> WatchEvent {
        WatchEvent { zxid: Zxid(zxid), kind: NodeEventKind::Created, path: NodePath::root(), acl: Arc::default() }
    }

    fn zxids(history: &History, after: u64) -> Result<Vec<u64>, Zxid> {
        Ok(history.after(Zxid(after))?.map(|event| event.zxid.0).collect())
    }

    #[test]
    fn resumes_from_what_it_has_and_refuses_the_rest() {
        let mut history = History::new(3, 1 << 20);
        history.start_over(Zxid(10));
        for zxid in [11, 12, 12] {
            history.push(event(zxid));
        }
        assert_eq!(zxids(&history, 10), Ok(vec![11, 12, 12]));
        assert_eq!(zxids(&history, 11), Ok(vec![12, 12]));
        assert_eq!(zxids(&history, 12), Ok(vec![]));
        assert_eq!(zxids(&history, 99), Ok(vec![]));
        assert_eq!(zxids(&history, 9), Err(Zxid(10)));
        history.push(event(13));
        assert_eq!(zxids(&history, 10), Err(Zxid(11)));
        history.push(event(14));
        assert_eq!(zxids(&history, 11), Err(Zxid(12)), "half of transaction 12 is gone, so all of it is");
        assert_eq!(zxids(&history, 12), Ok(vec![13, 14]));
        history.start_over(Zxid(20));
        assert_eq!(zxids(&history, 14), Err(Zxid(20)));
    }

    #[test]
    fn bytes_bound_it_too() {
        let mut history = History::new(1_000, 10 * event(0).bytes());
        (1..=100).for_each(|zxid| history.push(event(zxid)));
        assert_eq!(history.oldest(), Zxid(90));
        assert!(history.bytes <= history.max_bytes);
    }
}
