//! Watches over the stream. Each has a bounded queue to its reader. A reader that falls behind loses its watch, not its
//! position: it reaches the end of its queue and begins a new watch from there.

use std::collections::BTreeMap;

use lockkeeper_api::Problem;
use lockkeeper_api::stream::{FromServer, Watch, WatchChange};
use tokio::sync::mpsc;

/// Most transactions that wait for one reader.
const MAX_QUEUED: usize = 1_024;

/// A message to the reader of a watch.
#[derive(Debug)]
pub(crate) enum WatchMessage {
    /// The watch has begun at this zxid.
    Begun(u64),
    /// The changes of one transaction.
    Changes(u64, Vec<WatchChange>),
    /// No further change up to this zxid.
    Bookmark(u64),
    /// The watch is over.
    Ended(Box<Problem>),
}

#[derive(Debug)]
struct WatchEntry {
    /// `from` advances with each dispatched message.
    watch: Watch,
    sender: mpsc::Sender<WatchMessage>,
}

/// The watches of one stream.
#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<u64, WatchEntry>);

impl Watches {
    pub(super) fn begin(&mut self, watch: Watch) -> mpsc::Receiver<WatchMessage> {
        let (sender, messages) = mpsc::channel(MAX_QUEUED);
        self.0.insert(watch.id, WatchEntry { watch, sender });
        messages
    }

    pub(super) fn get(&self, id: u64) -> Option<&Watch> {
        self.0.get(&id).map(|entry| &entry.watch)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    pub(super) fn end(&mut self, id: u64) -> bool {
        self.0.remove(&id).is_some()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Dispatches a message of the server to its watch. Returns the id of a watch to end because its reader fell
    /// behind.
    pub(super) fn dispatch(&mut self, message: FromServer) -> Option<u64> {
        let (id, zxid, message) = match message {
            FromServer::Watching { id, zxid } => (id, Some(zxid), WatchMessage::Begun(zxid)),
            FromServer::Changes { id, zxid, changes } => (id, Some(zxid), WatchMessage::Changes(zxid, changes)),
            FromServer::Bookmark { id, zxid } => (id, Some(zxid), WatchMessage::Bookmark(zxid)),
            FromServer::WatchEnded { id, problem } => (id, None, WatchMessage::Ended(problem)),
            _ => return None,
        };
        let entry = self.0.get_mut(&id)?;
        if let Some(zxid) = zxid {
            // A transaction comes in one message: its zxid tells whether it was dispatched before the stream broke.
            let old = entry.watch.from.is_some_and(|from| zxid <= from);
            if old && !matches!(message, WatchMessage::Begun(_)) {
                return None;
            }
            entry.watch.from = Some(entry.watch.from.map_or(zxid, |from| from.max(zxid)));
        }
        let ended = matches!(message, WatchMessage::Ended(_));
        let behind = entry.sender.try_send(message).is_err();
        if behind || ended {
            self.0.remove(&id);
        }
        (behind && !ended).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(from: Option<u64>) -> Watch {
        Watch { id: 1, path: "/".into(), recursive: true, from }
    }

    fn changes(zxid: u64) -> FromServer {
        FromServer::Changes { id: 1, zxid, changes: Vec::new() }
    }

    #[test]
    fn resumes_after_the_last_transaction_and_gives_none_twice() {
        let mut watches = Watches::default();
        let mut messages = watches.begin(watch(None));
        watches.dispatch(FromServer::Watching { id: 1, zxid: 5 });
        assert_eq!(watches.get(1).unwrap().from, Some(5), "a break before the first change leaves no gap");
        watches.dispatch(changes(6));
        watches.dispatch(changes(9));
        assert_eq!(watches.get(1).unwrap().from, Some(9));
        watches.dispatch(FromServer::Watching { id: 1, zxid: 9 });
        watches.dispatch(changes(9));
        watches.dispatch(changes(10));
        let mut zxids = Vec::new();
        while let Ok(messages) = messages.try_recv() {
            if let WatchMessage::Changes(zxid, _) = messages {
                zxids.push(zxid);
            }
        }
        assert_eq!(zxids, [6, 9, 10]);
    }

    #[test]
    fn a_reader_that_falls_behind_is_let_go() {
        let mut watches = Watches::default();
        let mut messages = watches.begin(watch(Some(0)));
        let let_go: Vec<u64> =
            (1..=MAX_QUEUED as u64 + 10).filter_map(|zxid| watches.dispatch(changes(zxid))).collect();
        assert_eq!(let_go, [1]);
        let mut last = 0;
        while let Ok(WatchMessage::Changes(zxid, _)) = messages.try_recv() {
            assert_eq!(zxid, last + 1);
            last = zxid;
        }
        assert_eq!(last, MAX_QUEUED as u64, "what was queued is whole, and ends");
    }
}
