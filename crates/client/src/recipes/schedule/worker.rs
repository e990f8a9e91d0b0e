//! A worker: waits for the next tick, takes part in the decision about it, and begins it if its gate says so.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::Code;
use rand::Rng;
use tokio::time::sleep;

use super::Tick;
use super::job::{FRESH, Schedule};
use super::own_turns::{OwnTurn, OwnTurns};
use super::record::{NotOpen, OpenTick, ScheduleState, TickWorker};
use super::run::{TickRun, TickTurn};
use crate::error::Error;
use crate::recipes::cas::Edit;
use crate::recipes::error::RecipeError;
use crate::recipes::gapless_watch::GaplessWatch;
use crate::recipes::gate::{Begun, GateTicket};

/// The pending time of a tick's gate, the longest that there is: a dead worker frees it by the end of its session.
const PENDING: Duration = Duration::from_secs(24 * 3_600);
/// Pause of [`Schedule::run`] after a failure that may pass.
const RUN_PAUSE: Duration = Duration::from_secs(1);
/// What the gates of ticks are for; another program's gate under such a key is refused.
const FINGERPRINT: &str = "lockkeeper schedule";

/// What to do after the gate of a tick was asked.
enum AfterGate {
    Run(Box<TickRun>),
    /// The node has changed: look again.
    Look,
    /// Another worker has the gate, until then at the latest.
    Wait {
        as_of: u64,
        until_ms: u64,
    },
}

impl Schedule {
    /// Waits until this worker has to do a tick. Report its end with [`TickRun::finish`], [`TickRun::finish_failed`] or
    /// [`TickRun::hand_over`].
    ///
    /// A waiting worker wakes at each tick, and when the worker of a tick ends or dies: then all workers of the job ask
    /// the gate. Dropping the future leaves nothing behind: a tick that this worker was about to begin is left to the
    /// others.
    ///
    /// # Errors
    /// [`RecipeError::Mismatch`] if the schedule has another specification; otherwise see [`RecipeError`].
    pub async fn next(&self) -> Result<TickRun, RecipeError> {
        let (session, time) = (self.session(), self.time());
        loop {
            time.renew(session.client(), FRESH).await?;
            let state = self.decide().await?;
            let next_ms = self.spec.next_after(state.last).map_or(u64::MAX, Tick::as_millis);
            let Some(OpenTick { tick, .. }) = state.open.front() else {
                time.reach(session, next_ms).await?;
                continue;
            };
            match self.ask_gate(*tick).await? {
                AfterGate::Run(run) => return Ok(*run),
                AfterGate::Look => {}
                AfterGate::Wait { as_of, until_ms } => {
                    let gate = format!("/gates/{}", self.key(*tick));
                    let mut watch = GaplessWatch::node(session.client(), &gate);
                    tokio::select! {
                        changed = watch.change(as_of, |_| true) => drop(changed?),
                        reached = time.reach(session, next_ms.min(until_ms)) => reached?,
                    }
                }
            }
        }
    }

    /// Does `work` at each tick that this worker has to do, until the session is lost or the schedule cannot go on. It
    /// goes on after failures that [may pass](RecipeError::may_pass), and after a tick that was taken from this worker.
    ///
    /// `work` returns a text for the history, or an error, which is noted there too: the tick counts as done, and is
    /// not tried again. `work` is dropped when another worker may begin the tick.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn run<E: std::fmt::Display, F: Future<Output = Result<String, E>>>(
        &self,
        mut work: impl FnMut(TickTurn) -> F,
    ) -> Result<Infallible, RecipeError> {
        loop {
            let Err(error) = self.do_next(&mut work).await else { continue };
            let was_taken = matches!(error, RecipeError::Stale { .. }) || error.is_lost();
            if self.session().loss().is_some() || !was_taken && !error.may_pass() {
                return Err(error);
            }
            tracing::warn!(%error, job = self.job, "a worker of a schedule goes on after a failure");
            tokio::select! {
                because = self.session().lost() => return Err(Error::Lost(because).into()),
                () = sleep(RUN_PAUSE.mul_f64(rand::rng().random_range(0.5..1.0))) => {}
            }
        }
    }

    async fn do_next<E: std::fmt::Display, F: Future<Output = Result<String, E>>>(
        &self,
        work: &mut impl FnMut(TickTurn) -> F,
    ) -> Result<(), RecipeError> {
        let run = self.next().await?;
        match run.ticket().run(work(run.turn())).await? {
            Ok(message) => run.finish(message).await,
            Err(error) => run.finish_failed(None, error.to_string()).await,
        }
    }

    async fn ask_gate(&self, tick: Tick) -> Result<AfterGate, RecipeError> {
        let gate = self.session().gate(self.key(tick)).label(self.label.clone()).pending(PENDING);
        let own: Arc<OwnTurns> = self.session().extension();
        // Until an answer is noted, nobody else here may take its gate for a stranded one.
        let asking = own.asking.lock().await;
        match gate.begin_at(FINGERPRINT).await? {
            (Begun::InProgress(work), as_of) => {
                let is_own = work.session_id == Some(self.session().id()) && work.label == self.label;
                if !is_own || own.tokens.lock().contains(&work.token) {
                    return Ok(AfterGate::Wait { as_of, until_ms: work.until_ms });
                }
                // Begun here, and nobody here does it: the answer was lost, or the run was dropped. It would stay
                // under way as long as the session lives.
                tracing::debug!(tick = %tick, token = work.token, job = self.job, "a stranded tick is begun again");
                match self.session().client().gate_fail(gate.key(), work.token).await {
                    Err(error) if error.code() != Some(Code::GateNotPending) => Err(error.into()),
                    _ => Ok(AfterGate::Look),
                }
            }
            (Begun::Proceed(ticket), _) => {
                let turn = OwnTurn::new(own.clone(), ticket.token());
                drop(asking);
                self.begin(tick, ticket, turn).await
            }
            (Begun::Done(done), _) => {
                // The node is written first, so that the state that made this worker ask is an older one.
                let state = self.state().await?;
                let is_open = state.is_some_and(|state| state.open.iter().any(|open| open.tick == tick));
                if !is_open {
                    return Ok(AfterGate::Look);
                }
                Err(RecipeError::Foreign {
                    path: format!("/gates/{}", self.key(tick)),
                    recipe: "gate of this schedule",
                    why: format!("it has a result under token {}, and the schedule has the tick open", done.token),
                })
            }
        }
    }

    /// Begins a tick whose gate this worker has, unless the node says that it is not to be done (any more).
    async fn begin(&self, tick: Tick, ticket: GateTicket, turn: OwnTurn) -> Result<AfterGate, RecipeError> {
        // After an error, and if the caller is gone, the gate would stay closed as long as the session lives.
        let unless_begun = ticket.give_back_on_drop();
        let worker = TickWorker {
            token: ticket.token(),
            label: self.label.clone(),
            session_id: self.session().id(),
            started_ms: ticket.begun_ms(),
            attempt: 1,
        };
        let noted = self
            .until_known(|| {
                self.cell.update(|bytes| {
                    let Some(bytes) = bytes else { return Ok(Edit::Keep(Err(NotOpen::Ended))) };
                    let mut state = ScheduleState::read(self.path(), bytes)?;
                    self.check_definition(&state)?;
                    // The tick may have become too late since this worker looked. A tick that it has begun stays.
                    let now_ms = self.time().earliest_ms().max(ticket.begun_ms());
                    let has_changed = state.advance(&self.spec, now_ms);
                    Ok(match state.begin(tick, worker.clone()) {
                        Ok(worker) => Edit::Put(state.encode(), Ok(worker)),
                        Err(refused) if has_changed => Edit::Put(state.encode(), Err(refused)),
                        Err(refused) => Edit::Keep(Err(refused)),
                    })
                })
            })
            .await?;
        match noted {
            Ok(worker) => {
                // A new leader's clock may be behind by the delay of one message.
                let early_ms = tick.as_millis().saturating_sub(ticket.begun_ms());
                sleep(Duration::from_millis(early_ms)).await;
                unless_begun.disarm();
                Ok(AfterGate::Run(Box::new(TickRun::new(self.clone(), tick, ticket, turn, worker))))
            }
            Err(NotOpen::Ended | NotOpen::NotFirst | NotOpen::Replaced { .. }) => {
                ticket.fail().await?;
                unless_begun.disarm();
                Ok(AfterGate::Look)
            }
        }
    }
}
