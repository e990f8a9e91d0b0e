//! The injected clock of a node under test: the machine's clock, shifted by a line in a file
//! (`LOCKKEEPER_CLOCK_CONTROL`).
//!
//! Only in builds with debug assertions and in mutant builds, never in a release build. The line is `OFFSET_MS RATE`:
//! what is added to the wall clock, and how fast both clocks run. The monotonic clock never jumps and never goes back,
//! whatever the line says. An invalid line is skipped and the one before stays in force. The election timers keep the
//! machine's time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_node::{Clock, SystemClock};
use parking_lot::Mutex;

/// The environment variable that names the file.
const ENV: &str = "LOCKKEEPER_CLOCK_CONTROL";
/// How often the file is read, and the longest sleep between two readings of the clock.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much faster or slower than the machine's clock it may run.
const RATES: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// The clock of this process: the machine's, unless a file is named.
pub(crate) fn clock() -> io::Result<Arc<dyn Clock>> {
    let Some(file) = std::env::var_os(ENV) else { return Ok(Arc::new(SystemClock::new())) };
    let clock = Arc::new(ControlledClock::default());
    follow(&clock, PathBuf::from(file))?;
    Ok(clock)
}

/// How the clock runs since its last change.
#[derive(Clone, Copy, Debug)]
struct Course {
    offset_ms: i64,
    rate: f64,
    /// The machine's clock at the change, and this clock then.
    since: Duration,
    said: Duration,
}

#[derive(Debug)]
struct ControlledClock {
    machine: SystemClock,
    course: Mutex<Course>,
}

impl Default for ControlledClock {
    fn default() -> Self {
        let course = Course { offset_ms: 0, rate: 1.0, since: Duration::ZERO, said: Duration::ZERO };
        Self { machine: SystemClock::new(), course: Mutex::new(course) }
    }
}

impl ControlledClock {
    fn put(&self, offset_ms: i64, rate: f64) {
        let mut course = self.course.lock();
        let now = self.machine.now();
        *course = Course { offset_ms, rate, since: now, said: course.at(now) };
    }
}

impl Course {
    fn at(&self, machine: Duration) -> Duration {
        self.said + machine.saturating_sub(self.since).mul_f64(self.rate)
    }
}

#[async_trait]
impl Clock for ControlledClock {
    fn wall_ms(&self) -> u64 {
        let course = *self.course.lock();
        let machine = self.machine.now();
        let gained_ms = millis(course.at(machine)) - millis(machine);
        self.machine.wall_ms().saturating_add_signed(course.offset_ms.saturating_add(gained_ms))
    }

    fn now(&self) -> Duration {
        // Reads the machine's clock under the lock, so that two readers never see this clock go back across a change.
        let course = self.course.lock();
        course.at(self.machine.now())
    }

    async fn sleep_until(&self, at: Duration) {
        loop {
            let left = at.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            let rate = self.course.lock().rate;
            // The rate may change meanwhile.
            tokio::time::sleep(left.div_f64(rate).min(LOOK_EVERY)).await;
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Sets the clock from the file until the clock is dropped.
fn follow(clock: &Arc<ControlledClock>, file: PathBuf) -> io::Result<()> {
    let clock: Weak<ControlledClock> = Arc::downgrade(clock);
    let mut last = None;
    std::thread::Builder::new().name("clock-control".into()).spawn(move || {
        while let Some(clock) = clock.upgrade() {
            let line = read(&file);
            if line.is_some() && line != last {
                last = line;
                line.into_iter().for_each(|(offset_ms, rate)| clock.put(offset_ms, rate));
                tracing::warn!(?line, "the clock was put, for a test");
            }
            drop(clock);
            std::thread::sleep(LOOK_EVERY);
        }
    })?;
    Ok(())
}

/// `None` for a file that is missing or half written.
fn read(file: &Path) -> Option<(i64, f64)> {
    let text = std::fs::read_to_string(file).ok()?;
    let (offset_ms, rate) = text.strip_suffix('\n')?.split_once(' ')?;
    let (offset_ms, rate) = (offset_ms.parse().ok()?, rate.parse().ok()?);
    RATES.contains(&rate).then_some((offset_ms, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_never_jumps_and_the_wall_clock_does() {
        let clock = ControlledClock::default();
        let before = clock.now();
        clock.put(-3_600_000, 1.0);
        assert!(clock.now() >= before && clock.now() - before < Duration::from_secs(60));
        assert!(clock.wall_ms() < SystemClock::new().wall_ms() - 3_000_000);
        let course = Course { offset_ms: 0, rate: 2.0, since: Duration::from_secs(10), said: Duration::from_secs(7) };
        assert_eq!(course.at(Duration::from_secs(13)), Duration::from_secs(13), "7 s and twice 3 s");
        clock.put(0, 100.0);
        let (at, machine) = (clock.now(), clock.machine.now());
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.now() - at >= (clock.machine.now() - machine).mul_f64(50.0));
    }

    #[tokio::test]
    async fn a_sleeper_follows_a_change_of_the_rate() {
        let clock = Arc::new(ControlledClock::default());
        let hour = clock.now() + Duration::from_secs(3600);
        clock.put(0, 0.01);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(hour).await }
        });
        *clock.course.lock() = Course { offset_ms: 0, rate: 1.0, since: Duration::ZERO, said: hour };
        sleeper.await.unwrap();
    }

    #[test]
    fn only_a_whole_and_sensible_line_counts() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("clock");
        for (text, means) in [
            ("-500 1.5\n", Some((-500, 1.5))),
            ("10 1", None),
            ("10 0\n", None),
            ("10 nan\n", None),
            ("x 1\n", None),
            ("\n", None),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read(&file), means, "{text:?}");
        }
        assert_eq!(read(&directory.path().join("nothing")), None);
    }
}
