//! One direction between two places: the fault that lies on it, and what passed. All connections between the two share
//! it, whoever opened them.
//!
//! A fault is exact: bytes are handed on under the lock that guards it, so when [`Direction::set`] has returned, not
//! one more gets past.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng as _;
use tokio::net::tcp::WriteHalf;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{LinkFault, Passed};

/// How late tokio's timers are at most.
const TIMER_LATE: Duration = Duration::from_millis(3);

/// One direction.
pub(super) struct Direction {
    state: Mutex<DirectionState>,
    changed: watch::Sender<LinkFault>,
    bytes: AtomicU64,
    held: AtomicU64,
    reset: AtomicU64,
}

struct DirectionState {
    fault: LinkFault,
    /// When the last byte that was admitted has left a line of bounded bandwidth.
    line_free: Instant,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            state: Mutex::new(DirectionState { fault: LinkFault::None, line_free: Instant::now() }),
            changed: watch::Sender::new(LinkFault::None),
            bytes: AtomicU64::new(0),
            held: AtomicU64::new(0),
            reset: AtomicU64::new(0),
        }
    }
}

/// Whether bytes get past at all.
fn passable(fault: LinkFault) -> bool {
    matches!(fault, LinkFault::None | LinkFault::Slow { .. })
}

/// Sleeps until `due`, at the end on a thread: tokio's timers count whole milliseconds, like the delays.
async fn sleep_until(due: Instant) {
    tokio::time::sleep_until(due - TIMER_LATE).await;
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        // An error is the end of the runtime.
        let _ = tokio::task::spawn_blocking(move || std::thread::sleep(left)).await;
    }
}

impl Direction {
    pub(super) fn set(&self, fault: LinkFault) {
        let mut state = self.state.lock();
        state.fault = fault;
        state.line_free = Instant::now();
        self.changed.send_replace(fault);
    }

    pub(super) fn passed(&self) -> Passed {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Passed { bytes: read(&self.bytes), held: read(&self.held), reset: read(&self.reset) }
    }

    pub(super) fn fault(&self) -> LinkFault {
        self.state.lock().fault
    }

    pub(super) fn is_passable(&self) -> bool {
        passable(self.fault())
    }

    pub(super) fn count_held(&self, bytes: usize) {
        self.held.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_reset(&self) {
        self.reset.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the fault is one that `wanted` picks.
    pub(super) async fn until(&self, wanted: impl Fn(LinkFault) -> bool) {
        // The sender lives as long as this: no error.
        let _ = self.changed.subscribe().wait_for(|fault| wanted(*fault)).await;
    }

    pub(super) async fn until_passable(&self) {
        self.until(passable).await;
    }

    /// When what is sent now arrives, and whether a fault makes it late.
    pub(super) fn arrival(&self) -> (Instant, bool) {
        let now = Instant::now();
        match self.fault() {
            LinkFault::Slow { delay, jitter, .. } => (now + delay + jitter.mul_f64(rand::rng().random::<f64>()), true),
            fault => (now, !passable(fault)),
        }
    }

    /// Waits until `due`, or until the way is not slow any more.
    pub(super) async fn wait(&self, due: Instant) {
        if Instant::now() < due {
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.until(|fault| !matches!(fault, LinkFault::Slow { .. })) => {}
            }
        }
    }

    /// Takes the line for so many bytes, where its bandwidth is bounded; gives when they have left it.
    fn admit(&self, bytes: usize) -> Option<Instant> {
        let mut state = self.state.lock();
        match state.fault {
            LinkFault::Slow { bytes_per_s, .. } if bytes_per_s > 0 => {
                let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64);
                state.line_free = state.line_free.max(Instant::now()) + takes;
                Some(state.line_free)
            }
            _ => None,
        }
    }

    /// Hands bytes on, waiting for as long as a fault holds them. They count as held once, unless they have been
    /// `counted`.
    pub(super) async fn pass(&self, to: &WriteHalf<'_>, bytes: &[u8], mut counted: bool) -> io::Result<()> {
        const PIECE: usize = 2048;
        for piece in bytes.chunks(PIECE) {
            if let Some(left) = self.admit(piece.len()) {
                self.wait(left).await;
            }
            let mut passed = 0;
            while passed < piece.len() {
                if !self.is_passable() {
                    if !counted {
                        self.count_held(piece.len() - passed);
                        counted = true;
                    }
                    self.until_passable().await;
                }
                to.writable().await?;
                passed += self.pass_now(to, &piece[passed..])?;
            }
        }
        Ok(())
    }

    fn pass_now(&self, to: &WriteHalf<'_>, bytes: &[u8]) -> io::Result<usize> {
        // Held while bytes are passed on, so that none pass after a cut.
        let state = self.state.lock();
        if !passable(state.fault) {
            return Ok(0);
        }
        match to.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Ok(count) => {
                self.bytes.fetch_add(count as u64, Ordering::Relaxed);
                Ok(count)
            }
            other => other,
        }
    }
}
