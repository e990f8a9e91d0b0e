//! P4 against power loss: three nodes run under `strace`, and the order of their system calls is checked.
//!
//! For each acknowledged append and vote, on each node, a data sync of the file that has it, the journal's or sled's,
//! began after its last byte was written, and ended before anyone was told (`lockkeeper_checkers::sync_trace` has the
//! rules). Then the same with the test-only switch that leaves the sync out, which the check must catch: a check that
//! cannot fail shows nothing.

use lockkeeper_api::Data;
use lockkeeper_api::cluster::{Member, Role};
use lockkeeper_checkers::sync_trace::{self, Report};

use super::writers::{Writers, Writing};
use crate::disk::tracer_works;
use crate::proofs::prelude::*;

const WRITERS_PER_NODE: usize = 4;
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(20);
/// The tracer is a grandchild (`-D`), so that the process we start, and signal, is the server itself.
const TRACER: [&str; 10] =
    ["strace", "-D", "-f", "-y", "-s", "1048576", "-e", "trace=pwrite64,fdatasync,fsync,write", "-e", "signal=none"];

pub(super) async fn run(context: &Context, seconds: u64) -> ProofResult {
    tracer_works(&TRACER, &context.dir).await?;
    let say = |line: String| context.log.say(line);
    say(format!("three nodes under strace, {seconds} s of load, leadership handed over in between"));
    let traced = traced_run(context, "full", seconds, false).await?;
    let mut total = Report::default();
    for (node, report) in &traced.reports {
        say(format!("node {node}: {report}"));
        if !report.holds() {
            return broken(format!("node {node}: {report}"));
        }
        total.appends += report.appends;
        total.records += report.records;
        total.votes += report.votes;
        total.syncs += report.syncs;
    }
    if total.votes == 0 {
        return cannot_run("no vote was saved although leadership was handed over");
    }
    say("the same without syncs (test-only switch): the check must catch it".into());
    let control = traced_run(context, "flush-only", seconds.min(5), true).await?;
    let mut caught = 0;
    for (node, report) in &control.reports {
        say(format!(
            "node {node}: {} appends and {} votes acknowledged, {} without a sync",
            report.appends, report.votes, report.violations
        ));
        if report.holds() || report.violations == 0 {
            return broken(format!("the check did not catch the missing sync at node {node}: it shows nothing"));
        }
        caught += report.violations;
    }
    Ok(format!(
        "{} appends ({} records) and {} votes on three nodes, each synced before its acknowledgement, {} syncs, {} \
         writes told to clients; with the sync left out {caught} violations were caught",
        total.appends, total.records, total.votes, total.syncs, traced.told
    ))
}

struct Traced {
    reports: Vec<(u64, Report)>,
    told: u64,
}

async fn traced_run(context: &Context, name: &str, seconds: u64, flush_only: bool) -> Result<Traced, Failed> {
    let mut wrap: Vec<String> = TRACER.iter().map(ToString::to_string).collect();
    wrap.extend(["-o".into(), "{node}/trace".into()]);
    let mut environment = vec![("LOCKKEEPER_TESTING__TRACE_MARKS".to_owned(), "true".to_owned())];
    if flush_only {
        environment.push(("LOCKKEEPER_TESTING__FLUSH_ONLY".to_owned(), "true".to_owned()));
    }
    let options = Options { wrap, environment, ..Options::default() };
    let mut cluster = Cluster::start(&context.binary, &context.dir.join(name), options).await?;
    let told = load(&cluster, Duration::from_secs(seconds)).await?;
    for id in cluster.ids() {
        cluster.signal(id, Signal::SIGTERM);
    }
    let mut reports = Vec::new();
    for id in cluster.ids() {
        cluster.ended(id, Duration::from_secs(30)).await?;
        let file = cluster.directory(id).join("trace");
        let bytes = finished_trace(&file).await?;
        let text = String::from_utf8_lossy(&bytes);
        reports.push((id, sync_trace::check(text.lines())));
    }
    Ok(Traced { reports, told })
}

/// The tracer ends a little after the process that it traces.
async fn finished_trace(file: &Path) -> Result<Vec<u8>, Failed> {
    let (wait, mut size) = (Polling::within(Duration::from_secs(60)).every(Duration::from_millis(50)), None);
    loop {
        let now = std::fs::metadata(file)?.len();
        let bytes = if size == Some(now) { std::fs::read(file)? } else { Vec::new() };
        let last = bytes.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if last.ends_with(b"+++") {
            return Ok(bytes);
        }
        size = Some(now);
        wait.or_cannot_run(|| format!("the trace {} does not come to an end", file.display())).await?;
    }
}

/// Writes through all nodes, with a change of leader in the middle; gives how many were acknowledged to their clients.
async fn load(cluster: &Cluster, over: Duration) -> Result<u64, Failed> {
    cluster.make_node("/synced").await?;
    let writing = Writing {
        // Up to several parts a record: each must be covered.
        data: |number| Data::from_bytes(&vec![b'x'; (number + 1) * 997 % 9_000]),
        ..Writing::of("/synced/n-", WRITERS_PER_NODE)
    };
    let writers = Writers::start(&cluster.apis(), &writing);
    tokio::time::sleep(over / 2).await;
    hand_over(cluster).await?;
    tokio::time::sleep(over / 2).await;
    let (written, _) = writers.end().await?;
    Ok(written.len() as u64)
}

/// Asks the leader to hand leadership over, once another voter is in step (none is while a disk stalls). Then there
/// must be another term.
async fn hand_over(cluster: &Cluster) -> Result<(), Failed> {
    let wait = Polling::within(HANDED_OVER_WITHIN).every(Duration::from_millis(20));
    let (_, first) = cluster.leader().await?;
    let leader = loop {
        let (leader, term) = cluster.leader().await?;
        if term != first {
            return Ok(());
        }
        let other = |member: &Member| member.node_id != leader && member.role == Role::Voter;
        let in_step = |member: &Member| other(member) && member.synced == Some(true);
        let status = cluster.api(leader).status(false).await;
        if status.is_ok_and(|status| status.value.members.iter().any(in_step)) {
            match cluster.api(leader).transfer_leadership(None).await {
                Ok(_) => break leader,
                // A stall made it late; or nobody is in step any more, or it does not lead any more.
                Err(Failure::Unknown(_) | Failure::NotDone(_)) => {}
                Err(failure) if failure.code() == Some(Code::MembershipConflict) => {}
                Err(failure) => return Err(without_fault(failure)),
            }
        }
        wait.or_broken(|| format!("node {leader} could not be asked to hand over within {HANDED_OVER_WITHIN:?}"))
            .await?;
    };
    let wait = Polling::within(HANDED_OVER_WITHIN).every(Duration::from_millis(20));
    while cluster.leader().await?.1 == first {
        wait.or_broken(|| format!("node {leader} was asked to hand leadership over and term {first} goes on")).await?;
    }
    Ok(())
}
