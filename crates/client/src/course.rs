//! One call from its first try to its end: which failures lead to the next endpoint, and when the outcome is unknown.
//!
//! A try that was not sent, or was answered with a transient code, certainly changed nothing. A try that was sent and not
//! answered may have: it is repeated only if the request is safe to repeat (it reads, or its session and request id make
//! the cluster give the first answer again), and it is reported as unknown otherwise.
//!
//! A request id is acknowledged, so that the cluster may forget it, only if no try under it is open: what a frozen node or a slow
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
use crate::stream::{Asked, Hub, Reply, SENT};
use crate::transport::{Ask, Outcome, Repeat};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What the tries so far say together.
#[derive(Default)]
struct Tries {
    tried: Vec<Tried>,
    /// Some try may have taken effect.
    open: Option<String>,
    in_this_round: usize,
}

impl Tries {
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
        match self.open {
            Some(why) => Error::UnknownOutcome(why),
            None => Error::Unreachable { tried: self.tried },
        }
    }
}

/// A call that is under way.
pub(crate) struct Course<'a> {
    client: &'a Client,
    ask: &'a Ask,
    request_id: Option<Uuid>,
    may_repeat: bool,
    give_up_at: Instant,
    tries: Tries,
    pause: Duration,
    /// Over HTTP, even where there is a stream.
    plain: bool,
}

/// What is left to do after a try.
enum Next {
    Done(Result<(Endpoint, Bytes), Error>),
    /// This endpoint is of no use at the moment.
    MoveOn {
        place: usize,
        retry_after: Option<Duration>,
    },
    /// The same way again, after a pause.
    Again {
        retry_after: Option<Duration>,
    },
    /// At once over HTTP.
    OverHttp,
}

impl<'a> Course<'a> {
    /// A course that goes over the session's stream where there is one, unless it is to be `plain`. `earlier` says why it may have
    /// taken place already, where an earlier course under the same request id has ended without knowing.
    pub(crate) fn new(
        client: &'a Client,
        ask: &'a Ask,
        request_id: Option<Uuid>,
        earlier: Option<String>,
        plain: bool,
    ) -> Self {
        let may_repeat = match ask.repeat {
            Repeat::Freely | Repeat::Idempotent => true,
            Repeat::ByRequestId => request_id.is_some(),
            Repeat::Never => false,
        };
        let give_up_at = Instant::now() + client.options.patience + ask.wait;
        let tries = Tries { open: earlier, ..Tries::default() };
        Self { client, ask, request_id, may_repeat, give_up_at, tries, pause: FIRST_PAUSE, plain }
    }

    pub(crate) async fn run(mut self) -> Result<(Endpoint, Bytes), Error> {
        loop {
            let stream = self.client.stream.as_ref().filter(|_| !self.plain);
            let next = match stream {
                Some(hub) => {
                    let asked = hub.ask(self.ask, self.request_id, self.tries.open.is_some(), self.give_up_at).await;
                    self.after_stream(hub, asked)
                }
                None => {
                    let place = self.client.endpoints.preferred();
                    let endpoint = self.client.endpoints.at(place).clone();
                    let outcome = self.client.try_once(&endpoint, self.ask, self.request_id, self.give_up_at).await?;
                    self.after(place, None, outcome)
                }
            };
            let (all_failed, retry_after) = match next {
                Next::Done(result) => return result,
                Next::OverHttp => {
                    self.plain = true;
                    continue;
                }
                Next::Again { retry_after } => (true, retry_after),
                Next::MoveOn { place, retry_after } => {
                    self.client.endpoints.move_on_from(place);
                    (self.tries.in_this_round >= self.client.endpoints.all().len(), retry_after)
                }
            };
            if all_failed {
                self.tries.in_this_round = 0;
                let rest = self.pause.max(retry_after.unwrap_or_default()).min(LONGEST_PAUSE).mul_f64(jitter());
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                if Instant::now() + rest >= self.give_up_at {
                    return Err(self.tries.into_error());
                }
                sleep(rest).await;
            } else if Instant::now() >= self.give_up_at {
                return Err(self.tries.into_error());
            }
        }
    }

    fn after_stream(&mut self, hub: &Arc<Hub>, asked: Asked) -> Next {
        let reply = match asked {
            Asked::Reply { reply, open } => {
                if open && self.ask.repeat != Repeat::Freely {
                    self.tries.open.get_or_insert_with(|| SENT.to_owned());
                }
                reply
            }
            Asked::GaveUp { sent } => {
                if sent && self.ask.repeat != Repeat::Freely {
                    self.tries.open = Some("no answer came over the session's stream in time".into());
                }
                hub.tried().into_iter().for_each(|tried| self.tries.note_tried(tried));
                return Next::Done(Err(std::mem::take(&mut self.tries).into_error()));
            }
        };
        match reply {
            Reply::Answered { place, bytes } => self.after(place, None, Outcome::Answered(bytes)),
            Reply::Problem { place, generation, problem } => {
                self.after(place, Some((hub, generation)), Outcome::Problem(problem))
            }
            Reply::NotLockkeeper { place, why } => self.after(place, None, Outcome::NotLockkeeper(why)),
            Reply::Impossible(error) => Next::Done(Err(error)),
            // What only reads does not need the session.
            Reply::Over(_) if self.ask.repeat == Repeat::Freely => Next::OverHttp,
            Reply::Over(why) => Next::Done(Err(Error::Lost(why))),
            Reply::Elsewhere => Next::OverHttp,
        }
    }

    fn after(&mut self, place: usize, stream: Option<(&Arc<Hub>, u64)>, outcome: Outcome) -> Next {
        let endpoint = self.client.endpoints.at(place).clone();
        match outcome {
            Outcome::Answered(bytes) => {
                // The stream's driver has noted that already.
                if self.plain || self.client.stream.is_none() {
                    self.acknowledge();
                }
                Next::Done(Ok((endpoint, bytes)))
            }
            Outcome::NotLockkeeper(why) => {
                // Whoever asks next, or this anew, has more hope elsewhere.
                self.client.endpoints.move_on_from(place);
                Next::Done(Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }))
            }
            Outcome::Problem(problem) => self.after_problem(place, endpoint, stream, *problem),
            Outcome::NotSent(why) => {
                self.tries.note(&endpoint, why);
                Next::MoveOn { place, retry_after: None }
            }
            Outcome::Open(why) if self.may_repeat => {
                // A read whose answer is missing leaves nothing open.
                if self.ask.repeat != Repeat::Freely {
                    self.tries.open = Some(format!("{endpoint}: {why}"));
                }
                self.tries.note(&endpoint, why);
                Next::MoveOn { place, retry_after: None }
            }
            Outcome::Open(why) => Next::Done(Err(Error::UnknownOutcome(format!("{endpoint}: {why}")))),
        }
    }

    /// The cluster may forget the answer, now that it has come, unless a try is on its way that must find it.
    fn acknowledge(&self) {
        if self.tries.open.is_none() {
            self.client.answered(self.request_id);
        }
    }

    fn after_problem(
        &mut self,
        place: usize,
        endpoint: Endpoint,
        stream: Option<(&Arc<Hub>, u64)>,
        problem: Problem,
    ) -> Next {
        let transient = problem.code.is_transient();
        let open = problem.code == Code::UnknownOutcome && self.may_repeat;
        if !transient && !open {
            self.acknowledge();
            return Next::Done(Err(refusal(problem, self.ask.as_session && self.client.identity.is_some())));
        }
        if !transient {
            self.tries.open = Some(format!("{endpoint}: {problem}"));
        }
        let retry_after = problem.retry_after_ms.map(Duration::from_millis).filter(|_| transient);
        let (code, why) = (problem.code, problem.to_string());
        self.tries.note(&endpoint, why.clone());
        match stream {
            None => Next::MoveOn { place, retry_after },
            Some((hub, generation)) => {
                // The node has waited as long as it was ready to. Another may be on the other side of whatever it is.
                if code != Code::Overloaded && self.client.endpoints.all().len() > 1 {
                    hub.abandon(generation, &why);
                }
                Next::Again { retry_after }
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
