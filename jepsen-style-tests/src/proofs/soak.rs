//! Hours of steady work, with a node killed every few minutes: what a node takes stays flat, nothing acknowledged is
//! lost, and no call fails.
//!
//! Clients of the library take and give back locks, own and contended ones, count under these, write and delete nodes,
//! watch, and open and close sessions, each at a fixed pace. One node of the three, drawn by the seed, is only ever
//! paused; the others are killed, and now and then told to end. The run has four equal quarters with the same faults at
//! the same offsets (`plan`). The first is the warm-up; in the others disk, memory, open files and threads of each node
//! must not grow by more than 5 % (`flat`). Samples are judged that were taken while no fault was on and clients were
//! back at their nodes; all of them are in the report.
//!
//! At the end the clients close their sessions. Then every node must have what was acknowledged and nothing else: no
//! session, no ephemeral node, no watch.

mod faults;
mod flat;
mod load;
mod plan;
mod report;
mod samples;
mod tally;

use rand::seq::SliceRandom as _;

use faults::{FaultCounts, Faults};
use load::{Ledgers, ROOT, SoakLoad};
use plan::Plan;
use report::{SoakReport, longest, report_line};
use samples::{Lives, Measure, NodeSample, NotFlat, Sampling, judge, snapshots};
use tally::{SoakTally, Total};

use crate::proofs::prelude::*;

/// Where nobody chose.
const SECONDS: u64 = 30 * 60;
/// The default thresholds would give a short run too few snapshots, and a history of events that fills up all the
/// while.
const SHORT_RUN: &str = "snapshot_every_mib = 1\nkeep_mib = 1\n[limits]\nwatch_history_events = 1024\n";
/// By then what is closed or dropped is gone. A lock's directory is removed when it has been empty for ten seconds,
/// then the one above it, and then the one above that.
const EMPTY_WITHIN: Duration = Duration::from_secs(90);
/// A node's metrics of what must be gone at the end.
const GONE: [&str; 4] =
    ["lockkeeper_sessions", "lockkeeper_ephemerals", "lockkeeper_watches", "lockkeeper_lock_waiters"];

/// How long a run takes.
pub(super) fn length(context: &Context) -> Duration {
    Duration::from_secs(context.seconds_or(SECONDS))
}

pub(super) async fn run(context: &Context) -> ProofResult {
    let plan = Plan::of(length(context));
    if length(context) < plan::SHORTEST {
        return cannot_run(format!("a soak takes {} s at least", plan::SHORTEST.as_secs()));
    }
    let extra_config = if plan.is_short() { SHORT_RUN } else { "" };
    let options = Options { extra_config: extra_config.into(), ..Options::default() };
    let mut cluster = Cluster::start(&context.binary, &context.dir, options).await?;
    let nodes = cluster.ids();
    let (began, lives) = (Instant::now(), Lives::default());
    let tally = Arc::new(SoakTally::new(began));
    for id in &nodes {
        lives.began(*id, cluster.process(*id).map_or(0, |process| process.pid()));
    }
    let load = SoakLoad::start(cluster.endpoints(), Arc::clone(&tally), plan.session_life()).await?;
    let sampling = Sampling::start(&cluster, lives.clone(), Arc::clone(&tally), began, plan.sample_every())?;
    let victims = victims(context, &nodes);
    context.log.say(format!(
        "{} clients for {} s, {} of them warm-up; a fault every {} s; node {} is never ended",
        load.clients(),
        plan.length().as_secs(),
        plan.warm_up().as_secs(),
        plan.interval().as_secs(),
        victims[0]
    ));
    let mut faults =
        Faults { cluster: &mut cluster, plan, began, victims, tally: &tally, lives: &lives, log: &context.log };
    let (mut findings, mut counts) = (Vec::new(), FaultCounts::default());
    or_finding(faults.run(&mut counts).await, &mut findings)?;
    let samples = sampling.end();
    let known = or_finding(load.end().await, &mut findings)?.unwrap_or_default();
    let (total, rates) = tally.end();

    findings.extend(total.findings());
    let left = or_finding(left_behind(&cluster, &known).await, &mut findings)?;
    findings.extend(left.unwrap_or_default());
    let (trends, not_flat) = judged(context, &samples, &nodes, plan);
    findings.extend(not_flat);
    let figures = figures(&total, &counts, &samples, (&nodes, plan), &trends);
    let report = SoakReport {
        plan,
        samples: &samples,
        rates: &rates,
        counts: &counts,
        nodes: &nodes,
        figures: &figures,
        findings: &findings,
        failures: &total.failures,
    };
    let written = report_line(&report.write(context)?);
    for failure in &total.failures {
        context.log.note(failure);
    }
    if findings.is_empty() {
        check_coverage(&counts, &samples, &nodes, plan)?;
        Ok(format!("{figures}; {written}"))
    } else {
        broken(format!("{}; {figures}; {written}", findings.join("; ")))
    }
}

/// What is broken becomes a finding, so that there is a report of it. What could not be tried ends the run.
fn or_finding<T>(result: Result<T, Failed>, findings: &mut Vec<String>) -> Result<Option<T>, Failed> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Failed::Broken(what)) => {
            findings.push(what);
            Ok(None)
        }
        Err(failed) => Err(failed),
    }
}

/// The node that is never ended, and the others.
fn victims(context: &Context, nodes: &[u64]) -> [u64; 3] {
    let mut drawn = nodes.to_vec();
    drawn.shuffle(&mut context.random(1));
    std::array::from_fn(|at| drawn.get(at).copied().unwrap_or(1))
}

fn judged_time(plan: Plan) -> (f64, f64) {
    (plan.warm_up().as_secs_f64(), plan.length().as_secs_f64())
}

/// The trends that were found, for the closing line, and what is not flat.
fn judged(context: &Context, samples: &[NodeSample], nodes: &[u64], plan: Plan) -> (Vec<String>, Vec<String>) {
    let (mut trends, mut findings) = (Vec::new(), Vec::new());
    for measure in Measure::ALL {
        let mut of_nodes = Vec::new();
        for node in nodes {
            match judge(samples, *node, measure, judged_time(plan)) {
                Ok(trend) => {
                    of_nodes.push(format!("{:.1} → {:.1} ({:+.1} %)", trend.first, trend.last, trend.percent()))
                }
                Err(NotFlat::Grows(what) | NotFlat::TooFewSamples(what)) => findings.push(what),
            }
        }
        let line = format!("{}: {}", measure.name(), of_nodes.join(", "));
        context.log.say(&line);
        trends.push(line);
    }
    (trends, findings)
}

/// What is not as it was acknowledged, or should have gone with the sessions.
async fn left_behind(cluster: &Cluster, known: &Ledgers) -> Result<Vec<String>, Failed> {
    let mut findings = Vec::new();
    let begun = Instant::now();
    for name in GONE {
        while cluster.counter(name).await? > 0.0 && begun.elapsed() < EMPTY_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let left = cluster.counter(name).await?;
        if left > 0.0 {
            findings.push(format!("{name} is {left} over all nodes after everything was closed"));
        }
    }
    // Directories of locks are removed at an interval, which changes the state.
    loop {
        match child_count(&cluster.api(1), "/locks").await {
            Ok(0) => break,
            Ok(_) if begun.elapsed() < EMPTY_WITHIN => tokio::time::sleep(Duration::from_millis(100)).await,
            Ok(left) => {
                findings.push(format!("{left} directories of locks are left {EMPTY_WITHIN:?} after the last release"));
                break;
            }
            Err(failure) => {
                findings.push(format!("node 1 does not say which directories of locks are left: {failure}"));
                break;
            }
        }
    }
    cluster.agree(Duration::from_secs(20)).await?;
    for (id, api) in cluster.apis() {
        for (path, text) in known {
            match text_of(&api, path).await {
                Ok(found) if found == *text => {}
                Ok(_) => findings.push(format!("node {id} does not have what was acknowledged of {path}")),
                Err(failure) => findings.push(format!("node {id} does not say what it has of {path}: {failure}")),
            }
        }
        let expected = known.iter().filter(|(path, text)| path.contains("/ring/") && text.is_some()).count();
        match child_count(&api, &format!("{ROOT}/ring")).await {
            Ok(there) if there == expected => {}
            Ok(there) => {
                findings.push(format!("node {id} has {there} nodes where {expected} were acknowledged"));
            }
            Err(failure) => findings.push(format!("node {id} does not list the nodes of {ROOT}/ring: {failure}")),
        }
    }
    Ok(findings)
}

/// What a call found, or nothing if the node is not there. Every other failure stays one: it does not show that
/// something is gone.
fn if_there<T>(called: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match called {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.code() == Some(Code::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// How many children a replica has of a node; 0 if it does not have the node.
async fn child_count(api: &Api, path: &str) -> Result<usize, Failure> {
    Ok(if_there(api.children_stale(path).await)?.map_or(0, |(names, _)| names.len()))
}

/// The text that a replica has of a node; `None` if it does not have the node.
async fn text_of(api: &Api, path: &str) -> Result<Option<String>, Failure> {
    let found = if_there(api.get_stale(path).await)?;
    Ok(found.map(|answer| answer.value.data.as_text().unwrap_or_default().to_owned()))
}

/// A run in which nothing happened shows nothing: each kind of fault that is planned must have been carried out.
fn check_coverage(counts: &FaultCounts, samples: &[NodeSample], nodes: &[u64], plan: Plan) -> Result<(), Failed> {
    let time = judged_time(plan);
    if let Some(node) = nodes.iter().find(|node| snapshots(samples, **node, time) == 0) {
        return cannot_run(format!("node {node} took no snapshot after the warm-up"));
    }
    let purged = |node: u64| samples.iter().filter(move |sample| sample.node == node).filter_map(|s| s.purged_index);
    if let Some(node) = nodes.iter().find(|node| purged(**node).max() <= purged(**node).min()) {
        return cannot_run(format!("node {node} never cut its log"));
    }
    match counts.missing(plan) {
        Some(what) => cannot_run(format!("{what}, although the plan has that")),
        None => Ok(()),
    }
}

fn figures(
    total: &Total,
    counts: &FaultCounts,
    samples: &[NodeSample],
    (nodes, plan): (&[u64], Plan),
    trends: &[String],
) -> String {
    let taken: Vec<String> =
        nodes.iter().map(|node| snapshots(samples, *node, judged_time(plan)).to_string()).collect();
    format!(
        "{:.1} min, {} calls, {} failed, {} grants with rising tokens; {} nodes killed ({} of all faults at a leader), \
         {} restarted, {} paused; longest call {} in calm, {} beside a fault; snapshots of the nodes after the \
         warm-up {}; medians of the first and last third after it: {}",
        plan.length().as_secs_f64() / 60.0,
        total.calls,
        total.failed,
        total.grants,
        counts.kills,
        counts.leaders,
        counts.restarts,
        counts.pauses,
        longest(total.longest_in_calm),
        longest(total.longest_beside_fault),
        taken.join(", "),
        trends.join("; ")
    )
}
