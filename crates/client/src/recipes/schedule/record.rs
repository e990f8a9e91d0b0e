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

/// What becomes of ticks that no worker began within the deadline. The deadline of a tick that waits for an earlier one
/// counts from that one's end.
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

    /// How late a tick may begin before it counts as missed: one minute by default. For a tick that waits for an
    /// earlier one, it counts from that one's end.
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
            deadline_ms: self.deadline_ms(),
        }
    }

    fn deadline_ms(&self) -> u64 {
        u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX)
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
    /// When it could be begun, in milliseconds since 1970 by the replicated clock: when it was due, or at the end of
    /// the tick before it. Only the first open tick has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<u64>,
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

/// Ticks that can no longer begin in time.
struct MissedTicks {
    /// Those that were open in time.
    not_begun: Vec<Tick>,
    /// The first and the last of those that are too many to name, which come next.
    omitted: Option<(Tick, Tick)>,
    /// Those about which nothing was decided so far.
    late: Vec<Tick>,
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

    /// Decides about all ticks up to now; returns whether anything changed. `spec` has this state's definition.
    pub(super) fn advance(&mut self, spec: &ScheduleSpec, now_ms: u64) -> bool {
        let deadline_ms = spec.deadline_ms();
        // An older program does not record this time: then the deadline counts from now.
        let unknown = self.open.front_mut().filter(|first| first.worker.is_none() && first.ready_ms.is_none());
        let is_noted = unknown.map(|first| first.ready_ms = Some(now_ms)).is_some();
        let not_begun = self.take_late(deadline_ms, now_ms);
        let due = spec.expression.due(self.last, Tick::at_millis(now_ms), MAX_OPEN_TICKS);
        if not_begun.is_empty() && due.ticks.is_empty() {
            return is_noted;
        }
        self.last = due.ticks.last().copied().unwrap_or(self.last);
        let (in_time, late): (Vec<Tick>, Vec<Tick>) =
            due.ticks.into_iter().partition(|tick| now_ms.saturating_sub(tick.as_millis()) <= deadline_ms);
        let missed = MissedTicks { not_begun, omitted: due.omitted, late };
        self.decide_missed(spec, missed, !in_time.is_empty(), now_ms);
        for tick in in_time {
            self.decide_in_time(spec, tick, now_ms);
        }
        true
    }

    /// As [`advance`](Self::advance), on behalf of the worker with this token. While it does the first open tick, ticks
    /// that become due overlap that one or wait for it, however late the decision about them is written.
    pub(super) fn advance_for(&mut self, spec: &ScheduleSpec, now_ms: u64, token: u64) -> bool {
        let first = self.open.front().and_then(|open| open.worker.as_ref());
        if first.is_none_or(|worker| worker.token != token) {
            return self.advance(spec, now_ms);
        }
        let due = spec.expression.due(self.last, Tick::at_millis(now_ms), MAX_OPEN_TICKS);
        let Some(last) = due.ticks.last().copied() else { return false };
        self.last = last;
        if let Some((first, through)) = due.omitted {
            let outcome = match spec.overlap {
                Overlap::Skip => TickOutcome::Overlapped,
                Overlap::Queue => TickOutcome::Dropped,
            };
            self.skip(spec, first, through, outcome, now_ms);
        }
        due.ticks.into_iter().for_each(|tick| self.decide_in_time(spec, tick, now_ms));
        true
    }

    /// Takes out the first open ticks that no worker has begun within the deadline. Only the first one can be begun, so
    /// those behind it count as late as long as it does.
    fn take_late(&mut self, deadline_ms: u64, now_ms: u64) -> Vec<Tick> {
        let mut late = Vec::new();
        while let Some(first) = self.open.front_mut().filter(|first| first.worker.is_none()) {
            let ready_ms = *first.ready_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(ready_ms) <= deadline_ms {
                break;
            }
            late.extend(self.open.pop_front().map(|open| open.tick));
            self.note_ready(ready_ms);
        }
        late
    }

    /// The first open tick can be begun from now on, or from the time when it was due.
    fn note_ready(&mut self, now_ms: u64) {
        if let Some(first) = self.open.front_mut() {
            first.ready_ms.get_or_insert(first.tick.as_millis().max(now_ms));
        }
    }

    /// Decides about ticks that are too late to be done in time.
    fn decide_missed(&mut self, spec: &ScheduleSpec, missed: MissedTicks, any_in_time: bool, now_ms: u64) {
        let MissedTicks { not_begun, omitted, late } = missed;
        if spec.missed == Missed::All {
            if let Some(first) = self.open.front_mut().filter(|_| !not_begun.is_empty()) {
                // It is not the first any more.
                first.ready_ms = None;
            }
            for tick in not_begun.into_iter().rev() {
                self.open.push_front(OpenTick { tick, missed: true, ready_ms: None, worker: None });
            }
            self.note_ready(now_ms);
            if let Some((first, through)) = omitted {
                self.skip(spec, first, through, TickOutcome::Dropped, now_ms);
            }
            late.into_iter().for_each(|tick| self.open(spec, tick, true, now_ms));
            return;
        }
        // A tick that is due in time stands for the missed ones too.
        let ready_ms = |open: &OpenTick| open.ready_ms.unwrap_or(open.tick.as_millis());
        let is_in_time = |open: &OpenTick| now_ms.saturating_sub(ready_ms(open)) <= spec.deadline_ms();
        let stands = any_in_time || self.open.iter().any(|open| open.worker.is_none() && is_in_time(open));
        let newest = late.last().or(not_begun.last()).copied();
        let caught_up = newest.filter(|_| spec.missed == Missed::Once && !stands);
        let each = |tick: Tick| (tick, tick);
        let in_order = not_begun.into_iter().map(each).chain(omitted).chain(late.into_iter().map(each));
        for (tick, through) in in_order.filter(|(tick, _)| Some(*tick) != caught_up) {
            self.skip(spec, tick, through, TickOutcome::Missed, now_ms);
        }
        if let Some(tick) = caught_up {
            self.open(spec, tick, true, now_ms);
        }
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
                self.skip(spec, tick, tick, TickOutcome::Overlapped, now_ms);
            }
            Overlap::Skip | Overlap::Queue => self.open(spec, tick, false, now_ms),
        }
    }

    fn open(&mut self, spec: &ScheduleSpec, tick: Tick, missed: bool, now_ms: u64) {
        if self.open.len() < MAX_OPEN_TICKS {
            self.open.push_back(OpenTick { tick, missed, ready_ms: None, worker: None });
            self.note_ready(if missed { now_ms } else { tick.as_millis() });
        } else {
            self.skip(spec, tick, tick, TickOutcome::Dropped, now_ms);
        }
    }

    /// One entry for ticks that are skipped one after the other, so that they do not push out what was done.
    fn skip(&mut self, spec: &ScheduleSpec, tick: Tick, through: Tick, outcome: TickOutcome, now_ms: u64) {
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
        self.note_ready(ended_ms);
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
