//! Memory and disk that a node keeps for itself: three nodes idle, after a load of lock cycles, after a million
//! watches, half a million ephemeral nodes, and a million names of locks. Each time memory must return to its bound and
//! the data directory must stay small, however much has passed through the node.

mod crowds;

use std::fs::Metadata;

use super::greedy::rss_mib;
use super::group_commit;
use crate::proofs::prelude::*;

const CLIENTS: u32 = 64;
/// What a node may have in memory and on its disk, in MiB, when nothing is going on.
const MOST_MEMORY_MIB: u64 = 80;
const MOST_DISK_MIB: u64 = 64;
/// For so long at most it may take to be back there.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// What is said of an idle cluster was so after this.
const IDLE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// With lock cycles for so many seconds.
pub(super) async fn run(context: &Context, seconds: u64) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let mut told = Vec::new();
    let mut findings = Vec::new();
    tokio::time::sleep(IDLE).await;
    let mut step = async |name: &str, cluster: &mut Cluster, busy: Footprint| -> Result<(), Failed> {
        let (footprint, took) = come_back(cluster).await?;
        let line = format!("{name}: {busy} under it, {footprint} {:.0} s after", took.as_secs_f64());
        context.log.say(&line);
        findings.extend(footprint.judge(name));
        told.push(line);
        Ok(())
    };
    let idle = footprint(&mut cluster)?;
    step("idle", &mut cluster, idle).await?;
    work(context, &cluster, seconds).await?;
    let busy = footprint(&mut cluster)?;
    step("lock cycles", &mut cluster, busy).await?;
    let watching = crowds::watch(&cluster).await?;
    let busy = footprint(&mut cluster)?;
    drop(watching);
    step("a million watches", &mut cluster, busy).await?;
    let sessions = crowds::own(&cluster).await?;
    let busy = footprint(&mut cluster)?;
    crowds::end(&cluster, sessions).await?;
    step("half a million ephemerals", &mut cluster, busy).await?;
    crowds::take_names(&cluster).await?;
    let busy = footprint(&mut cluster)?;
    step("a million names of locks", &mut cluster, busy).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    if findings.is_empty() { Ok(told.join("; ")) } else { broken(findings.join("; ")) }
}

async fn work(context: &Context, cluster: &Cluster, seconds: u64) -> Result<(), Failed> {
    let measured = group_commit::measure(context, cluster, CLIENTS, seconds).await?;
    match measured.first_error {
        Some(error) => broken(format!("{} cycles failed, the first with: {error}", measured.errors)),
        None => {
            context.log.say(format!("{} lock cycles by {CLIENTS} clients", measured.cycles));
            Ok(())
        }
    }
}

/// The most that any node has, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Footprint {
    memory_mib: u64,
    disk_mib: u64,
}

impl std::fmt::Display for Footprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} MiB in memory and {} on disk", self.memory_mib, self.disk_mib)
    }
}

impl Footprint {
    fn is_small(self) -> bool {
        self.memory_mib <= MOST_MEMORY_MIB && self.disk_mib <= MOST_DISK_MIB
    }

    fn judge(self, after: &str) -> Option<String> {
        let allowed = format!("where {MOST_MEMORY_MIB} and {MOST_DISK_MIB} are allowed");
        (!self.is_small()).then(|| format!("{after}: {self}, {allowed}"))
    }
}

/// Waits until every node is small, or has had its time; gives what there is then, and how long that took.
async fn come_back(cluster: &mut Cluster) -> Result<(Footprint, Duration), Failed> {
    let began = Instant::now();
    loop {
        let now = footprint(cluster)?;
        if now.is_small() || began.elapsed() > BACK_WITHIN {
            return Ok((now, began.elapsed()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn footprint(cluster: &mut Cluster) -> Result<Footprint, Failed> {
    let mut most = Footprint::default();
    for id in cluster.ids() {
        let pid = cluster.process(id).map_or(0, |process| process.pid());
        most.memory_mib = most.memory_mib.max(rss_mib(pid)?);
        most.disk_mib = most.disk_mib.max(sum_below(&cluster.data(id)?, Metadata::len)?.div_ceil(MIB));
    }
    Ok(most)
}

const MIB: u64 = 1024 * 1024;

/// The sum of the sizes of the files in a directory and below. One that goes meanwhile counts as nothing.
pub(super) fn sum_below(directory: &Path, size: fn(&Metadata) -> u64) -> Result<u64, Failed> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += sum_below(&entry.path(), size)?,
            Ok(found) => bytes += size(&found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_memory_and_disk() {
        let judge = |memory_mib, disk_mib| Footprint { memory_mib, disk_mib }.judge("idle");
        assert_eq!(judge(80, 64), None);
        assert!(judge(81, 1).is_some_and(|finding| finding.contains("81 MiB in memory")));
        assert!(judge(315, 185).is_some_and(|finding| finding.contains("185 on disk")));
    }

    #[test]
    fn files_below_count() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("log")).unwrap();
        std::fs::write(directory.path().join("log/db"), [0; 300]).unwrap();
        std::fs::write(directory.path().join("identity"), [0; 20]).unwrap();
        assert_eq!(sum_below(directory.path(), Metadata::len).unwrap(), 320);
    }
}
