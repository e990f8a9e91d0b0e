//! A request for a lock, and how long its caller waits. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_api::locks::{Acquire, Mode, Release};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

/// The request of a handle; the same for each of its waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockRequest {
    /// The lock in the path of the HTTP request.
    pub(crate) first: String,
    /// The locks that are acquired together with it.
    pub(crate) also: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) permits: Option<u16>,
    pub(crate) label: String,
    pub(crate) delay_ms: u32,
}

impl LockRequest {
    pub(crate) fn new(name: impl Into<String>, mode: Mode) -> Self {
        Self { first: name.into(), also: Vec::new(), mode, permits: None, label: String::new(), delay_ms: 0 }
    }

    /// A request for all of these locks together. They are a set: order and repetition do not matter. An empty set is
    /// refused like a lock without a name; the server refuses too many.
    pub(crate) fn together(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut names = names.into_iter().map(Into::into).collect::<BTreeSet<String>>().into_iter();
        let first = names.next().unwrap_or_default();
        Self { also: names.collect(), ..Self::new(first, Mode::Exclusive) }
    }

    pub(crate) fn delayed_by(&mut self, delay: Duration) {
        // The server refuses a longer delay than it accepts, and names its limit.
        self.delay_ms = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.first).chain(&self.also).map(String::as_str)
    }

    pub(crate) fn acquire(&self, request_id: Uuid, wait: Duration) -> Acquire {
        Acquire {
            mode: self.mode,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            request_id: Some(request_id),
            label: (!self.label.is_empty()).then(|| self.label.clone()),
            also: self.also.clone(),
            permits: self.permits,
            delay_ms: self.delay_ms,
            reentrant: false,
            unfair: false,
            ttl_ms: None,
        }
    }

    pub(crate) fn release(&self, token: u64) -> Release {
        Release { token, also: self.also.clone(), even_in_part: false }
    }

    /// The release for a caller that does not wait for the answer. It releases what remains: if one of several locks
    /// was broken by force, a release of all would be refused, and the others would stay with a session that lives on.
    pub(crate) fn detached_release(&self, token: u64) -> Release {
        Release { even_in_part: !self.also.is_empty(), ..self.release(token) }
    }
}

/// How long to wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Do not wait.
    Try,
    /// Wait until then.
    Until(Instant),
    /// Wait while the session lives.
    Endless,
}

impl Wait {
    /// Waits that long; a time too long to express is endless.
    pub(crate) fn lasting(wait: Duration) -> Self {
        Instant::now().checked_add(wait).map_or(Self::Endless, Self::Until)
    }

    /// The remaining time, at most `longest`.
    pub(crate) fn left(self, longest: Duration) -> Duration {
        match self {
            Self::Try => Duration::ZERO,
            Self::Until(at) => at.saturating_duration_since(Instant::now()).min(longest),
            Self::Endless => longest,
        }
    }

    /// Completes when the wait is over.
    pub(crate) async fn ended(self) {
        match self {
            Self::Try => {}
            Self::Until(at) => sleep_until(at).await,
            Self::Endless => std::future::pending().await,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Try => true,
            Self::Until(at) => Instant::now() >= at,
            Self::Endless => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_together_are_a_set() {
        let request = LockRequest::together(["b", "a", "b", "c"]);
        assert_eq!(request.names().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(request.release(7), Release { token: 7, also: vec!["b".into(), "c".into()], even_in_part: false });
        assert!(
            request.detached_release(7).even_in_part
                && !LockRequest::new("a", Mode::Exclusive).detached_release(7).even_in_part
        );
        assert_eq!(LockRequest::together(Vec::<String>::new()).first, "");
    }

    #[test]
    fn waits_run_out() {
        let longest = Duration::from_secs(600);
        assert_eq!(Wait::Try.left(longest), Duration::ZERO);
        assert!(Wait::Try.is_over());
        assert_eq!(Wait::Endless.left(longest), longest);
        assert_eq!(Wait::lasting(Duration::MAX), Wait::Endless);
        let hour = Wait::lasting(Duration::from_secs(3_600));
        assert_eq!(hour.left(longest), longest);
        assert!(!hour.is_over() && Wait::lasting(Duration::ZERO).is_over());
    }

    #[test]
    fn the_wire_form_says_no_more_than_was_asked() {
        let mut request = LockRequest::new("a", Mode::Exclusive);
        let ask = request.acquire(Uuid::nil(), Duration::from_millis(5));
        assert_eq!(ask, Acquire { wait_ms: 5, request_id: Some(Uuid::nil()), ..Acquire::default() });
        request.delayed_by(Duration::MAX);
        assert_eq!(request.delay_ms, u32::MAX);
    }
}
