//! A job with a schedule: its node, and the decisions about its ticks.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::Code;
use rand::Rng;
use tokio::time::{Instant, sleep};

use super::Tick;
use super::cluster_time::ClusterTime;
use super::record::{ScheduleSpec, ScheduleState};
use crate::client::Client;
use crate::error::Error;
use crate::label::own_label;
use crate::recipes::cas::{CasCell, Edit};
use crate::recipes::error::RecipeError;
use crate::recipes::gapless_watch::bytes_of;
use crate::recipes::path::{RecipePath, check_part};
use crate::routes::Reading;
use crate::session::Session;

/// The default namespace of schedules.
const NAMESPACE: &str = "cron";
/// The clock's reading may be so old when a worker decides about ticks.
pub(super) const FRESH: Duration = Duration::from_secs(5);
/// How a change of the node is tried again.
#[derive(Clone, Copy, Debug)]
struct RetryTiming {
    pause: Duration,
    /// It is given up after this time.
    longest: Duration,
    /// A failure is reported at most so often.
    report_every: Duration,
}

const RETRY_TIMING: RetryTiming = RetryTiming {
    pause: Duration::from_millis(200),
    longest: Duration::from_secs(3_600),
    report_every: Duration::from_secs(60),
};

impl Session {
    /// A job that this session's process does at the ticks of a schedule, together with other processes: each tick is
    /// done once over all of them. The name has one or more parts, such as `reports/nightly`. See [`Schedule`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`] if the name cannot be part of a path.
    pub fn schedule(&self, job: &str, spec: ScheduleSpec) -> Result<Schedule, RecipeError> {
        let cell = CasCell::new(self.clone(), path_of(NAMESPACE, job)?);
        let (namespace, job) = (NAMESPACE.to_owned(), job.to_owned());
        Ok(Schedule { cell, namespace, job, spec: Arc::new(spec), label: own_label(), on_retry: OnRetry::default() })
    }
}

impl Client {
    /// The state of a schedule: its definition, open ticks and history; `None` if there is no such schedule. The
    /// namespace is `cron` unless the workers have another one.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn schedule_state(&self, namespace: &str, job: &str) -> Result<Option<ScheduleState>, RecipeError> {
        let path = path_of(namespace, job)?;
        match self.node(path.as_str(), &Reading::default()).await {
            Ok(node) => ScheduleState::read(path.as_str(), &bytes_of(&node)?).map(Some),
            Err(error) if error.code() == Some(Code::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn path_of(namespace: &str, job: &str) -> Result<RecipePath, RecipeError> {
    check_part(namespace)?;
    job.split('/').try_for_each(check_part)?;
    RecipePath::parse(&format!("/{namespace}/{job}"))
}

/// A job with a schedule, at one of its workers.
///
/// Any number of processes may be workers of a job. Each tick is done by one of them; if that one dies, another one
/// does it again from the start, once the dead one's session has ended. All must give the same [`ScheduleSpec`]:
/// another one is refused with [`RecipeError::Mismatch`].
///
/// The replicated clock decides when a tick is due. A tick begins never before that clock shows its time, and in an
/// idle cluster later by the time of about five requests and up to 40 ms.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::recipes::ScheduleSpec;
///
/// let reports = session.schedule("reports", ScheduleSpec::new("* * * * * *")?)?;
/// let run = reports.next().await?;
/// // … make the report of run.tick(), showing run.token() to the store …
/// run.finish("17 pages").await?;
///
/// let state = reports.state().await?.unwrap();
/// assert_eq!(state.history.back().unwrap().message, "17 pages");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(super) cell: CasCell,
    namespace: String,
    pub(super) job: String,
    pub(super) spec: Arc<ScheduleSpec>,
    pub(super) label: String,
    on_retry: OnRetry,
}

impl Schedule {
    /// A name for this worker, for people: by default user, host, process id and name of the program.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Calls this when the beginning or the end of a tick cannot be recorded for now and is tried again: with the first
    /// failure, and then once a minute. Without it, the failure goes to `tracing`.
    #[must_use]
    pub fn on_retry(mut self, report: impl Fn(&RecipeError) + Send + Sync + 'static) -> Self {
        self.on_retry = OnRetry(Arc::new(report));
        self
    }

    /// Another namespace than `cron`: the schedule's node is `/<namespace>/<job>`, and the gates of its ticks are
    /// `<namespace>/<job>/<tick>`.
    ///
    /// # Errors
    /// [`RecipeError::BadPath`] if it is not one part of a path.
    pub fn namespace(mut self, namespace: &str) -> Result<Self, RecipeError> {
        self.cell = CasCell::new(self.session().clone(), path_of(namespace, &self.job)?);
        self.namespace = namespace.to_owned();
        Ok(self)
    }

    /// Replaces the specification that the schedule has by this worker's. The workers that have the former one end with
    /// [`RecipeError::Mismatch`]. Ticks that are open stay open.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn replace(&self) -> Result<(), RecipeError> {
        self.time().renew(self.session().client(), FRESH).await?;
        self.decide_as(true, None).await.map(drop)
    }

    /// The name of the job.
    pub fn job(&self) -> &str {
        &self.job
    }

    pub(super) fn session(&self) -> &Session {
        &self.cell.session
    }

    pub(super) fn path(&self) -> &str {
        self.cell.path.as_str()
    }

    pub(super) fn time(&self) -> Arc<ClusterTime> {
        self.session().extension()
    }

    /// The state of the schedule; `None` before its first worker.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn state(&self) -> Result<Option<ScheduleState>, RecipeError> {
        self.session().client().schedule_state(&self.namespace, &self.job).await
    }

    pub(super) fn key(&self, tick: Tick) -> String {
        format!("{}/{}/{tick}", self.namespace, self.job)
    }

    /// Decides about the ticks that are due, unless another worker has, and gives the state after that.
    pub(super) async fn decide(&self) -> Result<ScheduleState, RecipeError> {
        self.decide_as(false, None).await
    }

    /// `doing` is the token of a tick that the caller does.
    async fn decide_as(&self, replace: bool, doing: Option<u64>) -> Result<ScheduleState, RecipeError> {
        let now_ms = self.time().earliest_ms();
        let definition = self.spec.definition();
        self.cell
            .update(|bytes| {
                let Some(bytes) = bytes else {
                    let state = ScheduleState::new(definition.clone(), Tick::at_millis(now_ms));
                    return Ok(Edit::Put(state.encode(), state));
                };
                let mut state = ScheduleState::read(self.path(), bytes)?;
                let edited = if state.schedule == definition {
                    match doing {
                        Some(token) => state.advance_for(&self.spec, now_ms, token),
                        None => state.advance(&self.spec, now_ms),
                    }
                } else if replace {
                    state.replace(definition.clone(), now_ms);
                    true
                } else {
                    return Err(self.mismatch(&state));
                };
                Ok(if edited { Edit::Put(state.encode(), state) } else { Edit::Keep(state) })
            })
            .await
    }

    /// Another worker may have replaced the definition.
    pub(super) fn check_definition(&self, state: &ScheduleState) -> Result<(), RecipeError> {
        if state.schedule == self.spec.definition() { Ok(()) } else { Err(self.mismatch(state)) }
    }

    fn mismatch(&self, state: &ScheduleState) -> RecipeError {
        let (asked, found) = (self.spec.definition().to_string(), state.schedule.to_string());
        RecipeError::Mismatch { path: self.path().into(), asked, found }
    }

    /// Decides about ticks as they become due, while this worker does a tick with this token.
    pub(super) async fn keep_deciding(&self, token: u64) -> Result<Infallible, RecipeError> {
        let time = self.time();
        loop {
            time.renew(self.session().client(), FRESH).await?;
            let state = self.decide_as(false, Some(token)).await?;
            let next_ms = self.spec.next_after(state.last).map_or(u64::MAX, Tick::as_millis);
            time.reach(self.session(), next_ms).await?;
        }
    }

    /// Repeats a change of the node until its outcome is known, while the session lives, and for an hour at most. What
    /// may pass is waited for. The change must have the same effect if it is made twice.
    pub(super) async fn until_known<T, F>(&self, change: impl Fn() -> F) -> Result<T, RecipeError>
    where
        F: Future<Output = Result<T, RecipeError>>,
    {
        let lost = async { Error::Lost(self.session().lost().await).into() };
        retry_until_known(RETRY_TIMING, &*self.on_retry.0, lost, change).await
    }
}

/// Repeats a change until it has an outcome that stays, `lost` completes, or the time is over. Reports failures that
/// may pass, beginning with the first one.
async fn retry_until_known<T, F>(
    timing: RetryTiming,
    report: &(dyn Fn(&RecipeError) + Send + Sync),
    lost: impl Future<Output = RecipeError>,
    change: impl Fn() -> F,
) -> Result<T, RecipeError>
where
    F: Future<Output = Result<T, RecipeError>>,
{
    let mut lost = pin!(lost);
    let give_up_at = Instant::now() + timing.longest;
    let mut report_at = Instant::now();
    loop {
        match change().await {
            Err(error) if error.may_pass() && Instant::now() < give_up_at => {
                if Instant::now() >= report_at {
                    report(&error);
                    report_at = Instant::now() + timing.report_every;
                }
            }
            other => return other,
        }
        tokio::select! {
            error = &mut lost => return Err(error),
            () = sleep(timing.pause.mul_f64(rand::rng().random_range(0.5..1.0))) => {}
        }
    }
}

/// What is called with failures that are waited out.
#[derive(Clone)]
struct OnRetry(Arc<dyn Fn(&RecipeError) + Send + Sync>);

impl Default for OnRetry {
    fn default() -> Self {
        Self(Arc::new(|error| tracing::warn!(%error, "a schedule's node cannot be changed yet; it is tried again")))
    }
}

impl std::fmt::Debug for OnRetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnRetry")
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
