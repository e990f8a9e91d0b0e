//! Judges what the schedule's node recorded against what the commands reported.
//!
//! Times of commands are the machine's wall clock, which the nodes have too; the replicated clock follows it.

use lockkeeper_client::recipes::{EndedTick, Overlap, Tick, TickOutcome};

use super::fleet::{Run, TTL_MS, TickHistory};
use crate::stats::nearest_rank;

/// How far the replicated clock may be ahead of the machine's: it is never put forward while the cluster runs.
const AHEAD_MS: u64 = 100;
/// How much earlier than the cluster's clock a worker may take the time to be when it records the end of a tick.
const BEHIND_MS: u64 = 500;

/// A worker that was killed or stopped while it did the tick with that token.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobFault {
    pub(super) token: u64,
    pub(super) at_ms: u64,
}

/// When the ticks of a job are due, and what becomes of those that cannot be done then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) every_ms: u64,
    pub(super) deadline_ms: u64,
    pub(super) missed: Policy,
    pub(super) overlap: Overlap,
}

/// What becomes of missed ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Skip,
    Once,
    All,
}

/// Figures.
#[derive(Debug, Default)]
pub(super) struct CronTally {
    pub(super) ticks: usize,
    pub(super) done: usize,
    pub(super) begun_again: usize,
    pub(super) overlapped: usize,
    /// Ticks that were due while an earlier one was being done, and done afterwards.
    pub(super) waited: usize,
    pub(super) missed: usize,
    pub(super) caught_up: usize,
    /// Commands that were still at work after their worker had been stopped.
    pub(super) outlasted: usize,
    late_ms: Vec<u64>,
}

impl CronTally {
    /// Of the ticks that were begun once.
    pub(super) fn lateness_ms(&self, percent: usize) -> u64 {
        let mut sorted = self.late_ms.clone();
        sorted.sort_unstable();
        nearest_rank(&sorted, percent).unwrap_or_default()
    }
}

/// Ticks under wrong clocks, kills and stops.
pub(super) fn clocks(
    rules: Rules,
    history: &TickHistory,
    runs: &[Run],
    faults: &[JobFault],
) -> Result<CronTally, String> {
    let mut tally = covered(rules.every_ms, history)?;
    agree(history, runs, faults)?;
    one_at_a_time(runs, faults)?;
    tally.waited = overlaps(rules, history)?;
    if tally.missed > 0 {
        return Err(format!("{} ticks are missed, with a deadline of {} ms", tally.missed, rules.deadline_ms));
    }
    for ended in history.done_entries() {
        let of_tick: Vec<&Run> = runs.iter().filter(|run| run.tick == ended.tick).collect();
        match of_tick[..] {
            [run] => tally.late_ms.push(run.started_ms.saturating_sub(run.tick.as_millis())),
            _ => tally.begun_again += 1,
        }
    }
    let outlasted = |run: &&Run| faults.iter().any(|it| it.token == run.token && run.last_seen_ms > it.at_ms);
    tally.outlasted = runs.iter().filter(outlasted).count();
    Ok(tally)
}

/// Ticks of a job without workers from one time to the other.
pub(super) fn missed(
    rules: Rules,
    history: &TickHistory,
    runs: &[Run],
    (killed_ms, back_ms): (u64, u64),
    faults: &[JobFault],
) -> Result<CronTally, String> {
    let mut tally = covered(rules.every_ms, history)?;
    agree(history, runs, faults)?;
    one_at_a_time(runs, faults)?;
    overlaps(rules, history)?;
    // Due while there was no worker, and too old by the deadline when there was one again. The tick that a killed
    // worker had begun is brought to its end under each policy.
    let was_missed = |tick: Tick| tick.as_millis() > killed_ms && tick.as_millis() + rules.deadline_ms < back_ms;
    let caught_up = || history.done_entries().filter(|ended| was_missed(ended.tick));
    tally.caught_up = caught_up().count();
    match rules.missed {
        Policy::Skip if tally.caught_up > 0 => Err(format!("{} missed ticks were caught up with", tally.caught_up)),
        Policy::All if tally.missed > 0 => Err(format!("{} missed ticks were skipped", tally.missed)),
        Policy::All if tally.caught_up < 2 => Err(format!("{} missed ticks were caught up with", tally.caught_up)),
        Policy::Skip if tally.missed == 0 => Err("no tick was missed".into()),
        Policy::Skip | Policy::All => Ok(tally),
        Policy::Once => once(rules, history, (killed_ms, back_ms)).map(|caught_up| CronTally { caught_up, ..tally }),
    }
}

/// The latest of the missed ticks is done, for all; none if a tick was due in time when that was decided. Returns how
/// many were caught up with.
fn once(rules: Rules, history: &TickHistory, (killed_ms, back_ms): (u64, u64)) -> Result<usize, String> {
    let last = |ended: &EndedTick| ended.through.unwrap_or(ended.tick).as_millis();
    let is_of_outage = |ended: &&EndedTick| last(ended) > killed_ms && ended.tick.as_millis() < back_ms;
    let skipped = history.ended.values().filter(|ended| ended.outcome == TickOutcome::Missed).filter(is_of_outage);
    let Some(skipped) = skipped.max_by_key(|ended| last(ended)) else {
        return Err("no tick was skipped for a later one".into());
    };
    let between = |ended: &&EndedTick| ended.tick.as_millis() > killed_ms && ended.tick.as_millis() < last(skipped);
    if let Some(earlier) = history.done_entries().find(between) {
        return Err(format!("{earlier:?} was done, and {skipped:?} after it was not"));
    }
    let next_ms = last(skipped) + rules.every_ms;
    let next = history.done_entries().find(|ended| ended.tick.as_millis() == next_ms);
    let begun_ms = next.and_then(|ended| ended.worker.as_ref()).map(|worker| worker.started_ms);
    match begun_ms {
        None => Err(format!("the tick at {next_ms} ms, after those that were skipped ({skipped:?}), was not done")),
        Some(begun_ms) if begun_ms > next_ms + rules.deadline_ms => Ok(1),
        // It was done in time. Then it must have been due when the others were skipped.
        Some(_) if skipped.ended_ms >= next_ms => Ok(0),
        Some(_) => Err(format!("nothing was done for the missed ticks {skipped:?}")),
    }
}

/// A tick that is due while an earlier one is being done is skipped, or waits, by the rule of its job; and only then.
/// Returns how many waited.
fn overlaps(rules: Rules, history: &TickHistory) -> Result<usize, String> {
    let mut waited = 0;
    // The end of the latest tick that was done.
    let mut before: Option<(&EndedTick, u64)> = None;
    for ended in history.ended.values() {
        let due_ms = ended.tick.as_millis();
        let was_under_way = before.is_some_and(|(_, ended_ms)| ended_ms >= due_ms);
        match ended.outcome {
            TickOutcome::Done | TickOutcome::Failed => {
                if was_under_way && rules.overlap == Overlap::Skip {
                    return Err(format!("{ended:?} was done, though {before:?} was under way when it was due"));
                }
                waited += usize::from(was_under_way);
                let begun_ms = ended.worker.as_ref().map_or(0, |worker| worker.started_ms);
                if let Some((earlier, _)) = before.filter(|(_, ended_ms)| begun_ms + BEHIND_MS < *ended_ms) {
                    return Err(format!("{ended:?} was begun before the end of {earlier:?}"));
                }
                before = Some((ended, ended.ended_ms));
            }
            TickOutcome::Overlapped if rules.overlap == Overlap::Queue => {
                return Err(format!("{ended:?} was skipped, and is to wait"));
            }
            TickOutcome::Overlapped => {
                let through_ms = ended.through.unwrap_or(ended.tick).as_millis();
                let is_open = history.open.first().is_some_and(|open| open.tick < ended.tick);
                if !is_open && before.is_none_or(|(_, ended_ms)| ended_ms + BEHIND_MS < through_ms) {
                    return Err(format!("{ended:?} was skipped, though no earlier tick was under way: {before:?}"));
                }
            }
            TickOutcome::Missed | TickOutcome::Dropped => {}
        }
    }
    Ok(waited)
}

/// Each tick from the first to the last that is known is open, or has one end.
fn covered(every_ms: u64, history: &TickHistory) -> Result<CronTally, String> {
    if let Some(contradiction) = &history.contradiction {
        return Err(format!("a tick has two ends: {contradiction}"));
    }
    let mut tally = CronTally::default();
    let mut due_ms: Option<u64> = None;
    let mut entries: Vec<(u64, u64, Option<&EndedTick>)> = history
        .ended
        .values()
        .map(|ended| (ended.tick.as_millis(), ended.through.unwrap_or(ended.tick).as_millis(), Some(ended)))
        .chain(history.open.iter().map(|open| (open.tick.as_millis(), open.tick.as_millis(), None)))
        .collect();
    entries.sort_by_key(|(first, ..)| *first);
    for (first, through, ended) in entries {
        if let Some(due_ms) = due_ms.filter(|due_ms| *due_ms != first) {
            return Err(format!("the tick at {due_ms} ms has no end, or two: the next that is known is at {first} ms"));
        }
        due_ms = Some(through + every_ms);
        let ticks = usize::try_from((through - first) / (every_ms) + 1).unwrap_or_default();
        tally.ticks += ticks;
        match ended.map(|ended| ended.outcome) {
            None => {}
            Some(TickOutcome::Done) => tally.done += ticks,
            Some(TickOutcome::Failed) => return Err(format!("a command failed: {ended:?}")),
            Some(TickOutcome::Overlapped) => tally.overlapped += ticks,
            Some(TickOutcome::Missed) => tally.missed += ticks,
            Some(TickOutcome::Dropped) => return Err(format!("ticks were dropped: {ended:?}")),
        }
    }
    Ok(tally)
}

/// The node and the commands say the same, and nothing was early.
fn agree(history: &TickHistory, runs: &[Run], faults: &[JobFault]) -> Result<(), String> {
    let had_fault = |run: &Run| faults.iter().any(|fault| fault.token == run.token);
    for ended in history.done_entries() {
        let Some(worker) = &ended.worker else { return Err(format!("{ended:?} has no worker")) };
        if worker.started_ms < ended.tick.as_millis() {
            return Err(format!("{} was begun early, by the replicated clock: {worker:?}", ended.tick));
        }
        let recorded = runs.iter().find(|run| run.tick == ended.tick && run.token == worker.token);
        if recorded.is_none_or(|run| run.ended_ms.is_none()) {
            return Err(format!(
                "the end of {} is recorded under token {}, and {recorded:?}",
                ended.tick, worker.token
            ));
        }
    }
    for run in runs {
        if run.started_ms + AHEAD_MS < run.tick.as_millis() {
            return Err(format!("{run:?} began before its tick"));
        }
        let entry = history.ended.get(&run.tick);
        let is_recorded = entry.and_then(|ended| ended.worker.as_ref()).is_some_and(|it| it.token == run.token);
        let is_open = history.open.iter().any(|open| open.tick == run.tick);
        if !is_recorded && !had_fault(run) && !is_open {
            return Err(format!("{run:?} is not the recorded one, and its worker was let be: {entry:?}"));
        }
    }
    let mut by_tick: Vec<(Tick, u64, u32)> = runs.iter().map(|run| (run.tick, run.token, run.attempt)).collect();
    by_tick.sort();
    for pair in by_tick.windows(2) {
        let [(tick, token, attempt), (next_tick, next_token, next_attempt)] = pair else { continue };
        let rises = token < next_token && (tick != next_tick || attempt < next_attempt);
        if !rises {
            return Err(format!("token {next_token} of {next_tick} is not above token {token} of {tick}"));
        }
    }
    Ok(())
}

/// How late a busy machine may kill a command whose session is over.
const BUSY_MS: u64 = 500;

/// No command runs while another one does, nor longer than the session of its worker can live.
fn one_at_a_time(runs: &[Run], faults: &[JobFault]) -> Result<(), String> {
    let fault_of = |run: &Run| faults.iter().find(|fault| fault.token == run.token);
    for (run, fault) in runs.iter().filter_map(|run| Some((run, fault_of(run)?))) {
        if run.last_seen_ms.max(run.ended_ms.unwrap_or_default()) > fault.at_ms + TTL_MS + BUSY_MS {
            return Err(format!("{run:?} outlived the session of its worker: {fault:?}"));
        }
    }
    let mut sorted: Vec<&Run> = runs.iter().collect();
    sorted.sort_by_key(|run| run.started_ms);
    for pair in sorted.windows(2) {
        let [run, next] = pair else { continue };
        // A command whose worker had a fault may have been killed by its guard, after its last sign of life.
        let over_ms = run.ended_ms.or(fault_of(run).map(|_| run.last_seen_ms));
        if over_ms.is_none_or(|over_ms| over_ms.max(run.last_seen_ms) > next.started_ms) {
            return Err(format!("{run:?} was not over when {next:?} began"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockkeeper_client::recipes::{OpenTick, TickWorker};

    use super::*;

    fn tick(second: u64) -> Tick {
        Tick::at_millis(1_800_000_000_000 + second * 1_000)
    }

    fn run(second: u64, token: u64, attempt: u32) -> Run {
        let started_ms = tick(second).as_millis() + 5 + u64::from(attempt - 1) * 100;
        let (ended_ms, last_seen_ms) = (Some(started_ms + 50), started_ms + 40);
        let (tick, clock_off_s, number, worker) = (tick(second), 0, 0, 1);
        Run { tick, token, started_ms, ended_ms, last_seen_ms, clock_off_s, number, worker, attempt }
    }

    fn done(second: u64, token: u64) -> EndedTick {
        let started_ms = tick(second).as_millis();
        let worker = TickWorker { token, label: String::new(), session_id: 1, started_ms, attempt: 1 };
        EndedTick {
            tick: tick(second),
            through: None,
            outcome: TickOutcome::Done,
            exit_code: Some(0),
            message: String::new(),
            worker: Some(worker),
            ended_ms: started_ms + 60,
        }
    }

    fn skipped(first: u64, through: u64, outcome: TickOutcome) -> EndedTick {
        let through = Some(tick(through));
        EndedTick { through, outcome, exit_code: None, worker: None, ..done(first, 0) }
    }

    fn history(ended: Vec<EndedTick>) -> TickHistory {
        let mut history = TickHistory::of("a");
        history.ended = ended.into_iter().map(|ended| (ended.tick, ended)).collect();
        history
    }

    /// A tick every two seconds.
    fn rules(missed: Policy, overlap: Overlap) -> Rules {
        Rules { every_ms: 2_000, deadline_ms: 1_000, missed, overlap }
    }

    fn skip() -> Rules {
        rules(Policy::All, Overlap::Skip)
    }

    /// A tick that was begun and ended so many milliseconds after the second.
    fn done_at(second: u64, token: u64, (begun_ms, ended_ms): (u64, u64)) -> EndedTick {
        let mut ended = done(second, token);
        ended.worker.as_mut().unwrap().started_ms += begun_ms;
        EndedTick { ended_ms: tick(second).as_millis() + ended_ms, ..ended }
    }

    /// The runs of what was done.
    fn runs_of(ended: &[EndedTick]) -> Vec<Run> {
        let of = |ended: &EndedTick| {
            let worker = ended.worker.as_ref()?;
            let (started_ms, ended_ms) = (worker.started_ms + 5, ended.ended_ms - 5);
            let run =
                Run { started_ms, ended_ms: Some(ended_ms), last_seen_ms: ended_ms - 5, ..run(0, worker.token, 1) };
            Some(Run { tick: ended.tick, ..run })
        };
        ended.iter().filter_map(of).collect()
    }

    #[test]
    fn what_is_right_passes() {
        let again = done_at(6, 9, (1_000, 1_500));
        let ended = vec![done_at(0, 1, (0, 4_100)), skipped(2, 4, TickOutcome::Overlapped), again];
        let mut runs = runs_of(&ended);
        let mut history = history(ended);
        history.open = vec![OpenTick { tick: tick(8), missed: false, ready_ms: None, worker: None }];
        runs[1].attempt = 2;
        let mut killed = run(6, 7, 1);
        killed.ended_ms = None;
        let faults = [JobFault { token: 7, at_ms: killed.started_ms + 20 }];
        runs.push(killed);
        let tally = clocks(skip(), &history, &runs, &faults).unwrap();
        assert_eq!((tally.ticks, tally.done, tally.overlapped, tally.begun_again), (5, 2, 2, 1));
        assert_eq!((tally.lateness_ms(50), tally.outlasted), (5, 1));
    }

    #[test]
    fn what_is_wrong_is_found() {
        let both = || vec![done(0, 1), done(2, 2)];
        let runs = || vec![run(0, 1, 1), run(2, 2, 1)];
        assert!(clocks(skip(), &history(both()), &runs(), &[]).is_ok());
        let broken = |history: TickHistory, runs: Vec<Run>| clocks(skip(), &history, &runs, &[]).unwrap_err();
        assert!(broken(history(vec![done(0, 1), done(4, 2)]), vec![run(0, 1, 1), run(4, 2, 1)]).contains("no end"));
        assert!(broken(history(both()), vec![run(0, 1, 1)]).contains("recorded under token 2"));
        let twice = [run(0, 1, 1), run(2, 2, 1), run(2, 3, 2)].to_vec();
        assert!(broken(history(both()), twice).contains("was let be"));
        let mut early = runs();
        early[1].started_ms = tick(2).as_millis() - 200;
        assert!(broken(history(both()), early).contains("before its tick"));
        let mut early = both();
        early[1].worker.as_mut().unwrap().started_ms -= 1;
        assert!(broken(history(early), runs()).contains("early"));
        let mut long = runs();
        long[0].ended_ms = Some(long[1].started_ms + 1);
        assert!(broken(history(both()), long).contains("was not over"));
        let mut falling = runs();
        falling[0].token = 3;
        let mut of_falling = both();
        of_falling[0].worker.as_mut().unwrap().token = 3;
        assert!(broken(history(of_falling), falling).contains("is not above"));
        let mut changed = history(both());
        changed.contradiction = Some("x".into());
        assert!(broken(changed, runs()).contains("two ends"));
        assert!(broken(history(vec![skipped(0, 2, TickOutcome::Missed)]), vec![]).contains("missed"));
    }

    #[test]
    fn a_command_that_outlives_the_session_of_its_worker_is_found() {
        let judged = |last_seen_ms: u64, next_begun_ms: u64| {
            let again = done_at(0, 9, (next_begun_ms, next_begun_ms + 100));
            let mut runs = runs_of(std::slice::from_ref(&again));
            runs[0].attempt = 2;
            let (ended_ms, base_ms) = (None, tick(0).as_millis());
            runs.push(Run { ended_ms, last_seen_ms: base_ms + last_seen_ms, ..run(0, 7, 1) });
            let faults = [JobFault { token: 7, at_ms: base_ms + 300 }];
            clocks(skip(), &history(vec![again]), &runs, &faults)
        };
        assert!(judged(3_000, 3_400).is_ok());
        assert!(judged(3_850, 3_900).unwrap_err().contains("outlived"), "the session is over");
        assert!(judged(3_200, 3_100).unwrap_err().contains("was not over"), "another worker has begun");
    }

    #[test]
    fn ticks_that_overlap_are_judged_by_their_policy() {
        let judged = |overlap, ended: Vec<EndedTick>| {
            let runs = runs_of(&ended);
            clocks(rules(Policy::All, overlap), &history(ended), &runs, &[])
        };
        let skipping = || vec![done_at(0, 1, (0, 4_100)), skipped(2, 4, TickOutcome::Overlapped), done(6, 2)];
        let waiting = || vec![done_at(0, 1, (0, 2_100)), done_at(2, 2, (200, 300)), done(4, 3)];
        assert_eq!(judged(Overlap::Skip, skipping()).unwrap().overlapped, 2);
        assert!(judged(Overlap::Skip, waiting()).unwrap_err().contains("was under way when it was due"));
        assert_eq!(judged(Overlap::Queue, waiting()).unwrap().waited, 1);
        assert!(judged(Overlap::Queue, skipping()).unwrap_err().contains("is to wait"));
        // Skipped without a reason.
        let idle = vec![done(0, 1), skipped(2, 2, TickOutcome::Overlapped), done(4, 2)];
        assert!(judged(Overlap::Skip, idle).unwrap_err().contains("no earlier tick was under way"));
        let too_many = vec![done_at(0, 1, (0, 2_100)), skipped(2, 4, TickOutcome::Overlapped), done(6, 2)];
        assert!(judged(Overlap::Skip, too_many).unwrap_err().contains("no earlier tick was under way"));
        // Recorded as begun too early, whatever the commands say.
        let ended = vec![done_at(0, 1, (0, 3_100)), done_at(2, 2, (200, 1_300))];
        let runs = [run(0, 1, 1), run(2, 2, 1)];
        let judged = clocks(rules(Policy::All, Overlap::Queue), &history(ended), &runs, &[]);
        assert!(judged.unwrap_err().contains("before the end"));
    }

    #[test]
    fn missed_ticks_are_judged_by_their_policy() {
        // Killed at 1 s; back at 9.5 s, when the tick of 8 s is too old.
        let window = (tick(1).as_millis(), tick(9).as_millis() + 500);
        let judged = |policy, ended: Vec<EndedTick>| {
            let runs = runs_of(&ended);
            missed(rules(policy, Overlap::Queue), &history(ended), &runs, window, &[])
        };
        let skipped = |through, decided_ms| {
            let skipped = skipped(2, through, TickOutcome::Missed);
            EndedTick { ended_ms: tick(9).as_millis() + decided_ms, ..skipped }
        };
        let none = || vec![done(0, 1), skipped(8, 600), done(10, 2)];
        let latest = || vec![done(0, 1), skipped(6, 600), done_at(8, 2, (1_650, 1_700)), done(10, 3)];
        let all = || {
            let late = [done_at(2, 2, (7_600, 7_700)), done_at(4, 3, (5_800, 5_900)), done_at(6, 4, (4_000, 4_100))];
            [vec![done(0, 1)], late.into(), vec![done_at(8, 5, (2_200, 2_300)), done_at(10, 6, (400, 500))]].concat()
        };
        let by = |policy| [none(), latest(), all()].map(|ended| judged(policy, ended).is_ok());
        assert_eq!(by(Policy::Skip), [true, false, false]);
        assert_eq!(by(Policy::Once), [false, true, false]);
        assert_eq!(by(Policy::All), [false, false, true]);
        assert!(judged(Policy::Once, none()).unwrap_err().contains("nothing was done for the missed ticks"));
        assert_eq!(judged(Policy::Once, latest()).unwrap().caught_up, 1);
        // Decided when the tick of 10 s was due in time: it stands for the missed ones.
        let stands = vec![done(0, 1), skipped(8, 1_100), done_at(10, 2, (120, 200))];
        assert_eq!(judged(Policy::Once, stands).unwrap().caught_up, 0);
        // Not the latest one, or two.
        let (first, second) = (done_at(4, 4, (5_500, 5_600)), done_at(8, 8, (1_700, 1_800)));
        let of_two =
            vec![done(0, 1), skipped(2, 600), first, EndedTick { tick: tick(6), through: None, ..skipped(6, 600) }];
        let of_two = [of_two, vec![second, done(10, 9)]].concat();
        assert!(judged(Policy::Once, of_two).unwrap_err().contains("after it was not"));
    }
}
