//! What each node takes, looked at again and again: memory, files, threads and CPU time of its process, its data
//! directory, and what its metrics say of log and snapshots.

use std::path::PathBuf;

use serde::Serialize;

use super::flat::{Trend, TrendPoint};
use super::tally::SoakTally;
use crate::http::metric_sum;
use crate::proofs::footprint::sum_below;
use crate::proofs::prelude::*;

/// A node that does not give its metrics by then is sampled without them.
const METRICS_WITHIN: Duration = Duration::from_secs(1);
const MIB: f64 = 1024.0 * 1024.0;

/// One look at one node.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeSample {
    pub(super) seconds: f64,
    pub(super) node: u64,
    /// Counts the processes of the node.
    pub(super) life: u32,
    /// Whether no fault was on and the traces of the last were gone. Only such samples are judged.
    pub(super) calm: bool,
    /// Space that the data directory takes on the disk.
    pub(super) disk_bytes: u64,
    /// What of it is the log's.
    pub(super) log_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) open_files: u64,
    pub(super) threads: u64,
    /// Of this process alone.
    pub(super) cpu_seconds: f64,
    /// Taken by this process.
    pub(super) snapshots: Option<u64>,
    pub(super) log_entries: Option<u64>,
    pub(super) purged_index: Option<u64>,
    pub(super) state_bytes: Option<u64>,
}

named! {
    /// What is judged, and drawn first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Measure {
        Disk = "disk, MiB",
        Memory = "resident memory, MiB",
        OpenFiles = "open files",
        Threads = "threads",
    }
}

impl Measure {
    pub(super) fn of(self, sample: &NodeSample) -> f64 {
        match self {
            Self::Disk => sample.disk_bytes as f64 / MIB,
            Self::Memory => sample.resident_bytes as f64 / MIB,
            Self::OpenFiles => sample.open_files as f64,
            Self::Threads => sample.threads as f64,
        }
    }

    /// Allowed where a twentieth is less: what the smallest step is.
    fn least(self) -> f64 {
        match self {
            // A segment of the log's file.
            Self::Disk => 0.5,
            Self::Memory => 1.0,
            // Pooled connections of clients and peers come and go: 47 to 57 files in calm within half an hour.
            Self::OpenFiles => 8.0,
            Self::Threads => 1.0,
        }
    }
}

/// Why a measure of a node is not judged flat.
#[derive(Debug, PartialEq)]
pub(super) enum NotFlat {
    Grows(String),
    TooFewSamples(String),
}

/// The trend of a measure at a node after the warm-up.
pub(super) fn judge(
    samples: &[NodeSample],
    node: u64,
    measure: Measure,
    (from_s, to_s): (f64, f64),
) -> Result<Trend, NotFlat> {
    let own = samples.iter().filter(|sample| sample.node == node && sample.calm);
    let points: Vec<TrendPoint> = own.map(|sample| (sample.seconds, measure.of(sample))).collect();
    let name = measure.name();
    let Some(trend) = Trend::of(&points, from_s, to_s, measure.least()) else {
        return Err(NotFlat::TooFewSamples(format!("node {node}: too few samples of {name} in calm")));
    };
    if trend.grows() {
        let Trend { first, last, slope_gain, .. } = trend;
        return Err(NotFlat::Grows(format!(
            "{name} of node {node} grows: median {first:.1} in the first third after the warm-up, {last:.1} in the \
             last ({:+.1} %), slope {slope_gain:+.1} over all",
            trend.percent()
        )));
    }
    Ok(trend)
}

/// The processes of the nodes, as the faults leave them.
#[derive(Clone, Default)]
pub(super) struct Lives(Arc<Mutex<BTreeMap<u64, (u32, u32)>>>);

impl Lives {
    /// A process of the node was started.
    pub(super) fn began(&self, node: u64, pid: i32) {
        let mut lives = self.0.lock();
        let number = lives.get(&node).map_or(0, |(_, number)| number + 1);
        lives.insert(node, (u32::try_from(pid).unwrap_or(0), number));
    }

    fn of(&self, node: u64) -> Option<(u32, u32)> {
        self.0.lock().get(&node).copied()
    }
}

/// The sampling.
pub(super) struct Sampling {
    samples: Arc<Mutex<Vec<NodeSample>>>,
    task: JoinHandle<()>,
}

impl Drop for Sampling {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sampling {
    /// Begins.
    pub(super) fn start(
        cluster: &Cluster,
        lives: Lives,
        tally: Arc<SoakTally>,
        began: Instant,
        every: Duration,
    ) -> Result<Self, Failed> {
        let nodes: Result<Vec<(u64, Api, PathBuf)>, Failed> =
            cluster.apis().into_iter().map(|(id, api)| Ok((id, api, cluster.data(id)?))).collect();
        let (nodes, samples) = (nodes?, Arc::new(Mutex::new(Vec::new())));
        let taken = Arc::clone(&samples);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                for (node, api, data) in &nodes {
                    let Some(life) = lives.of(*node) else { continue };
                    let calm = tally.is_calm();
                    // A process that ends meanwhile, or a file that goes, gives no sample.
                    if let Some(mut sample) = look(*node, life, data, began.elapsed()) {
                        add_metrics(&mut sample, api).await;
                        sample.calm = calm && tally.is_calm();
                        taken.lock().push(sample);
                    }
                }
            }
        });
        Ok(Self { samples, task })
    }

    /// Ends it and gives all samples.
    pub(super) fn end(self) -> Vec<NodeSample> {
        std::mem::take(&mut *self.samples.lock())
    }
}

fn look(node: u64, (pid, life): (u32, u32), data: &Path, at: Duration) -> Option<NodeSample> {
    let entries = |what: &str| Some(std::fs::read_dir(format!("/proc/{pid}/{what}")).ok()?.count() as u64);
    Some(NodeSample {
        seconds: at.as_secs_f64(),
        node,
        life,
        calm: false,
        disk_bytes: space_below(data)?,
        log_bytes: space_below(&data.join("log"))?,
        resident_bytes: lockkeeper_bench::resident_bytes(pid).ok()?,
        open_files: entries("fd")?,
        threads: entries("task")?,
        cpu_seconds: lockkeeper_bench::spent_us(&[pid]).ok()? as f64 / 1e6,
        snapshots: None,
        log_entries: None,
        purged_index: None,
        state_bytes: None,
    })
}

/// On the disk, which is less than the length of a file with holes.
fn space_below(directory: &Path) -> Option<u64> {
    sum_below(directory, |file| std::os::unix::fs::MetadataExt::blocks(file) * 512).ok()
}

async fn add_metrics(sample: &mut NodeSample, api: &Api) {
    let Ok(Ok(text)) = tokio::time::timeout(METRICS_WITHIN, api.metrics()).await else { return };
    let value = |name: &str| metric_sum(&text, name).map(|value| value as u64);
    sample.snapshots = Some(value("lockkeeper_snapshot_seconds_count").unwrap_or(0));
    sample.log_entries = value("lockkeeper_store_log_entries");
    sample.purged_index = value("lockkeeper_purged_log_index");
    sample.state_bytes = value("lockkeeper_state_bytes");
}

/// Snapshots that a node took between two moments, over all its processes: at least, since a killed process takes those
/// after its last sample along.
pub(super) fn snapshots(samples: &[NodeSample], node: u64, (from_s, to_s): (f64, f64)) -> u64 {
    let own = samples.iter().filter(|sample| sample.node == node && sample.seconds >= from_s && sample.seconds < to_s);
    let mut lives: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for sample in own {
        let Some(count) = sample.snapshots else { continue };
        lives.entry(sample.life).or_insert((count, count)).1 = count;
    }
    lives.values().map(|(first, last)| last - first).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, life: u32) -> NodeSample {
        NodeSample {
            seconds,
            node: 1,
            life,
            calm: true,
            disk_bytes: 10 << 20,
            log_bytes: 5 << 20,
            resident_bytes: 80 << 20,
            open_files: 90,
            threads: 15,
            cpu_seconds: 1.0,
            snapshots: None,
            log_entries: None,
            purged_index: None,
            state_bytes: None,
        }
    }

    #[test]
    fn each_measure_is_judged_by_calm_samples_of_its_node() {
        let all: Vec<NodeSample> = (0..300).map(|at| sample(f64::from(at), 0)).collect();
        let bounds = (0.0, 300.0);
        let growing = |change: &dyn Fn(&mut NodeSample, u64)| {
            let mut samples = all.clone();
            for (at, sample) in (0u64..).zip(&mut samples) {
                change(sample, at);
            }
            let grows = |measure: &Measure| matches!(judge(&samples, 1, *measure, bounds), Err(NotFlat::Grows(_)));
            Measure::ALL.into_iter().filter(grows).collect::<Vec<_>>()
        };
        assert_eq!(growing(&|_, _| {}), []);
        assert_eq!(growing(&|sample, at| sample.disk_bytes += at << 14), [Measure::Disk]);
        assert_eq!(growing(&|sample, at| sample.resident_bytes += at << 15), [Measure::Memory]);
        assert_eq!(growing(&|sample, at| sample.open_files += at / 10), [Measure::OpenFiles]);
        assert_eq!(growing(&|sample, at| sample.threads += at / 100), [Measure::Threads]);
        let others = |sample: &mut NodeSample, at: u64| {
            sample.calm = at.is_multiple_of(2);
            sample.threads += if sample.calm { 0 } else { at };
        };
        assert_eq!(growing(&others), [], "beside faults nothing is judged");
        assert!(matches!(judge(&all, 2, Measure::Disk, bounds), Err(NotFlat::TooFewSamples(_))));
    }

    #[test]
    fn snapshots_of_all_processes_count() {
        let counts = [(0.0, 0, 3), (1.0, 0, 5), (2.0, 1, 0), (3.0, 1, 4), (9.0, 1, 8)];
        let samples: Vec<_> = counts
            .map(|(at, life, count)| NodeSample { snapshots: Some(count), ..sample(at, life) })
            .into_iter()
            .collect();
        assert_eq!(snapshots(&samples, 1, (0.0, 4.0)), 2 + 4);
        assert_eq!(snapshots(&samples, 2, (0.0, 4.0)), 0);
    }

    #[test]
    fn a_process_is_looked_at() {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("log")).unwrap();
        std::fs::write(data.path().join("log/db"), vec![7; 1 << 16]).unwrap();
        let seen = look(1, (std::process::id(), 0), data.path(), Duration::ZERO).unwrap();
        assert!(seen.disk_bytes >= seen.log_bytes && seen.log_bytes >= 1 << 16, "{seen:?}");
        assert!(seen.open_files > 2 && seen.threads > 0 && seen.resident_bytes > 1 << 16, "{seen:?}");
        assert!(look(1, (u32::MAX, 0), data.path(), Duration::ZERO).is_none());
    }
}
