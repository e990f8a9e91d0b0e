//! Watches over the stream. Each has a bounded queue to its reader. A reader that falls behind loses its watch, not its position: it
//! finds the end of its queue and watches again from where it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_api::Problem;
use lockkeeper_api::stream::{Change, FromServer, Watch};
use tokio::sync::mpsc;

use super::handle::StreamHandle;

/// Transactions that may wait for one reader.
const MAX_QUEUED: usize = 1_024;

/// What a watch is sent.
#[derive(Debug)]
pub(crate) enum WatchMessage {
    /// It has begun at this zxid.
    Begun(u64),
    /// One transaction.
    Changes(u64, Vec<Change>),
    /// Nothing more up to this zxid.
    Bookmark(u64),
    /// It is over.
    Ended(Box<Problem>),
}

#[derive(Debug)]
struct WatchEntry {
    /// `from` moves on with what was handed on.
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

    /// Hands on what the server said of a watch; tells which watch is to be ended because its reader has fallen behind.
    pub(super) fn dispatch(&mut self, message: FromServer) -> Option<u64> {
        let (id, zxid, messages) = match message {
            FromServer::Watching { id, zxid } => (id, Some(zxid), WatchMessage::Begun(zxid)),
            FromServer::Changes { id, zxid, changes } => (id, Some(zxid), WatchMessage::Changes(zxid, changes)),
            FromServer::Bookmark { id, zxid } => (id, Some(zxid), WatchMessage::Bookmark(zxid)),
            FromServer::WatchEnded { id, problem } => (id, None, WatchMessage::Ended(problem)),
            _ => return None,
        };
        let entry = self.0.get_mut(&id)?;
        if let Some(zxid) = zxid {
            // A transaction comes whole, in one message: the zxid alone tells whether it was given before the stream broke.
            let old = entry.watch.from.is_some_and(|from| zxid <= from);
            if old && !matches!(messages, WatchMessage::Begun(_)) {
                return None;
            }
            entry.watch.from = Some(entry.watch.from.map_or(zxid, |from| from.max(zxid)));
        }
        let ended = matches!(messages, WatchMessage::Ended(_));
        let behind = entry.sender.try_send(messages).is_err();
        if behind || ended {
            self.0.remove(&id);
        }
        (behind && !ended).then_some(id)
    }
}

/// A watch's end of its queue. Dropping it ends the watch.
pub(crate) struct WatchSubscription {
    pub(super) id: u64,
    pub(super) messages: mpsc::Receiver<WatchMessage>,
    pub(super) stream: Arc<StreamHandle>,
}

impl WatchSubscription {
    /// What comes next; `None` when there is no more to come this way.
    pub(crate) async fn next(&mut self) -> Option<WatchMessage> {
        self.messages.recv().await
    }

    pub(crate) fn stream(&self) -> &Arc<StreamHandle> {
        &self.stream
    }
}

impl Drop for WatchSubscription {
    fn drop(&mut self) {
        self.stream.unwatch(self.id);
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
