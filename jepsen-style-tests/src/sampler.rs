//! Samples of the servers' count of lock notifications, taken all the while so that a kill loses little, and in rounds
//! around calm windows. See [`crate::judge::counts`] for what can be concluded from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_checkers::replay::Promotion;
use parking_lot::Mutex;

use crate::cluster::{Cluster, LOCK_NOTIFICATIONS};
use crate::http::{Api, metric_sum};
use crate::judge::counts::{self, CalmWindow, Sample};
use crate::record::boot_us;
use crate::verdict::{Failed, broken};

const EVERY: Duration = Duration::from_millis(200);
/// A count and its telling by a watch may lie so far apart on a busy machine.
const ALLOWANCE_US: u64 = 250_000;

/// One round: every node at about the same time.
type SampleRound = Vec<Sample>;

/// The sampling, until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    nodes: Vec<(u64, Api, Arc<AtomicU32>)>,
    samples: Arc<Mutex<Vec<Sample>>>,
    calm: Mutex<Vec<(SampleRound, SampleRound)>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sample(node: u64, api: &Api, life: &AtomicU32) -> Option<Sample> {
    let (before, asked_us) = (life.load(Ordering::SeqCst), boot_us());
    let text = api.metrics().await.ok()?;
    let value = metric_sum(&text, LOCK_NOTIFICATIONS).unwrap_or(0.0);
    (life.load(Ordering::SeqCst) == before).then(|| Sample {
        asked_us,
        answered_us: boot_us(),
        node,
        life: before,
        value,
    })
}

impl Sampler {
    /// Begins, with a first sample of every node.
    pub async fn begin(cluster: &Cluster) -> Result<Self, Failed> {
        let nodes: Vec<_> =
            cluster.apis().into_iter().map(|(id, api)| (id, api, Arc::new(AtomicU32::new(0)))).collect();
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (asked, taken) = (nodes.clone(), Arc::clone(&samples));
        let task = tokio::spawn(async move {
            loop {
                for (id, api, life) in &asked {
                    if let Some(sample) = sample(*id, api, life).await {
                        taken.lock().push(sample);
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        let sampler = Self { nodes, samples, calm: Mutex::default(), task };
        sampler.round().await?;
        Ok(sampler)
    }

    /// Samples every node now.
    pub async fn round(&self) -> Result<SampleRound, Failed> {
        let mut round = Vec::new();
        for (id, api, life) in &self.nodes {
            match sample(*id, api, life).await {
                Some(sample) => round.push(sample),
                None => return broken(format!("node {id} is ready and does not give its metrics")),
            }
        }
        self.samples.lock().extend(&round);
        Ok(round)
    }

    /// Nothing happened to any node between these two rounds.
    pub fn was_calm(&self, from: SampleRound, to: SampleRound) {
        self.calm.lock().push((from, to));
    }

    /// That node was killed: what it counts from now on is another life's.
    pub fn killed(&self, node: u64) {
        if let Some((_, _, life)) = self.nodes.iter().find(|(id, _, _)| *id == node) {
            life.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// What was counted in all, as far as samples know: not more than that was counted before the last sample of each
    /// life.
    pub fn total(&self) -> f64 {
        counts::total(&self.samples.lock())
    }

    /// The calm windows, with what the log owed in each.
    pub fn windows(&self, promotions: &[Promotion], seen_us: &BTreeMap<u64, u64>) -> Vec<CalmWindow> {
        let stamps: Vec<u64> = promotions.iter().filter_map(|p| seen_us.get(&p.zxid).copied()).collect();
        let owed = |from: u64, to: u64| stamps.iter().filter(|at| **at >= from && **at < to).count();
        let calm = self.calm.lock();
        let windows = calm.iter().filter_map(|(from, to)| {
            let (first, began) = (from.first()?.asked_us, from.last()?.answered_us);
            let (ended, last) = (to.first()?.asked_us, to.last()?.answered_us);
            let sum = |round: &SampleRound| round.iter().map(|sample| sample.value).sum::<f64>();
            Some(CalmWindow {
                counted: sum(to) - sum(from),
                certain: owed(began + ALLOWANCE_US, ended.saturating_sub(ALLOWANCE_US)),
                possible: owed(first.saturating_sub(ALLOWANCE_US), last + ALLOWANCE_US),
            })
        });
        windows.collect()
    }
}
