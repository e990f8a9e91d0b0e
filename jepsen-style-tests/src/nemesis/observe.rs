//! Observes the cluster for nemeses: the leader, the bytes that links held back, the state of processes. Evidence comes
//! from here, never from what was intended.

use std::os::unix::process::ExitStatusExt as _;

use crate::nemesis::prelude::*;
use crate::net::Passed;
use crate::process;

const POLL: Duration = Duration::from_millis(20);
const LOOKS: u32 = 4;
/// Under other faults there may be no leader to be found.
const LEADER_WITHIN: Duration = Duration::from_secs(2);
/// A working node answers at once.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// Who leads, and since which term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    pub(super) node: u64,
    pub(super) term: u64,
}

/// The leader by the nodes' own word: the one in the highest term. None if none leads in time.
pub(super) async fn lead(cluster: &Cluster, within: Duration) -> Option<Lead> {
    let begun = Instant::now();
    loop {
        let asked = cluster.apis();
        // A stopped node takes the connection and says nothing.
        let answers = asked.iter().map(|(_, api)| tokio::time::timeout(ANSWERED_WITHIN, api.status(false)));
        let answers = futures::future::join_all(answers).await.into_iter().filter_map(|answer| answer.ok()?.ok());
        let leads = answers.map(|answer| answer.value).filter(|status| status.leading);
        if let Some(status) = leads.max_by_key(|status| status.term) {
            return Some(Lead { node: status.node_id, term: status.term });
        }
        if begun.elapsed() >= within {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The leader, or any node where none leads.
pub(super) async fn leader_or_any(test_bed: &TestBed, rng: &mut StdRng) -> Result<u64, Failed> {
    match lead(&test_bed.cluster, LEADER_WITHIN).await {
        Some(lead) => Ok(lead.node),
        None => any(test_bed, rng),
    }
}

/// Any node.
pub(super) fn any(test_bed: &TestBed, rng: &mut StdRng) -> Result<u64, Failed> {
    match test_bed.cluster.ids().choose(rng) {
        Some(node) => Ok(*node),
        None => broken("the cluster has no nodes"),
    }
}

/// `node 2 (the leader)`.
pub(super) async fn called(cluster: &Cluster, node: u64) -> String {
    let leads = lead(cluster, Duration::ZERO).await.is_some_and(|lead| lead.node == node);
    if leads { format!("node {node} (the leader)") } else { format!("node {node}") }
}

/// The change of leader, if there was one: the same node in a later term has lost and won an election.
pub(super) async fn lead_changed(cluster: &Cluster, before: Option<Lead>) -> Option<String> {
    let before = before?;
    let now = lead(cluster, Duration::ZERO).await.filter(|now| now.term > before.term)?;
    Some(format!("the leader changed from {} (term {}) to {} (term {})", before.node, before.term, now.node, now.term))
}

/// Waits until the nodes are ready again.
pub(super) async fn back(cluster: &mut Cluster, nodes: &[u64]) -> Result<String, Failed> {
    let begun = Instant::now();
    for node in nodes {
        cluster.ready(*node).await?;
    }
    Ok(format!("ready again {} ms after", begun.elapsed().as_millis()))
}

/// Kills a node's process with signal 9, and says how it ended.
pub(super) async fn kill(cluster: &mut Cluster, node: u64) -> Result<Option<String>, Failed> {
    let Some(process) = cluster.process(node) else { return Ok(None) };
    let pid = process.pid();
    process.signal(Signal::SIGKILL);
    let status = process.wait_end(ENDED_WITHIN).await;
    cluster.kill(node).await?;
    match status {
        Some(status) if status.signal() == Some(Signal::SIGKILL as i32) => {
            Ok(Some(format!("node {node}'s process {pid} ended by signal 9")))
        }
        Some(status) => broken(format!("node {node}'s process {pid} ended by itself before it was killed: {status}")),
        None => broken(format!("node {node}'s process {pid} did not end when killed")),
    }
}

/// Whether a process is stopped: looked at more than once, for a tracer stops what it traces for a moment at each
/// system call.
pub(super) async fn is_stopped(pid: i32) -> bool {
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(POLL).await;
        }
        // `t` is what a stopped process with a tracer shows.
        if !matches!(process::state_of(pid), Some('T' | 't')) {
            return false;
        }
    }
    true
}

/// Waits until a process that was sent SIGSTOP has stopped.
pub(super) async fn stopped(pid: i32) -> Result<(), Failed> {
    let wait = Polling::within(ENDED_WITHIN).every(POLL);
    while !is_stopped(pid).await {
        wait.or_broken(|| format!("process {pid} was sent SIGSTOP and is {:?}, not stopped", process::state_of(pid)))
            .await?;
    }
    Ok(())
}

/// A link: from a place to a node, or from a node to the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObservedLink {
    To(Endpoint, u64),
    Answers(u64),
}

async fn passed(test_bed: &TestBed, line: ObservedLink) -> Passed {
    match line {
        ObservedLink::To(from, to) => test_bed.net.passed(from, to).await,
        ObservedLink::Answers(from) => test_bed.net.passed_answers(from).await,
    }
}

/// The counts of links when a fault was put on them.
pub(super) type LinkCounts = BTreeMap<ObservedLink, Passed>;

pub(super) async fn count(test_bed: &TestBed, lines: &[ObservedLink]) -> LinkCounts {
    let mut counts = LinkCounts::new();
    for line in lines {
        counts.insert(*line, passed(test_bed, *line).await);
    }
    counts
}

/// What the links have held back or reset since; none if nothing.
pub(super) async fn held_since(test_bed: &TestBed, before: &LinkCounts) -> Option<String> {
    let (mut held, mut reset, mut bytes, mut links) = (0, 0, 0, 0);
    for (line, before) in before {
        let now = passed(test_bed, *line).await;
        held += now.held - before.held;
        reset += now.reset - before.reset;
        bytes += now.bytes - before.bytes;
        links += u32::from(now.held > before.held || now.reset > before.reset);
    }
    let unit = if test_bed.net.backend() == "proxy" { "bytes" } else { "packets" };
    (links > 0).then(|| {
        format!(
            "{links} of {} links held back {held} {unit} and reset {reset} connections ({bytes} bytes passed)",
            before.len()
        )
    })
}

/// The last line of a node's log after a position that contains one of these words.
pub(super) fn said(directory: &Path, from_byte: u64, words: &[&str]) -> Option<String> {
    let log = std::fs::read(directory.join("server.log")).ok()?;
    let text = String::from_utf8_lossy(log.get(usize::try_from(from_byte).ok()?..)?).into_owned();
    let line = text.lines().rev().find(|line| words.iter().any(|word| line.to_lowercase().contains(word)))?;
    Some(line.trim().chars().take(300).collect())
}

/// Where a node's log ends now.
pub(super) fn log_end(directory: &Path) -> u64 {
    std::fs::metadata(directory.join("server.log")).map_or(0, |log| log.len())
}
