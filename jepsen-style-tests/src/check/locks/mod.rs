//! The checks that every run of a lock workload gets: the clients' answers against each other on the machine's one
//! clock, and against the queues in the log.

mod against_log;
mod black_box;
mod clocks;
mod delays;
mod lock_history;
mod no_herd;
mod progress;
#[cfg(test)]
mod testing;
mod whole;

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::lives;
use lockkeeper_checkers::places::{Places, places};

pub use against_log::{gone_with_session, granted_in_order, refused_to_others, released_in_log, verified_in_log};
pub(crate) use black_box::ends_us;
pub use clocks::{never_both, not_ended_early, tokens_rise};
pub use lock_history::{GrantChange, Hold, LockHistory, TokenAnswer};
pub use progress::{all_gone, enough, goes_on, handed_over, no_standstill};

use progress::CalmPeriods;

use super::Check;
use crate::history::FaultRecord;
use crate::history::Recorded;
use crate::history::ops;

/// The promises that these checks speak of, which every lock workload can falsify.
pub const PROMISES: &str = "P1 P2 P3 P4 P5 P6 P7 P10 P11";

/// Whether clients were killed or stopped, so that sessions expired with what they held.
fn clients_died(faults: &[FaultRecord]) -> bool {
    faults.iter().any(|fault| fault.nemesis.starts_with("client-"))
}

/// The queues of locks, by name.
pub type Queues = BTreeMap<String, Places>;

/// The zxid at which each session ended: that of the deletion of its own ephemeral node.
fn session_ends(log: &BTreeSet<lives::NodeEvent>) -> Result<BTreeMap<u64, u64>, String> {
    let lived = lives::lives(log, ops::SESSIONS)?;
    Ok(lived.iter().filter_map(|life| Some((life.name.strip_prefix('s')?.parse().ok()?, life.gone?))).collect())
}

/// Everything that the checks look at.
pub(crate) struct LockObservations {
    pub(crate) told: LockHistory,
    pub(crate) queues: Queues,
    /// The zxid at which each session ended.
    pub(crate) ends: BTreeMap<u64, u64>,
}

impl LockObservations {
    /// Puts it together.
    ///
    /// # Errors
    /// The check's result on a run that cannot be read.
    pub(crate) fn of(run: &Recorded, locks: &[&str]) -> Result<Self, Check> {
        let told = LockHistory::of(&run.history).map_err(|why| Check::unknown("history", "", why))?;
        if run.log.is_empty() {
            return Err(Check::unknown("log", "", "the log of the nodes is not there"));
        }
        let mut queues = Queues::new();
        for lock in locks {
            let places = places(&run.log, lock).map_err(|why| Check::unknown("log", "", format!("{lock}: {why}")))?;
            queues.insert((*lock).to_owned(), places);
        }
        let ends = session_ends(&run.log).map_err(|why| Check::unknown("log", "", why))?;
        Ok(Self { told, queues, ends })
    }

    /// The checks that every lock workload gets, without those that the run gave no evidence for.
    pub(crate) fn sweeps(&self, run: &Recorded) -> Vec<Check> {
        let Self { told, queues, ends } = self;
        let calm = CalmPeriods::between(&run.faults, run.ttl);
        let sweeps = [
            Some(tokens_rise(told)),
            Some(never_both(told)),
            Some(granted_in_order(told, queues)),
            Some(released_in_log(told, queues)),
            verified_in_log(told, queues),
            not_ended_early(told, ends, &run.seen_us, &run.faults),
            gone_with_session(told, queues, ends, &run.faults),
            goes_on(told, &run.faults, &run.history),
            no_standstill(told, &calm),
            handed_over(told, queues, &run.seen_us, &calm),
            Some(all_gone(&run.history, queues, &run.seen_us)),
            Some(enough(told, queues)),
        ];
        sweeps.into_iter().flatten().collect()
    }
}

/// The checks of every lock workload, and more of one.
fn judged(run: &Recorded, locks: &[&str], more: impl FnOnce(&LockObservations) -> Vec<Check>) -> Vec<Check> {
    let mut checks = without_wake_ups(run, locks, more);
    checks.extend(no_herd::no_herd(run));
    checks
}

fn without_wake_ups(run: &Recorded, locks: &[&str], more: impl FnOnce(&LockObservations) -> Vec<Check>) -> Vec<Check> {
    let seen = match LockObservations::of(run, locks) {
        Ok(seen) => seen,
        Err(unknown) => return vec![unknown],
    };
    let mut checks = seen.sweeps(run);
    checks.extend(more(&seen));
    checks
}

/// All checks of exclusive locks.
pub fn exclusive(run: &Recorded, locks: &[&str]) -> Vec<Check> {
    judged(run, locks, |seen| only_exclusive(run, seen))
}

/// All checks of exclusive locks that clients of both protocols take. Most of these clients wait by a watch, which the
/// servers' count of wake-ups leaves out: few native ones wait beside each other, so a herd would not show in it.
pub fn exclusive_over_both_protocols(run: &Recorded, locks: &[&str]) -> Vec<Check> {
    without_wake_ups(run, locks, |seen| only_exclusive(run, seen))
}

fn only_exclusive(run: &Recorded, seen: &LockObservations) -> Vec<Check> {
    let mut checks = vec![black_box::exclusive(run)];
    checks.extend(refused_to_others(&seen.told, &seen.queues));
    checks
}

/// All checks of locks with readers.
pub fn readers_and_writers(run: &Recorded, locks: &[&str]) -> Vec<Check> {
    judged(run, locks, |_| vec![black_box::readers_and_writers(run)])
}

/// All checks of semaphores.
pub fn semaphores(run: &Recorded, semaphores: &[(&str, u16)]) -> Vec<Check> {
    let names: Vec<&str> = semaphores.iter().map(|(name, _)| *name).collect();
    judged(run, &names, |_| black_box::semaphores(run, semaphores))
}

/// All checks of locks that are taken together.
pub fn together(run: &Recorded, locks: &[&str]) -> Vec<Check> {
    judged(run, locks, |seen| vec![black_box::exclusive(run), whole::whole(&seen.told, &seen.queues)])
}

/// All checks of locks with a delay.
pub fn delayed(run: &Recorded, locks: &[&str]) -> Vec<Check> {
    let clocks_right = !run.faults.iter().any(|fault| fault.nemesis.starts_with("clock-"));
    judged(run, locks, |LockObservations { told, queues, .. }| {
        let mut checks = vec![
            black_box::exclusive(run),
            delays::kept_when_dead(told, queues, &run.seen_us),
            delays::not_before_the_delay(told, queues, &run.seen_us),
        ];
        checks.extend(delays::long_enough(told, queues, &run.seen_us, clocks_right));
        checks
    })
}
