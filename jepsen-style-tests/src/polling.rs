//! Bounded waits for what others do.

use std::time::{Duration, Instant};

use crate::verdict::Failed;

/// How often one looks, unless it says otherwise.
const POLL: Duration = Duration::from_millis(10);

/// A wait for a condition that its caller looks at, again and again: `while !it_is_so() { wait.or_broken(…).await? }`.
/// The time counts from when the wait was made.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    begun: Instant,
    within: Duration,
    poll: Duration,
}

impl Polling {
    /// For so long at most.
    pub fn within(within: Duration) -> Self {
        Self { begun: Instant::now(), within, poll: POLL }
    }

    /// The same, with another time between two looks.
    pub fn every(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Waits until it is time to look again. Once the wait's time is over, the promise is broken: `late` says what did
    /// not come.
    pub async fn or_broken<S: Into<String>>(&self, late: impl FnOnce() -> S) -> Result<(), Failed> {
        self.next(|| Failed::Broken(late().into())).await
    }

    /// The same where nothing can be tried then.
    pub async fn or_cannot_run<S: Into<String>>(&self, late: impl FnOnce() -> S) -> Result<(), Failed> {
        self.next(|| Failed::CannotRun(late().into())).await
    }

    async fn next(&self, late: impl FnOnce() -> Failed) -> Result<(), Failed> {
        if self.elapsed() > self.within {
            return Err(late());
        }
        tokio::time::sleep(self.poll).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_goes_on_until_its_time_is_over() {
        let wait = Polling::within(Duration::from_millis(20)).every(Duration::from_millis(5));
        let mut looks = 0;
        let failed = loop {
            looks += 1;
            if let Err(failed) = wait.or_broken(|| "it did not come").await {
                break failed;
            }
        };
        assert!(looks > 1 && matches!(failed, Failed::Broken(what) if what == "it did not come"));
    }
}
