//! One machine: its own runtime, in which all its tasks live, and its clock.
//!
//! The runtime uses the world's one thread, and its clock stands still unless the world moves it. Killing a host
//! drops its runtime: every task on it is gone at once. Nothing runs on a host except inside [`Host::run`],
//! [`Host::wake`] and [`Host::inside`], which the world calls in a fixed order.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::clock::HostClock;

// tokio takes a seed for its own choices only so.
#[cfg(not(any(tokio_unstable, doc, doctest)))]
compile_error!(
    "this build cannot run a seed twice and see the same: RUSTFLAGS in the environment, or rustflags of your own \
     configuration, replace those of .cargo/config.toml; unset them, or add `--cfg tokio_unstable` to them"
);

/// More polls of its tasks in one tick are a livelock, which the run would never leave. A busy tick has some thousands.
const MAX_POLLS: u64 = 1_000_000;

/// See the module's text.
pub(crate) struct Host {
    runtime: Option<Runtime>,
    pub(crate) clock: HostClock,
    paused: bool,
    boot: Option<Instant>,
    /// Local time of this life, which the runtime's clock (whole milliseconds) follows.
    due_ns: u64,
    /// Local time that has passed while frozen.
    missed_ns: u64,
    /// Polls of its tasks in this tick.
    polls: Arc<AtomicU64>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host {
            runtime: None,
            clock: HostClock::new(),
            paused: false,
            boot: None,
            due_ns: 0,
            missed_ns: 0,
            polls: Arc::default(),
        }
    }

    /// Begins a life. The seed decides everything that tokio leaves to chance.
    pub(crate) fn boot(&mut self, seed: u64) -> std::io::Result<()> {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true);
        let polls = self.polls.clone();
        builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
        builder.on_before_task_poll(move |_| {
            let polled = polls.fetch_add(1, Ordering::Relaxed);
            assert!(polled < MAX_POLLS, "livelock: tasks wake each other, {polled} polls while time stood still");
        });
        let runtime = builder.build()?;
        {
            let _inside = runtime.enter();
            self.boot = Some(Instant::now());
            self.clock.boot();
        }
        (self.runtime, self.due_ns, self.missed_ns, self.paused) = (Some(runtime), 0, 0, false);
        Ok(())
    }

    /// Ends a life, in the middle of whatever it was doing.
    pub(crate) fn halt(&mut self) {
        drop(self.runtime.take());
        self.clock.halt();
        self.paused = false;
    }

    pub(crate) fn is_up(&self) -> bool {
        self.runtime.is_some()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn pause(&mut self) {
        self.paused = self.is_up();
    }

    /// Wakes a frozen host: its clocks went on without it, so they jump, and every timer that has passed fires at
    /// once.
    pub(crate) fn wake(&mut self) {
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.paused) else { return };
        self.paused = false;
        self.due_ns += std::mem::take(&mut self.missed_ns);
        let target = Duration::from_millis(self.due_ns / 1_000_000);
        if let Some(boot) = self.boot {
            runtime.block_on(async {
                let behind = (boot + target).saturating_duration_since(Instant::now());
                if !behind.is_zero() {
                    tokio::time::advance(behind).await;
                }
            });
            self.clock.ticked(Some(boot + target), Duration::ZERO);
        }
    }

    /// Runs for a tick of true time.
    pub(crate) fn run(&mut self, tick: Duration) {
        let local = tick.mul_f64(self.clock.rate());
        let local_ns = u64::try_from(local.as_nanos()).unwrap_or(0);
        if self.paused {
            self.missed_ns += local_ns;
            self.clock.ticked(self.now(), local);
            return;
        }
        self.due_ns += local_ns;
        self.polls.store(0, Ordering::Relaxed);
        if let (Some(runtime), Some(boot)) = (&self.runtime, self.boot) {
            let target = boot + Duration::from_millis(self.due_ns / 1_000_000);
            runtime.block_on(async { tokio::time::sleep_until(target).await });
        }
        self.clock.ticked(self.now(), local);
    }

    fn now(&self) -> Option<Instant> {
        self.runtime.as_ref().map(|runtime| {
            let _inside = runtime.enter();
            Instant::now()
        })
    }

    /// Does something inside the runtime without letting it run: starts tasks, delivers messages, looks.
    pub(crate) fn inside<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let runtime = self.runtime.as_ref()?;
        let _inside = runtime.enter();
        Some(act())
    }
}

thread_local! {
    /// Panics on this thread, while a world watches for them.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Collects the panics of this thread from now on. tokio swallows those of tasks; here each of them is a defect.
pub(crate) fn watch_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| {
                if let Some(panics) = panics {
                    panics.push(panic.to_string().replace('\n', " "));
                }
            });
            usual(panic);
        }));
    });
    PANICS.with_borrow_mut(|panics| *panics = Some(Vec::new()));
}

/// Those since the last call.
pub(crate) fn panics() -> Vec<String> {
    PANICS.with_borrow_mut(|panics| panics.as_mut().map(std::mem::take).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "livelock")]
    fn tasks_that_never_let_time_pass_fail_the_run() {
        let mut host = Host::new();
        host.boot(0).unwrap();
        host.inside(|| {
            tokio::spawn(async {
                loop {
                    tokio::task::yield_now().await;
                }
            })
        });
        host.run(Duration::from_millis(1));
    }
}
