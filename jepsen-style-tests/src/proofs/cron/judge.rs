//! Judges what the schedule's node recorded against what the commands reported.
//!
//! Times of commands are the machine's wall clock, which the nodes have too; the replicated clock follows it.

use lockkeeper_client::recipes::{EndedTick, Tick, TickOutcome};

use super::fleet::History;

/// How far the replicated clock may be ahead of the machine's: it is never put forward while the cluster runs.
const AHEAD_MS: u64 = 100;

/// One run of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) tick: Tick,
    pub(super) token: u64,
    /// By the machine's clock.
    pub(super) started_ms: u64,
    pub(super) ended_ms: Option<u64>,
    /// The worker's clock against the machine's.
    pub(super) clock_off_s: i64,
    /// Which worker of the fleet.
    pub(super) number: usize,
    /// Its pid.
    pub(super) worker: i32,
    pub(super) attempt: u32,
}

/// A worker killed while it did the tick with that token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) token: u64,
    pub(super) at_ms: u64,
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
pub(super) struct Tally {
    pub(super) ticks: usize,
    pub(super) done: usize,
    pub(super) begun_again: usize,
    pub(super) overlapped: usize,
    pub(super) missed: usize,
    pub(super) caught_up: usize,
    late_ms: Vec<u64>,
}

impl Tally {
    /// Of the ticks that were begun once.
    pub(super) fn lateness_ms(&self, percent: usize) -> u64 {
        let mut sorted = self.late_ms.clone();
        sorted.sort_unstable();
        let at = (sorted.len().saturating_sub(1) * percent).div_ceil(100);
        sorted.get(at).copied().unwrap_or_default()
    }
}

/// Ticks under wrong clocks and kills.
pub(super) fn clocks(every_s: u64, history: &History, runs: &[Run], kills: &[Kill]) -> Result<Tally, String> {
    let mut tally = covered(every_s, history)?;
    agree(history, runs, kills)?;
    one_at_a_time(runs, kills)?;
    if tally.missed > 0 {
        return Err(format!("{} ticks are missed, with a deadline of a minute", tally.missed));
    }
    for ended in history.done_entries() {
        let of_tick: Vec<&Run> = runs.iter().filter(|run| run.tick == ended.tick).collect();
        match of_tick[..] {
            [run] => tally.late_ms.push(run.started_ms.saturating_sub(run.tick.as_millis())),
            _ => tally.begun_again += 1,
        }
    }
    Ok(tally)
}

/// Ticks of a job without workers from one time to the other.
pub(super) fn missed(
    every_s: u64,
    policy: Policy,
    history: &History,
    runs: &[Run],
    (killed_ms, back_ms): (u64, u64),
    kills: &[Kill],
) -> Result<Tally, String> {
    let mut tally = covered(every_s, history)?;
    agree(history, runs, kills)?;
    one_at_a_time(runs, kills)?;
    // Due while there was no worker, and too old by the deadline of one second when there was one again. The tick that
    // a killed worker had begun is brought to its end under each policy.
    let was_missed = |tick: Tick| tick.as_millis() > killed_ms && tick.as_millis() + 1_000 < back_ms;
    tally.caught_up = history.done_entries().filter(|ended| was_missed(ended.tick)).count();
    let skipped = tally.missed;
    let fits = match policy {
        Policy::Skip => tally.caught_up == 0 && skipped > 0,
        Policy::Once => tally.caught_up <= 1 && skipped > 0,
        Policy::All => tally.caught_up > 1 && skipped == 0,
    };
    if fits {
        Ok(tally)
    } else {
        Err(format!("{} missed ticks were caught up with and {skipped} skipped", tally.caught_up))
    }
}

/// Each tick from the first to the last that is known is open, or has one end.
fn covered(every_s: u64, history: &History) -> Result<Tally, String> {
    if let Some(contradiction) = &history.contradiction {
        return Err(format!("a tick has two ends: {contradiction}"));
    }
    let mut tally = Tally::default();
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
        due_ms = Some(through + every_s * 1_000);
        let ticks = usize::try_from((through - first) / (every_s * 1_000) + 1).unwrap_or_default();
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
fn agree(history: &History, runs: &[Run], kills: &[Kill]) -> Result<(), String> {
    let was_killed = |run: &Run| kills.iter().any(|kill| kill.token == run.token);
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
        if !is_recorded && !was_killed(run) && !is_open {
            return Err(format!("{run:?} is not the recorded one, and nobody killed its worker: {entry:?}"));
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

/// No command runs while another one does.
fn one_at_a_time(runs: &[Run], kills: &[Kill]) -> Result<(), String> {
    let mut sorted: Vec<&Run> = runs.iter().collect();
    sorted.sort_by_key(|run| run.started_ms);
    for pair in sorted.windows(2) {
        let [run, next] = pair else { continue };
        let killed_ms = kills.iter().find(|kill| kill.token == run.token).map(|kill| kill.at_ms);
        // A command whose worker was killed ends at once, or has ended before.
        let over_ms = run.ended_ms.or(killed_ms);
        if over_ms.is_none_or(|over_ms| over_ms > next.started_ms) {
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
        let ended_ms = Some(started_ms + 50);
        Run { tick: tick(second), token, started_ms, ended_ms, clock_off_s: 0, number: 0, worker: 1, attempt }
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

    fn history(ended: Vec<EndedTick>) -> History {
        let mut history = History::of("a");
        history.ended = ended.into_iter().map(|ended| (ended.tick, ended)).collect();
        history
    }

    #[test]
    fn what_is_right_passes() {
        let ended = vec![done(0, 1), skipped(2, 4, TickOutcome::Overlapped), done(6, 9)];
        let mut history = history(ended);
        history.open = vec![OpenTick { tick: tick(8), missed: false, worker: None }];
        let mut killed = run(6, 7, 1);
        killed.ended_ms = None;
        let kills = [Kill { token: 7, at_ms: killed.started_ms + 20 }];
        let tally = clocks(2, &history, &[run(0, 1, 1), killed, run(6, 9, 2)], &kills).unwrap();
        assert_eq!((tally.ticks, tally.done, tally.overlapped, tally.begun_again), (5, 2, 2, 1));
        assert_eq!(tally.lateness_ms(50), 5);
    }

    #[test]
    fn what_is_wrong_is_found() {
        let both = || vec![done(0, 1), done(2, 2)];
        let runs = || vec![run(0, 1, 1), run(2, 2, 1)];
        assert!(clocks(2, &history(both()), &runs(), &[]).is_ok());
        let broken = |history: History, runs: Vec<Run>| clocks(2, &history, &runs, &[]).unwrap_err();
        assert!(broken(history(vec![done(0, 1), done(4, 2)]), vec![run(0, 1, 1), run(4, 2, 1)]).contains("no end"));
        assert!(broken(history(both()), vec![run(0, 1, 1)]).contains("recorded under token 2"));
        let twice = [run(0, 1, 1), run(2, 2, 1), run(2, 3, 2)].to_vec();
        assert!(broken(history(both()), twice).contains("nobody killed"));
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
    fn missed_ticks_are_judged_by_their_policy() {
        let window = (tick(1).as_millis(), tick(9).as_millis());
        let judged = |policy, ended: Vec<EndedTick>| {
            let runs: Vec<Run> = ended
                .iter()
                .filter_map(|ended| {
                    let late =
                        Run { started_ms: tick(9).as_millis() + ended.tick.as_millis() % 10_000 / 10, ..run(0, 1, 1) };
                    let token = ended.worker.as_ref()?.token;
                    Some(Run { tick: ended.tick, token, ended_ms: Some(late.started_ms + 1), ..late })
                })
                .collect();
            missed(2, policy, &history(ended), &runs, window, &[]).is_ok()
        };
        let none = || vec![done(0, 1), skipped(2, 8, TickOutcome::Missed)];
        let latest = || vec![done(0, 1), skipped(2, 4, TickOutcome::Missed), done(6, 2)];
        let all = || vec![done(0, 1), done(2, 2), done(4, 3), done(6, 4)];
        let by = |policy| [judged(policy, none()), judged(policy, latest()), judged(policy, all())];
        assert_eq!(by(Policy::Skip), [true, false, false]);
        assert_eq!(by(Policy::Once), [true, true, false]);
        assert_eq!(by(Policy::All), [false, false, true]);
    }
}
