//! One call from its first try to its end: which failures lead to the next endpoint, and when the outcome is unknown.
//!
//! A try that was not sent, or was answered with a transient code, certainly changed nothing. A try that was sent and not
//! answered may have: it is repeated only if the request is safe to repeat (it reads, or its session and request id make
//! the cluster give the first answer again), and it is reported as unknown otherwise.
//!
//! A request id is acknowledged, so that the cluster may forget it, only if no attempt under it has an unknown outcome: what a frozen node or a slow
//! network still holds may reach the cluster at any time, and must then find its id remembered (promise P9).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::{Code, Problem};
use rand::Rng;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::client::Client;
use crate::endpoints::Endpoint;
use crate::error::{Error, Tried};
use crate::stream::{Reply, SENT, StreamHandle, StreamOutcome};
use crate::transport::{AttemptOutcome, RequestSpec, RetryPolicy};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What the attempts so far amount to.
#[derive(Default)]
struct Attempts {
    tried: Vec<Tried>,
    /// Some try may have taken effect.
    outcome_unknown: Option<String>,
    in_this_round: usize,
}

impl Attempts {
    fn note(&mut self, endpoint: &Endpoint, why: String) {
        self.in_this_round += 1;
        self.note_tried(Tried { endpoint: endpoint.to_string(), why });
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
            None => Error::Unreachable { tried: self.tried },
        }
    }
}

/// A call that is under way.
pub(crate) struct RetryLoop<'a> {
    client: &'a Client,
    spec: &'a RequestSpec,
    request_id: Option<Uuid>,
    may_repeat: bool,
    give_up_at: Instant,
    attempts: Attempts,
    pause: Duration,
    /// Over HTTP, even where there is a stream.
    plain: bool,
}

/// What is left to do after a try.
enum NextStep {
    Done(Result<(Endpoint, Bytes), Error>),
    /// This endpoint is of no use at the moment.
    MoveOn {
        index: usize,
        retry_after: Option<Duration>,
    },
    /// The same way again, after a pause.
    Again {
        retry_after: Option<Duration>,
    },
    /// At once over HTTP.
    OverHttp,
}

impl<'a> RetryLoop<'a> {
    /// A call that goes over the session's stream where there is one, unless it is to be `plain`. `earlier` says why it may have
    /// taken place already, where an earlier call under the same request id has ended without knowing.
    pub(crate) fn new(
        client: &'a Client,
        spec: &'a RequestSpec,
        request_id: Option<Uuid>,
        earlier: Option<String>,
        plain: bool,
    ) -> Self {
        let may_repeat = match spec.repeat {
            RetryPolicy::Always | RetryPolicy::Idempotent => true,
            RetryPolicy::ByRequestId => request_id.is_some(),
            RetryPolicy::Never => false,
        };
        let give_up_at = Instant::now() + client.options.patience + spec.wait;
        let attempts = Attempts { outcome_unknown: earlier, ..Attempts::default() };
        Self { client, spec, request_id, may_repeat, give_up_at, attempts, pause: FIRST_PAUSE, plain }
    }

    pub(crate) async fn run(mut self) -> Result<(Endpoint, Bytes), Error> {
        loop {
            let stream = self.client.stream.as_ref().filter(|_| !self.plain);
            let next = match stream {
                Some(stream) => {
                    let asked = stream
                        .ask(self.spec, self.request_id, self.attempts.outcome_unknown.is_some(), self.give_up_at)
                        .await;
                    self.after_stream(stream, asked)
                }
                None => {
                    let index = self.client.endpoints.preferred();
                    let endpoint = self.client.endpoints.at(index).clone();
                    let outcome = self.client.attempt(&endpoint, self.spec, self.request_id, self.give_up_at).await?;
                    self.after(index, None, outcome)
                }
            };
            let (all_failed, retry_after) = match next {
                NextStep::Done(result) => return result,
                NextStep::OverHttp => {
                    self.plain = true;
                    continue;
                }
                NextStep::Again { retry_after } => (true, retry_after),
                NextStep::MoveOn { index, retry_after } => {
                    self.client.endpoints.move_on_from(index);
                    (self.attempts.in_this_round >= self.client.endpoints.all().len(), retry_after)
                }
            };
            if all_failed {
                self.attempts.in_this_round = 0;
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

    fn after_stream(&mut self, stream: &Arc<StreamHandle>, asked: StreamOutcome) -> NextStep {
        let reply = match asked {
            StreamOutcome::Reply { reply, outcome_unknown } => {
                if outcome_unknown && self.spec.repeat != RetryPolicy::Always {
                    self.attempts.outcome_unknown.get_or_insert_with(|| SENT.to_owned());
                }
                reply
            }
            StreamOutcome::GaveUp { sent } => {
                if sent && self.spec.repeat != RetryPolicy::Always {
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
            // What only reads does not need the session.
            Reply::SessionOver(_) if self.spec.repeat == RetryPolicy::Always => NextStep::OverHttp,
            Reply::SessionOver(why) => NextStep::Done(Err(Error::Lost(why))),
            Reply::UseHttp => NextStep::OverHttp,
        }
    }

    fn after(&mut self, index: usize, stream: Option<(&Arc<StreamHandle>, u64)>, outcome: AttemptOutcome) -> NextStep {
        let endpoint = self.client.endpoints.at(index).clone();
        match outcome {
            AttemptOutcome::Answered(bytes) => {
                // The stream's driver has noted that already.
                if self.plain || self.client.stream.is_none() {
                    self.acknowledge();
                }
                NextStep::Done(Ok((endpoint, bytes)))
            }
            AttemptOutcome::NotLockkeeper(why) => {
                // Whoever asks next, or this anew, has more hope elsewhere.
                self.client.endpoints.move_on_from(index);
                NextStep::Done(Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }))
            }
            AttemptOutcome::Problem(problem) => self.after_problem(index, endpoint, stream, *problem),
            AttemptOutcome::NotSent(why) => {
                self.attempts.note(&endpoint, why);
                NextStep::MoveOn { index, retry_after: None }
            }
            AttemptOutcome::Unanswered(why) if self.may_repeat => {
                // A read whose answer is missing leaves nothing open.
                if self.spec.repeat != RetryPolicy::Always {
                    self.attempts.outcome_unknown = Some(format!("{endpoint}: {why}"));
                }
                self.attempts.note(&endpoint, why);
                NextStep::MoveOn { index, retry_after: None }
            }
            AttemptOutcome::Unanswered(why) => NextStep::Done(Err(Error::UnknownOutcome(format!("{endpoint}: {why}")))),
        }
    }

    /// The cluster may forget the answer, now that it has come, unless a try is on its way that must find it.
    fn acknowledge(&self) {
        if self.attempts.outcome_unknown.is_none() {
            self.client.answered(self.request_id);
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
            self.acknowledge();
            return NextStep::Done(Err(refusal(problem, self.spec.as_session && self.client.identity.is_some())));
        }
        if !transient {
            self.attempts.outcome_unknown = Some(format!("{endpoint}: {problem}"));
        }
        let retry_after = problem.retry_after_ms.map(Duration::from_millis).filter(|_| transient);
        let (code, why) = (problem.code, problem.to_string());
        self.attempts.note(&endpoint, why.clone());
        match stream {
            None => NextStep::MoveOn { index, retry_after },
            Some((stream, generation)) => {
                // The node has waited as long as it was ready to. Another may be on the other side of whatever it is.
                if code != Code::Overloaded && self.client.endpoints.all().len() > 1 {
                    stream.abandon(generation, &why);
                }
                NextStep::Again { retry_after }
            }
        }
    }
}

/// Many callers that failed together should not come back together.
pub(crate) fn jitter() -> f64 {
    rand::rng().random_range(0.5..1.0)
}

pub(crate) fn refusal(problem: Problem, of_own_session: bool) -> Error {
    match problem.code {
        Code::SessionExpired if of_own_session => Error::Lost(problem.detail),
        Code::UnknownOutcome => Error::UnknownOutcome(problem.detail),
        _ => Error::Refused(Box::new(problem)),
    }
}
