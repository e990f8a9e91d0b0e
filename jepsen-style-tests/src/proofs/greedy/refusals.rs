//! Refusals of the greedy clients, by the configuration key that each refusal names. A class that never met its share
//! has tried nothing and proves nothing.

use crate::http::metric_sum;
use crate::proofs::prelude::*;

/// How often each key was named.
pub(super) type RefusalsByKey = BTreeMap<String, u64>;

/// What the greedy were told.
#[derive(Clone, Debug, Default)]
pub(super) struct RefusalCounts(Arc<Mutex<RefusalsByKey>>);

impl RefusalCounts {
    /// Notes the keys that a reply names.
    pub(super) fn read(&self, reply: &[u8]) {
        let text = String::from_utf8_lossy(reply);
        let mut counts = self.0.lock();
        for key in keys_in(&text) {
            *counts.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// Takes over what another process was told.
    pub(super) fn replace(&self, counts: RefusalsByKey) {
        *self.0.lock() = counts;
    }

    pub(super) fn counts(&self) -> RefusalsByKey {
        self.0.lock().clone()
    }
}

/// Each `limits.key` in it.
fn keys_in(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("limits.").filter_map(|(at, section)| {
        let key = &text[at + section.len()..];
        let name = key.bytes().take_while(|byte| matches!(byte, b'a'..=b'z' | b'_')).count();
        (name > 0).then(|| &text[at..at + section.len() + name])
    })
}

/// How often a node says that it has refused something because of this key; none where it does not count that.
pub(super) fn counted(metrics: &str, key: &str) -> u64 {
    let sum = |name: &str, label: String| {
        let lines: Vec<&str> = metrics.lines().filter(|line| line.contains(&label)).collect();
        metric_sum(&lines.join("\n"), name).unwrap_or(0.0) as u64
    };
    let of_listener = |name: &str| {
        let listener = || format!("listener=\"{name}\"");
        sum("lockkeeper_http_connections_refused_total", listener())
            + sum("lockkeeper_http_connections_made_way_total", listener())
    };
    match key {
        "limits.connections_per_address" => of_listener("client"),
        "limits.peer_connections" => of_listener("peer"),
        key => {
            let budget = key.trim_start_matches("limits.").replace('.', "_");
            sum("lockkeeper_budget_refusals_total", format!("budget=\"{budget}\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_counts_for_the_key_that_it_names() {
        let told = RefusalCounts::default();
        told.read(
            b"this address has 5 of 9 things, its share of what is free (limits.watches); nothing was (carried) out",
        );
        told.read(b"limits.watches, or raise limits.Watches");
        assert_eq!(told.counts(), RefusalsByKey::from([("limits.watches".to_owned(), 2)]));
    }

    #[test]
    fn what_a_node_counts_is_found_by_its_key() {
        let metrics = "lockkeeper_budget_refusals_total{budget=\"watches\",share=\"address\"} 3\n\
            lockkeeper_budget_refusals_total{budget=\"zookeeper_watches\",share=\"all\"} 4\n\
            lockkeeper_http_connections_refused_total{listener=\"client\"} 5\n\
            lockkeeper_http_connections_made_way_total{listener=\"client\"} 6\n";
        let counted = |key| counted(metrics, key);
        assert_eq!((counted("limits.watches"), counted("zookeeper.watches")), (3, 4));
        assert_eq!((counted("limits.connections_per_address"), counted("limits.peer_connections")), (11, 0));
    }
}
