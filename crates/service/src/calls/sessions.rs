//! Calls of sessions: open, keep alive, look at, close.

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::sessions::{Closed, KeptAlive, OpenSession, Session, SessionOpened, Sessions, SessionsQuery};
use lockkeeper_api::{Code, Credential as ApiCredential};
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_LABEL_BYTES;
use lockkeeper_core::{Refusal, SessionId, State};
use lockkeeper_node::{Consistency, Credential, Node, NodeError};

use super::{CallScope, level, page_limit};
use crate::caller::ClientAddress;
use crate::context::Context;
use crate::failure::Failure;
use crate::principals::may_name;
use crate::reply::{Answered, Reply};

/// Most ephemeral nodes named in the view of a session.
const EPHEMERALS_SHOWN: usize = 100;

/// Checks a label.
pub(super) fn check_label(label: Option<String>) -> Result<String, Failure> {
    let label = label.unwrap_or_default();
    if label.len() > MAX_LABEL_BYTES {
        let detail = format!(
            "'label' is at most {MAX_LABEL_BYTES} bytes long, this one has {}; send a shorter one",
            label.len()
        );
        return Err(Failure::bad_request(detail));
    }
    if label.chars().any(char::is_control) {
        return Err(Failure::bad_request("'label' must not contain control characters"));
    }
    Ok(label)
}

/// The label of a session whose client gives none.
pub(super) fn label_or_address(label: String, ClientAddress { address, .. }: ClientAddress) -> String {
    if label.is_empty() { format!("http client at {}", address.ip().to_canonical()) } else { label }
}

/// The credential as clients carry it.
pub(super) fn credential_text(credential: &Credential) -> String {
    ApiCredential { session_id: credential.session.0, secret: *credential.secret() }.to_string()
}

impl Context {
    /// The session timeout that a client gets.
    pub(super) fn session_timeout_ms(&self, asked_ms: Option<u32>) -> u32 {
        let timing = &self.timing;
        let wanted = asked_ms.unwrap_or(timing.default_session_timeout_ms);
        wanted.clamp(timing.min_session_timeout_ms, timing.max_session_timeout_ms)
    }
}

/// Opens a session.
pub(super) async fn open_session(scope: CallScope, ask: OpenSession) -> Answered<SessionOpened> {
    let context = &scope.context;
    let label = label_or_address(check_label(ask.label)?, scope.from);
    let timeout_ms = context.session_timeout_ms(ask.timeout_ms);
    let opened = context.node.open_session_as(scope.caller.principals, false, timeout_ms, &label).await?;
    let session = opened.value;
    let body = SessionOpened {
        session_id: session.credential.session.0,
        credential: credential_text(&session.credential),
        timeout_ms: session.timeout_ms,
        zxid: opened.zxid.0,
        leader: context.leader().and_then(|leader| context.client_address(leader)),
    };
    Ok(Reply::ok(opened.zxid, body))
}

/// Keeps the session alive for another timeout, counted from when this request was sent.
pub(super) async fn keep_session_alive(scope: CallScope, id: u64) -> Answered<KeptAlive> {
    let credential = scope.own_credential(id).await?;
    let kept = scope.context.node.keepalive(&credential).await?;
    let body = KeptAlive { session_id: id, timeout_ms: kept.value.timeout_ms, zxid: kept.zxid.0 };
    Ok(Reply::ok(kept.zxid, body))
}

/// Closes the session and removes everything it owned, in one transaction.
pub(super) async fn close_session(scope: CallScope, id: u64) -> Answered<Closed> {
    let credential = scope.credential_of(id)?;
    scope.context.node.authorise(&credential).await?;
    // The end of a session is decided by its secret alone, so the right to it is read before.
    let (node, principals) = (&scope.context.node, &scope.caller.principals);
    let owner = node.read(Consistency::Linearizable, |state| state.check_owner(principals, credential.session)).await?;
    owner.value.map_err(NodeError::Refused)?;
    let closed = scope.context.node.close_session(&credential).await?;
    Ok(Reply::ok(closed.zxid, Closed { session_id: id, zxid: closed.zxid.0 }))
}

/// Shows a session. Needs no secret and shows none.
pub(super) async fn get_session(scope: CallScope, id: u64, query: ReadQuery) -> Answered<Session> {
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let session = SessionId(id);
    let read = node
        .read(level(query.consistency), move |state: &State| {
            may_see(&principals, state, session)?;
            Ok(state.session(session).map(|found| view(&principals, state, (session, found))))
        })
        .await?;
    match read.value.map_err(NodeError::Refused)? {
        Some(session) => Ok(Reply::ok(read.zxid, with_silence(node, session))),
        None => {
            let detail = format!("there is no session {id}: it has expired, was closed, or never was");
            Err(Failure::new(Code::NotFound, detail).at(read.zxid))
        }
    }
}

/// Checks that the caller may see a session: its own, or all.
fn may_see(principals: &Principals, state: &State, id: SessionId) -> Result<(), Refusal> {
    let is_owned = state.session(id).is_some_and(|session| session.identity.is_some());
    if is_owned && state.check_owner(principals, id).is_ok() {
        return Ok(());
    }
    state.check_right(principals, &Need::of(Resource::Sessions, "", Rights::READ))
}

/// The view of a session, without names in directories that the caller may not list, and without its last sign of life.
fn view(principals: &Principals, state: &State, (id, session): (SessionId, &lockkeeper_core::Session)) -> Session {
    let ephemerals = session.ephemerals();
    Session {
        session_id: id.0,
        timeout_ms: session.timeout_ms,
        principal: state.principal_of_session(session),
        label: session.label.to_string(),
        opened_ms: session.opened_ms,
        silent_ms: None,
        remaining_ms: None,
        ephemeral_count: ephemerals.len() as u64,
        ephemerals: ephemerals
            .take(EPHEMERALS_SHOWN)
            .filter(|path| may_name(principals, state, path))
            .map(ToString::to_string)
            .collect(),
    }
}

/// Adds the last sign of life, which is no part of the state: outside of the state's lock, because that of the signs is
/// held for long where all of them are copied.
fn with_silence(node: &Node, session: Session) -> Session {
    let silence = node.session_silence(SessionId(session.session_id));
    let silent_ms = silence.map(|silence| u64::try_from(silence.as_millis()).unwrap_or(u64::MAX));
    let remaining_ms = silent_ms.map(|silent_ms| u64::from(session.timeout_ms).saturating_sub(silent_ms));
    Session { silent_ms, remaining_ms, ..session }
}

/// Lists sessions in the order in which they were opened.
pub(super) async fn list_sessions(scope: CallScope, page: SessionsQuery) -> Answered<Sessions> {
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let limit = page_limit(page.limit)?;
    let after = page.after.map(SessionId);
    let read = node
        .read(level(page.consistency), move |state: &State| {
            state.check_right(&principals, &Need::of(Resource::Sessions, "", Rights::READ))?;
            let mut found: Vec<Session> =
                state.sessions_after(after).take(limit + 1).map(|session| view(&principals, state, session)).collect();
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(|last| last.session_id);
            Ok((found, next))
        })
        .await?;
    let (sessions, next) = read.value.map_err(NodeError::Refused)?;
    let sessions = sessions.into_iter().map(|session| with_silence(node, session)).collect();
    Ok(Reply::ok(read.zxid, Sessions { sessions, next, zxid: read.zxid.0 }))
}
