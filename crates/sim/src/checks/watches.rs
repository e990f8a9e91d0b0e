//! Promise P8: a watch gets every event that it asked for, once and in order, from where it began to the point that
//! it reports; or it is told that this is not possible.

use lockkeeper_core::NodeEventKind;
use lockkeeper_node::{WatchEvent, WatchItem, WatchSpec};

use super::change::Change;

/// Everything that happened to nodes, in order.
#[derive(Debug, Default)]
pub struct Watches {
    events: Vec<(u64, NodeEventKind, String)>,
    /// How far the log has come.
    last: u64,
    received: u64,
}

/// How far one watch has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Everything up to here.
    pub up_to: u64,
    /// The watch has ended.
    pub lost: bool,
}

impl Watches {
    /// Takes in a command of the log.
    pub fn change(&mut self, change: &Change<'_>) {
        self.last = self.last.max(change.outcome.zxid.0);
        self.events.extend(change.node_events().map(|(zxid, kind, path)| (zxid, kind, path.to_owned())));
    }

    /// How many events were told to watches.
    pub fn received_count(&self) -> u64 {
        self.received
    }

    /// A watch from `from` on was refused, for events are kept from `oldest` on only.
    ///
    /// # Errors
    /// If it could have been taken by that word, or if that is yet to come.
    pub fn compacted(&self, spec: &WatchSpec, from: u64, oldest: u64) -> Result<(), String> {
        if oldest <= from {
            return Err(format!("{spec:?} was refused as of {from}, by a node that has events from {oldest} on"));
        }
        self.is_of_the_past(spec, oldest)
    }

    fn is_of_the_past(&self, spec: &WatchSpec, oldest: u64) -> Result<(), String> {
        if oldest <= self.last {
            return Ok(());
        }
        Err(format!("{spec:?} is to begin at {oldest}, and the log has come to {}", self.last))
    }

    /// A watch that had been told everything up to `from` was told this.
    ///
    /// # Errors
    /// If something between is missing, was not asked for, or comes twice or out of order.
    pub fn received(&mut self, spec: &WatchSpec, from: u64, item: &WatchItem) -> Result<Received, String> {
        let (up_to, events): (u64, &[WatchEvent]) = match item {
            WatchItem::Changes(changes) => (changes.last().map_or(from, |last| last.zxid.0), changes),
            WatchItem::Bookmark(zxid) => (zxid.0, &[]),
            WatchItem::Lost { oldest } => {
                self.is_of_the_past(spec, oldest.0)?;
                return Ok(Received { up_to: from, lost: true });
            }
        };
        if up_to <= from && !matches!(item, WatchItem::Bookmark(_)) {
            return Err(format!("{spec:?} had heard up to {from}, and is told of {item:?} again"));
        }
        let first = self.events.partition_point(|(zxid, ..)| *zxid <= from);
        let due =
            self.events[first..].iter().take_while(|(zxid, ..)| *zxid <= up_to).filter(|event| wanted(spec, event));
        let delivered = events.iter().map(|event| (event.zxid.0, event.kind, event.path.as_str()));
        let due: Vec<_> = due.map(|(zxid, kind, path)| (*zxid, *kind, path.as_str())).collect();
        let delivered: Vec<_> = delivered.collect();
        if due != delivered {
            return Err(format!(
                "{spec:?} between {from} and {up_to} was told {delivered:?}, and should have been {due:?}"
            ));
        }
        self.received += delivered.len() as u64;
        Ok(Received { up_to: up_to.max(from), lost: false })
    }
}

fn wanted(spec: &WatchSpec, (_, kind, path): &(u64, NodeEventKind, String)) -> bool {
    let root = spec.path.as_str();
    if !spec.recursive {
        return path == root;
    }
    let within = root == "/" || path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    within && *kind != NodeEventKind::ChildrenChanged
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Zxid;

    use super::super::test_history::{History, path};
    use super::*;

    /// `/a` made at 1, `/a/b` at 2, `/ab` at 3.
    fn watches() -> (Watches, Vec<WatchEvent>) {
        let (mut history, mut watches) = (History::default(), Watches::default());
        let mut all = Vec::new();
        for at in ["/a", "/a/b", "/ab"] {
            history.create(at, "");
        }
        history.each(|each| {
            watches.change(each);
            all.extend(each.node_events().map(|(zxid, kind, at)| WatchEvent {
                zxid: Zxid(zxid),
                kind,
                path: path(at),
                acl: std::sync::Arc::default(),
            }));
        });
        (watches, all)
    }

    fn spec(at: &str, recursive: bool) -> WatchSpec {
        WatchSpec { path: path(at), recursive, from: None }
    }

    fn item(all: &[WatchEvent], zxid: u64, at: &[&str]) -> WatchItem {
        let chosen = all.iter().filter(|event| event.zxid.0 == zxid && at.contains(&event.path.as_str()));
        WatchItem::Changes(chosen.cloned().collect())
    }

    #[test]
    fn what_was_asked_for_is_right() {
        let (mut watches, all) = watches();
        let exact = spec("/a", false);
        let received = watches.received(&exact, 0, &item(&all, 1, &["/a"])).unwrap();
        let received = watches.received(&exact, received.up_to, &item(&all, 2, &["/a"])).unwrap();
        let received = watches.received(&exact, received.up_to, &WatchItem::Bookmark(Zxid(3))).unwrap();
        assert_eq!(received, Received { up_to: 3, lost: false });
        let below = spec("/a", true);
        let received = watches.received(&below, 0, &item(&all, 1, &["/a"])).unwrap();
        watches.received(&below, received.up_to, &item(&all, 2, &["/a/b"])).unwrap();
        assert!(watches.received(&below, 0, &WatchItem::Lost { oldest: Zxid(2) }).unwrap().lost);
        assert_eq!(watches.received_count(), 4);
    }

    #[test]
    fn compaction_without_a_reason_is_refused() {
        let (mut watches, _) = watches();
        let below = spec("/a", true);
        watches.compacted(&below, 1, 2).unwrap();
        watches.compacted(&below, 1, 3).unwrap();
        // It has what was asked for; it speaks of what is yet to come.
        watches.compacted(&below, 2, 2).unwrap_err();
        watches.compacted(&below, 3, 1).unwrap_err();
        watches.compacted(&below, 1, 4).unwrap_err();
        watches.received(&below, 1, &WatchItem::Lost { oldest: Zxid(4) }).unwrap_err();
    }

    #[test]
    fn a_gap_a_repetition_and_a_stranger_are_refused() {
        let (mut watches, all) = watches();
        let exact = spec("/a", false);
        // Missed what happened at 1; missed what happened at 2 behind a bookmark.
        watches.received(&exact, 0, &item(&all, 2, &["/a"])).unwrap_err();
        watches.received(&exact, 1, &WatchItem::Bookmark(Zxid(3))).unwrap_err();
        // Told before.
        watches.received(&exact, 2, &item(&all, 2, &["/a"])).unwrap_err();
        // Not asked for; only half of a transaction.
        watches.received(&spec("/", true), 2, &item(&all, 3, &["/ab", "/"])).unwrap_err();
        watches.received(&spec("/", false), 0, &item(&all, 1, &["/", "/a"])).unwrap_err();
    }
}
