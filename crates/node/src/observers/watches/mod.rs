//! The watches of this node: which stream watches which path, and the firing of watches (promise P8).
//!
//! Events are delivered under the state's lock, so nobody can read a change before its event is on its way. Delivery
//! never waits for a watcher: one that does not keep up gets [`WatchItem::Lost`] and is cut off. An event finds its
//! watchers by its path and that path's ancestors, never by going through all of them.

pub(crate) mod history;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use lockkeeper_core::{Event, NodeEventKind, NodePath, State, Zxid};
use lockkeeper_mutants::mutant;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::observers::watches::history::{History, WatchEvent};
use crate::observers::{Observer, unlink};

/// The path that a watch is for, and from when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    /// The path.
    pub path: NodePath,
    /// True: creations, deletions and data changes of every node in the subtree, without `ChildrenChanged`. False:
    /// every event of this one node, `ChildrenChanged` included.
    pub recursive: bool,
    /// Only events after this zxid; `None` means from now on.
    pub from: Option<Zxid>,
}

/// One item of a watch's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// All events of one transaction that the watch matches, in order; never empty. After it, resume from its zxid.
    Changes(Vec<WatchEvent>),
    /// All events up to this zxid have been delivered: where to resume if nothing happens after it.
    Bookmark(Zxid),
    /// The last item: the watcher was too slow, or a snapshot skipped events. Watch again from the last zxid received
    /// if it is not below `oldest`; otherwise read again, and watch from there.
    Lost {
        /// The first zxid from which a watch can resume.
        oldest: Zxid,
    },
}

#[derive(Debug)]
struct Watch {
    spec_path: NodePath,
    recursive: bool,
    /// It receives events later than this.
    after: Zxid,
    /// The zxid of its latest bookmark.
    bookmarked: Zxid,
    queue: mpsc::Sender<WatchItem>,
    lost: Arc<Mutex<Option<Zxid>>>,
}

type Listeners = HashMap<NodePath, Vec<u64>>;

#[derive(Debug)]
struct WatchTable {
    history: History,
    watches: BTreeMap<u64, Watch>,
    exact: Listeners,
    recursive: Listeners,
    next_id: u64,
    queue_items: usize,
    max_watches: usize,
}

/// Why a watch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchRefused {
    Compacted(Zxid),
    TooMany,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Watches(Mutex<WatchTable>);

impl Watches {
    pub(crate) fn new(history: History, queue_items: usize, max_watches: usize) -> Arc<Self> {
        let (watches, exact, recursive) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        let table = WatchTable { history, watches, exact, recursive, next_id: 1, queue_items, max_watches };
        Arc::new(Self(Mutex::new(table)))
    }

    /// Adds a watch. `now` is the zxid of the state, which the caller has locked.
    pub(crate) fn add(self: &Arc<Self>, spec: WatchSpec, now: Zxid) -> Result<WatchStream, WatchRefused> {
        let mut this = self.0.lock();
        if this.watches.len() >= this.max_watches {
            return Err(WatchRefused::TooMany);
        }
        let after = spec.from.unwrap_or(now);
        let missed = this.history.after(after).map_err(WatchRefused::Compacted)?;
        let wanted = |event: &&WatchEvent| {
            if spec.recursive {
                event.kind != NodeEventKind::ChildrenChanged && event.path.is_within(&spec.path)
            } else {
                event.path == spec.path
            }
        };
        let missed: Vec<WatchEvent> = missed.filter(wanted).cloned().collect();
        let backlog =
            missed.chunk_by(|a, b| a.zxid == b.zxid).map(|changes| WatchItem::Changes(changes.to_vec())).collect();
        let id = this.next_id;
        this.next_id += 1;
        let (queue, rest) = mpsc::channel(this.queue_items);
        let lost = Arc::new(Mutex::new(None));
        this.listeners(spec.recursive).entry(spec.path.clone()).or_default().push(id);
        let watch = Watch {
            spec_path: spec.path,
            recursive: spec.recursive,
            after: after.max(now),
            bookmarked: after,
            queue,
            lost: lost.clone(),
        };
        this.watches.insert(id, watch);
        Ok(WatchStream { id, after, watches: self.clone(), backlog, rest, lost, ended: false })
    }

    /// Announces to every watch how far the state has come: no event up to `now` is still on its way to it.
    pub(crate) fn bookmark(&self, now: Zxid) {
        self.0.lock().bookmark(now);
    }

    /// This node goes down: every stream ends, and no watch is taken any more.
    pub(crate) fn close(&self) {
        self.0.lock().close();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().watches.len()
    }
}

impl Observer for Watches {
    fn deliver(&self, _: &State, events: &[Event]) {
        let changes = events.iter().filter_map(|event| match event {
            Event::Node { zxid, kind, path, acl } => {
                Some(WatchEvent { zxid: *zxid, kind: *kind, path: path.clone(), acl: acl.clone() })
            }
            _ => None,
        });
        let changes: Vec<WatchEvent> = changes.collect();
        let mut table = self.0.lock();
        for transaction in changes.chunk_by(|a, b| a.zxid == b.zxid) {
            table.deliver(transaction);
        }
    }

    fn skipped(&self, state: &State) {
        if !mutant!(ForgetWatchesAtInstall) {
            self.0.lock().start_over(state.zxid());
        }
    }

    fn is_awaited(&self) -> bool {
        self.len() > 0
    }
}

impl WatchTable {
    fn listeners(&mut self, recursive: bool) -> &mut Listeners {
        if recursive { &mut self.recursive } else { &mut self.exact }
    }

    /// Adds a transaction to the history and fires the watches that match it. A watch gets all its events at once, or
    /// none.
    fn deliver(&mut self, transaction: &[WatchEvent]) {
        let mut deliveries: BTreeMap<u64, Vec<WatchEvent>> = BTreeMap::new();
        for event in transaction {
            self.history.push(event.clone());
            for id in self.concerned(event) {
                deliveries.entry(id).or_default().push(event.clone());
            }
        }
        let oldest = self.history.oldest();
        for (id, changes) in deliveries {
            if !self.send(id, changes) {
                self.cut_off(id, oldest);
            }
        }
    }

    /// The watches that match this event.
    fn concerned(&self, event: &WatchEvent) -> Vec<u64> {
        let mut ids = self.exact.get(&event.path).cloned().unwrap_or_default();
        if !self.recursive.is_empty() && event.kind != NodeEventKind::ChildrenChanged {
            ids.extend(ancestors(event.path.as_str()).filter_map(|path| self.recursive.get(path)).flatten());
        }
        ids
    }

    /// False if the queue of the watch is full.
    fn send(&self, id: u64, changes: Vec<WatchEvent>) -> bool {
        let Some(watch) = self.watches.get(&id) else { return true };
        // A watch that was ahead of this replica has received it from another node.
        let news = changes.first().is_some_and(|first| watch.after < first.zxid);
        // A watch whose stream is closed is being dropped, and removes itself.
        !news || watch.queue.try_send(WatchItem::Changes(changes)).is_ok()
    }

    /// Ends a watch that has lost events.
    fn cut_off(&mut self, id: u64, oldest: Zxid) {
        if let Some(watch) = self.remove(id) {
            metrics::counter!("lockkeeper_watches_lost_total").increment(1);
            *watch.lost.lock() = Some(oldest);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Watch> {
        let watch = self.watches.remove(&id)?;
        unlink(self.listeners(watch.recursive), &watch.spec_path, &id);
        Some(watch)
    }

    /// See [`Watches::bookmark`].
    fn bookmark(&mut self, now: Zxid) {
        for watch in self.watches.values_mut().filter(|watch| watch.bookmarked < now) {
            // A full queue needs no bookmark: its events say where it is.
            if watch.queue.try_send(WatchItem::Bookmark(now)).is_ok() {
                (watch.after, watch.bookmarked) = (watch.after.max(now), now);
            }
        }
    }

    /// The state skipped ahead to `zxid`: events on the way are not known here, so watches that are behind are cut off.
    fn start_over(&mut self, zxid: Zxid) {
        self.history.start_over(zxid);
        let behind: Vec<u64> = self.watches.iter().filter(|(_, watch)| watch.after < zxid).map(|(id, _)| *id).collect();
        for id in behind {
            self.cut_off(id, zxid);
        }
    }

    fn close(&mut self) {
        self.watches.clear();
        self.exact.clear();
        self.recursive.clear();
        self.max_watches = 0;
    }
}

/// The path and all its ancestors, up to the root.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut next = Some(path);
    std::iter::from_fn(move || {
        let current = next?;
        next = match current.rfind('/') {
            _ if current == "/" => None,
            Some(0) | None => Some("/"),
            Some(at) => Some(&current[..at]),
        };
        Some(current)
    })
}

/// The items of a watch. Ends after [`WatchItem::Lost`]; dropping it removes the watch.
#[derive(Debug)]
pub struct WatchStream {
    id: u64,
    after: Zxid,
    watches: Arc<Watches>,
    backlog: VecDeque<WatchItem>,
    rest: mpsc::Receiver<WatchItem>,
    lost: Arc<Mutex<Option<Zxid>>>,
    ended: bool,
}

impl WatchStream {
    /// The stream has every event after this zxid.
    pub fn after(&self) -> Zxid {
        self.after
    }
}

impl Stream for WatchStream {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        if let Some(item) = self.backlog.pop_front() {
            return Poll::Ready(Some(item));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match self.rest.poll_recv(context) {
            Poll::Ready(None) => {
                self.ended = true;
                let lost = self.lost.lock().take();
                Poll::Ready(lost.map(|oldest| WatchItem::Lost { oldest }))
            }
            item => item,
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.watches.0.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests;
