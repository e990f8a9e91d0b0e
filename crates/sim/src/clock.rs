//! The clocks of one host. Its monotonic clock is that of its runtime: it stands still between ticks, and runs faster
//! or slower than true time because its ticks are shorter or longer. Its wall clock is that plus an offset that
//! jumps.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_node::Clock;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Where wall clocks begin: some day in 2023.
const WALL_BEGIN_MS: i64 = 1_700_000_000_000;

/// Shared by a host, the node on it and the world.
#[derive(Clone)]
pub(crate) struct HostClock(Arc<Mutex<ClockState>>);

struct ClockState {
    /// Zero of the monotonic clock: when this life of the host began.
    boot: Option<Instant>,
    /// Now, as of the beginning of this tick.
    tick: Option<Instant>,
    wall_at_tick_us: i64,
    rate: f64,
}

impl HostClock {
    pub(crate) fn new() -> HostClock {
        let wall_at_tick_us = WALL_BEGIN_MS * 1000;
        HostClock(Arc::new(Mutex::new(ClockState { boot: None, tick: None, wall_at_tick_us, rate: 1.0 })))
    }

    /// A life begins. Called inside the host's runtime.
    pub(crate) fn boot(&self) {
        let mut state = self.0.lock();
        (state.boot, state.tick) = (Some(Instant::now()), Some(Instant::now()));
    }

    /// The host is down: its wall clock goes on all the same.
    pub(crate) fn halt(&self) {
        let mut state = self.0.lock();
        (state.boot, state.tick) = (None, None);
    }

    /// A tick has passed, in which the host's own clock went by `local`.
    pub(crate) fn ticked(&self, now: Option<Instant>, local: Duration) {
        let mut state = self.0.lock();
        state.wall_at_tick_us += i64::try_from(local.as_micros()).unwrap_or(i64::MAX);
        state.tick = now;
    }

    pub(crate) fn set_rate(&self, rate: f64) {
        self.0.lock().rate = rate;
    }

    pub(crate) fn rate(&self) -> f64 {
        self.0.lock().rate
    }

    pub(crate) fn jump_wall(&self, by_ms: i64) {
        self.0.lock().wall_at_tick_us += by_ms * 1000;
    }

    /// Sets the wall clock to an offset from the true time; `true_us` is the true time since the world began.
    pub(crate) fn set_wall(&self, true_us: u64, off_by_ms: i64) {
        let now_us = i64::try_from(true_us).unwrap_or(i64::MAX);
        self.0.lock().wall_at_tick_us = WALL_BEGIN_MS * 1000 + now_us + off_by_ms * 1000;
    }

    /// True time since the beginning of this tick.
    pub(crate) fn true_since_tick(&self) -> Duration {
        let state = self.0.lock();
        state.since_tick().div_f64(state.rate)
    }
}

impl ClockState {
    fn since_tick(&self) -> Duration {
        // Outside of the runtime nothing passes.
        match self.tick {
            Some(tick) if Handle::try_current().is_ok() => Instant::now().saturating_duration_since(tick),
            _ => Duration::ZERO,
        }
    }
}

#[async_trait]
impl Clock for HostClock {
    fn wall_ms(&self) -> u64 {
        let state = self.0.lock();
        let now_us = state.wall_at_tick_us + i64::try_from(state.since_tick().as_micros()).unwrap_or(0);
        u64::try_from(now_us / 1000).unwrap_or(0)
    }

    fn now(&self) -> Duration {
        let state = self.0.lock();
        match (state.boot, state.tick) {
            (Some(boot), Some(tick)) => tick.saturating_duration_since(boot) + state.since_tick(),
            _ => Duration::ZERO,
        }
    }

    async fn sleep_until(&self, at: Duration) {
        let until = self.0.lock().boot.and_then(|boot| boot.checked_add(at));
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }
}
