//! The watches of one stream. Only those that have something are looked at, and a drain gives everything that was queued before it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::Stream;
use futures::task::AtomicWaker;
use lockkeeper_node::{WatchItem, WatchStream};
use parking_lot::Mutex;

use crate::budget::Taken;

/// Rung by watches that have something.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Vec<u64>>,
    stream: AtomicWaker,
}

#[derive(Debug)]
struct Ringer {
    id: u64,
    bell: Arc<Bell>,
    has_rung: AtomicBool,
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.has_rung.swap(true, Ordering::AcqRel) {
            self.bell.rung.lock().push(self.id);
        }
        self.bell.stream.wake();
    }
}

struct One {
    _place: Taken,
    items: WatchStream,
    ringer: Arc<Ringer>,
    waker: Waker,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Watches {
    all: HashMap<u64, One>,
    bell: Arc<Bell>,
}

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.all.contains_key(&id)
    }

    pub(super) fn add(&mut self, id: u64, items: WatchStream, place: Taken) {
        let ringer = Arc::new(Ringer { id, bell: self.bell.clone(), has_rung: AtomicBool::new(false) });
        // It may resume in the past, and has something to say then.
        ringer.wake_by_ref();
        self.all.insert(id, One { _place: place, items, waker: ringer.clone().into(), ringer });
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.all.remove(&id);
    }

    /// Hands what the watches have to `tell`, until that says that it is enough. True if all of it was handed over.
    pub(super) fn drain(&mut self, context: &mut Context<'_>, mut tell: impl FnMut(u64, WatchItem) -> bool) -> bool {
        if self.all.is_empty() {
            // Rung by watches that have been removed: nobody else would take those away.
            self.bell.rung.lock().clear();
            return true;
        }
        self.bell.stream.register(context.waker());
        let rung = std::mem::take(&mut *self.bell.rung.lock());
        let mut rung = rung.into_iter();
        while let Some(id) = rung.next() {
            let Some(one) = self.all.get_mut(&id) else { continue };
            one.ringer.has_rung.store(false, Ordering::Release);
            let (over, enough) = one.drain(|item| tell(id, item));
            if over {
                self.all.remove(&id);
            }
            if enough {
                self.bell.rung.lock().extend(rung);
                return false;
            }
        }
        true
    }
}

impl One {
    /// Whether the watch is over, and whether that is enough.
    fn drain(&mut self, mut tell: impl FnMut(WatchItem) -> bool) -> (bool, bool) {
        while let Poll::Ready(item) = self.next() {
            let Some(item) = item else { return (true, false) };
            let over = matches!(item, WatchItem::Lost { .. });
            let enough = !tell(item);
            if enough && !over {
                self.ringer.wake_by_ref();
            }
            if over || enough {
                return (over, enough);
            }
        }
        (false, false)
    }

    /// Not subject to tokio's budget: that would hold back an event whose answer is about to be written.
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
        let mut watches = Watches::default();
        for id in 0..100 {
            let bell = watches.bell.clone();
            Arc::new(Ringer { id, bell, has_rung: AtomicBool::new(false) }).wake_by_ref();
        }
        assert!(watches.drain(&mut Context::from_waker(Waker::noop()), |_, _| true));
        assert!(watches.bell.rung.lock().is_empty());
    }
}
