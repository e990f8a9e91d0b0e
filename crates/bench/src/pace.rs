//! When clients begin their cycles, and which cycles count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Phase of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Cycles do not count yet.
    WarmUp,
    /// Cycles count.
    Measure,
    /// Clients end.
    Done,
}

/// What becomes of the cycles that are under way when a measurement begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// Only cycles that begin and end in the measurement count; at a rate, they only have to end in it, or those that
    /// take long would be missing. Clients finish their last cycle.
    Whole,
    /// Cycles that end in the measurement count: those running at its start make up for those at its end, which are
    /// cancelled.
    Cut,
}

/// The beginning of a cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    phase: Phase,
    /// When it was due, which may be earlier than the client could begin.
    pub(crate) at: Instant,
}

/// When clients begin cycles.
#[derive(Clone)]
pub(crate) struct Pace {
    phase: watch::Receiver<Phase>,
    /// As soon as they can if there is none.
    rate: Option<Arc<Rate>>,
    edges: Edges,
}

impl Pace {
    /// From now on, at this rate for all clients together.
    pub(crate) fn new(phase: watch::Receiver<Phase>, per_second: Option<f64>, edges: Edges) -> Self {
        Self { phase, rate: per_second.map(|per_second| Arc::new(Rate::from_now(per_second))), edges }
    }

    /// Waits until the next cycle is due. `None` at the end of the measurement.
    pub(crate) async fn next(&self) -> Option<Beginning> {
        let at = match &self.rate {
            None => Instant::now(),
            Some(rate) => {
                let due = rate.take();
                tokio::select! {
                    () = sleep_until(due) => due,
                    () = self.over() => return None,
                }
            }
        };
        let phase = *self.phase.borrow();
        (phase != Phase::Done).then_some(Beginning { phase, at })
    }

    /// Whether each client begins its next cycle as soon as it can.
    pub(crate) fn is_closed_loop(&self) -> bool {
        self.rate.is_none()
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.phase.borrow() == Phase::Done
    }

    /// Waits for the end of the measurement.
    async fn over(&self) {
        // It fails only if nobody measures any more.
        let _ = self.phase.clone().wait_for(|phase| *phase == Phase::Done).await;
    }

    /// Waits until cycles that are under way are cancelled.
    pub(crate) async fn cut_off(&self) {
        match self.edges {
            Edges::Cut => self.over().await,
            Edges::Whole => std::future::pending().await,
        }
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.edges == Edges::Cut && self.is_over()
    }

    /// Whether a cycle counts that began then and ends now.
    pub(crate) fn counts(&self, began: Beginning) -> bool {
        let may_begin_earlier = self.edges == Edges::Cut || self.rate.is_some();
        *self.phase.borrow() == Phase::Measure && (may_begin_earlier || began.phase == Phase::Measure)
    }
}

/// Cycles at a constant rate, for all clients together.
#[derive(Debug)]
struct Rate {
    per_second: f64,
    began: Instant,
    next: AtomicU64,
}

impl Rate {
    fn from_now(per_second: f64) -> Self {
        Self { per_second, began: Instant::now(), next: AtomicU64::new(0) }
    }

    /// When the next cycle is due, which no other client begins. That may be in the past.
    fn take(&self) -> Instant {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.began + Duration::from_secs_f64(number as f64 / self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_due_at_equal_distances() {
        let rate = Rate::from_now(4.0);
        let due: Vec<Duration> = (0..4).map(|_| rate.take() - rate.began).collect();
        assert_eq!(due, [0, 250, 500, 750].map(Duration::from_millis));
    }
}
