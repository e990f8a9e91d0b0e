//! What the log did to the tree, gathered from the watches of all nodes: each is resumed across the kills of its node, and what one may
//! have missed must have come from another.
//!
//! It keeps creations and deletions only. Where two nodes both claim to have told everything, they must have told the same (P8).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_api::nodes::Create;
use lockkeeper_api::watch::ChangeKind;

use crate::cluster::Cluster;
use crate::http::Api;
use crate::judge::queue::{self, Event, Life};
use crate::record::boot_us;
use crate::sse::{self, Seen};
use crate::verdict::{Failed, broken};

/// What one node's watch told.
#[derive(Debug, Default)]
struct Told {
    events: BTreeSet<Event>,
    /// Ranges `(after, up to]` of which it said that it cannot tell.
    gaps: Vec<(u64, u64)>,
}

type Shared = Arc<Mutex<Told>>;

/// The gathering, from when it is opened.
#[derive(Debug)]
pub struct Ledger {
    nodes: BTreeMap<u64, Shared>,
    /// When the first node told of a transaction, in microseconds of the boot clock.
    seen_us: Arc<Mutex<BTreeMap<u64, u64>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// Begins to watch the whole tree at every node. Call it while nobody writes.
    ///
    /// # Errors
    /// The nodes do not stand at one zxid.
    pub async fn open(cluster: &Cluster) -> Result<Self, Failed> {
        let (zxid, _) = cluster.agree(Duration::from_secs(20)).await?;
        let mut ledger = Self { nodes: BTreeMap::new(), seen_us: Arc::default(), tasks: Vec::new() };
        for (id, api) in cluster.apis() {
            let told = Shared::default();
            ledger.nodes.insert(id, Arc::clone(&told));
            ledger.tasks.push(tokio::spawn(gather(api, zxid, told, Arc::clone(&ledger.seen_us))));
        }
        Ok(ledger)
    }

    /// When transactions came, as the first node told: by zxid, in microseconds of the boot clock.
    pub fn seen_us(&self) -> BTreeMap<u64, u64> {
        lock(&self.seen_us).clone()
    }

    /// Whether some node has told of a creation or deletion of which this holds; gives the first by zxid.
    pub fn find(&self, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        self.nodes.values().filter_map(|told| lock(told).events.iter().find(|event| wanted(event)).cloned()).min()
    }

    /// Waits until some node has told of it.
    ///
    /// # Errors
    /// Not in time.
    pub async fn wait_for(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Event, Failed> {
        let begun = Instant::now();
        loop {
            if let Some(event) = self.find(&wanted) {
                return Ok(event);
            }
            if begun.elapsed() > within {
                return broken(format!("{what} was not seen in the log within {within:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Closes the gathering behind a mark in the log; gives everything that came before it.
    ///
    /// # Errors
    /// A node does not tell of the mark, two nodes tell different things, or no node has told it all.
    pub async fn close(self, cluster: &Cluster) -> Result<BTreeSet<Event>, Failed> {
        let mark = format!("/ledger-{}", uuid::Uuid::new_v4());
        let made = cluster.api(1).create(&mark, &Create::default(), None).await;
        made.map_err(|failure| Failed::Broken(format!("with all nodes ready: {failure}")))?;
        let begun = Instant::now();
        for (id, told) in &self.nodes {
            while !has(told, &mark) {
                if begun.elapsed() > Duration::from_secs(30) {
                    return broken(format!("the watch at node {id} did not come to the end of the log within 30 s"));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for task in &self.tasks {
            task.abort();
        }
        let told: Vec<(u64, Told)> =
            self.nodes.into_iter().map(|(id, told)| (id, std::mem::take(&mut *lock(&told)))).collect();
        merge(&told)
    }
}

fn has(told: &Shared, path: &str) -> bool {
    lock(told).events.iter().rev().take(1_000).any(|event| event.path == path)
}

async fn gather(api: Api, from: u64, told: Shared, seen_us: Arc<Mutex<BTreeMap<u64, u64>>>) {
    let mut position = from;
    loop {
        let mut watch = sse::follow(api.clone(), "/".into(), position);
        while let Some(seen) = watch.recv().await {
            let Seen::Change(change, _) = seen else { break };
            position = position.max(change.zxid);
            let created = match change.kind {
                ChangeKind::Created => true,
                ChangeKind::Deleted => false,
                ChangeKind::DataChanged | ChangeKind::ChildrenChanged => continue,
            };
            lock(&seen_us).entry(change.zxid).or_insert_with(boot_us);
            lock(&told).events.insert(Event { zxid: change.zxid, created, path: change.path });
        }
        // Compacted: go on from where this node stands, and remember the hole. What is in it must come from the others.
        let Ok(now) = api.get_stale("/").await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if now.value.zxid > position {
            lock(&told).gaps.push((position.saturating_sub(1), now.value.zxid));
            position = now.value.zxid;
        }
    }
}

fn merge(told: &[(u64, Told)]) -> Result<BTreeSet<Event>, Failed> {
    let all: BTreeSet<Event> = told.iter().flat_map(|(_, told)| told.events.iter().cloned()).collect();
    for (id, told) in told {
        let hidden = |zxid: u64| told.gaps.iter().any(|(after, to)| zxid > *after && zxid <= *to);
        if let Some(missing) = all.iter().find(|event| !told.events.contains(event) && !hidden(event.zxid)) {
            return broken(format!("the watch at node {id} never told of {missing:?}, which another node told"));
        }
    }
    // A range that every node has a gap over may hide anything.
    let covered = told.iter().any(|(_, told)| told.gaps.is_empty()) || {
        let (first, rest) = (&told[0].1.gaps, &told[1..]);
        !first
            .iter()
            .any(|gap| rest.iter().all(|(_, other)| other.gaps.iter().any(|(after, to)| *after < gap.1 && gap.0 < *to)))
    };
    if !covered {
        return Err(Failed::CannotRun("all nodes compacted the same part of the log: what happened is unknown".into()));
    }
    Ok(all)
}

/// The requests of a lock.
///
/// # Errors
/// The history has a hole.
pub fn requests(events: &BTreeSet<Event>, lock: &str) -> Result<Vec<Life>, Failed> {
    let lives = queue::lives(events, &format!("/locks/{lock}")).map_err(Failed::Broken)?;
    Ok(lives.into_iter().filter(Life::is_request).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(zxids: &[u64], gaps: &[(u64, u64)]) -> Told {
        let event = |zxid: &u64| Event { zxid: *zxid, created: true, path: format!("/n{zxid}") };
        Told { events: zxids.iter().map(event).collect(), gaps: gaps.to_vec() }
    }

    #[test]
    fn what_one_missed_comes_from_another() {
        let whole = merge(&[(1, told(&[1, 2, 3], &[])), (2, told(&[1, 3], &[(1, 2)]))]).unwrap();
        assert_eq!(whole.len(), 3);
        let apart = merge(&[(1, told(&[1, 4], &[(1, 3)])), (2, told(&[1, 2, 3], &[(3, 4)]))]).unwrap();
        assert_eq!(apart.len(), 4);
    }

    #[test]
    fn a_silent_hole_and_a_common_hole_are_caught() {
        let silent = merge(&[(1, told(&[1, 2, 3], &[])), (2, told(&[1, 3], &[]))]);
        assert!(matches!(silent, Err(Failed::Broken(why)) if why.contains("node 2 never told")));
        let common = merge(&[(1, told(&[1, 5], &[(1, 4)])), (2, told(&[1, 2, 5], &[(2, 3)]))]);
        assert!(matches!(common, Err(Failed::CannotRun(_))), "an unknown is not a pass");
    }
}
