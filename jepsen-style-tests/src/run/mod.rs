//! One run from its beginning to its verdict, and many of them as a matrix.

pub mod archive;
pub mod campaign;
pub mod generic;
pub mod matrix;
pub mod plan;
pub mod programs;
pub mod provenance;
pub mod screen;
pub mod settings;
#[cfg(test)]
mod spoilt_histories;
pub mod test_bed;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::check::{Check, Verdict, fenced, leaders, order};
use crate::history::{Event, FaultRecord, History, Op, Recorded};
use crate::ledger::Ledger;
use crate::nemesis::{Lack, Nemesis, TestBed};
use crate::record::{self, boot_us};
use crate::report::{Outcome, Provenance, Recovery, Report, Skipped};
use crate::verdict::Failed;
use crate::workload::{ExpectedVerdict, Workload};

use campaign::{Campaign, Means};
use plan::{Deck, Pace};
use programs::Programs;
use screen::{ProgressTally, Screen};
use settings::Settings;
use test_bed::{Places, Recruits};

/// How long clients may take to let go of all they have and close their sessions.
const END_WITHIN: Duration = Duration::from_secs(45);
/// How long the nodes may take to stand at one zxid.
const AGREE_WITHIN: Duration = Duration::from_secs(30);
/// How long after healing clients may go without a single answer.
const HEAL_WITHIN: Duration = Duration::from_secs(30);

/// How a run ended.
#[derive(Debug)]
pub enum RunEnd {
    /// With a report.
    Reported(Box<Report>),
    /// Before it began: this machine, or this set-up, can have none of the faults asked for.
    Lacking(Vec<Skipped>),
}

/// Runs one workload under its nemeses, judges it and writes its report into `dir`.
///
/// # Errors
/// It could not be run. What the run shows, good or bad, is in the report.
pub async fn run(settings: &Settings, programs: &Programs, dir: &Path, screen: &Screen) -> Result<RunEnd, Failed> {
    let workload = settings::workload(&settings.workload).map_err(Failed::CannotRun)?;
    let mut nemeses = settings::made(&settings.nemeses);
    std::fs::create_dir_all(dir)?;
    let places = Places::make(dir)?;
    // Whatever it started ends when this is dropped.
    let _prepared = workload.prepare(&places.shared).await.map_err(Failed::CannotRun)?;
    screen.phase("starting the cluster");
    let began_us = boot_us();
    let (mut test_bed, recruits) = test_bed::set(settings, &nemeses, programs, &places).await?;
    let made = provenance::provenance(&test_bed.server);
    let skipped = leave_out(&mut nemeses, &test_bed);
    if nemeses.is_empty() && !settings.nemeses.is_empty() {
        return Ok(RunEnd::Lacking(skipped));
    }
    let ledger = Ledger::open(&test_bed.cluster).await?;
    let lookout = leaders::Lookout::begin(&test_bed.cluster)?;
    test_bed::people(&mut test_bed, &recruits)?;
    let following = screen.follow(places.clients.clone(), settings.time);
    let campaign = fight(settings, &mut test_bed, &mut nemeses, &places, screen).await;
    drop(following);
    let ended = end(settings, test_bed, &recruits, (ledger, lookout), campaign, screen).await;
    archive::save_log(dir, &ended.recorded)?;
    screen.phase("checking");
    let history = History::new(events(&places.clients)?);
    let asked: Vec<String> = nemeses.iter().map(|nemesis| nemesis.name().to_owned()).collect();
    let report = judge(settings, workload.as_ref(), &history, ended, &asked, skipped, &places, began_us, made);
    crate::report::write(dir, &report, &history)?;
    tidy(&places, report.outcome.passes());
    Ok(RunEnd::Reported(Box::new(report)))
}

/// Takes out the nemeses that this machine, or this set-up, cannot have.
fn leave_out(nemeses: &mut Vec<Box<dyn Nemesis>>, test_bed: &TestBed) -> Vec<Skipped> {
    let mut skipped = Vec::new();
    nemeses.retain(|nemesis| match nemesis.lacks(test_bed) {
        Some(lack) => {
            let (why, by_settings) = match lack {
                Lack::Settings(why) => (why.into(), true),
                Lack::Machine(why) => (why.into(), false),
            };
            skipped.push(Skipped { nemesis: nemesis.name().into(), why, by_settings });
            false
        }
        None => true,
    });
    skipped
}

async fn fight(
    settings: &Settings,
    test_bed: &mut TestBed,
    nemeses: &mut [Box<dyn Nemesis>],
    places: &Places,
    screen: &Screen,
) -> Fought {
    let names: Vec<&str> = nemeses.iter().map(|nemesis| nemesis.name()).collect();
    let deck = Deck::new(&names, settings.manner, settings.seed);
    let pace = Pace::of(settings.time, deck.turns(), settings.ttl);
    let means = Means { test_bed, nemeses, deck, pace, time: settings.time, seed: settings.seed, screen };
    let mut campaign = Campaign::fight(means).await;
    screen.phase("healing");
    for healed in [test_bed.net.heal().await, test_bed.cluster.all_ready().await] {
        if let Err(failed) = healed {
            campaign.checks.push(said("the cluster comes back", "P10", &failed));
        }
    }
    let healed_us = boot_us();
    campaign.calm(screen, "calm", pace.last_calm).await;
    wait_for_an_answer(places).await;
    Fought { campaign, healed_us }
}

struct Fought {
    campaign: Campaign,
    healed_us: u64,
}

/// If the last calm gave no answer, gives the cluster some more time before that counts against it.
async fn wait_for_an_answer(places: &Places) {
    let (begun, mut tally) = (Instant::now(), ProgressTally::default());
    tally.look(&places.clients);
    let before = tally.ended[0];
    while tally.ended[0] == before && begun.elapsed() < HEAL_WITHIN {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tally.look(&places.clients);
    }
}

/// The state of a run once all its processes have ended.
struct FinishedRun {
    campaign: Campaign,
    healed_us: u64,
    recorded: Recorded,
    checks: Vec<Check>,
}

/// Ends the clients, reads what is there, closes the log and compares the nodes.
async fn end(
    settings: &Settings,
    mut test_bed: TestBed,
    recruits: &Recruits,
    (ledger, lookout): (Ledger, leaders::Lookout),
    fought: Fought,
    screen: &Screen,
) -> FinishedRun {
    let mut checks = Vec::new();
    screen.phase("ending the clients");
    let clients = end_clients(&mut test_bed).await;
    checks.push(match clients {
        Ok(()) => Check::valid("clients ended in good order", "", "each let go of what it held and closed its session"),
        Err(why) => Check::unknown("clients ended in good order", "", why),
    });
    screen.phase("final reads");
    let read = match recruits.reader() {
        Ok(mut reader) => reader.ended(END_WITHIN).await,
        Err(failed) => Err(failed),
    };
    checks.push(match read {
        Ok(()) => Check::valid("final reads", "", "read after the clients had ended"),
        Err(failed) => Check::unknown("final reads", "", failed.to_string()),
    });
    screen.phase("reading the log");
    checks.extend(leaders::checks(&lookout.end()));
    let seen_us = ledger.seen_us();
    let mut recorded = Recorded { ttl: settings.ttl, clients: settings.clients, seen_us, ..Recorded::default() };
    const WATCHES: &str = "watches of all nodes tell the same";
    match ledger.close_whole(&test_bed.cluster).await {
        Ok(log) => {
            let (events, data) = (log.events.len(), log.data.len());
            let detail = format!("{events} creations and deletions and {data} changes of data, whole on each node");
            checks.push(Check::valid(WATCHES, "P8", detail));
            (recorded.log, recorded.data) = (log.events, log.data);
        }
        Err(failed) => checks.push(said(WATCHES, "P8", &failed)),
    }
    const AGREE: &str = "replicas agree";
    checks.push(match test_bed.cluster.agree(AGREE_WITHIN).await {
        Ok((zxid, checksum)) => Check::valid(AGREE, "P4 P7", format!("all at zxid {zxid} with checksum {checksum}")),
        Err(failed) => said(AGREE, "P4 P7", &failed),
    });
    recorded.faults.clone_from(&fought.campaign.faults);
    recorded.wake_ups.clone_from(&fought.campaign.wake_ups);
    FinishedRun { campaign: fought.campaign, healed_us: fought.healed_us, recorded, checks }
}

/// Removes the clients' files, which are in the history now, and the nodes' data, which is evidence only where
/// something is wrong.
fn tidy(places: &Places, passes: bool) {
    let within = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    // A file that cannot be removed does no harm.
    for path in within(&places.clients) {
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let _ = std::fs::remove_file(path);
        }
    }
    if passes {
        for node in within(&places.nodes) {
            let _ = std::fs::remove_dir_all(node.join("data"));
        }
        let _ = std::fs::remove_dir_all(&places.nemesis);
    }
}

async fn end_clients(test_bed: &mut TestBed) -> Result<(), String> {
    let mut wrong: Vec<String> = test_bed.workers.iter_mut().filter_map(crate::workers::Worker::tell_to_end).collect();
    for worker in &mut test_bed.workers {
        if let Err(failed) = worker.ended(END_WITHIN).await {
            wrong.push(failed.to_string());
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

fn said(name: &str, promises: &str, failed: &Failed) -> Check {
    match failed {
        Failed::Broken(what) => {
            Check { at_us: Some(boot_us()), ..Check::invalid(name, promises, what.clone(), Vec::new()) }
        }
        Failed::CannotRun(why) => Check::unknown(name, promises, why.clone()),
    }
}

/// The events of all clients, also of those that were killed.
fn events(clients: &Path) -> Result<Vec<Event>, Failed> {
    let mut events = Vec::new();
    for entry in std::fs::read_dir(clients)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            events.extend(record::read::<Event>(&path)?);
        }
    }
    Ok(events)
}

#[expect(clippy::too_many_arguments, reason = "gathers everything there is, once")]
fn judge(
    settings: &Settings,
    workload: &dyn Workload,
    history: &History,
    over: FinishedRun,
    asked: &[String],
    skipped: Vec<Skipped>,
    places: &Places,
    began_us: u64,
    made: Provenance,
) -> Report {
    let FinishedRun { mut campaign, healed_us, mut recorded, mut checks } = over;
    recorded.history = history.clone();
    recorded.shared.clone_from(&places.shared);
    let ops = history.ops();
    let counts = generic::counts(&ops);
    checks.append(&mut campaign.checks);
    checks.extend([generic::bit(&campaign.faults, asked), generic::goes_on(&ops, healed_us), generic::enough(&counts)]);
    checks.push(order::is_whole(history));
    // Workloads of recipes, whose answers name no point in the order, are judged by the log alone.
    if ops.iter().any(|op| op.zxid.is_some()) {
        checks.push(order::agrees(&ops));
    }
    let own = workload.check(&recorded);
    let outcome = outcome(workload.expected(), &own, &checks, &campaign.faults);
    let telling = generic::telling(&ops);
    let recovery = campaign.faults.iter().map(|fault| recovery(fault, &telling)).collect();
    Report {
        workload: settings.workload.clone(),
        about: workload.facts().about.into(),
        promises: workload.facts().promises.into(),
        nemesis: settings.nemesis(),
        seed: settings.seed,
        command: settings.command(),
        made,
        nodes: settings.nodes,
        net: settings.net.name().into(),
        clients: settings.clients,
        ttl_ms: u64::try_from(settings.ttl.as_millis()).unwrap_or(u64::MAX),
        began_us,
        ended_us: boot_us(),
        phases: campaign.phases,
        faults: campaign.faults,
        skipped,
        wake_ups: recorded.wake_ups,
        checks: own.into_iter().chain(checks).collect(),
        counts,
        recovery,
        outcome,
    }
}

/// The outcome of the run. The control must lose updates, and break nothing else, exactly under faults that stop
/// holders.
fn outcome(expected: ExpectedVerdict, own: &[Check], general: &[Check], faults: &[FaultRecord]) -> Outcome {
    let (checks, own, general) = (own, Outcome::of(own), Outcome::of(general));
    if expected == ExpectedVerdict::Valid || !general.passes() {
        return worse(own, general);
    }
    let stopped = faults.iter().any(|fault| fault.bit && fault.stops_holders);
    let broken = || checks.iter().filter(|check| check.verdict == Verdict::Invalid);
    match (own, stopped) {
        (Outcome::Invalid, true) if broken().all(|check| check.name == fenced::NONE_LOST) => {
            Outcome::CorruptsAsExpected
        }
        (Outcome::Invalid, _) => Outcome::Invalid,
        (_, true) => Outcome::Unknown,
        (other, false) => other,
    }
}

fn worse(one: Outcome, other: Outcome) -> Outcome {
    let rank = |outcome| match outcome {
        Outcome::Valid | Outcome::CorruptsAsExpected => 0,
        Outcome::Unknown => 1,
        Outcome::Invalid => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}

fn recovery(fault: &FaultRecord, telling: &[&Op]) -> Recovery {
    let after = |from_us| generic::next_after_ms(telling, from_us);
    Recovery { nemesis: fault.nemesis.clone(), after_on_ms: after(fault.began_us), after_off_ms: after(fault.ended_us) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(stops_holders: bool) -> FaultRecord {
        FaultRecord { bit: true, stops_holders, ..FaultRecord::default() }
    }

    #[test]
    fn the_control_must_be_corrupted_where_holders_are_stopped() {
        let valid = [Check::valid("x", "", "")];
        let invalid = [Check::invalid("x", "", "", Vec::new())];
        let unknown = [Check::unknown("x", "", "")];
        let of = |own: &[Check], general: &[Check], stops| {
            outcome(ExpectedVerdict::InvalidWhenStopped, own, general, &[fault(stops)])
        };
        let lost = [Check::invalid(fenced::NONE_LOST, "", "", Vec::new())];
        assert_eq!(of(&lost, &valid, true), Outcome::CorruptsAsExpected);
        assert_eq!(of(&lost, &valid, false), Outcome::Invalid, "nobody was stopped, and yet");
        assert_eq!(of(&[&lost[..], &invalid].concat(), &valid, true), Outcome::Invalid, "not by the pause alone");
        assert_eq!(of(&valid, &valid, true), Outcome::Unknown, "a control that shows nothing is no pass");
        assert_eq!(of(&valid, &valid, false), Outcome::Valid);
        assert_eq!(of(&invalid, &invalid, true), Outcome::Invalid);
        assert_eq!(outcome(ExpectedVerdict::Valid, &invalid, &valid, &[fault(true)]), Outcome::Invalid);
        assert_eq!(outcome(ExpectedVerdict::Valid, &valid, &unknown, &[]), Outcome::Unknown);
        assert_eq!(outcome(ExpectedVerdict::Valid, &invalid, &unknown, &[]), Outcome::Invalid);
        assert_eq!(outcome(ExpectedVerdict::Valid, &[], &valid, &[]), Outcome::Unknown, "nothing checked");
    }
}
