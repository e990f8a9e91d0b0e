//! What is asked over the stream and not answered yet, and what is to be written next. No connection, no clock, no waiting:
//! the driver and the callers' threads look into it under a lock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lockkeeper_api::stream::FromServer;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::handle::FinalReply;
use crate::clock::Moment;
use crate::transport::RequestSpec;

/// Open requests on one stream. The server refuses more than 1,024, and a keepalive must always get through.
pub(crate) const MAX_SENT: usize = 1_000;
/// Of these, requests that wait in a queue; the rest stays free for those that end waits. More waits go over HTTP.
pub(crate) const MAX_WAITING: usize = 768;
/// Of these, requests with a request id. A session's last 256 answers are remembered (promise P9): with no more than these outcome_unknown, the
/// answer to each is still among them when it has to be asked for again.
pub(crate) const MAX_REMEMBERED: usize = 200;
/// Requests that nobody has sent yet and those that are sent, together.
pub(crate) const MAX_REQUESTS: usize = 65_536;
/// Keepalives whose answers may still come.
const MAX_KEEPALIVES: usize = 64;

/// Who listens for the answer.
#[derive(Debug)]
pub(super) enum ReplyTo {
    Caller(oneshot::Sender<FinalReply>),
    /// It was posted: its doing is all that counts.
    Detached,
    /// The caller has gone. The node answers all the same, and until then has it open.
    Cancelled,
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) spec: RequestSpec,
    pub(super) request_id: Option<Uuid>,
    pub(super) reply_to: ReplyTo,
    /// On the connection there is now.
    pub(super) sent: bool,
    /// On this or an earlier one.
    pub(super) ever_sent: bool,
    /// It was sent before, over a connection that has gone or another way, and that sending may still reach the cluster.
    pub(super) outcome_unknown: bool,
}

/// What to write.
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
    /// When it was put here, which is before it was written.
    sent: Moment,
    answer: oneshot::Sender<KeepaliveAnswer>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    last_id: u64,
    /// By id, which is the order in which they were asked.
    requests: BTreeMap<u64, PendingRequest>,
    /// Requests not written yet.
    queued: VecDeque<u64>,
    /// What goes before requests.
    control: VecDeque<Outgoing>,
    sent: usize,
    /// Of those that are sent: how many have a request id.
    remembered: usize,
    waiting: usize,
    keepalives: VecDeque<Keepalive>,
}

/// Why a request was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubmitError {
    /// Too many requests.
    Requests,
    /// Too many that wait.
    Waits,
}

impl PendingRequests {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Takes a request; it is written after those before it.
    pub(super) fn submit(
        &mut self,
        spec: RequestSpec,
        request_id: Option<Uuid>,
        reply_to: ReplyTo,
    ) -> Result<u64, SubmitError> {
        let waits = !spec.wait.is_zero();
        if waits && self.waiting >= MAX_WAITING {
            return Err(SubmitError::Waits);
        }
        if self.requests.len() >= MAX_REQUESTS {
            return Err(SubmitError::Requests);
        }
        let id = self.next_id();
        self.waiting += usize::from(waits);
        self.requests.insert(
            id,
            PendingRequest { spec, request_id, reply_to, sent: false, ever_sent: false, outcome_unknown: false },
        );
        self.queued.push_back(id);
        Ok(id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&PendingRequest> {
        self.requests.get(&id)
    }

    /// An earlier sending of it has found no end.
    pub(super) fn note_outcome_unknown(&mut self, id: u64) {
        self.requests.entry(id).and_modify(|request| request.outcome_unknown = true);
    }

    /// Takes a request out: it is answered, or nobody wants to know any more.
    pub(super) fn remove(&mut self, id: u64) -> Option<PendingRequest> {
        let request = self.requests.remove(&id)?;
        self.sent -= usize::from(request.sent);
        self.remembered -= usize::from(request.sent && request.request_id.is_some());
        self.waiting -= usize::from(!request.spec.wait.is_zero());
        Some(request)
    }

    /// The caller of a request has gone; tells whether there is something to write. One that was not written over this connection is
    /// just forgotten; of one that was, the node hears.
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

    /// Takes a keepalive, whose time counts from now; its number and where its answer comes.
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

    /// A keepalive was answered: when it was sent, if it is one of this connection's.
    pub(super) fn kept_alive(&mut self, number: u64, outcome: KeepaliveAnswer) -> Option<Moment> {
        let at = self.keepalives.iter().position(|keepalive| keepalive.number == number)?;
        let Keepalive { sent, answer, .. } = self.keepalives.remove(at)?;
        // The round may be over; the time counts all the same.
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

    /// What to write next; a request is marked as sent.
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
            self.remembered += usize::from(remembered);
            (request.sent, request.ever_sent) = (true, true);
            self.sent += 1;
            return Some(Outgoing::Request(id));
        }
        None
    }

    /// The connection is gone: what was sent over it is to be sent again, in the order in which it was asked.
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

    /// Takes everything out.
    pub(super) fn drain(&mut self) -> Vec<PendingRequest> {
        self.connection_lost();
        self.queued.clear();
        self.waiting = 0;
        std::mem::take(&mut self.requests).into_values().collect()
    }

    /// Takes out what was sent over this connection and a caller listens for.
    pub(super) fn drain_sent_callers(&mut self) -> Vec<PendingRequest> {
        self.take_if(|request| request.sent && matches!(request.reply_to, ReplyTo::Caller(_)))
    }

    /// Takes out what a caller listens for.
    pub(super) fn drain_callers(&mut self) -> Vec<PendingRequest> {
        self.take_if(|request| matches!(request.reply_to, ReplyTo::Caller(_)))
    }

    fn take_if(&mut self, which: impl Fn(&PendingRequest) -> bool) -> Vec<PendingRequest> {
        let ids: Vec<u64> = self.requests.iter().filter(|(_, request)| which(request)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// How many are sent and not answered.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// Whether a message of the server shows that it took part in something that was asked of it.
pub(super) fn is_service(message: &FromServer) -> bool {
    matches!(message, FromServer::Answer(answer) if answer.status < 500)
        || matches!(message, FromServer::Hello { .. } | FromServer::Alive { .. })
}
