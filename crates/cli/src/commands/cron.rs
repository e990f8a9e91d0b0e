//! `lockkeeper cron`: runs a command at the ticks of a schedule, each tick on one machine of a fleet.
//!
//! Who runs which tick is the client library's (`recipes::schedule`); this keeps CMD within the grant, as all commands
//! that run CMD do, and reports how it ended.

use std::cell::Cell;
use std::time::Duration;

use lockkeeper_client::recipes::{RecipeError, Schedule, ScheduleSpec, TickRun};
use lockkeeper_client::{Error, Moment, Session};

use crate::args::{Common, Cron};
use crate::failure::{
    EXIT_GATE_MISMATCH, EXIT_INTERNAL, EXIT_LOCK_LOST, EXIT_OK, EXIT_UNKNOWN_OUTCOME, EXIT_UNREACHABLE, Failure,
    MayPass, print_error,
};
use crate::hold::waiting::{Holder, Waiting};
use crate::hold::{self, Ended, Hold, Obtained};
use crate::output::escaped;

/// Pause before another session is opened: after a loss or an outage, and after a refusal that may pass.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(5);
/// Then the tick is left to another worker, which runs CMD again.
const LONGEST_REPORT_AFTER_SIGNAL: Duration = Duration::from_secs(10);

/// Runs the command at each tick.
pub(crate) fn run(common: &Common, args: &Cron) -> Result<u8, Failure> {
    let spec = ScheduleSpec::new(&args.at)
        .and_then(|spec| spec.zone(&args.zone))
        .and_then(|spec| spec.missed(args.missed.into()).overlap(args.overlap.into()).deadline(args.deadline))
        .map_err(refused)?;
    hold::run_each(
        common,
        &args.holding,
        &Job { args, spec, replaces: Cell::new(args.replace), has_worked: Cell::new(false) },
    )
}

struct Job<'a> {
    args: &'a Cron,
    spec: ScheduleSpec,
    /// Whether the specification has to be replaced yet: once, or two workers that replace would do it for ever.
    replaces: Cell<bool>,
    /// Whether a session has been opened so far: endpoints, certificates and rights were right then.
    has_worked: Cell<bool>,
}

impl Job<'_> {
    fn schedule(&self, session: &Session) -> Result<Schedule, RecipeError> {
        let schedule = session.schedule(&self.args.name, self.spec.clone())?.namespace(&self.args.namespace)?;
        let name = self.name();
        let report = move |error: &RecipeError| {
            print_error(&format!(
                "lockkeeper cron: a tick of {name} cannot be recorded yet, and is tried again: {error}"
            ));
        };
        Ok(schedule.label(hold::label(&self.args.holding)).on_retry(report))
    }
}

impl Hold for Job<'_> {
    type Held = TickRun;

    fn command(&self) -> &'static str {
        "cron"
    }

    fn name(&self) -> String {
        escaped(&self.args.name)
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<TickRun>, Failure> {
        self.has_worked.set(true);
        let next = async {
            let schedule = self.schedule(session)?;
            if self.replaces.get() {
                schedule.replace().await?;
                self.replaces.set(false);
            }
            schedule.next().await
        };
        Ok(Obtained::Held(next.await.map_err(refused)?))
    }

    /// The next tick, or the worker of the tick that is due.
    async fn waiting(&self, session: &Session) -> Option<Waiting> {
        let state = session.client().schedule_state(&self.args.namespace, &self.args.name).await.ok()??;
        let (tick, worker) = match state.open.front() {
            Some(open) => (open.tick, open.worker.as_ref()),
            None => (self.spec.next_after(state.last)?, None),
        };
        let holder = worker.map(|worker| Holder {
            label: worker.label.clone(),
            token: worker.token,
            since_ms: worker.started_ms,
            is_queued_since: false,
            delayed_until_ms: None,
        });
        Some(Waiting { holder, ..Waiting::unknown(format!("the tick {tick} of {}", self.args.name)) })
    }

    fn variables(&self, held: &TickRun) -> Vec<(&'static str, String)> {
        vec![
            ("LOCKKEEPER_SCHEDULE", self.args.name.clone()),
            ("LOCKKEEPER_TICK", held.tick().to_string()),
            ("LOCKKEEPER_TOKEN", held.token().to_string()),
            ("LOCKKEEPER_ATTEMPT", held.attempt().to_string()),
        ]
    }

    fn ends_at(&self, held: &TickRun) -> Option<Moment> {
        Some(held.ticket().ends_at())
    }

    async fn revoked(&self, _session: &Session, held: &TickRun) -> String {
        held.ticket().lost().await
    }

    async fn release(&self, _session: &Session, held: TickRun, ended: Ended) -> Result<u8, Failure> {
        let (tick, code) = (held.tick(), ended.code);
        let reported = if ended.told_to_end && code != EXIT_OK {
            print_error(&format!("lockkeeper cron: {} of {tick} is left to another worker", self.name()));
            held.hand_over().await
        } else {
            if code != EXIT_OK {
                print_error(&format!("lockkeeper cron: {} of {tick} ended with exit code {code}", self.name()));
            }
            held.finish_with_exit_code(code).await
        };
        match reported {
            Ok(()) => Ok(code),
            Err(error @ (RecipeError::Stale { .. } | RecipeError::Client(Error::Lost(_)))) => {
                Err(hold::lost(self, &error.to_string()))
            }
            Err(error) => Err(refused(error)),
        }
    }

    fn longest_report_after_signal(&self) -> Option<Duration> {
        Some(LONGEST_REPORT_AFTER_SIGNAL)
    }

    fn retry_after(&self, failure: &Failure) -> Option<Duration> {
        match failure.code {
            EXIT_LOCK_LOST | EXIT_UNREACHABLE | EXIT_UNKNOWN_OUTCOME => Some(RETRY_PAUSE),
            // Before the first session, it is more likely that an option is wrong.
            _ => match failure.may_pass {
                MayPass::Yes => Some(PAUSE_AFTER_REFUSAL),
                MayPass::IfItWorked => self.has_worked.get().then_some(PAUSE_AFTER_REFUSAL),
                MayPass::No => None,
            },
        }
    }
}

fn refused(error: RecipeError) -> Failure {
    match error {
        RecipeError::Client(error) => hold::before_command(error),
        RecipeError::Mismatch { .. } => {
            let remedy = "give the same options, or replace them for all with --replace";
            Failure::new(EXIT_GATE_MISMATCH, format!("{error}; {remedy}"))
        }
        RecipeError::Stale { .. } => Failure::new(EXIT_LOCK_LOST, error.to_string()),
        RecipeError::Contended { .. } => Failure::new(EXIT_UNREACHABLE, error.to_string()),
        other => Failure::new(EXIT_INTERNAL, other.to_string()),
    }
}
