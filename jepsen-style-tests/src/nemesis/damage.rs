//! Damages the data of one node, or of a minority, while it is down: flips bits, cuts a file short, wipes a page. The
//! node must refuse to start and say why; if nothing is stored where the damage lies, it may start and must then agree
//! with the others. Afterwards its files are put back, or a new member takes its place.
//!
//! Files are put back only if nothing has run on later ones: a node that goes back in time loses what it promised.

use std::path::PathBuf;

use super::node_processes::minority;
use crate::disk;
use crate::nemesis::prelude::*;

const DECIDES_WITHIN: Duration = Duration::from_secs(30);
/// Under load the nodes stand at the same zxid only now and then.
const COMPARED_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// After so many that hit nothing, the damage is one that cannot be missed.
const SMALL_ATTEMPTS: u32 = 3;
const ATTEMPTS: u32 = 6;
const PAGE: usize = 4096;

#[derive(Default)]
pub(super) struct Damage {
    /// Nodes that refused to start, and where their files are kept.
    down: Vec<(u64, PathBuf)>,
    replaces: bool,
    evidence: Vec<String>,
}

/// What became of a node that was started on damaged files.
enum Became {
    Refused(String),
    Serves,
}

impl Damage {
    /// Harms one node's files until it refuses them; says what was done.
    async fn spoil(&mut self, test_bed: &mut TestBed, node: u64, rng: &mut StdRng) -> Result<String, Failed> {
        let called = observe::called(&test_bed.cluster, node).await;
        let mut told = Vec::new();
        for attempt in 1..=ATTEMPTS {
            observe::kill(&mut test_bed.cluster, node).await?;
            let (data, kept) = (test_bed.cluster.data(node)?, test_bed.dir.join(format!("kept-{node}")));
            put_back(&data, &kept)?;
            self.down.push((node, kept));
            let what = harm(&data, rng, attempt > SMALL_ATTEMPTS)?;
            told.push(what.clone());
            disk::begin_again(&test_bed.cluster.seen_directory(node)?).await?;
            let log_from = observe::log_end(test_bed.cluster.directory(node));
            test_bed.cluster.spawn(node)?;
            match became(&mut test_bed.cluster, node, log_from).await? {
                Became::Refused(how) => {
                    self.evidence.push(format!("{what}: node {node} refused to start: {how}"));
                    break;
                }
                Became::Serves => {
                    // What was kept is older than what it has promised since.
                    self.down.pop();
                    agrees(&test_bed.cluster, node).await?;
                    told.push("(it started, and agreed)".into());
                }
            }
        }
        Ok(format!("{called} killed, its files damaged: {}", told.join(", ")))
    }

    /// Gives a node its files back, or another its place.
    async fn mend(&mut self, test_bed: &mut TestBed, node: u64, kept: &Path) -> Result<String, Failed> {
        // Nothing may run on files that are about to change.
        if test_bed.cluster.process(node).is_some_and(|process| Process::ended(process).is_none()) {
            test_bed.cluster.kill(node).await?;
        }
        if self.replaces {
            members::remove(&test_bed.cluster, node).await?;
            let new = members::settle_in_place_of(&mut test_bed.cluster, node).await?;
            return Ok(format!("node {node} was given up, and node {new} took its place"));
        }
        put_back(kept, &test_bed.cluster.data(node)?)?;
        disk::begin_again(&test_bed.cluster.seen_directory(node)?).await?;
        test_bed.cluster.spawn(node)?;
        let back = observe::back(&mut test_bed.cluster, &[node]).await?;
        Ok(format!("node {node}'s files were put back, {back}"))
    }
}

#[async_trait]
impl Nemesis for Damage {
    fn names(&self) -> (&'static str, &'static str) {
        (
            "damage",
            "bits flipped and files cut short in the data of one node, or of as many as can be missed: none serves \
                what is wrong",
        )
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        (test_bed.cluster.ids().len() < 3).then_some(Lack::Settings("it takes a majority without the damaged nodes"))
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        self.evidence.clear();
        self.replaces = rng.random_bool(0.5);
        let mut nodes = test_bed.cluster.ids();
        nodes.shuffle(rng);
        nodes.truncate(rng.random_range(1..=minority(nodes.len()).max(1)));
        let mut told = Vec::new();
        test_bed.moments.strike();
        for node in nodes {
            told.push(self.spoil(test_bed, node, rng).await?);
        }
        Ok(told.join("; "))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let mut evidence = std::mem::take(&mut self.evidence);
        for (node, kept) in std::mem::take(&mut self.down) {
            evidence.push(self.mend(test_bed, node, &kept).await?);
        }
        Ok(evidence)
    }
}

/// Waits until it has refused, or is ready.
async fn became(cluster: &mut Cluster, node: u64, log_from: u64) -> Result<Became, Failed> {
    let wait = Polling::within(DECIDES_WITHIN).every(POLL);
    let api = cluster.api(node);
    loop {
        if let Some(status) = cluster.process(node).and_then(Process::ended) {
            let words = ["damage", "checksum", "corrupt", "missing", "refus", "acknowledged"];
            let said = observe::said(cluster.directory(node), log_from, &words);
            return match (status.code(), said) {
                (Some(1..), Some(line)) => Ok(Became::Refused(line)),
                (_, said) => broken(format!(
                    "node {node}, its files damaged, ended with {status} and {}",
                    said.map_or("gave no clear reason".into(), |line| format!("said {line}"))
                )),
            };
        }
        if api.ready().await {
            return Ok(Became::Serves);
        }
        wait.or_broken(|| format!("node {node}, its files damaged, neither serves nor ends within {DECIDES_WITHIN:?}"))
            .await?;
    }
}

/// Waits until its state has been compared with another's at the same zxid.
async fn agrees(cluster: &Cluster, node: u64) -> Result<(), Failed> {
    let begun = Instant::now();
    while begun.elapsed() < COMPARED_WITHIN {
        let states: Vec<_> =
            cluster.statuses(true).await.into_iter().filter_map(|s| Some((s.node_id, s.state?))).collect();
        let own = states.iter().find(|(id, _)| *id == node);
        let others = states.iter().filter(|(id, _)| *id != node);
        for ((_, own), (other, state)) in own.into_iter().flat_map(|own| others.clone().map(move |other| (own, other)))
        {
            if state.zxid == own.zxid && state.checksum != own.checksum {
                return broken(format!(
                    "node {node} serves damaged data: at zxid {} its state has checksum {}, that of node {other} {}",
                    own.zxid, own.checksum, state.checksum
                ));
            }
            if state.zxid == own.zxid {
                return Ok(());
            }
        }
        tokio::time::sleep(POLL).await;
    }
    cannot_run(format!(
        "node {node} started on damaged files, and its state could not be compared with another's within \
            {COMPARED_WITHIN:?}"
    ))
}

/// Does some damage and says what; `heavy` where nothing can be left whole.
fn harm(data: &Path, rng: &mut StdRng, heavy: bool) -> Result<String, Failed> {
    let mut files = Vec::new();
    list(data, &mut files)?;
    if heavy {
        files.retain(|(path, _)| path.ends_with("log/sled/db"));
    }
    let Some((path, used)) = files.choose_weighted(rng, |(_, used)| *used as u64).ok().cloned() else {
        return broken(format!("there is nothing to damage in {}", data.display()));
    };
    let name = path.strip_prefix(data).unwrap_or(&path).display().to_string();
    let mut bytes = std::fs::read(&path)?;
    let (length, at) = (bytes.len(), rng.random_range(0..used));
    let what = match (heavy, rng.random_range(0..3)) {
        (true, _) => {
            let from = used / 4;
            bytes[from..used].iter_mut().step_by(61).for_each(|byte| *byte ^= 0x55);
            format!("every 61st byte from {from} to {used} flipped in {name}")
        }
        (false, 0) => {
            let at = bytes[at..].iter().position(|byte| *byte != 0).map_or(at, |skip| at + skip);
            let bit = rng.random_range(0..8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped in {name}")
        }
        (false, 1) => {
            bytes.truncate(at);
            format!("{name} cut from {length} to {at} bytes")
        }
        (false, _) => {
            let from = at - at % PAGE;
            let to = (from + PAGE).min(bytes.len());
            bytes[from..to].fill(0);
            format!("bytes {from} to {to} wiped in {name}")
        }
    };
    std::fs::write(&path, bytes)?;
    Ok(what)
}

/// The files that hold something, with how much of each is in use: sled makes its file longer in advance, and harm to
/// that is none.
fn list(dir: &Path, files: &mut Vec<(PathBuf, usize)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if let Some(last) = std::fs::read(&path)?.iter().rposition(|byte| *byte != 0) {
            files.push((path, last + 1));
        }
    }
    Ok(())
}

/// Makes `to` hold what `from` holds. It may be a mount point.
fn put_back(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    disk::empty(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => put_back(&entry.path(), &target)?,
            false => std::fs::copy(entry.path(), target).map(drop)?,
        }
    }
    Ok(())
}
