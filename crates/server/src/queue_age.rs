//! How long the oldest waiter of each namespace has waited, for `/metrics`.
//!
//! The number of series is bounded: the namespaces whose waiters have waited longest have one each, and all others
//! share one. Every member has the whole state, and exports the same.
//!
//! `/metrics` needs no right, so where access control is enforced, only namespaces with limits are named: an
//! administrator has named them.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_node::Node;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::exposition::{Exposition, Series};

/// Most namespaces with a series of their own.
const MOST_NAMESPACES: usize = 20;
/// Longest name of a namespace with a series of its own.
const LONGEST_NAME_BYTES: usize = 64;
/// The label of all others.
const OTHER: &str = "other";
/// How long what was found is used again, however often `/metrics` is read.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Since when the oldest waiter of each namespace waits, by the replicated clock.
type OldestWaiters = BTreeMap<String, u64>;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct QueueAge(Mutex<Option<(Instant, OldestWaiters)>>);

impl QueueAge {
    /// Adds the metric. Looks at every queue of the state if it has not done so for a while: call it on a thread for
    /// blocking work.
    pub(crate) fn add(&self, text: &mut Exposition, node: &Node) {
        let mut found = self.0.lock();
        let now = Instant::now();
        if found.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= LOOK_EVERY) {
            // A copy, so that no entry waits to be applied meanwhile.
            let state = node.state();
            let is_public = |name: &str| !state.access().is_enabled() || state.namespace(name).is_some();
            *found = Some((now, oldest_waiters(state.queues_waiting(), is_public)));
        }
        let oldest = found.as_ref().map(|(_, oldest)| oldest);
        add_ages(text, oldest.into_iter().flatten(), node.clock_ms());
    }
}

fn oldest_waiters<'a>(
    waiting: impl Iterator<Item = (&'a str, u64)>,
    is_public: impl Fn(&str) -> bool,
) -> OldestWaiters {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for (namespace, since_ms) in waiting {
        let is_named = namespace.len() <= LONGEST_NAME_BYTES && is_public(namespace);
        let namespace = if is_named { namespace } else { OTHER };
        let oldest = all.entry(namespace).or_insert(since_ms);
        *oldest = since_ms.min(*oldest);
    }
    let mut named: Vec<(&str, u64)> = all.into_iter().collect();
    named.sort_by_key(|(_, since_ms)| *since_ms);
    let mut oldest = OldestWaiters::new();
    for (place, (namespace, since_ms)) in named.into_iter().enumerate() {
        let namespace = if place < MOST_NAMESPACES { namespace } else { OTHER };
        let oldest = oldest.entry(namespace.to_owned()).or_insert(since_ms);
        *oldest = since_ms.min(*oldest);
    }
    oldest
}

fn add_ages<'a>(text: &mut Exposition, oldest: impl Iterator<Item = (&'a String, &'a u64)>, now_ms: u64) {
    let series = oldest.map(|(namespace, since_ms)| -> Series<'_> {
        let age = Duration::from_millis(now_ms.saturating_sub(*since_ms));
        (vec![("namespace", namespace.as_str())], age.as_secs_f64())
    });
    text.set_all("lockkeeper_queue_age_seconds", series);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(waiting: &[(String, u64)], now_ms: u64) -> Vec<String> {
        let waiting = waiting.iter().map(|(namespace, since_ms)| (namespace.as_str(), *since_ms));
        let oldest = oldest_waiters(waiting, |name| !name.starts_with("private"));
        let mut text = Exposition::default();
        add_ages(&mut text, oldest.iter(), now_ms);
        text.into_text().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn each_namespace_has_the_age_of_its_oldest_waiter() {
        let waiting = [("a".to_owned(), 9_000), ("b".to_owned(), 4_500), ("a".to_owned(), 2_000)];
        let expected =
            ["lockkeeper_queue_age_seconds{namespace=\"a\"} 8", "lockkeeper_queue_age_seconds{namespace=\"b\"} 5.5"];
        assert_eq!(exported(&waiting, 10_000), expected);
        assert!(exported(&[], 10_000).is_empty());
        assert!(exported(&waiting, 0)[0].ends_with(" 0"), "a clock behind the queue gives no negative age");
    }

    #[test]
    fn a_name_that_is_not_public_is_not_exported() {
        let waiting = [("private".to_owned(), 9_000), ("private2".to_owned(), 4_000), ("a".to_owned(), 2_000)];
        let expected =
            ["lockkeeper_queue_age_seconds{namespace=\"a\"} 8", "lockkeeper_queue_age_seconds{namespace=\"other\"} 6"];
        assert_eq!(exported(&waiting, 10_000), expected);
    }

    #[test]
    fn the_oldest_have_series_of_their_own_and_the_rest_share_one() {
        let mut waiting: Vec<(String, u64)> = (0..1_000).map(|at| (format!("n{at}"), 1_000 + at)).collect();
        waiting.push(("x".repeat(LONGEST_NAME_BYTES + 1), 1_500));
        waiting.push((OTHER.to_owned(), 1_700));
        let exported = exported(&waiting, 3_000);
        assert_eq!(exported.len(), MOST_NAMESPACES + 1, "{exported:?}");
        let has = |line: &str| exported.iter().any(|own| own.as_str() == line);
        assert!(has("lockkeeper_queue_age_seconds{namespace=\"n0\"} 2"), "{exported:?}");
        assert!(has("lockkeeper_queue_age_seconds{namespace=\"other\"} 1.98"), "{exported:?}");
    }
}
