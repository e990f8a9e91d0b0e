//! What the clients saw: how often each operation was carried out, how long it took, and what went wrong. Each minute
//! is summed up when it is over, so that a run of a day keeps no more measurements than one of an hour.

use std::collections::HashMap;
use std::fmt::Display;

use crate::proofs::prelude::*;

/// A last part of a minute that is shorter has no rate: the clients are ending.
const LEAST_PART_S: f64 = 10.0;
/// So many failures are kept in full; more are only counted.
const MOST_FAILURES_KEPT: usize = 50;
/// A call that no fault touched may take this long: a disk shared by three nodes stalls now and then.
const LONGEST_IN_CALM: Duration = Duration::from_secs(5);
/// Beside a fault: what a client of the library keeps trying for, and an attempt that began before that.
const LONGEST_BESIDE_FAULT: Duration = Duration::from_secs(13);

named! {
    /// What clients do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Operation {
        OpenSession = "open-session",
        CloseSession = "close-session",
        AcquireOwn = "acquire-own",
        AcquireContended = "acquire-contended",
        Release = "release",
        Count = "count",
        Read = "read",
        Write = "write",
        Watch = "watch",
    }
}

/// An operation in a minute.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    pub(super) minute: u64,
    pub(super) operation: Operation,
    /// In what part of a minute: the last may be short.
    pub(super) seconds: f64,
    pub(super) took: Summary,
}

#[derive(Default)]
struct Seen {
    minute: u64,
    took: BTreeMap<Operation, Vec<Duration>>,
    rates: Vec<Rate>,
    calls: u64,
    failed: u64,
    failures: Vec<String>,
    longest: [(Duration, &'static str); 2],
    /// For each lock the largest token that was granted, and whether it is held.
    tokens: HashMap<String, (u64, bool)>,
    grants: u64,
}

/// See the module's text.
pub(super) struct SoakTally {
    began: Instant,
    /// Odd while a fault is on or clients are not yet back at their nodes.
    faults: AtomicU64,
    seen: Mutex<Seen>,
}

/// What there was in all.
pub(super) struct Total {
    pub(super) calls: u64,
    pub(super) grants: u64,
    pub(super) failed: u64,
    pub(super) failures: Vec<String>,
    pub(super) longest_in_calm: (Duration, &'static str),
    pub(super) longest_beside_fault: (Duration, &'static str),
}

impl SoakTally {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, faults: AtomicU64::new(0), seen: Mutex::default() }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Seen) -> R) -> R {
        act(&mut self.seen.lock())
    }

    /// A fault begins, or its traces are gone.
    pub(super) fn set_fault(&self, on: bool) {
        if self.is_calm() == on {
            self.faults.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(super) fn is_calm(&self) -> bool {
        self.faults.load(Ordering::SeqCst).is_multiple_of(2)
    }

    /// Makes a call, and counts it and how long it took. A failure is counted as such and gives nothing.
    pub(super) async fn timed<T, E: Display>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let (began, faults) = (Instant::now(), self.faults.load(Ordering::SeqCst));
        let called = call.await;
        let calm = faults.is_multiple_of(2) && faults == self.faults.load(Ordering::SeqCst);
        match called {
            Ok(value) => {
                self.took(operation, began.elapsed(), calm);
                Some(value)
            }
            Err(why) => {
                let when = if calm { "in calm" } else { "beside a fault" };
                self.failed(format!("{} {when}, after {}: {why}", operation.name(), millis(began.elapsed())));
                None
            }
        }
    }

    fn took(&self, operation: Operation, took: Duration, calm: bool) {
        let now = self.began.elapsed();
        self.with(|seen| {
            seen.turn_to(now);
            seen.calls += 1;
            seen.took.entry(operation).or_default().push(took);
            let longest = &mut seen.longest[usize::from(!calm)];
            if took > longest.0 {
                *longest = (took, operation.name());
            }
        });
    }

    /// Something went wrong.
    pub(super) fn failed(&self, what: String) {
        let at = self.began.elapsed().as_secs_f64();
        self.with(|seen| {
            seen.failed += 1;
            if seen.failures.len() < MOST_FAILURES_KEPT {
                seen.failures.push(format!("at {at:.1} s: {what}"));
            }
        });
    }

    /// A lock was granted: nobody may hold it, and the token must be larger than every earlier one.
    pub(super) fn granted(&self, lock: &str, token: u64) {
        let wrong = self.with(|seen| {
            seen.grants += 1;
            let (largest, held) = seen.tokens.insert(lock.to_owned(), (token, true)).unwrap_or_default();
            let overlap = held.then(|| format!("{lock}: token {token} was granted while token {largest} was held"));
            overlap.or((token <= largest).then(|| format!("{lock}: token {token} was granted after token {largest}")))
        });
        if let Some(wrong) = wrong {
            self.failed(wrong);
        }
    }

    /// Its holder is about to give it back, or has lost it.
    pub(super) fn releasing(&self, lock: &str) {
        self.with(|seen| {
            if let Some((_, held)) = seen.tokens.get_mut(lock) {
                *held = false;
            }
        });
    }

    /// Sums up the last minute and gives everything.
    pub(super) fn end(&self) -> (Total, Vec<Rate>) {
        let now = self.began.elapsed();
        self.with(|seen| {
            let seconds = now.as_secs_f64() - seen.minute as f64 * 60.0;
            if seconds >= LEAST_PART_S {
                seen.sum_up(seconds.min(60.0));
            }
            let total = Total {
                calls: seen.calls,
                grants: seen.grants,
                failed: seen.failed,
                failures: std::mem::take(&mut seen.failures),
                longest_in_calm: seen.longest[0],
                longest_beside_fault: seen.longest[1],
            };
            (total, std::mem::take(&mut seen.rates))
        })
    }
}

impl Seen {
    fn turn_to(&mut self, now: Duration) {
        let minute = now.as_secs() / 60;
        if minute > self.minute {
            self.sum_up(60.0);
            self.minute = minute;
        }
    }

    fn sum_up(&mut self, seconds: f64) {
        for (operation, took) in std::mem::take(&mut self.took) {
            let rate = |took| Rate { minute: self.minute, operation, seconds, took };
            self.rates.extend(Summary::of(&took).map(rate));
        }
    }
}

impl Total {
    /// What is wrong with it.
    pub(super) fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        if let Some(first) = self.failures.first() {
            findings.push(format!("{} failures, the first {first}", self.failed));
        }
        let bounds = [
            ("in calm", self.longest_in_calm, LONGEST_IN_CALM),
            ("beside a fault", self.longest_beside_fault, LONGEST_BESIDE_FAULT),
        ];
        for (when, (took, what), most) in bounds {
            if took > most {
                findings.push(format!("{what} took {} {when}, and may take {}", millis(took), millis(most)));
            }
        }
        findings
    }
}

/// The operations that there are rates of.
pub(super) fn operations(rates: &[Rate]) -> BTreeSet<Operation> {
    rates.iter().map(|rate| rate.operation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(act: impl FnOnce(&SoakTally)) -> Vec<String> {
        let tally = SoakTally::new(Instant::now());
        act(&tally);
        tally.end().0.findings()
    }

    #[test]
    fn rising_tokens_of_one_holder_at_a_time_are_fine() {
        let fine = findings(|tally| {
            for token in [3, 4, 9] {
                tally.granted("a", token);
                tally.releasing("a");
            }
            tally.granted("b", 1);
        });
        assert_eq!(fine, Vec::<String>::new());
    }

    #[test]
    fn falling_and_repeated_tokens_and_two_holders_are_found() {
        for (second, released, what) in [(4, true, "after token 4"), (3, true, "after"), (5, false, "was held")] {
            let found = findings(|tally| {
                tally.granted("a", 4);
                if released {
                    tally.releasing("a");
                }
                tally.granted("a", second);
            });
            assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
        }
    }

    #[tokio::test]
    async fn failures_and_long_calls_are_found() {
        let tally = SoakTally::new(Instant::now());
        assert_eq!(tally.timed(Operation::Read, async { Ok::<_, String>(1) }).await, Some(1));
        tally.set_fault(true);
        tally.set_fault(true);
        assert_eq!(tally.timed(Operation::Read, async { Err::<(), _>("gone") }).await, None);
        let found = tally.end().0.findings();
        assert!(found.len() == 1 && found[0].contains("beside a fault"), "{found:?}");

        let second = Duration::from_secs(1);
        let long = |took, calm| findings(|tally| tally.took(Operation::Write, took, calm)).len();
        assert_eq!((long(LONGEST_IN_CALM, true), long(LONGEST_IN_CALM + second, true)), (0, 1));
        assert_eq!((long(LONGEST_IN_CALM + second, false), long(LONGEST_BESIDE_FAULT + second, false)), (0, 1));
    }

    #[test]
    fn each_minute_is_summed_up() {
        let mut seen = Seen::default();
        for second in [1, 59, 61] {
            seen.turn_to(Duration::from_secs(second));
            seen.took.entry(Operation::Read).or_default().push(Duration::from_millis(second));
        }
        seen.sum_up(5.0);
        let counts: Vec<_> = seen.rates.iter().map(|rate| (rate.minute, rate.took.count)).collect();
        assert_eq!(counts, [(0, 2), (1, 1)]);
    }
}
