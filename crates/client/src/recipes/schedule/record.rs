//! What the workers of a schedule agree on: one node, changed by compare-and-set, whose content is decided here.
//!
//! `last` is the latest tick about which anything was decided; it never goes back. Each tick after it is decided once,
//! by whichever worker comes first: it becomes *open* (to be done), or it goes into the history as skipped, with the
//! reason. Open ticks are done one after the other, in their order; a tick stays open until a worker that has its gate
//! reports its end, under a token that no later worker has replaced.
//!
//! Pure: time is handed in. Everything is bounded: open ticks, history, and the work after years without a worker.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::expression::{Expression, Tick};
use crate::recipes::error::RecipeError;

/// Most ticks that wait to be done, and most that are caught up with.
pub(crate) const MAX_OPEN_TICKS: usize = 100;
/// Most entries of the history.
pub(crate) const MAX_HISTORY: usize = 50;
/// Longest text that a worker may leave for a tick, in bytes; a longer one is cut.
pub(crate) const MAX_MESSAGE_BYTES: usize = 256;
/// Longest label kept for a tick.
const MAX_LABEL_BYTES: usize = 128;
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
const LONGEST_DEADLINE: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The form of the record.
const FORMAT: u32 = 1;

/// What becomes of ticks at which no worker could begin within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// They are not done.
    #[default]
    Skip,
    /// The latest of them is done, for all; none if a tick is due in time at that moment.
    Once,
    /// All are done, one after the other, at most the latest 100.
    All,
}

/// What becomes of a tick while an earlier one is being done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is not done.
    #[default]
    Skip,
    /// It is done afterwards; at most 100 ticks wait.
    Queue,
}

/// When a job is due, and what happens if it cannot be done then. All workers of a job must give the same.
///
/// ```
/// use lockkeeper_client::recipes::{Missed, ScheduleSpec};
/// let spec = ScheduleSpec::new("30 2 * * *")?.zone("UTC")?.missed(Missed::Once);
/// # Ok::<(), lockkeeper_client::recipes::RecipeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScheduleSpec {
    pub(super) expression: Expression,
    missed: Missed,
    overlap: Overlap,
    deadline: Duration,
}

impl ScheduleSpec {
    /// A cron expression: minute, hour, day of month, month and day of week, or seconds before them, in UTC.
    ///
    /// # Errors
    /// [`RecipeError::BadArgument`] if it is no expression, or never ticks.
    pub fn new(expression: &str) -> Result<Self, RecipeError> {
        let expression = Expression::parse(expression)?;
        Ok(Self { expression, missed: Missed::Skip, overlap: Overlap::Skip, deadline: DEFAULT_DEADLINE })
    }

    /// The time zone of the expression: a name of the IANA database, whose rules come from this machine's
    /// `/usr/share/zoneinfo`, or rules such as `CET-1CEST,M3.5.0,M10.5.0/3`.
    ///
    /// On a day with a changed clock, expressions with `*` in the field of hours follow the clock on the wall. With
    /// fixed hours, a tick in the skipped hour comes at the first instant after it, and one in the repeated hour comes
    /// the first time only.
    ///
    /// # Errors
    /// [`RecipeError::BadArgument`] if there is no such zone here.
    pub fn zone(self, name: &str) -> Result<Self, RecipeError> {
        Ok(Self { expression: self.expression.in_zone(name)?, ..self })
    }

    /// What becomes of ticks that no worker could begin; they are skipped by default.
    #[must_use]
    pub fn missed(self, missed: Missed) -> Self {
        Self { missed, ..self }
    }

    /// What becomes of a tick while an earlier one is being done; it is skipped by default.
    #[must_use]
    pub fn overlap(self, overlap: Overlap) -> Self {
        Self { overlap, ..self }
    }

    /// How late a tick may begin before it counts as missed: one minute by default.
    ///
    /// # Errors
    /// [`RecipeError::BadArgument`] for less than a second or more than a week.
    pub fn deadline(self, deadline: Duration) -> Result<Self, RecipeError> {
        if deadline < Duration::from_secs(1) || deadline > LONGEST_DEADLINE {
            return Err(RecipeError::BadArgument(format!(
                "the deadline of a tick is from one second to a week, not {deadline:?}"
            )));
        }
        Ok(Self { deadline, ..self })
    }

    /// The first tick after that one.
    pub fn next_after(&self, tick: Tick) -> Option<Tick> {
        self.expression.next_after(tick)
    }

    /// As it is stored.
    pub(super) fn definition(&self) -> ScheduleDefinition {
        ScheduleDefinition {
            at: self.expression.text.clone(),
            zone: self.expression.zone_name.clone(),
            missed: self.missed,
            overlap: self.overlap,
            deadline_ms: u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The definition of a schedule, on which all its workers agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleDefinition {
    /// The cron expression.
    pub at: String,
    /// The time zone.
    pub zone: String,
    /// What becomes of missed ticks.
    pub missed: Missed,
    /// What becomes of ticks that overlap.
    pub overlap: Overlap,
    /// How late a tick may begin, in milliseconds.
    pub deadline_ms: u64,
}

impl std::fmt::Display for ScheduleDefinition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |policy: serde_json::Result<String>| policy.unwrap_or_default().replace('"', "");
        write!(
            f,
            "'{}' in {}, missed {}, overlap {}, deadline {} ms",
            self.at,
            self.zone,
            word(serde_json::to_string(&self.missed)),
            word(serde_json::to_string(&self.overlap)),
            self.deadline_ms
        )
    }
}

impl ScheduleDefinition {
    /// The schedule that it defines.
    ///
    /// # Errors
    /// [`RecipeError::BadArgument`] if its zone is not known on this machine.
    pub fn spec(&self) -> Result<ScheduleSpec, RecipeError> {
        let spec = ScheduleSpec::new(&self.at)?.zone(&self.zone)?.missed(self.missed).overlap(self.overlap);
        spec.deadline(Duration::from_millis(self.deadline_ms))
    }
}

/// The worker of an open tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickWorker {
    /// Its fencing token: larger for each worker of each tick.
    pub token: u64,
    /// Its label.
    pub label: String,
    /// Its session.
    pub session_id: u64,
    /// When its gate let it begin, in milliseconds since 1970 by the replicated clock. Should a new leader's clock be
    /// behind, that may be before the tick, and the worker waits for the difference.
    pub started_ms: u64,
    /// How many workers have begun this tick, this one included.
    pub attempt: u32,
}

/// A tick that is to be done, or is being done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTick {
    /// When it was due.
    pub tick: Tick,
    /// Whether it was missed and is caught up with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
    /// The latest worker that began it. It may be dead: the gate tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<TickWorker>,
}

/// How a tick came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TickOutcome {
    /// A worker did it.
    Done,
    /// A worker did it and reports a failure.
    Failed,
    /// Skipped: no worker began it within the deadline.
    Missed,
    /// Skipped: an earlier tick was not at its end.
    Overlapped,
    /// Skipped: too many ticks were waiting already.
    Dropped,
}

/// A tick at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTick {
    /// When it was due.
    pub tick: Tick,
    /// Of several that were skipped one after the other: the last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Tick>,
    /// How it ended.
    pub outcome: TickOutcome,
    /// The exit code of the worker's command, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// What the worker says about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<TickWorker>,
    /// When it ended, in milliseconds since 1970 by the replicated clock, as the worker knows it.
    pub ended_ms: u64,
}

/// What a worker reports about its tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TickReport {
    pub(super) tick: Tick,
    pub(super) token: u64,
    pub(super) failed: bool,
    pub(super) exit_code: Option<u8>,
    pub(super) message: String,
    pub(super) ended_ms: u64,
}

/// Why a change of one tick has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotOpen {
    /// It has ended already, or it is not known any more.
    Ended,
    /// An earlier one is to be done before it.
    NotFirst,
    /// A later worker has begun it.
    Replaced { token: u64 },
}

/// The state of a schedule: its definition, the ticks that are open, and the latest that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleState {
    format: u32,
    /// The definition.
    pub schedule: ScheduleDefinition,
    /// The latest tick about which was decided, or when the schedule began.
    pub last: Tick,
    /// Ticks to be done, in their order; the first may be under way.
    #[serde(default)]
    pub open: VecDeque<OpenTick>,
    /// The latest ticks that have ended, oldest first.
    #[serde(default)]
    pub history: VecDeque<EndedTick>,
}

impl ScheduleState {
    /// A schedule that begins now: nothing before is due.
    pub(super) fn new(schedule: ScheduleDefinition, now: Tick) -> Self {
        Self { format: FORMAT, schedule, last: now, open: VecDeque::new(), history: VecDeque::new() }
    }

    /// Reads the data of a schedule's node.
    ///
    /// # Errors
    /// [`RecipeError::Foreign`] if they are something else.
    pub fn read(path: &str, bytes: &[u8]) -> Result<Self, RecipeError> {
        let foreign = |why: String| RecipeError::Foreign { path: path.into(), recipe: "schedule", why };
        let state: Self = serde_json::from_slice(bytes).map_err(|e| foreign(e.to_string()))?;
        match state.format {
            FORMAT => Ok(state),
            other => Err(foreign(format!("format {other} is of a later version"))),
        }
    }

    pub(super) fn encode(&self) -> String {
        // Text and numbers: writing them does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Decides about all ticks up to now; returns whether there were any. `spec` has this state's definition.
    pub(super) fn advance(&mut self, spec: &ScheduleSpec, now_ms: u64) -> bool {
        let due = spec.expression.due(self.last, Tick::at_millis(now_ms), MAX_OPEN_TICKS);
        let Some(newest) = due.ticks.last().copied() else { return false };
        if let Some((first, through)) = due.omitted {
            let outcome = if spec.missed == Missed::All { TickOutcome::Dropped } else { TickOutcome::Missed };
            self.skip(spec, (first, through), outcome, now_ms);
        }
        let deadline_ms = u64::try_from(spec.deadline.as_millis()).unwrap_or(u64::MAX);
        let in_time = |tick: &Tick| now_ms.saturating_sub(tick.as_millis()) <= deadline_ms;
        let any_in_time = in_time(&newest);
        let newest_late = due.ticks.iter().rev().find(|tick| !in_time(tick)).copied();
        for tick in due.ticks {
            if in_time(&tick) {
                self.decide_in_time(spec, tick, now_ms);
                continue;
            }
            match spec.missed {
                Missed::All => self.open(spec, tick, true, now_ms),
                // A tick that is due in time stands for the missed ones too.
                Missed::Once if newest_late == Some(tick) && !any_in_time => self.open(spec, tick, true, now_ms),
                Missed::Once | Missed::Skip => self.skip(spec, (tick, tick), TickOutcome::Missed, now_ms),
            }
        }
        self.last = newest;
        true
    }

    /// Gives the schedule another definition from now on. The former one decides about the time until now: by the new
    /// one, ticks would count as missed that never were to be.
    pub(super) fn replace(&mut self, definition: ScheduleDefinition, now_ms: u64) {
        // A former definition whose zone is not known here can be replaced all the same.
        if let Ok(former) = self.schedule.spec() {
            self.advance(&former, now_ms);
        }
        self.schedule = definition;
        self.last = self.last.max(Tick::at_millis(now_ms));
    }

    fn decide_in_time(&mut self, spec: &ScheduleSpec, tick: Tick, now_ms: u64) {
        // While missed ticks are caught up with, those that become due wait behind them.
        let catches_up = self.open.iter().any(|open| open.missed);
        match spec.overlap {
            Overlap::Skip if !self.open.is_empty() && !catches_up => {
                self.skip(spec, (tick, tick), TickOutcome::Overlapped, now_ms);
            }
            Overlap::Skip | Overlap::Queue => self.open(spec, tick, false, now_ms),
        }
    }

    fn open(&mut self, spec: &ScheduleSpec, tick: Tick, missed: bool, now_ms: u64) {
        if self.open.len() < MAX_OPEN_TICKS {
            self.open.push_back(OpenTick { tick, missed, worker: None });
        } else {
            self.skip(spec, (tick, tick), TickOutcome::Dropped, now_ms);
        }
    }

    /// One entry for ticks that are skipped one after the other, so that they do not push out what was done.
    fn skip(&mut self, spec: &ScheduleSpec, (tick, through): (Tick, Tick), outcome: TickOutcome, now_ms: u64) {
        let latest = self.history.back_mut().filter(|latest| latest.outcome == outcome);
        let follows = |latest: &EndedTick| spec.next_after(latest.through.unwrap_or(latest.tick)) == Some(tick);
        if let Some(latest) = latest.filter(|latest| follows(latest)) {
            (latest.through, latest.ended_ms) = (Some(through), now_ms);
            return;
        }
        let through = (through > tick).then_some(through);
        let (exit_code, message, worker) = (None, String::new(), None);
        self.add_to_history(EndedTick { tick, through, outcome, exit_code, message, worker, ended_ms: now_ms });
    }

    fn add_to_history(&mut self, ended: EndedTick) {
        self.history.push_back(ended);
        while self.history.len() > MAX_HISTORY {
            self.history.pop_front();
        }
    }

    /// Notes that a worker begins the first open tick. The caller has the gate with that token.
    pub(super) fn begin(&mut self, tick: Tick, worker: TickWorker) -> Result<TickWorker, NotOpen> {
        let Some(at) = self.open.iter().position(|open| open.tick == tick) else { return Err(NotOpen::Ended) };
        if at > 0 {
            return Err(NotOpen::NotFirst);
        }
        let open = &mut self.open[at];
        let before = open.worker.as_ref();
        if let Some(later) = before.filter(|before| before.token > worker.token) {
            return Err(NotOpen::Replaced { token: later.token });
        }
        // Asked a second time after an unknown outcome, the attempt is the same.
        let repeated = before.is_some_and(|before| before.token == worker.token);
        let attempts = before.map_or(0, |before| before.attempt);
        let attempt = if repeated { attempts } else { attempts.saturating_add(1) };
        let worker = TickWorker { attempt, label: cut(worker.label, MAX_LABEL_BYTES), ..worker };
        open.worker = Some(worker.clone());
        Ok(worker)
    }

    /// Notes the end of an open tick. Asked a second time after an unknown outcome, nothing changes.
    pub(super) fn end(&mut self, report: TickReport) -> Result<(), NotOpen> {
        let TickReport { tick, token, failed, exit_code, message, ended_ms } = report;
        let Some(at) = self.open.iter().position(|open| open.tick == tick) else {
            let own = |ended: &EndedTick| {
                ended.tick == tick && ended.worker.as_ref().is_some_and(|worker| worker.token == token)
            };
            return if self.history.iter().any(own) { Ok(()) } else { Err(NotOpen::Ended) };
        };
        match &self.open[at].worker {
            Some(worker) if worker.token == token => {}
            Some(worker) => return Err(NotOpen::Replaced { token: worker.token }),
            None => return Err(NotOpen::NotFirst),
        }
        let worker = self.open.remove(at).and_then(|open| open.worker);
        let outcome = if failed { TickOutcome::Failed } else { TickOutcome::Done };
        let message = cut(message, MAX_MESSAGE_BYTES);
        self.add_to_history(EndedTick { tick, through: None, outcome, exit_code, message, worker, ended_ms });
        Ok(())
    }
}

/// At most so many bytes of a text.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
    }
    text
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
