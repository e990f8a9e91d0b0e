//! The calls of the API, one function each, for HTTP routes and session streams alike. It takes the parameters of the
//! call in the order of its row in `api/src/calls.rs`, and is in the module that the row's group is named after. A call
//! translates and decides nothing: the rules are the node's and the core's.

mod access;
mod acquire;
mod cluster;
mod gates;
mod lists;
mod locks;
mod namespaces;
mod nodes;
mod rates;
mod sessions;
mod txn;
mod unfair;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use lockkeeper_api::row::Row;
use lockkeeper_api::{Answer, Call, Code, Level};
use lockkeeper_node::{Caller, Credential, NodeError, Undecided, within_leader_limit, within_same_leader_limit};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::admission::AtWork;
use crate::audit::{AuditEvent, AuditOutcome, AuditRecord, Requester};
use crate::caller::ClientAddress;
use crate::context::Context;
use crate::failure::{Failure, session_required, shutting_down};
use crate::otlp::CallerTrace;
use crate::principals::names_in;
use crate::reply::{Answered, Reply};
use crate::throttle::{Turn, charges_of_call};

pub use acquire::MAX_WAIT_MS;
pub use nodes::MAX_CHILDREN;

/// Most entries of a page.
pub const MAX_PAGE: usize = 1_000;
/// Entries of a page where nothing is said.
const DEFAULT_PAGE: usize = 100;

/// The scope of a call: the node, the caller, and the place that admission gave it.
pub struct CallScope {
    /// The node and what guards it.
    pub context: Arc<Context>,
    /// Who calls.
    pub caller: Caller,
    /// When the caller's JWT stops to count, if it has shown one: what goes on after the answer ends then.
    pub expires: Option<Instant>,
    /// The place that admission gave.
    pub at_work: AtWork,
    /// For the audit log.
    pub from: ClientAddress,
    /// For a lock request that can be cancelled: dropped once nothing of the request is left, or sent [`Undecided`].
    pub undecided: Option<oneshot::Sender<Undecided>>,
    /// How long the caller lets this node wait for the leader.
    pub leader_limit: Option<Duration>,
    /// What the caller says of its trace, where requests are traced.
    pub trace: Option<CallerTrace>,
}

impl CallScope {
    /// The credential, which this call needs.
    fn credential(&self) -> Result<Credential, Failure> {
        self.caller.credential.ok_or_else(session_required)
    }

    /// The same, of a session that is the caller's: the secret alone is not enough where another principal opened it.
    async fn own_credential(&self, session: u64) -> Result<Credential, Failure> {
        let credential = self.credential_of(session)?;
        // The call verifies the secret itself. Only where somebody may own the session is it verified before.
        if self.context.node.look(|state| state.access().is_enabled()) {
            // This replica may not know a session that is new.
            self.context.node.authorise(&credential).await?;
            check_owner(&self.context, &self.caller, &credential)?;
        }
        Ok(credential)
    }

    /// The credential, which must be that of `session`.
    pub fn credential_of(&self, session: u64) -> Result<Credential, Failure> {
        let credential = self.credential()?;
        if credential.session.0 != session {
            let detail = format!(
                "the credential is of session {}, not of session {session}; a session is managed by itself alone",
                credential.session
            );
            return Err(Failure::new(Code::Forbidden, detail));
        }
        Ok(credential)
    }

    /// The caller for the audit log. The session is named only by calls that have verified its secret.
    pub fn requester(&self) -> Requester {
        let request_id = self.caller.request.as_ref().map(|request| request.id);
        let principals = self.context.node.look(|state| names_in(&self.caller.principals, state));
        Requester { request_id, principals, ..Requester::at(self.from.address.ip()) }
    }

    /// Admits an act by force, which `refused` explains where this node allows none. Returns the requester for the
    /// audit log.
    async fn admit_force(&self, refused: &'static str) -> Result<Requester, Failure> {
        let Self { context, caller, .. } = self;
        if !context.admin.allow_force_release {
            return Err(Failure::new(Code::Forbidden, refused));
        }
        if context.stopping.is_cancelled() {
            return Err(shutting_down());
        }
        let mut requester = self.requester();
        // The audit log must name only sessions whose secret was shown; and any request is a sign of life.
        if let Some(credential) = &caller.credential {
            context.node.keepalive(credential).await?;
            requester.session = Some(credential.session);
        }
        Ok(requester)
    }

    /// Carries out a call when it is the turn of its namespace. Its span begins here: the request was admitted, and the
    /// caller is who it says.
    pub fn dispatch(self, call: Call) -> BoxFuture<'static, Answered> {
        match self.leader_limit {
            Some(limit) => within_leader_limit(limit, self.dispatch_traced(call)).boxed(),
            None => self.dispatch_traced(call),
        }
    }

    fn dispatch_traced(mut self, call: Call) -> BoxFuture<'static, Answered> {
        let trace = self.trace.take();
        let begun =
            self.context.otlp.as_ref().zip(trace).and_then(|(otlp, trace)| otlp.begin_request(trace, call.route()));
        let Some(mut span) = begun else { return self.dispatch_in_turn(call) };
        span.describe(&call, self.caller.credential.map(|credential| credential.session.0));
        self.caller.trace = Some(span.context());
        let work = self.dispatch_in_turn(call);
        async move {
            let answered = work.await;
            span.end(&answered);
            answered
        }
        .boxed()
    }

    fn dispatch_in_turn(self, call: Call) -> BoxFuture<'static, Answered> {
        let node = &self.context.node;
        if !node.has_namespaces() {
            return self.carry_out(call);
        }
        let charges = node.look(|state| charges_of_call(state, &self.caller.principals, &call));
        let turn = self.context.admission.throttle.turn(&charges);
        if turn == Turn::Now {
            return self.carry_out(call);
        }
        async move {
            // Others have its place meanwhile.
            let waiting = self.at_work.step_aside(&self.context.admission)?;
            turn.wait().await?;
            self.at_work.come_back(&self.context.admission)?;
            drop(waiting);
            self.carry_out(call).await
        }
        .boxed()
    }
}

macro_rules! carry_out {
    ($($group:ident { $(
        $(#[doc = $line:literal])*
        $call:ident $function:ident = $method:ident $route:literal
        $({ $part:ident } $kind:ident $about:literal)*
        $($input:ident : $type:ident $(= $default:ident)? ,)*
        -> $status:literal $answer:ident $done:literal
        { $($rules:tt)* }
    )* })*) => {
        impl CallScope {
            /// Carries out a call, by the function that its row names. Each call's future is boxed by itself: one
            /// future for all would be as large as the largest.
            fn carry_out(self, call: Call) -> BoxFuture<'static, Answered> {
                let (row, context) = (call.row(), self.context.clone());
                match call {
                    $($(Call::$call { $($part,)* $($input,)* } => {
                        answer(row, context, $group::$function(self, $($part,)* $($input,)*), Answer::$call)
                    })*)*
                }
            }
        }
    };
}

lockkeeper_api::each_call!(carry_out);

/// Gives the answer of a call, as its row says.
fn answer<T: 'static>(
    row: &'static Row,
    context: Arc<Context>,
    call: impl Future<Output = Answered<T>> + Send + 'static,
    boxed: fn(Box<T>) -> Answer,
) -> BoxFuture<'static, Answered> {
    let within = context.clone();
    let answer = async move {
        let reply = call.await.map_err(|failure| with_level(&within, failure))?;
        Ok(Reply { status: row.status, zxid: reply.zxid, body: boxed(Box::new(reply.body)) })
    };
    if row.rules.audited { to_the_end(context, answer).boxed() } else { answer.boxed() }
}

/// Checks that a session, whose secret was verified, is the caller's.
pub fn check_owner(context: &Context, caller: &Caller, credential: &Credential) -> Result<(), Failure> {
    let checked = context.node.look(|state| state.check_owner(&caller.principals, credential.session));
    checked.map_err(|refusal| NodeError::Refused(refusal).into())
}

/// Carries out a call to its end even if its client disconnects: what it changes needs its audit record.
async fn to_the_end(context: Arc<Context>, call: impl Future<Output = Answered> + Send + 'static) -> Answered {
    context.tasks.spawn(within_same_leader_limit(call)).await.unwrap_or_else(|ended| match ended.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(Failure::new(Code::UnknownOutcome, "this node stopped meanwhile; it may or may not be executed")),
    })
}

/// Says in the refusal of a call that needs a higher feature level what holds the level back.
fn with_level(context: &Context, failure: Failure) -> Failure {
    match failure.code() {
        Code::FeatureLevelTooLow => {
            failure.with(|problem| problem.detail.push_str(&cluster::holds_level_back(context)))
        }
        _ => failure,
    }
}

/// Writes the audit record of a call. An access that was refused is counted, not audited.
fn record<T>(context: &Context, event: AuditEvent, requester: Requester, answered: &Answered<T>) {
    let is_refused_outright = |code| matches!(code, Code::Forbidden | Code::Unauthenticated | Code::BadRequest);
    if !matches!(answered, Err(failure) if is_refused_outright(failure.code())) {
        context.audit.record(&AuditRecord { event, requester, outcome: AuditOutcome::of(answered) });
    }
}

fn page_limit(asked: Option<usize>) -> Result<usize, Failure> {
    match asked {
        None => Ok(DEFAULT_PAGE),
        Some(limit @ 1..=MAX_PAGE) => Ok(limit),
        Some(other) => Err(Failure::bad_request(format!("'limit' is from 1 to {MAX_PAGE}, not {other}"))),
    }
}

fn level(asked: Option<Level>) -> lockkeeper_node::Consistency {
    match asked.unwrap_or_default() {
        Level::Linearizable => lockkeeper_node::Consistency::Linearizable,
        Level::Stale => lockkeeper_node::Consistency::Stale,
    }
}

/// A defect: the node's reply belongs to another command.
fn unexpected(reply: &lockkeeper_core::Reply) -> Failure {
    Failure::new(
        Code::Internal,
        format!("the node gave a reply that does not go with the request: {reply:?}; please report this"),
    )
}
