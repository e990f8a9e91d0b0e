//! The watches of one stream. A drain polls only those that have something, and returns everything that was queued
//! before it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::Stream;
use futures::task::AtomicWaker;
use lockkeeper_node::{WatchItem, WatchStream};
use lockkeeper_service::budget::Taken;
use parking_lot::Mutex;

/// The watches that have something.
#[derive(Debug, Default)]
struct ReadyList {
    ready: Mutex<Vec<u64>>,
    stream: AtomicWaker,
}

#[derive(Debug)]
struct ReadyWaker {
    id: u64,
    ready_list: Arc<ReadyList>,
    is_listed: AtomicBool,
}

impl Wake for ReadyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            self.ready_list.ready.lock().push(self.id);
        }
        self.ready_list.stream.wake();
    }
}

struct ActiveWatch {
    _place: Taken,
    items: WatchStream,
    ready_waker: Arc<ReadyWaker>,
    waker: Waker,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct StreamWatches {
    all: HashMap<u64, ActiveWatch>,
    ready_list: Arc<ReadyList>,
}

impl StreamWatches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.all.contains_key(&id)
    }

    pub(super) fn add(&mut self, id: u64, items: WatchStream, place: Taken) {
        let ready_waker =
            Arc::new(ReadyWaker { id, ready_list: self.ready_list.clone(), is_listed: AtomicBool::new(false) });
        // A watch that resumes in the past has something at once.
        ready_waker.wake_by_ref();
        self.all.insert(id, ActiveWatch { _place: place, items, waker: ready_waker.clone().into(), ready_waker });
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.all.remove(&id);
    }

    /// Passes the items of the watches to `tell` until it returns false. True if all items were passed on.
    pub(super) fn drain(&mut self, context: &mut Context<'_>, mut tell: impl FnMut(u64, WatchItem) -> bool) -> bool {
        if self.all.is_empty() {
            // Entries of removed watches: nothing else would clear them.
            self.ready_list.ready.lock().clear();
            return true;
        }
        self.ready_list.stream.register(context.waker());
        let ready = std::mem::take(&mut *self.ready_list.ready.lock());
        let mut ready = ready.into_iter();
        while let Some(id) = ready.next() {
            let Some(one) = self.all.get_mut(&id) else { continue };
            one.ready_waker.is_listed.store(false, Ordering::Release);
            let (over, enough) = one.drain(|item| tell(id, item));
            if over {
                self.all.remove(&id);
            }
            if enough {
                self.ready_list.ready.lock().extend(ready);
                return false;
            }
        }
        true
    }
}

impl ActiveWatch {
    /// Whether the watch is over, and whether `tell` returned false.
    fn drain(&mut self, mut tell: impl FnMut(WatchItem) -> bool) -> (bool, bool) {
        while let Poll::Ready(item) = self.next() {
            let Some(item) = item else { return (true, false) };
            let over = matches!(item, WatchItem::Lost { .. });
            let enough = !tell(item);
            if enough && !over {
                self.ready_waker.wake_by_ref();
            }
            if over || enough {
                return (over, enough);
            }
        }
        (false, false)
    }

    /// Polls outside tokio's cooperative budget, which could hold back an event while its answer is written.
    fn next(&mut self) -> Poll<Option<WatchItem>> {
        let Self { items, waker, .. } = self;
        let polled = poll_fn(|context| Pin::new(&mut *items).poll_next(context));
        pin!(tokio::task::coop::unconstrained(polled)).poll(&mut Context::from_waker(waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_removed_watches_have_rung_for_is_not_kept() {
        let mut watches = StreamWatches::default();
        for id in 0..100 {
            let ready_list = watches.ready_list.clone();
            Arc::new(ReadyWaker { id, ready_list, is_listed: AtomicBool::new(false) }).wake_by_ref();
        }
        assert!(watches.drain(&mut Context::from_waker(Waker::noop()), |_, _| true));
        assert!(watches.ready_list.ready.lock().is_empty());
    }
}
