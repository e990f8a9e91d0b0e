//! Requests on the stream: from the message to the call, its cancellation, and what happens to it when the stream ends
//! first.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{AbortHandle, Aborted, BoxFuture, abortable};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lockkeeper_api::{Answer, Call, Code};
use lockkeeper_core::limits::MAX_REMEMBERED_REPLIES;
use lockkeeper_core::{FencingToken, LockName, LockOp, NodePath, RequestId, RequestKey};
use lockkeeper_node::{At, Caller, KeepaliveAck, NodeError, Presence, Undecided};
use lockkeeper_service::bounds::Room;
use lockkeeper_service::budget::Taken;
use lockkeeper_service::caller::address_of;
use lockkeeper_service::calls::CallScope;
use lockkeeper_service::failure::Failure;
use lockkeeper_service::otlp::CallerTrace;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Session;
use super::close;
use super::frame::{self, Request};
use crate::middleware;

/// Longest time for a cancelled request to leave its queue; then the answer is an unknown outcome.
const LONGEST_WITHDRAWAL: Duration = Duration::from_secs(10);

/// The effect of an answer on the locks whose loss the stream reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Effect {
    #[default]
    None,
    /// Granted, with these nodes.
    Granted {
        token: u64,
        paths: Vec<NodePath>,
        /// Whether the session holds it by another request as well.
        is_reentry: bool,
    },
    /// Released.
    Released(Releasing),
    /// Not released, as far as is known.
    NotReleased(Releasing),
    /// Still held, under another node.
    Renamed(Releasing, NodePath),
}

impl Effect {
    fn of(answer: Option<&Answer>, releasing: Option<Releasing>) -> Self {
        let parse = |path: &String| NodePath::parse(path).ok();
        match (answer, releasing) {
            (Some(Answer::AcquireLock(held)), _) => {
                let paths = std::iter::once(&held.path).chain(&held.also_paths).filter_map(parse).collect();
                Self::Granted { token: held.token, paths, is_reentry: held.holds > 1 }
            }
            (Some(Answer::DowngradeLock(held)), Some(releasing)) => {
                parse(&held.path).map_or(Self::None, |path| Self::Renamed(releasing, path))
            }
            (Some(Answer::ReleaseLock(released)), Some(releasing)) if released.still_held > 0 => {
                Self::NotReleased(releasing)
            }
            (Some(_), Some(releasing)) => Self::Released(releasing),
            (None, Some(releasing)) => Self::NotReleased(releasing),
            (_, None) => Self::None,
        }
    }
}

/// Locks that a request releases or downgrades.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Releasing {
    pub(super) token: u64,
    pub(super) directories: Vec<NodePath>,
}

impl Releasing {
    /// `None` for other calls, and for invalid names, which the call refuses.
    fn by(call: &Call) -> Option<Self> {
        let (name, token, also) = match call {
            Call::ReleaseLock { name, body } => (name, body.token, &body.also[..]),
            Call::DowngradeLock { name, body } => (name, body.token, &[][..]),
            _ => return None,
        };
        let directory = |name: &String| LockName::parse(name).ok().map(|lock| lock.directory());
        let directories = also.iter().chain([name]).map(directory).collect::<Option<_>>()?;
        Some(Self { token, directories })
    }
}

/// The result of a request or keepalive.
pub(super) enum Finished {
    Answer { id: u64, text: Vec<u8>, effect: Effect },
    Keepalive { number: u64, heard: Result<At<KeepaliveAck>, NodeError> },
}

/// A request or keepalive at work.
pub(super) struct Open {
    kind: OnStreamEnd,
    /// The client's presence, which keeps the session alive while a lock request waits.
    presence: Option<Presence>,
    /// Cancels it, if it can be cancelled.
    pub(super) cancel: Option<AbortHandle>,
    work: BoxFuture<'static, Finished>,
}

impl Open {
    fn new(kind: OnStreamEnd, work: impl Future<Output = Finished> + Send + 'static) -> Self {
        Self { kind, presence: None, cancel: None, work: work.boxed() }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(AbortHandle::is_aborted)
    }
}

/// What happens to a request when the stream ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnStreamEnd {
    /// Carried out all the same: a request that arrived whole takes place.
    Carried,
    /// A waiting lock request: keeps its place for a while when the connection breaks.
    Waits,
    /// Dropped: useless without the stream, or cancelled by the drop.
    Dropped,
}

impl Future for Open {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        self.work.poll_unpin(context)
    }
}

/// A request that has begun.
pub(super) struct Begun {
    pub(super) open: Open,
    /// The locks that it releases or downgrades.
    pub(super) releasing: Option<Releasing>,
}

/// The requests at work on a stream that has ended.
pub(super) struct Unfinished {
    /// Lock requests that wait.
    pub(super) waiting: Vec<Open>,
    carried: usize,
    open: FuturesUnordered<Open>,
}

impl Unfinished {
    /// Separates requests to carry out from waiting ones. All others are cancelled by being dropped here.
    pub(super) fn of(mut open: FuturesUnordered<Open>) -> Self {
        let (mut waiting, mut carried) = (Vec::new(), 0);
        // In place: requests that were not polled yet must be begun in the order in which they came.
        for request in open.iter_mut() {
            match request.kind {
                OnStreamEnd::Carried => carried += 1,
                kind @ (OnStreamEnd::Waits | OnStreamEnd::Dropped) => {
                    let work = std::mem::replace(&mut request.work, std::future::pending().boxed());
                    let presence = request.presence.take();
                    // The client may come back, but is gone now.
                    presence.iter().for_each(Presence::leave);
                    if kind == OnStreamEnd::Waits && !request.is_cancelled() {
                        waiting.push(Open { kind, presence, cancel: None, work });
                    }
                }
            }
        }
        Self { waiting, carried, open }
    }

    /// Carries out the requests that arrived whole before the stream ended, without answering them.
    pub(super) async fn carry_out(mut self) {
        while self.carried > 0 && self.open.next().await.is_some() {
            self.carried -= 1;
        }
    }
}

pub(super) fn keepalive(session: &Arc<Session>, number: u64) -> Open {
    let session = session.clone();
    session.context.node.note_token_use(&session.principals);
    let work = async move {
        Finished::Keepalive { number, heard: session.context.node.keepalive_with_others(&session.credential).await }
    };
    Open::new(OnStreamEnd::Dropped, work)
}

/// Begins a request. An invalid one is answered with its problem.
pub(super) fn begin(session: &Arc<Session>, request: &Request<'_>) -> Begun {
    let id = request.id;
    let begun = caller(session, request).and_then(|caller| {
        // The room for the message went with its last byte; the request keeps its own until it is answered.
        let mut room = Room::new(&session.context.admission, address_of(Some(&session.from)));
        room.fit(request.call.get().len())?;
        let call = parse_call(request.call)?;
        let otlp = session.context.otlp.as_ref();
        let trace = otlp.map(|otlp| otlp.caller_on_stream(request.traceparent.as_deref()));
        Ok(begin_call(session, id, caller, (call, trace, room.into_taken())))
    });
    begun.unwrap_or_else(|failure| {
        let open = Open::new(OnStreamEnd::Carried, async move { refused(id, &failure, Effect::None) });
        Begun { open, releasing: None }
    })
}

fn refused(id: u64, failure: &Failure, effect: Effect) -> Finished {
    Finished::Answer { id, text: refused_text(id, failure), effect }
}

/// The call of a request.
pub(super) fn parse_call(text: &RawValue) -> Result<Call, Failure> {
    // serde would fill a call from an array as well, by position.
    let has_fields = text.get().split_once(':').is_some_and(|(_, fields)| fields.trim_start().starts_with('{'));
    if !has_fields {
        let detail = "'call' is an object with one call, such as {\"get_cluster\": {}}; see docs/stream.md";
        return Err(Failure::bad_request(detail));
    }
    serde_json::from_str(text.get())
        .map_err(|error| Failure::bad_request(format!("the call is not one of those in docs/stream.md: {error}")))
}

fn caller(session: &Session, request: &Request<'_>) -> Result<Caller, Failure> {
    if session.has_expired() {
        return Err(close::credential_expired());
    }
    if request.acknowledge.len() > MAX_REMEMBERED_REPLIES {
        let detail = format!(
            "'acknowledge' names {} ids, at most {MAX_REMEMBERED_REPLIES} are remembered; send fewer",
            request.acknowledge.len()
        );
        return Err(Failure::bad_request(detail));
    }
    if request.request_id.is_none() && !request.acknowledge.is_empty() {
        return Err(Failure::bad_request("'acknowledge' goes with 'request_id'; send both or neither"));
    }
    let key = request.request_id.map(|id| RequestKey {
        id: RequestId(id.as_u128()),
        acknowledged: request.acknowledge.iter().map(|id| RequestId(id.as_u128())).collect(),
    });
    session.context.node.note_token_use(&session.principals);
    Ok(Caller {
        credential: Some(session.credential),
        request: key,
        principals: session.principals.clone(),
        may_force: session.context.admin.allow_force_release,
        presence: Presence::default(),
        trace: None,
    })
}

fn begin_call(
    session: &Arc<Session>,
    id: u64,
    caller: Caller,
    (call, trace, room): (Call, Option<CallerTrace>, Option<Taken>),
) -> Begun {
    let wait_ms = match &call {
        Call::AcquireLock { body, .. } => body.wait_ms,
        _ => {
            let releasing = Releasing::by(&call);
            let work = carry_out(session.clone(), id, (caller, call, trace, None), (room, releasing.clone()));
            return Begun { open: Open::new(OnStreamEnd::Carried, work), releasing };
        }
    };
    let kind = if wait_ms > 0 { OnStreamEnd::Waits } else { OnStreamEnd::Dropped };
    let presence = caller.presence.clone();
    let (undecided, given_up) = oneshot::channel();
    let (work, cancel) =
        abortable(carry_out(session.clone(), id, (caller, call, trace, Some(undecided)), (room, None)));
    let work = async move {
        // An aborted call has been dropped by then, and its lock request is being withdrawn.
        let ended = work.await;
        match ended {
            Ok(finished) => finished,
            Err(Aborted) => refused(id, &withdrawn(given_up).await, Effect::None),
        }
    };
    let open = Open { presence: Some(presence), cancel: Some(cancel), ..Open::new(kind, work) };
    Begun { open, releasing: None }
}

/// Releases the locks whose grants were never written; but no re-entry, because the client will ask again under the
/// same request id, and find it counted.
pub(super) fn give_back(session: &Arc<Session>, done: Vec<Finished>) {
    for finished in done {
        let Finished::Answer { effect: Effect::Granted { token, paths, is_reentry: false }, .. } = finished else {
            continue;
        };
        let directories = paths.iter().filter_map(NodePath::parent);
        let locks: Vec<LockName> = directories.filter_map(|directory| LockName::of_directory(&directory)).collect();
        let (session, tasks) = (session.clone(), &session.context.tasks);
        tasks.spawn(async move {
            let (credential, principals) = (Some(session.credential), session.principals.clone());
            let caller = Caller { credential, principals, ..Caller::default() };
            let op = LockOp::Release { locks, token: FencingToken(token) };
            // If this fails, the session holds them until it ends or releases them; `hello` names them.
            if let Err(error) = session.context.node.execute(caller, op).await {
                let session = session.credential.session;
                tracing::debug!(%error, %session, token, "cannot release a grant whose answer was not written");
            }
        });
    }
}

/// The answer to a cancelled request, once the cluster has decided that it holds nothing.
async fn withdrawn(given_up: oneshot::Receiver<Undecided>) -> Failure {
    match timeout(LONGEST_WITHDRAWAL, given_up).await {
        // Dropped: nothing of the request is left.
        Ok(Err(_)) => {
            Failure::new(Code::Cancelled, "cancelled by the client; the request holds nothing and has left the queue")
        }
        Ok(Ok(Undecided)) | Err(_) => Failure::new(
            Code::UnknownOutcome,
            "cancelled, but it is unknown whether the request has left the queue; if it had a request id, repeat it \
             under that",
        ),
    }
}

async fn carry_out(
    session: Arc<Session>,
    id: u64,
    (caller, call, trace, undecided): (Caller, Call, Option<CallerTrace>, Option<oneshot::Sender<Undecided>>),
    (room, releasing): (Option<Taken>, Option<Releasing>),
) -> Finished {
    let (method, route) = call.route();
    let path = tracing::enabled!(tracing::Level::DEBUG).then(|| call.target());
    let lane = call.row().rules.own_lane.then_some(&session.lane);
    let admitted = session.context.admission.enter(address_of(Some(&session.from)), lane);
    let done = middleware::serve((method, route, path), Some(admitted), |at_work| {
        let (context, from, expires) = (session.context.clone(), session.from, session.expires);
        match at_work {
            Some(at_work) => {
                if let Some(room) = room {
                    at_work.keep(room);
                }
                let leader_limit = None;
                CallScope { context, caller, expires, at_work, from, undecided, leader_limit, trace }.dispatch(call)
            }
            None => async { Err(Failure::new(Code::Internal, "a call without a place; please report this")) }.boxed(),
        }
    });
    match done.await {
        Ok(reply) => {
            let effect = Effect::of(Some(&reply.body), releasing);
            let zxid = reply.zxid.map(|zxid| zxid.0);
            let text = frame::answer(id, reply.status, zxid, |text| frame::json(text, &reply.body));
            Finished::Answer { id, text, effect }
        }
        Err(failure) => {
            session.note_refusal(&failure);
            refused(id, &failure, Effect::of(None, releasing))
        }
    }
}

/// The answer to a request that was refused.
pub(super) fn refused_text(id: u64, failure: &Failure) -> Vec<u8> {
    frame::answer(id, failure.status(), failure.zxid().map(|zxid| zxid.0), |text| frame::json(text, failure.problem()))
}
