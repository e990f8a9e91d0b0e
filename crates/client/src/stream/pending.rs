//! Requests that are not answered yet, and the messages to write next. No connection, no clock, no waiting: the
//! reconnect task and the callers' threads access it under a lock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::Problem;
use lockkeeper_api::stream::FromServer;
use lockkeeper_mutants::invariant;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock::Moment;
use crate::error::Error;
use crate::request_spec::RequestSpec;

/// Most requests that are sent and unanswered on one stream. The server refuses more than 1,024, and a keepalive must
/// always get through.
pub(crate) const MAX_SENT: usize = 1_000;
/// Most of these that wait in a lock's queue; the rest stays free for requests that end waits. More waits go over HTTP.
pub(crate) const MAX_WAITING: usize = 768;
/// Most of these that have a request id. The cluster remembers the last 256 answers of a session (promise P9): with no
/// more than this many unanswered, the answer to each is still remembered when it has to be asked for again.
pub(crate) const MAX_REMEMBERED: usize = 200;
/// Most requests in all, sent and not yet sent.
pub(crate) const MAX_REQUESTS: usize = 65_536;
/// Most keepalives whose answers may still come.
const MAX_KEEPALIVES: usize = 64;

/// The end of a request on the stream.
#[derive(Debug)]
pub(crate) enum Reply {
    Answered {
        index: usize,
        bytes: Bytes,
    },
    Problem {
        index: usize,
        generation: u64,
        problem: Box<Problem>,
    },
    /// The endpoint's answer does not follow Lockkeeper's protocol.
    NotLockkeeper {
        index: usize,
        why: String,
    },
    /// The request cannot be written.
    Unsendable(Error),
    /// The session is over.
    SessionOver(String),
    /// There is no stream: send the request over HTTP.
    UseHttp,
}

/// The reply to a caller that waits; the fields are those of [`StreamOutcome::Reply`](super::StreamOutcome::Reply).
#[derive(Debug)]
pub(super) struct FinalReply {
    pub(super) reply: Reply,
    pub(super) outcome_unknown: bool,
}

/// Who waits for the reply to a request.
#[derive(Debug)]
pub(super) enum ReplyTo {
    Caller(oneshot::Sender<FinalReply>),
    /// Nobody: it was sent detached.
    Detached,
    /// Nobody any more: the caller has cancelled. The node still answers, and until then counts the request.
    Cancelled,
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) spec: RequestSpec,
    pub(super) request_id: Option<Uuid>,
    pub(super) reply_to: ReplyTo,
    /// Sent over the current connection.
    pub(super) sent: bool,
    /// Sent over the current or an earlier connection.
    pub(super) ever_sent: bool,
    /// Sent before, over a lost connection or over HTTP, and that attempt may still reach the cluster.
    pub(super) outcome_unknown: bool,
}

/// A message to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    Request(u64),
    Cancel(u64),
    Keepalive(u64),
    Watch(u64),
    Unwatch(u64),
}

/// The timeout that came with an acknowledgement, or why there was none.
pub(super) type KeepaliveAnswer = Result<Duration, String>;

#[derive(Debug)]
struct Keepalive {
    number: u64,
    /// When it was queued, which is before it was written.
    sent: Moment,
    answer: oneshot::Sender<KeepaliveAnswer>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    last_id: u64,
    /// By id, which is the order of submission.
    requests: BTreeMap<u64, PendingRequest>,
    /// Requests not written yet.
    queued: VecDeque<u64>,
    /// Messages that are written before requests.
    control: VecDeque<Outgoing>,
    sent: usize,
    /// How many of the sent ones have a request id.
    remembered: usize,
    waiting: usize,
    keepalives: VecDeque<Keepalive>,
}

/// Why a request was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubmitError {
    TooManyRequests,
    TooManyWaits,
}

impl PendingRequests {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Queues a request behind the earlier ones.
    pub(super) fn submit(
        &mut self,
        spec: RequestSpec,
        request_id: Option<Uuid>,
        reply_to: ReplyTo,
    ) -> Result<u64, SubmitError> {
        let waits = !spec.wait.is_zero();
        if waits && self.waiting >= MAX_WAITING {
            return Err(SubmitError::TooManyWaits);
        }
        if self.requests.len() >= MAX_REQUESTS {
            return Err(SubmitError::TooManyRequests);
        }
        let id = self.next_id();
        self.waiting += usize::from(waits);
        let request =
            PendingRequest { spec, request_id, reply_to, sent: false, ever_sent: false, outcome_unknown: false };
        self.requests.insert(id, request);
        self.queued.push_back(id);
        Ok(id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&PendingRequest> {
        self.requests.get(&id)
    }

    /// The outcome of an earlier attempt of this request is unknown.
    pub(super) fn note_outcome_unknown(&mut self, id: u64) {
        self.requests.entry(id).and_modify(|request| request.outcome_unknown = true);
    }

    /// Removes a request that is answered or no longer wanted.
    pub(super) fn remove(&mut self, id: u64) -> Option<PendingRequest> {
        let request = self.requests.remove(&id)?;
        let sent = usize::from(request.sent);
        let remembered = usize::from(request.sent && request.request_id.is_some());
        let waiting = usize::from(!request.spec.wait.is_zero());
        let is_counted = sent <= self.sent && remembered <= self.remembered && waiting <= self.waiting;
        invariant!(is_counted, "the counts of a stream include each of its requests");
        (self.sent, self.remembered) = (self.sent - sent, self.remembered - remembered);
        self.waiting -= waiting;
        Some(request)
    }

    /// Cancels a request for its caller; returns whether there is a message to write. A request that was not written
    /// over this connection is forgotten; the node is told to cancel one that was.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        match self.requests.get_mut(&id) {
            Some(request) if request.sent => {
                request.reply_to = ReplyTo::Cancelled;
                self.control.push_back(Outgoing::Cancel(id));
                true
            }
            _ => {
                self.remove(id);
                false
            }
        }
    }

    /// Queues a keepalive whose time counts from now; returns where its answer comes.
    pub(super) fn keepalive(&mut self, sent: Moment) -> oneshot::Receiver<KeepaliveAnswer> {
        let number = self.next_id();
        let (answer, answered) = oneshot::channel();
        if self.keepalives.len() == MAX_KEEPALIVES {
            self.keepalives.pop_front();
        }
        self.keepalives.push_back(Keepalive { number, sent, answer });
        self.control.push_back(Outgoing::Keepalive(number));
        answered
    }

    /// A keepalive was answered; returns when it was sent, if it belongs to this connection.
    pub(super) fn kept_alive(&mut self, number: u64, outcome: KeepaliveAnswer) -> Option<Moment> {
        let at = self.keepalives.iter().position(|keepalive| keepalive.number == number)?;
        let Keepalive { sent, answer, .. } = self.keepalives.remove(at)?;
        // The round of keepalives may be over; the acknowledgement counts all the same.
        let _ = answer.send(outcome);
        Some(sent)
    }

    pub(super) fn watch(&mut self, id: u64) {
        self.control.push_back(Outgoing::Watch(id));
    }

    pub(super) fn unwatch(&mut self, id: u64) {
        self.control.push_back(Outgoing::Unwatch(id));
    }

    pub(super) fn new_watch_id(&mut self) -> u64 {
        self.next_id()
    }

    /// The next message to write; a request is marked as sent.
    pub(super) fn next_out(&mut self) -> Option<Outgoing> {
        if let Some(out) = self.control.pop_front() {
            return Some(out);
        }
        while self.sent < MAX_SENT {
            let id = *self.queued.front()?;
            let Some(request) = self.requests.get_mut(&id) else {
                self.queued.pop_front();
                continue;
            };
            let remembered = request.request_id.is_some();
            if remembered && self.remembered >= MAX_REMEMBERED {
                return None;
            }
            self.queued.pop_front();
            invariant!(!request.sent, "a request is sent once over a connection");
            self.remembered += usize::from(remembered);
            (request.sent, request.ever_sent) = (true, true);
            self.sent += 1;
            return Some(Outgoing::Request(id));
        }
        None
    }

    /// The connection is lost: requests sent over it are queued again, in the order of submission.
    pub(super) fn connection_lost(&mut self) {
        self.control.clear();
        self.keepalives.clear();
        self.take_if(|request| matches!(request.reply_to, ReplyTo::Cancelled));
        for request in self.requests.values_mut() {
            request.outcome_unknown |= std::mem::take(&mut request.sent);
        }
        (self.sent, self.remembered) = (0, 0);
        self.queued = self.requests.keys().copied().collect();
    }

    /// Removes all requests.
    pub(super) fn drain(&mut self) -> Vec<PendingRequest> {
        self.connection_lost();
        self.queued.clear();
        self.waiting = 0;
        std::mem::take(&mut self.requests).into_values().collect()
    }

    /// Removes the requests that were sent over this connection and that a caller waits for.
    pub(super) fn drain_sent_callers(&mut self) -> Vec<PendingRequest> {
        self.take_if(|request| request.sent && matches!(request.reply_to, ReplyTo::Caller(_)))
    }

    /// Removes the requests that a caller waits for.
    pub(super) fn drain_callers(&mut self) -> Vec<PendingRequest> {
        self.take_if(|request| matches!(request.reply_to, ReplyTo::Caller(_)))
    }

    fn take_if(&mut self, which: impl Fn(&PendingRequest) -> bool) -> Vec<PendingRequest> {
        let ids: Vec<u64> = self.requests.iter().filter(|(_, request)| which(request)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// How many requests are sent and unanswered.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// Whether a message shows that the node served the session.
pub(super) fn is_service(message: &FromServer) -> bool {
    matches!(message, FromServer::Answer(answer) if answer.status < 500)
        || matches!(message, FromServer::Hello { .. } | FromServer::Alive { .. })
}
