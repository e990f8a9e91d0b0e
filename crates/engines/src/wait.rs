//! How long to wait for a lock.

use std::time::Duration;

use tokio::time::Instant;

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait.
    Try,
    /// At most this long.
    AtMost(Duration),
    /// As long as it takes.
    #[default]
    Endless,
}

impl Wait {
    /// The same as a point in time, counted from now.
    pub fn deadline(self) -> Deadline {
        Deadline(match self {
            Self::Try => Some(Instant::now()),
            // A time too long to express is endless.
            Self::AtMost(wait) => Instant::now().checked_add(wait),
            Self::Endless => None,
        })
    }
}

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The remaining time, at most `longest`.
    pub fn left(self, longest: Duration) -> Duration {
        self.0.map_or(longest, |at| at.saturating_duration_since(Instant::now()).min(longest))
    }

    /// Whether the wait is over.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// The remaining wait, for a further request.
    pub fn remaining(self) -> Wait {
        match self.0 {
            None => Wait::Endless,
            Some(_) if self.is_over() => Wait::Try,
            Some(at) => Wait::AtMost(at.saturating_duration_since(Instant::now())),
        }
    }

    /// Completes when the wait is over.
    pub async fn over(self) {
        match self.0 {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_run_out() {
        let hour = Duration::from_secs(3_600);
        assert!(Wait::Try.deadline().is_over() && Wait::Try.deadline().left(hour).is_zero());
        assert_eq!(Wait::Endless.deadline().left(hour), hour);
        assert_eq!(Wait::AtMost(Duration::MAX).deadline().remaining(), Wait::Endless);
        let deadline = Wait::AtMost(hour).deadline();
        assert!(!deadline.is_over() && deadline.left(Duration::from_secs(1)) == Duration::from_secs(1));
        assert!(matches!(deadline.remaining(), Wait::AtMost(left) if left <= hour));
        assert_eq!(Wait::AtMost(Duration::ZERO).deadline().remaining(), Wait::Try);
    }
}
