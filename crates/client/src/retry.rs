//! Who retries a call: each failed attempt leads to the next endpoint, to a pause, or to the end of the call.
//!
//! An attempt that was not sent, or was answered with a transient code, certainly changed nothing. An attempt that was
//! sent and not answered may have changed something. It is repeated only if the request is safe to repeat: it only
//! reads, or the cluster gives the first answer again because it knows the session and the request id. Otherwise the
//! outcome is reported as unknown.
//!
//! A call in whose round every endpoint failed in TLS ends at once; see `tls.rs`.
//!
//! A request id is acknowledged, so that the cluster may forget it, only if no attempt under it has an unknown outcome:
//! a request that a frozen node or a slow network still holds may reach the cluster at any time, and the cluster must
//! then remember its id (promise P9).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::call::PartValue;
use lockkeeper_api::row::Retry;
use lockkeeper_api::{Call, Code, Problem};
use rand::Rng;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::client::Client;
use crate::clock::Moment;
use crate::endpoints::Endpoint;
use crate::error::{Error, Tried};
use crate::request_spec::RequestSpec;
use crate::routes::refuse_dots;
use crate::stream::{DetachedRequest, Reply, SENT, StreamHandle, StreamOutcome};
use crate::transport::{AttemptOutcome, decode};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Pause before a detached request is sent again after the cluster could not serve it.
const PAUSE_OF_DETACHED: Duration = Duration::from_millis(100);
/// Pause before a detached request is retried after an outage that outlasted [`Options::patience`](crate::Options).
const PAUSE_IN_OUTAGE: Duration = Duration::from_millis(500);
/// The same after TLS failed at every endpoint, which only new certificates can end.
const PAUSE_WITHOUT_TLS: Duration = Duration::from_secs(5);
/// A detached request is given up after this time; no session lives that long without a keepalive.
const LONGEST_OUTAGE: Duration = Duration::from_secs(3_600);

impl Client {
    /// Makes a call and repeats it as its [`Rules`](lockkeeper_api::row::Rules) allow. `T` is the answer of its row;
    /// with another one the call ends in an error although it was carried out. Most calls have a method of their own.
    ///
    /// # Errors
    /// [`Code::BadPath`] if a part of a name is `.` or `..`, which HTTP would resolve; otherwise see [`Error`].
    pub async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        for part in call.parts() {
            if let PartValue::Name(name) = part {
                refuse_dots(name)?;
            }
        }
        self.call(&RequestSpec::new(call)).await
    }

    /// Sends a request until there is an answer, a refusal, or no patience left: over the session's stream where there
    /// is one, otherwise over HTTP.
    pub(crate) async fn call<T: DeserializeOwned>(&self, spec: &RequestSpec) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(spec, self.request_id(spec), None).await?;
        decode(&endpoint, &bytes)
    }

    /// The same, with a time before the first attempt and after the comparison of the endpoints, which takes a while.
    pub(crate) async fn call_timed<T: DeserializeOwned>(&self, spec: &RequestSpec) -> Result<(Moment, T), Error> {
        let calling = RetryLoop::begin(self, spec, self.request_id(spec), None).await?;
        let sent = Moment::now();
        let (endpoint, bytes) = calling.run().await?;
        Ok((sent, decode(&endpoint, &bytes)?))
    }

    /// The same under an id that the caller keeps, to find out later what became of the request.
    pub(crate) async fn call_as<T: DeserializeOwned>(&self, spec: &RequestSpec, request_id: Uuid) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(spec, Some(request_id), None).await?;
        decode(&endpoint, &bytes)
    }

    /// A new request id, for requests that are repeated under one.
    fn request_id(&self, spec: &RequestSpec) -> Option<Uuid> {
        (spec.retry == Retry::ByRequestId && self.context.identity.is_some()).then(Uuid::new_v4)
    }

    /// `earlier` says why the request may have been carried out already, where an earlier call under the same request
    /// id ended without knowing.
    async fn call_under(
        &self,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        earlier: Option<String>,
    ) -> Result<(Endpoint, Bytes), Error> {
        RetryLoop::begin(self, spec, request_id, earlier).await?.run().await
    }

    fn is_streamed(&self, spec: &RequestSpec) -> bool {
        self.stream.is_some() && spec.as_session && spec.retry != Retry::Never && !spec.large
    }

    /// Sends a request without waiting for its outcome, from wherever this is called: also from `drop`. Over a stream
    /// it goes after all earlier requests and before all later ones. Where no runtime is alive nothing is sent; then
    /// the session ends, and with it all it owns.
    pub(crate) fn send_detached(&self, spec: RequestSpec) {
        let request_id = self.request_id(&spec);
        let queued = match &self.stream {
            Some(stream) if self.is_streamed(&spec) => stream.send_detached(&spec, request_id),
            _ => false,
        };
        if !queued {
            let client = self.clone();
            self.context.spawn(async move { client.retry_until_decided(&spec, request_id, None).await });
        }
    }

    /// Sends a request that no caller waits for until the cluster has decided. What a session owns outlives an outage
    /// that is shorter than the session's timeout, so this goes on through an outage too. `earlier` as for
    /// [`call_under`](Self::call_under).
    async fn retry_until_decided(&self, spec: &RequestSpec, request_id: Option<Uuid>, mut earlier: Option<String>) {
        let give_up_at = Instant::now() + LONGEST_OUTAGE;
        while let Err(error) = self.call_under(spec, request_id, earlier.clone()).await {
            tracing::debug!(%error, ?spec, "detached request failed");
            if Instant::now() >= give_up_at {
                return;
            }
            let mut pause = PAUSE_IN_OUTAGE;
            match error {
                Error::UnknownOutcome(why) => earlier = Some(why),
                // A proxy's page says nothing about the cluster, nor about the request's outcome there.
                Error::NotLockkeeper { .. } => earlier = Some(error.to_string()),
                Error::Unreachable { .. } => {}
                Error::Tls { .. } => pause = PAUSE_WITHOUT_TLS,
                Error::Refused(_) | Error::Lost(_) => return,
            }
            sleep(pause.mul_f64(jitter())).await;
        }
    }

    /// The same client, sending its session's requests over a new stream. `timeout` is the session's; `first` is the
    /// index of the endpoint to begin with, if that is not the preferred one.
    pub(crate) fn with_stream(self, timeout: Duration, first: Option<usize>) -> Self {
        let http_only = self.clone();
        let retry_detached = move |stream: &Arc<StreamHandle>, request: DetachedRequest| {
            let client = Self { stream: Some(stream.clone()), ..http_only.clone() };
            http_only.context.spawn(async move {
                sleep(PAUSE_OF_DETACHED).await;
                client.retry_until_decided(&request.spec, request.request_id, request.outcome_unknown).await;
            });
        };
        let stream = StreamHandle::start(&self.context, timeout, first, Box::new(retry_detached));
        Self { stream: Some(stream), ..self }
    }
}

/// The result of the attempts so far.
#[derive(Default)]
struct Attempts {
    tried: Vec<Tried>,
    /// Why some attempt may have taken effect.
    outcome_unknown: Option<String>,
    in_this_round: usize,
    /// The indices of the endpoints that failed in TLS in this round.
    without_tls: BTreeSet<usize>,
}

impl Attempts {
    fn note(&mut self, endpoint: &Endpoint, why: String) {
        self.note_answer(endpoint, why, None);
    }

    /// The same of an endpoint that did not answer. Later attempts have less time, so that an earlier cause says more.
    fn note_unanswered(&mut self, endpoint: &Endpoint, why: String) {
        if self.tried.iter().any(|tried| tried.endpoint == endpoint.to_string()) {
            self.in_this_round += 1;
        } else {
            self.note(endpoint, why);
        }
    }

    /// The same of an endpoint that answered with this code.
    fn note_answer(&mut self, endpoint: &Endpoint, why: String, code: Option<Code>) {
        self.in_this_round += 1;
        self.note_tried(Tried { endpoint: endpoint.to_string(), why, code });
    }

    fn note_tls(&mut self, index: usize, endpoint: &Endpoint, why: String) {
        self.without_tls.insert(index);
        self.note(endpoint, why);
    }

    /// Whether each of so many endpoints failed in TLS in this round: nothing would change in the next one.
    fn is_without_tls(&self, endpoints: usize) -> bool {
        self.without_tls.len() >= endpoints.max(1)
    }

    fn end_round(&mut self) {
        self.in_this_round = 0;
        self.without_tls.clear();
    }

    fn note_tried(&mut self, new: Tried) {
        match self.tried.iter_mut().find(|tried| tried.endpoint == new.endpoint) {
            Some(tried) => *tried = new,
            None => self.tried.push(new),
        }
    }

    fn into_error(self) -> Error {
        match self.outcome_unknown {
            Some(why) => Error::UnknownOutcome(why),
            None if self.is_without_tls(self.tried.len()) => Error::Tls { tried: self.tried },
            None => Error::Unreachable { tried: self.tried },
        }
    }
}

/// One call, from its first attempt to its end.
struct RetryLoop<'a> {
    client: &'a Client,
    spec: &'a RequestSpec,
    request_id: Option<Uuid>,
    may_repeat: bool,
    give_up_at: Instant,
    attempts: Attempts,
    pause: Duration,
    /// Over HTTP, even where there is a stream.
    over_http: bool,
}

/// What follows from an attempt.
enum NextStep {
    Done(Result<(Endpoint, Bytes), Error>),
    /// Try the next endpoint: the one at this index cannot serve.
    MoveOn {
        index: usize,
        retry_after: Option<Duration>,
    },
    /// Try the same way again after a pause.
    Again {
        retry_after: Option<Duration>,
    },
    /// Try over HTTP at once.
    OverHttp,
}

impl<'a> RetryLoop<'a> {
    /// Compares the endpoints first, which counts towards the caller's patience.
    async fn begin(
        client: &'a Client,
        spec: &'a RequestSpec,
        request_id: Option<Uuid>,
        earlier: Option<String>,
    ) -> Result<Self, Error> {
        let may_repeat = match spec.retry {
            Retry::Always | Retry::Idempotent => true,
            Retry::ByRequestId => request_id.is_some(),
            Retry::Never => false,
        };
        let patience = client.context.options.patience;
        let give_up_at = Instant::now() + patience + spec.wait;
        client.context.compare_endpoints(patience).await?;
        let attempts = Attempts { outcome_unknown: earlier, ..Attempts::default() };
        let over_http = !client.is_streamed(spec);
        Ok(Self { client, spec, request_id, may_repeat, give_up_at, attempts, pause: FIRST_PAUSE, over_http })
    }

    async fn run(mut self) -> Result<(Endpoint, Bytes), Error> {
        let endpoints = &self.client.context.endpoints;
        loop {
            let stream = self.client.stream.as_ref().filter(|_| !self.over_http);
            let next = match stream {
                Some(stream) => {
                    let unknown = self.attempts.outcome_unknown.is_some();
                    let outcome = stream.send(self.spec, self.request_id, unknown, self.give_up_at).await;
                    self.after_stream(stream, outcome)
                }
                None => {
                    let index = endpoints.preferred();
                    let endpoint = endpoints.at(index).clone();
                    let (context, own_limit) = (&self.client.context, self.attempt_limit());
                    let attempt = context.attempt(&endpoint, self.spec, self.request_id, own_limit, self.give_up_at);
                    let outcome = attempt.await?;
                    self.after(index, None, outcome)
                }
            };
            let (all_failed, retry_after) = match next {
                NextStep::Done(result) => return result,
                NextStep::OverHttp => {
                    self.over_http = true;
                    continue;
                }
                NextStep::Again { retry_after } => (true, retry_after),
                NextStep::MoveOn { index, retry_after } => {
                    endpoints.move_on_from(index);
                    (self.attempts.in_this_round >= endpoints.all().len(), retry_after)
                }
            };
            if all_failed {
                if self.attempts.is_without_tls(endpoints.all().len()) {
                    return Err(self.attempts.into_error());
                }
                self.attempts.end_round();
                let rest = self.pause.max(retry_after.unwrap_or_default()).min(LONGEST_PAUSE).mul_f64(jitter());
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                if Instant::now() + rest >= self.give_up_at {
                    return Err(self.attempts.into_error());
                }
                sleep(rest).await;
            } else if Instant::now() >= self.give_up_at {
                return Err(self.attempts.into_error());
            }
        }
    }

    /// The time for one attempt over HTTP. Where an attempt without an answer has changed nothing, it leaves time for
    /// the endpoints that were not tried yet: a quarter by the first attempt, which a slow cluster answers late.
    fn attempt_limit(&self) -> Duration {
        let left = self.give_up_at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let tried = self.attempts.in_this_round;
        let untried = self.client.context.endpoints.all().len().saturating_sub(tried);
        let limit = match u32::try_from(untried).unwrap_or(u32::MAX) {
            _ if self.changes() => left,
            0 | 1 => left,
            _ if tried == 0 => left * 3 / 4,
            untried => left / untried,
        };
        self.client.context.options.attempt_timeout.min(limit)
    }

    fn changes(&self) -> bool {
        self.spec.retry != Retry::Always
    }

    fn after_stream(&mut self, stream: &Arc<StreamHandle>, outcome: StreamOutcome) -> NextStep {
        let changes = self.changes();
        let reply = match outcome {
            StreamOutcome::Reply { reply, outcome_unknown } => {
                if outcome_unknown && changes {
                    self.attempts.outcome_unknown.get_or_insert_with(|| SENT.to_owned());
                }
                reply
            }
            StreamOutcome::GaveUp { sent } => {
                if sent && changes {
                    self.attempts.outcome_unknown = Some("no answer came over the session's stream in time".into());
                }
                stream.tried().into_iter().for_each(|tried| self.attempts.note_tried(tried));
                return NextStep::Done(Err(std::mem::take(&mut self.attempts).into_error()));
            }
        };
        match reply {
            Reply::Answered { index, bytes } => self.after(index, None, AttemptOutcome::Answered(bytes)),
            Reply::Problem { index, generation, problem } => {
                self.after(index, Some((stream, generation)), AttemptOutcome::Problem(problem))
            }
            Reply::NotLockkeeper { index, why } => self.after(index, None, AttemptOutcome::NotLockkeeper(why)),
            Reply::Unsendable(error) => NextStep::Done(Err(error)),
            // A read does not need the session.
            Reply::SessionOver(_) if !changes => NextStep::OverHttp,
            Reply::SessionOver(why) => NextStep::Done(Err(Error::Lost(why))),
            Reply::UseHttp => NextStep::OverHttp,
        }
    }

    fn after(&mut self, index: usize, stream: Option<(&Arc<StreamHandle>, u64)>, outcome: AttemptOutcome) -> NextStep {
        let endpoint = self.client.context.endpoints.at(index).clone();
        match outcome {
            AttemptOutcome::Answered(bytes) => {
                // An answer over the stream is acknowledged there.
                if self.over_http || self.client.stream.is_none() {
                    self.acknowledge();
                }
                NextStep::Done(Ok((endpoint, bytes)))
            }
            AttemptOutcome::NotLockkeeper(why) => {
                // The next call has a better chance at another endpoint.
                self.client.context.endpoints.move_on_from(index);
                NextStep::Done(Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }))
            }
            AttemptOutcome::Problem(problem) => self.after_problem(index, endpoint, stream, *problem),
            AttemptOutcome::OtherCluster(problem) => {
                if self.changes() {
                    self.attempts.outcome_unknown = Some(format!("{endpoint} answered, and may have carried it out"));
                }
                self.after_problem(index, endpoint, stream, *problem)
            }
            AttemptOutcome::NotSent(why) => {
                self.attempts.note(&endpoint, why);
                NextStep::MoveOn { index, retry_after: None }
            }
            AttemptOutcome::Tls(why) => {
                self.attempts.note_tls(index, &endpoint, why);
                NextStep::MoveOn { index, retry_after: None }
            }
            AttemptOutcome::Unanswered(why) if self.may_repeat => {
                // An unanswered read has changed nothing.
                if self.changes() {
                    self.attempts.outcome_unknown = Some(format!("{endpoint}: {why}"));
                }
                self.attempts.note_unanswered(&endpoint, why);
                NextStep::MoveOn { index, retry_after: None }
            }
            AttemptOutcome::Unanswered(why) => NextStep::Done(Err(Error::UnknownOutcome(format!("{endpoint}: {why}")))),
        }
    }

    /// Lets the cluster forget the answer, unless an attempt is still on its way that must find it.
    fn acknowledge(&self) {
        if self.attempts.outcome_unknown.is_none() {
            self.client.context.acknowledge(self.request_id);
        }
    }

    fn after_problem(
        &mut self,
        index: usize,
        endpoint: Endpoint,
        stream: Option<(&Arc<StreamHandle>, u64)>,
        problem: Problem,
    ) -> NextStep {
        let transient = problem.code.is_transient();
        let unknown = problem.code == Code::UnknownOutcome && self.may_repeat;
        if !transient && !unknown {
            self.client.context.leave_other_cluster(index, problem.code);
            if problem.code == Code::OtherCluster
                && let Some(why) = self.attempts.outcome_unknown.take()
            {
                // The refusal says nothing about an earlier attempt, which went to the cluster before.
                return NextStep::Done(Err(Error::UnknownOutcome(format!("{why}; then {endpoint}: {problem}"))));
            }
            self.acknowledge();
            let of_own_session = self.spec.as_session && self.client.context.identity.is_some();
            return NextStep::Done(Err(Error::from_problem(problem, of_own_session)));
        }
        if !transient && self.changes() {
            self.attempts.outcome_unknown = Some(format!("{endpoint}: {problem}"));
        }
        let retry_after = problem.retry_after_ms.map(Duration::from_millis).filter(|_| transient);
        let (code, why) = (problem.code, problem.to_string());
        self.attempts.note_answer(&endpoint, why.clone(), Some(code));
        match stream {
            None => NextStep::MoveOn { index, retry_after },
            Some((stream, generation)) => {
                // This node waited for the leader as long as it may. Another node may reach the leader.
                if code != Code::Overloaded && self.client.context.endpoints.all().len() > 1 {
                    stream.request_reconnect(generation, &why);
                }
                NextStep::Again { retry_after }
            }
        }
    }
}

/// A factor for pauses, so that many callers that failed together do not come back together.
fn jitter() -> f64 {
    rand::rng().random_range(0.5..1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last attempts of a call's patience are too short for an answer.
    #[test]
    fn an_attempt_without_an_answer_takes_no_cause_away() {
        let (mut attempts, endpoint) = (Attempts::default(), Endpoint::parse("a:7001").unwrap());
        attempts.note_unanswered(&endpoint, "no answer within 900 ms".into());
        attempts.note_answer(&endpoint, "it has none".into(), Some(Code::NoLeader));
        attempts.note_unanswered(&endpoint, "no answer within 3 ms".into());
        assert_eq!(attempts.in_this_round, 3);
        let error = attempts.into_error();
        assert_eq!(error.to_string(), "no majority: a:7001 has no leader");
    }
}
