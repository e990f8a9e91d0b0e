//! The lock engines side by side: the same contract, then the same work under the same faults.
//!
//! Clients increment two numbers under a lock: one checks the fencing token, the other does not. In each trial one
//! holder is slow, and the fault hits while it holds. An engine on which another client enters while the guard of the
//! slow holder says that it holds has had two holders. That must happen to Redis and Redlock under the faults that
//! break them, and never to Lockkeeper.

mod systems;
mod workload;

use std::time::Duration;

use lockkeeper_engines::contract;

use self::systems::{Fault, SYSTEMS, System, SystemKind};
use self::workload::{Trial, TrialResult};
use super::Context;
use crate::verdict::{Failed, ProofResult, broken};

pub(super) const SECONDS: u64 = 3;
/// The lease of the clients.
const LEASE: Duration = Duration::from_secs(2);
/// The lease of the slow holder: its first renewal, which may tell it of a loss, comes after a third of it.
const SLOW_LEASE: Duration = Duration::from_secs(6);

const HEAD: &str = "| engine | fault | two held | lost updates, unfenced | stale writes refused | longest standstill | \
                    hand-overs/s | server CPU per hand-over |";

struct Row {
    engine: &'static str,
    fault: Fault,
    fencing: bool,
    result: TrialResult,
}

pub(super) async fn run(context: &Context) -> ProofResult {
    let calm = Duration::from_secs(context.seconds.unwrap_or(SECONDS));
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for kind in SYSTEMS.iter().filter(|kind| context.only.is_empty() || context.only.iter().any(|one| one == kind.name))
    {
        if !(kind.installed)() {
            context.log.say(format!("{}: its server is not installed, skipped", kind.name));
            skipped.push(kind.name);
            continue;
        }
        keeps_the_contract(context, kind).await?;
        for fault in kind.faults {
            let row = one_trial(context, kind, *fault, calm).await?;
            context.log.say(line(&row));
            rows.push(row);
        }
    }
    context.log.say(HEAD);
    context.log.say("|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| context.log.say(line(row)));
    rows.iter().try_for_each(judge)?;
    if rows.is_empty() {
        return Err(Failed::CannotRun("no engine was tried".into()));
    }
    let held_by_two: Vec<String> = rows
        .iter()
        .filter(|row| row.result.two_held > 0)
        .map(|row| format!("{} after {}", row.engine, row.fault))
        .collect();
    let without = if skipped.is_empty() { String::new() } else { format!("; not installed: {}", skipped.join(", ")) };
    Ok(format!(
        "{} trials; two held: {}; the fenced number lost nothing{without}",
        rows.len(),
        if held_by_two.is_empty() { "never".into() } else { held_by_two.join(", ") }
    ))
}

async fn start(context: &Context, kind: &SystemKind, name: &str) -> Result<Box<dyn System>, Failed> {
    let dir = context.dir.join(format!("{}-{name}", kind.name));
    std::fs::create_dir_all(&dir)?;
    (kind.start)(context, dir).await
}

async fn keeps_the_contract(context: &Context, kind: &SystemKind) -> Result<(), Failed> {
    let system = start(context, kind, "contract").await?;
    match contract::run(&*system).await {
        Ok(parts) => {
            context.log.say(format!("{}: keeps the contract: {}", kind.name, parts.join(", ")));
            Ok(())
        }
        Err(parts) => broken(format!("{} does not keep the contract: {parts:?}", kind.name)),
    }
}

async fn one_trial(context: &Context, kind: &SystemKind, fault: Fault, calm: Duration) -> Result<Row, Failed> {
    let name = fault.to_string().replace(' ', "-");
    let mut system = start(context, kind, &name).await?;
    let fencing = system.engine().capabilities().has(lockkeeper_engines::Capability::FencingToken);
    let trial = Trial::start(&*system, fencing);
    let result = trial.run(&mut *system, fault, calm).await?;
    Ok(Row { engine: kind.name, fault, fencing, result })
}

fn line(row: &Row) -> String {
    let Row { engine, fault, fencing, result } = row;
    let refused = if *fencing { result.refused.to_string() } else { "no token".into() };
    format!(
        "| {engine} | {fault} | {} | {} of {} | {refused} | {:.2} s | {:.0} | {} µs |",
        if result.two_held > 0 { "**yes**" } else { "no" },
        result.lost_unfenced,
        result.writes_unfenced,
        result.standstill.as_secs_f64(),
        result.hand_overs_per_s,
        result.cpu_us_per_hand_over,
    )
}

/// What must be seen, and what must not.
fn judge(row: &Row) -> Result<(), Failed> {
    let Row { engine, fault, fencing, result } = row;
    let of = format!("{engine}, {fault}");
    if result.lost_fenced != 0 {
        return broken(format!("{of}: the fenced number lost {} updates", result.lost_fenced));
    }
    if *fault == Fault::PausedHolder {
        // Beyond what any engine can promise: only the resource can refuse it.
        if result.lost_unfenced == 0 {
            return broken(format!("{of}: a late write of a paused holder did no harm, so the trial shows nothing"));
        }
        if *fencing && result.refused == 0 {
            return broken(format!("{of}: the late write was not refused"));
        }
        return Ok(());
    }
    if fault.must_show_two_holders() {
        return match result.two_held {
            0 => broken(format!("{of}: no two holders were seen, which this fault must show")),
            _ => Ok(()),
        };
    }
    if *engine == "lockkeeper" && (result.two_held > 0 || result.lost_unfenced > 0) {
        return broken(format!("{of}: two held, or an update was lost: {result:?}"));
    }
    Ok(())
}
