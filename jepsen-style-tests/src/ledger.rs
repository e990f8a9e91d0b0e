//! Gathers the changes of the tree from the watches of all nodes. Each watch is resumed when its node comes back, and
//! what one of them may have missed must have come from another.
//!
//! It keeps creations, deletions, and which node's data was set (watches do not tell the data). Where two nodes both
//! claim to have reported everything, they must have reported the same (P8).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::nodes::Create;
use lockkeeper_api::watch::{Change, ChangeKind};
use lockkeeper_checkers::lives::{Life, NodeEvent, lives};
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::history::DataSet;
use crate::http::Api;
use crate::polling::Polling;
use crate::record::boot_us;
use crate::sse::{self, StreamItem};
use crate::verdict::{Failed, OrFailed as _, broken, cannot_run};

/// All that the log did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterLog {
    /// Creations and deletions.
    pub events: BTreeSet<NodeEvent>,
    /// Changes of data.
    pub data: BTreeSet<DataSet>,
}

/// What one node's watch reported.
#[derive(Debug, Default)]
struct NodeReport {
    events: BTreeSet<NodeEvent>,
    data: BTreeSet<DataSet>,
    /// Ranges `(after, up to]` that it said it may have missed.
    gaps: Vec<(u64, u64)>,
}

impl NodeReport {
    fn cut_behind(&mut self, zxid: u64) {
        self.events.retain(|event| event.zxid <= zxid);
        self.data.retain(|set| set.zxid <= zxid);
    }
}

type SharedReport = Arc<Mutex<NodeReport>>;

/// The gathering, from when it is opened.
#[derive(Debug)]
pub struct Ledger {
    nodes: BTreeMap<u64, SharedReport>,
    /// Where the watches began.
    from: u64,
    /// When the first node reported a transaction, in microseconds of the boot clock.
    seen_us: Arc<Mutex<BTreeMap<u64, u64>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Ledger {
    /// Begins to watch the whole tree at every node. Call it while nobody writes.
    pub async fn open(cluster: &Cluster) -> Result<Self, Failed> {
        let (zxid, _) = cluster.agree(Duration::from_secs(20)).await?;
        let mut ledger = Self { nodes: BTreeMap::new(), from: zxid, seen_us: Arc::default(), tasks: Vec::new() };
        for (id, api) in cluster.apis() {
            let told = SharedReport::default();
            ledger.nodes.insert(id, Arc::clone(&told));
            ledger.tasks.push(tokio::spawn(gather(api, zxid, told, Arc::clone(&ledger.seen_us))));
        }
        Ok(ledger)
    }

    /// When the first node reported each transaction: by zxid, in microseconds of the boot clock.
    pub fn seen_us(&self) -> BTreeMap<u64, u64> {
        self.seen_us.lock().clone()
    }

    /// The first creation or deletion, by zxid, that some node has reported and `wanted` accepts.
    pub fn find(&self, wanted: impl Fn(&NodeEvent) -> bool) -> Option<NodeEvent> {
        self.nodes.values().filter_map(|told| told.lock().events.iter().find(|event| wanted(event)).cloned()).min()
    }

    /// Waits until some node has reported one.
    pub async fn wait_for(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&NodeEvent) -> bool,
    ) -> Result<NodeEvent, Failed> {
        let wait = Polling::within(within).every(Duration::from_millis(5));
        loop {
            if let Some(event) = self.find(&wanted) {
                return Ok(event);
            }
            wait.or_broken(|| format!("{what} was not seen in the log within {within:?}")).await?;
        }
    }

    /// Closes the gathering behind a mark in the log; gives the creations and deletions before it.
    pub async fn close(self, cluster: &Cluster) -> Result<BTreeSet<NodeEvent>, Failed> {
        self.close_whole(cluster).await.map(|log| log.events)
    }

    /// Closes the gathering behind a mark in the log; gives everything that came before it.
    ///
    /// # Errors
    /// A node does not report the mark, two nodes report different events, or no node has reported everything.
    pub async fn close_whole(mut self, cluster: &Cluster) -> Result<ClusterLog, Failed> {
        self.follow_the_members(cluster);
        let mark = format!("/ledger-{}", uuid::Uuid::new_v4());
        let Some((_, api)) = cluster.apis().into_iter().next() else { return broken("there is no node") };
        let made = api.create(&mark, &Create::default(), None).await.or_broken("with all nodes ready")?;
        let wait = Polling::within(Duration::from_secs(30)).every(Duration::from_millis(20));
        let here = cluster.ids();
        for (id, told) in self.nodes.iter().filter(|(id, _)| here.contains(id)) {
            while !has(told, &mark) {
                wait.or_broken(|| format!("the watch at node {id} did not come to the end of the log within 30 s"))
                    .await?;
            }
        }
        for task in &self.tasks {
            task.abort();
        }
        let mut told: Vec<(u64, NodeReport)> =
            self.nodes.into_iter().map(|(id, told)| (id, std::mem::take(&mut *told.lock()))).collect();
        // A session may still expire: some nodes have reported what comes behind the mark, and others have not yet.
        told.iter_mut().for_each(|(_, told)| told.cut_behind(made.value.zxid));
        merge(&told)
    }
}

impl Ledger {
    /// Members that joined later are asked for everything that they still have; those that left reported nothing
    /// more.
    fn follow_the_members(&mut self, cluster: &Cluster) {
        let here = cluster.apis();
        for (id, told) in &self.nodes {
            if here.iter().all(|(member, _)| member != id) {
                let mut told = told.lock();
                let last = told.events.last().map_or(self.from, |event| event.zxid);
                // It may have reported a part of its last transaction.
                told.gaps.push((last.saturating_sub(1), u64::MAX));
            }
        }
        for (id, api) in here {
            if let Entry::Vacant(place) = self.nodes.entry(id) {
                let told = Arc::clone(place.insert(SharedReport::default()));
                // It reports a transaction later than it happened.
                self.tasks.push(tokio::spawn(gather(api, self.from, told, Arc::default())));
            }
        }
    }
}

fn has(told: &SharedReport, path: &str) -> bool {
    told.lock().events.iter().rev().take(1_000).any(|event| event.path == path)
}

async fn gather(api: Api, from: u64, told: SharedReport, seen_us: Arc<Mutex<BTreeMap<u64, u64>>>) {
    let mut position = from;
    loop {
        let mut watch = sse::follow(api.clone(), "/".into(), position);
        while let Some(seen) = watch.recv().await {
            let StreamItem::Change(change, _) = seen else { break };
            position = position.max(change.zxid);
            let Change { zxid, kind, path } = change;
            let created = match kind {
                ChangeKind::Created => true,
                ChangeKind::Deleted => false,
                ChangeKind::DataChanged => {
                    seen_us.lock().entry(zxid).or_insert_with(boot_us);
                    told.lock().data.insert(DataSet { zxid, path });
                    continue;
                }
                ChangeKind::ChildrenChanged => continue,
            };
            seen_us.lock().entry(zxid).or_insert_with(boot_us);
            told.lock().events.insert(NodeEvent { zxid, created, path });
        }
        // Compacted: go on from where this node stands, and remember the hole. What is in it must come from the others.
        let Ok(now) = api.get_stale("/").await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if now.value.zxid > position {
            told.lock().gaps.push((position.saturating_sub(1), now.value.zxid));
            position = now.value.zxid;
        }
    }
}

fn merge(told: &[(u64, NodeReport)]) -> Result<ClusterLog, Failed> {
    let events = together(told, |told| &told.events, |event| event.zxid)?;
    let data = together(told, |told| &told.data, |set| set.zxid)?;
    // A range that every node has a gap over may hide anything.
    let covered = told.iter().any(|(_, told)| told.gaps.is_empty()) || {
        let (first, rest) = (&told[0].1.gaps, &told[1..]);
        !first
            .iter()
            .any(|gap| rest.iter().all(|(_, other)| other.gaps.iter().any(|(after, to)| *after < gap.1 && gap.0 < *to)))
    };
    if !covered {
        return cannot_run("all nodes compacted the same part of the log: what happened is unknown");
    }
    Ok(ClusterLog { events, data })
}

/// The union of all reports, if each has everything outside its own gaps.
fn together<T: Ord + Clone + std::fmt::Debug>(
    told: &[(u64, NodeReport)],
    of: impl Fn(&NodeReport) -> &BTreeSet<T>,
    zxid: impl Fn(&T) -> u64,
) -> Result<BTreeSet<T>, Failed> {
    let all: BTreeSet<T> = told.iter().flat_map(|(_, told)| of(told).iter().cloned()).collect();
    for (id, told) in told {
        let hidden = |zxid: u64| told.gaps.iter().any(|(after, to)| zxid > *after && zxid <= *to);
        if let Some(missing) = all.iter().find(|event| !of(told).contains(event) && !hidden(zxid(event))) {
            return broken(format!("the watch at node {id} never told of {missing:?}, which another node told"));
        }
    }
    Ok(all)
}

/// The requests of a lock.
pub fn requests(events: &BTreeSet<NodeEvent>, lock: &str) -> Result<Vec<Life>, Failed> {
    let lives = lives(events, &format!("/locks/{lock}")).map_err(Failed::Broken)?;
    Ok(lives.into_iter().filter(Life::is_request).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(zxids: &[u64], gaps: &[(u64, u64)]) -> NodeReport {
        let event = |zxid: &u64| NodeEvent { zxid: *zxid, created: true, path: format!("/n{zxid}") };
        NodeReport { events: zxids.iter().map(event).collect(), gaps: gaps.to_vec(), ..NodeReport::default() }
    }

    #[test]
    fn what_one_missed_comes_from_another() {
        let whole = merge(&[(1, told(&[1, 2, 3], &[])), (2, told(&[1, 3], &[(1, 2)]))]).unwrap();
        assert_eq!(whole.events.len(), 3);
        let apart = merge(&[(1, told(&[1, 4], &[(1, 3)])), (2, told(&[1, 2, 3], &[(3, 4)]))]).unwrap();
        assert_eq!(apart.events.len(), 4);
    }

    #[test]
    fn what_comes_behind_the_mark_is_not_compared() {
        let mut all = [(1, told(&[1, 2, 3], &[])), (2, told(&[1, 2], &[]))];
        assert!(merge(&all).is_err());
        all.iter_mut().for_each(|(_, told)| told.cut_behind(2));
        assert_eq!(merge(&all).unwrap().events.len(), 2);
    }

    #[test]
    fn what_was_set_is_compared_as_well() {
        let set = |zxid| DataSet { zxid, path: "/n1".into() };
        let with = |sets: &[u64]| NodeReport { data: sets.iter().copied().map(set).collect(), ..told(&[1], &[]) };
        assert_eq!(merge(&[(1, with(&[2, 3])), (2, with(&[2, 3]))]).unwrap().data.len(), 2);
        assert!(matches!(merge(&[(1, with(&[2, 3])), (2, with(&[2]))]), Err(Failed::Broken(_))));
    }

    #[test]
    fn a_silent_hole_and_a_common_hole_are_caught() {
        let silent = merge(&[(1, told(&[1, 2, 3], &[])), (2, told(&[1, 3], &[]))]);
        assert!(matches!(silent, Err(Failed::Broken(why)) if why.contains("node 2 never told")));
        let common = merge(&[(1, told(&[1, 5], &[(1, 4)])), (2, told(&[1, 2, 5], &[(2, 3)]))]);
        assert!(matches!(common, Err(Failed::CannotRun(_))), "an unknown is not a pass");
    }
}
