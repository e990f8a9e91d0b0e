//! The allocator, and how it gives memory back.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A node allocates for each message of each peer and client; a fifth of its processor time went into the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Between two collections.
const EVERY: Duration = Duration::from_secs(5);

thread_local! {
    static COLLECTED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Gives back what this thread has freed, unless it did so a moment ago. For a thread that is about to wait: mimalloc collects by itself
/// after ten thousand allocations of a thread, and a node that has become idle would keep for hours what its busy time took.
pub(crate) fn collect_now_and_then() {
    let now = Instant::now();
    if COLLECTED_AT.get().is_some_and(|at| now < at + EVERY) {
        return;
    }
    COLLECTED_AT.set(Some(now));
    #[expect(unsafe_code, reason = "mimalloc has no other way to collect")]
    // SAFETY: it takes a flag and touches nothing but the allocator's own records, which any thread may have it do at any time.
    unsafe {
        libmimalloc_sys::mi_collect(false);
    }
}
