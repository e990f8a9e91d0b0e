//! A tick that this worker does, until it reports the end.

use lockkeeper_api::Data;
use lockkeeper_api::gates::Finish;
use tokio::task::AbortHandle;
use tokio::time::{Duration, sleep};

use super::Tick;
use super::job::Schedule;
use super::own_turns::OwnTurn;
use super::record::{EndedTick, NotOpen, ScheduleState, TickReport, TickWorker};
use crate::recipes::cas::Edit;
use crate::recipes::error::RecipeError;
use crate::recipes::gate::GateTicket;

/// Pause after ticks could not be decided about while this worker is busy.
const PAUSE: Duration = Duration::from_millis(500);

/// How long the result of a tick is kept at its gate. The node keeps the tick from being begun again; this is only for
/// readers.
const KEEP: Duration = Duration::from_secs(3_600);

/// What a worker is told about the tick that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickTurn {
    /// When the tick was due.
    pub tick: Tick,
    /// The fencing token, as [`TickRun::token`].
    pub token: u64,
    /// How many workers have begun this tick, this one included.
    pub attempt: u32,
}

/// The duty to do a tick. While it lives, the ticks that become due meanwhile are decided about in the background.
///
/// **Dropping it reports nothing**: the tick stays open. A worker of this session begins it again with its next tick,
/// and one of another session when this session ends.
#[derive(Debug)]
#[must_use = "the tick stays open until its end is reported or the session ends"]
pub struct TickRun {
    schedule: Schedule,
    tick: Tick,
    ticket: GateTicket,
    worker: TickWorker,
    decisions: AbortHandle,
    /// Tells the workers of this session that the tick is being done.
    _turn: OwnTurn,
}

impl Drop for TickRun {
    fn drop(&mut self) {
        self.decisions.abort();
    }
}

impl TickRun {
    pub(super) fn new(schedule: Schedule, tick: Tick, ticket: GateTicket, turn: OwnTurn, worker: TickWorker) -> Self {
        let decides = schedule.clone();
        let token = ticket.token();
        let decisions = schedule.session().client().context.tasks.spawn(async move {
            loop {
                let Err(error) = decides.keep_deciding(token).await;
                if error.is_lost() || matches!(error, RecipeError::Mismatch { .. }) {
                    return;
                }
                tracing::debug!(%error, job = decides.job(), "no decision about ticks for now");
                sleep(PAUSE).await;
            }
        });
        Self { schedule, tick, ticket, worker, decisions: decisions.abort_handle(), _turn: turn }
    }

    /// When the tick was due.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// A fencing token: larger than that of every earlier worker of this tick, and of every earlier tick of the job.
    /// Show it to each resource that the work changes.
    pub fn token(&self) -> u64 {
        self.ticket.token()
    }

    /// How many workers have begun this tick, this one included: more than 1 after the death of the others.
    pub fn attempt(&self) -> u32 {
        self.worker.attempt
    }

    /// Tick, token and attempt together.
    pub fn turn(&self) -> TickTurn {
        TickTurn { tick: self.tick, token: self.token(), attempt: self.attempt() }
    }

    /// The gate, which tells when another worker may begin.
    pub fn ticket(&self) -> &GateTicket {
        &self.ticket
    }

    /// Reports that the tick is done, with a text for the history, of which 256 bytes are kept.
    ///
    /// Goes on until the cluster has taken the report or refuses it for good, the session is lost, or an hour is over.
    ///
    /// # Errors
    /// [`RecipeError::Stale`] if another worker has begun the tick meanwhile; nothing is recorded then. Otherwise see
    /// [`RecipeError`].
    pub async fn finish(self, message: impl Into<String>) -> Result<(), RecipeError> {
        self.report(false, None, message.into()).await
    }

    /// Reports that the command of the tick ended with that exit code. A code other than 0 is a failure.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub async fn finish_with_exit_code(self, code: u8) -> Result<(), RecipeError> {
        self.report(code != 0, Some(code), String::new()).await
    }

    /// Reports that the tick is at its end with a failure. It is not tried again.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub async fn finish_failed(self, exit_code: Option<u8>, message: impl Into<String>) -> Result<(), RecipeError> {
        self.report(true, exit_code, message.into()).await
    }

    /// Leaves the tick to another worker, which begins it again at once. So does this worker, if it waits for the next
    /// tick.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn hand_over(self) -> Result<(), RecipeError> {
        self.decisions.abort();
        let client = self.schedule.session().client().clone();
        Ok(client.gate_fail(self.ticket.key(), self.ticket.token()).await.map(drop)?)
    }

    async fn report(self, failed: bool, exit_code: Option<u8>, message: String) -> Result<(), RecipeError> {
        self.decisions.abort();
        let report = TickReport { tick: self.tick, token: self.token(), failed, exit_code, message, ended_ms: 0 };
        let ended =
            self.schedule.until_known(|| self.record(&report)).await?.map_err(|refused| self.stale(&refused))?;
        let finish = Finish {
            token: self.token(),
            // Text and numbers: writing them does not fail.
            result: Data::from_bytes(&serde_json::to_vec(&ended).unwrap_or_default()),
            keep_ms: u64::try_from(KEEP.as_millis()).ok(),
            keep: None,
        };
        // The node has the end of the tick. Without its result, the gate opens with the session, and the next worker
        // finds the tick ended.
        if let Err(error) = self.schedule.session().client().gate_finish(self.ticket.key(), &finish).await {
            tracing::debug!(%error, tick = %self.tick, "a tick's gate has no result");
        }
        Ok(())
    }

    /// Records the end, and decides about the ticks that became due until then: they overlap with this one.
    async fn record(&self, report: &TickReport) -> Result<Result<Option<EndedTick>, NotOpen>, RecipeError> {
        let (cell, spec) = (&self.schedule.cell, &self.schedule.spec);
        let now_ms = self.schedule.time().earliest_ms();
        let report = TickReport { ended_ms: now_ms.max(self.worker.started_ms), ..report.clone() };
        cell.update(|bytes| {
            let Some(bytes) = bytes else { return Ok(Edit::Keep(Err(NotOpen::Ended))) };
            let mut state = ScheduleState::read(cell.path.as_str(), bytes)?;
            if state.schedule == spec.definition() {
                state.advance_for(spec, now_ms, report.token);
            }
            Ok(match state.end(report.clone()) {
                Ok(()) => {
                    let ended = state.history.iter().rfind(|ended| ended.tick == report.tick).cloned();
                    Edit::Put(state.encode(), Ok(ended))
                }
                Err(refused) => Edit::Keep(Err(refused)),
            })
        })
        .await
    }

    fn stale(&self, refused: &NotOpen) -> RecipeError {
        let why = match refused {
            NotOpen::Replaced { token } => format!("a later worker began it with token {token}"),
            NotOpen::Ended | NotOpen::NotFirst => "the schedule has it no longer as under way".into(),
        };
        RecipeError::Stale { what: format!("tick {} of {}", self.tick, self.schedule.job()), why }
    }
}
