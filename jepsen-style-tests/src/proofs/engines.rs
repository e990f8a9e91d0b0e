//! The lock engines side by side: the same contract, then the same work under the same faults.
//!
//! Clients increment two numbers under a lock: one checks the fencing token, the other does not. In each trial one
//! holder is slow, and the fault hits while it holds. An engine on which another client enters while the guard of the
//! slow holder says that it holds has had two holders.
//!
//! An engine is judged by what it promises. One that has tokens must give larger ones to later holders, so that the
//! fenced number loses nothing whatever happens. One that survives a failover must never have two holders. Redis and
//! Redlock are the control: the faults that break them must show two holders, or the workload could not see any.

mod databases;
mod fault;
mod systems;
mod workload;

use lockkeeper_engines::{Capabilities, Capability};

use self::fault::{Fault, System};
use self::systems::{SYSTEMS, SystemKind};
use self::workload::{EngineTrial, TrialResult};
use crate::proofs::prelude::*;

const LOCK: &str = "engines/number";
/// The lease of the clients.
const LEASE: Duration = Duration::from_secs(2);
/// The lease of the slow holder: its first renewal, which may tell it of a loss, comes after a third of it.
const SLOW_LEASE: Duration = Duration::from_secs(6);

const HEAD: &str = "| engine | fault | times with two holders | lost updates, unfenced | lost updates, fenced | stale \
                    writes refused | longest standstill | hand-overs/s | server CPU per hand-over |";

struct EngineRow {
    engine: &'static str,
    fault: Fault,
    capabilities: Capabilities,
    result: TrialResult,
}

pub(super) async fn run(context: &Context, calm: Duration) -> ProofResult {
    let (chosen, missing) = chosen(&context.options.only)?;
    for kind in &missing {
        context.log.say(format!("{}: its server is not installed: install {}", kind.name, kind.packages));
    }
    let mut rows = Vec::new();
    for kind in chosen {
        keeps_the_contract(context, kind).await?;
        for fault in kind.faults {
            let row = one_trial(context, kind, *fault, calm).await?;
            context.log.say(line(&row));
            rows.push(row);
        }
    }
    context.log.say(HEAD);
    context.log.say("|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| context.log.say(line(row)));
    let failures: Vec<String> = rows.iter().filter_map(|row| judge(row).err()).collect();
    if !failures.is_empty() {
        return broken(failures.join("; "));
    }
    if !missing.is_empty() {
        let missing: Vec<String> =
            missing.iter().map(|kind| format!("{} (install {})", kind.name, kind.packages)).collect();
        return cannot_run(format!(
            "{} trials were as they must be, but engines are not installed: {}; --only leaves them out",
            rows.len(),
            missing.join(", ")
        ));
    }
    let held_by_two: Vec<String> = rows
        .iter()
        .filter(|row| row.result.two_held > 0)
        .map(|row| format!("{} after {}", row.engine, row.fault))
        .collect();
    let control = if rows.iter().any(|row| row.fault.must_show_two_holders()) {
        ""
    } else {
        ", and no trial was made that must show them"
    };
    Ok(format!(
        "{} trials; two held: {}{control}; the fenced number lost nothing",
        rows.len(),
        if held_by_two.is_empty() { "never".into() } else { held_by_two.join(", ") }
    ))
}

type Kinds = Vec<&'static SystemKind>;

/// The engines of `--only`, or all: those whose servers are installed, and the others.
fn chosen(only: &[String]) -> Result<(Kinds, Kinds), Failed> {
    let known = |name: &&String| SYSTEMS.iter().any(|kind| kind.name == **name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = SYSTEMS.iter().map(|kind| kind.name).collect();
        return cannot_run(format!("there is no engine '{unknown}'; there are {}", names.join(", ")));
    }
    let wanted = SYSTEMS.iter().filter(|kind| only.is_empty() || only.iter().any(|name| name == kind.name));
    Ok(wanted.partition(|kind| (kind.installed)()))
}

async fn start(context: &Context, kind: &SystemKind, name: &str) -> Result<Box<dyn System>, Failed> {
    let dir = context.dir.join(format!("{}-{name}", kind.name));
    std::fs::create_dir_all(&dir)?;
    (kind.start)(context, dir).await
}

async fn keeps_the_contract(context: &Context, kind: &SystemKind) -> Result<(), Failed> {
    let system = start(context, kind, "contract").await?;
    match lockkeeper_engines_contract::run(system.subject()).await {
        Ok(parts) => {
            context.log.say(format!("{}: keeps the contract: {}", kind.name, parts.join(", ")));
            Ok(())
        }
        Err(parts) => broken(format!("{} does not keep the contract: {parts:?}", kind.name)),
    }
}

async fn one_trial(context: &Context, kind: &SystemKind, fault: Fault, calm: Duration) -> Result<EngineRow, Failed> {
    let name = fault.to_string().replace(' ', "-");
    let mut system = start(context, kind, &name).await?;
    let capabilities = system.subject().engine().capabilities();
    let trial = EngineTrial::start(&*system, capabilities.has(Capability::FencingToken));
    let result = trial.run(&mut *system, fault, calm).await.map_err(|failed| match failed {
        Failed::Broken(why) => Failed::Broken(format!("{}, {fault}: {why}", kind.name)),
        Failed::CannotRun(why) => Failed::CannotRun(format!("{}, {fault}: {why}", kind.name)),
    })?;
    Ok(EngineRow { engine: kind.name, fault, capabilities, result })
}

fn line(row: &EngineRow) -> String {
    let EngineRow { engine, fault, capabilities, result } = row;
    let (lost, refused) = match capabilities.has(Capability::FencingToken) {
        true => (result.lost_fenced.to_string(), result.refused.to_string()),
        false => ("no token".into(), "no token".into()),
    };
    let two_held = if result.two_held > 0 { format!("**{}**", result.two_held) } else { "0".into() };
    format!(
        "| {engine} | {fault} | {two_held} | {} of {} | {lost} | {refused} | {:.2} s | {:.0} | {} µs |",
        result.lost_unfenced,
        result.writes_unfenced,
        result.standstill.as_secs_f64(),
        result.hand_overs_per_s,
        result.cpu_us_per_hand_over,
    )
}

/// What must be seen of an engine with these promises under that fault, and what must not.
fn judge(row: &EngineRow) -> Result<(), String> {
    let EngineRow { engine, fault, capabilities, result } = row;
    let fail = |why: String| Err(format!("{engine}, {fault}: {why}"));
    if result.lost_fenced != 0 {
        return fail(format!("the fenced number lost {} updates", result.lost_fenced));
    }
    if result.tokens_not_rising != 0 {
        let times = result.tokens_not_rising;
        return fail(format!("{times} holders had a token that is not larger than those before: no fence sees two"));
    }
    if *fault == Fault::PausedHolder {
        // Beyond what any engine can promise: only the resource can refuse it.
        if result.lost_unfenced == 0 {
            return fail("a late write of a paused holder did no harm, so the trial shows nothing".into());
        }
        if capabilities.has(Capability::FencingToken) && result.refused == 0 {
            return fail("the late write was not refused".into());
        }
        return Ok(());
    }
    if fault.must_show_two_holders() {
        return match result.two_held {
            0 => fail("no two holders were seen, which this fault must show".into()),
            _ => Ok(()),
        };
    }
    let one_holder = *fault == Fault::Calm || capabilities.has(Capability::SurvivesFailover);
    if one_holder && (result.two_held > 0 || result.lost_unfenced > 0) {
        return fail(format!(
            "two held {} times, and {} updates without a fence were lost: it promises one holder",
            result.two_held, result.lost_unfenced
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &[Capability] = &[Capability::FencingToken];
    const SURVIVES: &[Capability] = &[Capability::FencingToken, Capability::SurvivesFailover];

    fn judged(promises: &'static [Capability], fault: Fault, result: TrialResult) -> Result<(), String> {
        let capabilities = Capabilities { promises, minimum_lease: LEASE };
        judge(&EngineRow { engine: "e", fault, capabilities, result })
    }

    #[test]
    fn an_engine_is_judged_by_its_promises() {
        let two = || TrialResult { two_held: 1, ..TrialResult::default() };
        let lost = || TrialResult { lost_unfenced: 1, ..TrialResult::default() };
        for fault in [Fault::Kill, Fault::Restart, Fault::Pause] {
            for result in [two(), lost()] {
                assert!(judged(SURVIVES, fault, result.clone()).unwrap_err().contains("one holder"), "{fault}");
                assert_eq!(judged(TOKENS, fault, result.clone()), Ok(()), "{fault}");
                assert_eq!(judged(&[], fault, result), Ok(()), "{fault}");
            }
        }
        assert!(judged(&[], Fault::Calm, two()).is_err(), "no engine has two holders without a fault");
        assert_eq!(judged(SURVIVES, Fault::Kill, TrialResult::default()), Ok(()));
    }

    #[test]
    fn the_control_must_show_two_holders() {
        for fault in [Fault::FailoverBehind, Fault::ClockJump, Fault::RestartEmpty] {
            assert!(judged(&[], fault, TrialResult::default()).unwrap_err().contains("must show"), "{fault}");
            assert_eq!(judged(&[], fault, TrialResult { two_held: 1, ..TrialResult::default() }), Ok(()));
        }
        let control = |name| SYSTEMS.iter().find(|kind| kind.name == name).unwrap().faults;
        assert!(control("redis").contains(&Fault::FailoverBehind) && control("redlock").contains(&Fault::ClockJump));
    }

    #[test]
    fn a_fence_that_lets_through_fails_whatever_the_engine_promises() {
        for fault in [Fault::Calm, Fault::PausedHolder, Fault::Kill, Fault::ClockJump] {
            let lost = TrialResult { lost_fenced: 1, two_held: 1, ..TrialResult::default() };
            assert!(judged(TOKENS, fault, lost).unwrap_err().contains("fenced number lost 1"), "{fault}");
            let unseen = TrialResult { tokens_not_rising: 1, two_held: 1, ..TrialResult::default() };
            assert!(judged(TOKENS, fault, unseen).unwrap_err().contains("no fence sees two"), "{fault}");
        }
        let late = TrialResult { lost_unfenced: 1, ..TrialResult::default() };
        assert!(judged(TOKENS, Fault::PausedHolder, late.clone()).unwrap_err().contains("not refused"));
        assert_eq!(judged(TOKENS, Fault::PausedHolder, TrialResult { refused: 1, ..late.clone() }), Ok(()));
        assert_eq!(judged(&[], Fault::PausedHolder, late), Ok(()));
        assert!(judged(&[], Fault::PausedHolder, TrialResult::default()).unwrap_err().contains("shows nothing"));
    }

    #[test]
    fn an_engine_that_does_not_exist_is_named() {
        let Err(Failed::CannotRun(why)) = chosen(&["redi".into()]) else { panic!("it was taken") };
        assert!(why.contains("'redi'") && why.contains("postgres-advisory"), "{why}");
        let (chosen, missing) = chosen(&["lockkeeper".into()]).unwrap();
        assert_eq!((chosen.len(), missing.len()), (1, 0));
    }
}
