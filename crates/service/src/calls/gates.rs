//! Calls of gates: begin, finish, fail, look at, list, reset.

use std::sync::Arc;

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::gates::{
    Begin, Fail, Finish, Gate, GateReset, GateState, GateSummary, GateView, Gates, GatesQuery, Keep, ResetQuery,
    Settled,
};
use lockkeeper_api::{Code, Data};
use lockkeeper_core::access::Resource;
use lockkeeper_core::acl::Principals;
use lockkeeper_core::gate::FOREVER_MS;
use lockkeeper_core::limits::{MAX_FINGERPRINT_BYTES, MAX_GATE_KEEP_MS, MAX_GATE_PENDING_MS, MAX_GATE_RESULT_BYTES};
use lockkeeper_core::{FencingToken, GateKey, GateOp, GatePage, GateStanding, Reply as Outcome, State};
use lockkeeper_node::{Caller, NodeError};

use super::lists::{ListQuery, Names, Page, list};
use super::sessions::check_label;
use super::{CallScope, level, record, unexpected};
use crate::audit::AuditEvent;
use crate::failure::Failure;
use crate::principals::{may_name, may_read};
use crate::reply::{Answered, Reply};

/// Default of `pending_ms`.
const DEFAULT_PENDING_MS: u64 = 60_000;
/// Default of `keep_ms`.
const DEFAULT_KEEP_MS: u64 = 24 * 3_600_000;

fn time(field: &str, asked_ms: Option<u64>, default_ms: u64, max_ms: u64) -> Result<u64, Failure> {
    match asked_ms {
        None => Ok(default_ms),
        Some(asked_ms) if (1..=max_ms).contains(&asked_ms) => Ok(asked_ms),
        Some(other) => Err(Failure::bad_request(format!("'{field}' is from 1 to {max_ms}, not {other}"))),
    }
}

fn check_fingerprint(fingerprint: &str) -> Result<Arc<str>, Failure> {
    let bytes = fingerprint.len();
    if bytes == 0 || bytes > MAX_FINGERPRINT_BYTES {
        let detail =
            format!("'fingerprint' has 1 to {MAX_FINGERPRINT_BYTES} bytes, not {bytes}; send a hash of the operation");
        return Err(Failure::bad_request(detail));
    }
    Ok(Arc::from(fingerprint))
}

fn view(state: &State, standing: GateStanding) -> Gate {
    match standing {
        GateStanding::Proceed { token, until_ms } => Gate::Proceed { token: token.0, until_ms },
        GateStanding::InProgress { token, session, label, since_ms, until_ms } => Gate::InProgress {
            token: token.0,
            session_id: session.map(|session| session.0),
            label: state.label_or_session(&label, session),
            since_ms,
            until_ms,
        },
        GateStanding::Done { token, result, since_ms, until_ms } => {
            Gate::Done { token: token.0, result: Data::from_bytes(&result), since_ms, until_ms: until(until_ms) }
        }
    }
}

/// The end of a kept result; `None` if it is kept until the gate is reset.
fn until(until_ms: u64) -> Option<u64> {
    (until_ms != FOREVER_MS).then_some(until_ms)
}

fn count(outcome: &'static str) {
    metrics::counter!("lockkeeper_gate_outcomes_total", "outcome" => outcome).increment(1);
}

/// Asks to do an operation that is to be done once: the answer says to proceed, who does it, or what came of it.
///
/// With a session the gate opens again when that session ends; in any case once its pending time is over.
pub(super) async fn begin_gate(scope: CallScope, key: String, ask: Begin) -> Answered<GateView> {
    let key = GateKey::parse(&key)?;
    let op = GateOp::Begin {
        key: key.clone(),
        fingerprint: check_fingerprint(&ask.fingerprint)?,
        pending_ms: time("pending_ms", ask.pending_ms, DEFAULT_PENDING_MS, MAX_GATE_PENDING_MS)?,
        label: Arc::from(check_label(ask.label)?),
    };
    let finish = finish_op(&key, (FencingToken(0), Arc::from([])), (ask.keep, ask.keep_ms))?;
    let node = &scope.context.node;
    node.check_gate_result(&key, &finish.into()).await?;
    let done = node.execute(scope.caller, op).await.map_err(Failure::from).inspect_err(|failure| {
        if failure.code() == Code::GateMismatch {
            count("mismatch");
        }
    })?;
    let Outcome::Gate(standing) = done.value else { return Err(unexpected(&done.value)) };
    count(match &standing {
        GateStanding::Proceed { .. } => "proceed",
        GateStanding::InProgress { .. } => "in_progress",
        GateStanding::Done { .. } => "done",
    });
    let body = GateView { key: key.to_string(), gate: node.look(|state| view(state, standing)), zxid: done.zxid.0 };
    Ok(Reply::ok(done.zxid, body))
}

/// Stores what came of the operation, for those who ask for it later.
pub(super) async fn finish_gate(scope: CallScope, key: String, ask: Finish) -> Answered<Settled> {
    let key = GateKey::parse(&key)?;
    let result = ask.result.to_bytes().map_err(|error| Failure::bad_request(format!("'result': {error}")))?;
    if result.len() > MAX_GATE_RESULT_BYTES {
        let detail = format!(
            "'result' is at most {MAX_GATE_RESULT_BYTES} bytes, not {}; store large data elsewhere and its address \
             here",
            result.len()
        );
        return Err(Failure::new(Code::TooLarge, detail));
    }
    let op = finish_op(&key, (FencingToken(ask.token), Arc::from(result)), (ask.keep, ask.keep_ms))?;
    settle(scope, key, (ask.token, op), "finished").await
}

fn finish_op(
    key: &GateKey,
    (token, result): (FencingToken, Arc<[u8]>),
    (keep, keep_ms): (Option<Keep>, Option<u64>),
) -> Result<GateOp, Failure> {
    let key = key.clone();
    match (keep, keep_ms) {
        (Some(Keep::Forever), Some(_)) => {
            Err(Failure::bad_request("'keep' and 'keep_ms' exclude each other; send one of them"))
        }
        (Some(Keep::Forever), None) => Ok(GateOp::FinishForever { key, token, result }),
        (None, keep_ms) => {
            let keep_ms = time("keep_ms", keep_ms, DEFAULT_KEEP_MS, MAX_GATE_KEEP_MS)?;
            Ok(GateOp::Finish { key, token, result, keep_ms })
        }
    }
}

/// Opens the gate again: the operation did not take place.
pub(super) async fn fail_gate(scope: CallScope, key: String, Fail { token }: Fail) -> Answered<Settled> {
    let key = GateKey::parse(&key)?;
    let op = GateOp::Fail { key: key.clone(), token: FencingToken(token) };
    settle(scope, key, (token, op), "failed").await
}

async fn settle(
    scope: CallScope,
    key: GateKey,
    (token, op): (u64, GateOp),
    outcome: &'static str,
) -> Answered<Settled> {
    let done = scope.context.node.execute(scope.caller, op).await?;
    match done.value {
        Outcome::GateSettled => {
            count(outcome);
            let body = Settled { key: key.to_string(), token, zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

/// Opens the gate by force, whoever works or has worked: for people who know that the work is to be done again. Each
/// use is in the audit log.
pub(super) async fn reset_gate(scope: CallScope, key: String, query: ResetQuery) -> Answered<GateReset> {
    let key = GateKey::parse(&key)?;
    let refused = "resetting gates is off on this node (admin.allow_force_release); wait until the operation or its \
                   result runs out";
    let requester = scope.admit_force(refused).await?;
    let CallScope { context, caller, .. } = scope;
    let token = query.token.map(FencingToken);
    let op = GateOp::Reset { key: key.clone(), token };
    // No session remembers it: a second attempt could not tell its own success from another's.
    let caller = Caller { credential: None, request: None, may_force: true, ..caller };
    let done = context.node.execute(caller, op).await.map_err(Failure::from);
    let answered = done.and_then(|done| match done.value {
        Outcome::GateReset { token, was_done } => {
            count("reset");
            let was = if was_done { GateState::Done } else { GateState::InProgress };
            let body = GateReset { key: key.to_string(), token: token.0, was, zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    });
    let token = match &answered {
        Ok(Reply { body: reset, .. }) => Some(FencingToken(reset.token)),
        _ => token,
    };
    record(&context, AuditEvent::GateReset { gate: key, token }, requester, &answered);
    answered
}

/// Shows how a gate stands.
pub(super) async fn get_gate(scope: CallScope, key: String, query: ReadQuery) -> Answered<GateView> {
    let key = GateKey::parse(&key)?;
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let wanted = key.clone();
    let read = node
        .read(level(query.consistency), move |state: &State| {
            may_read(&principals, state, &wanted.path())?;
            Ok(state.gate(&wanted)?.map(|standing| view(state, standing)))
        })
        .await?;
    match read.value.map_err(NodeError::Refused)? {
        Some(gate) => {
            let body = GateView { key: key.to_string(), gate, zxid: read.zxid.0 };
            Ok(Reply::ok(read.zxid, body))
        }
        None => {
            let detail = format!("gate {key} is open: nobody has begun it, or what was known of it is over; begin it");
            Err(Failure::new(Code::NotFound, detail).at(read.zxid))
        }
    }
}

/// Lists the gates whose operation is under way or done, in the order of their keys.
pub(super) async fn list_gates(scope: CallScope, page: GatesQuery) -> Answered<Gates> {
    let GatesQuery { prefix, after, limit, consistency } = page;
    let query = ListQuery { prefix, after, limit, consistency };
    let show = |Page { state, who, names, after, limit }: Page<'_, GateKey>| {
        let mut found = match names {
            Names::InParts(key) => in_parts(state, key, after, limit),
            Names::Beginning(prefix) => state.gates(prefix, after, limit),
        };
        // The caller learns a key if it may list the directory of that key, and the worker if it may read the gate's
        // own node.
        found.gates.retain(|gate| may_name(who, state, &gate.key.path()));
        let gates: Vec<_> = found.gates.into_iter().map(|gate| summary(who, state, gate)).collect();
        (gates, found.next)
    };
    let ((gates, next), zxid) = list(scope, Resource::Gates, GateKey::parse, query, show).await?;
    Ok(Reply::ok(zxid, Gates { gates, next: next.map(|key| key.to_string()), zxid: zxid.0 }))
}

/// The gate of a key, or those below it: there cannot be both.
fn in_parts(state: &State, key: &str, after: Option<&GateKey>, limit: usize) -> GatePage {
    let own = state.gates(key, None, 1).gates.into_iter().find(|gate| gate.key.as_str() == key);
    match own.filter(|_| after.is_none()) {
        Some(own) => GatePage { gates: vec![own], next: None },
        None => state.gates(&format!("{key}/"), after, limit),
    }
}

fn summary(principals: &Principals, state: &State, gate: lockkeeper_core::GateSummary) -> GateSummary {
    let is_readable = may_read(principals, state, &gate.key.path()).is_ok();
    let session = gate.session.filter(|_| is_readable);
    GateSummary {
        key: gate.key.to_string(),
        state: if gate.result_bytes.is_some() { GateState::Done } else { GateState::InProgress },
        token: gate.token.0,
        session_id: session.map(|session| session.0),
        principal: session.and_then(|id| state.principal_of_session(state.session(id)?)),
        label: if is_readable { state.label_or_session(&gate.label, session) } else { String::new() },
        since_ms: gate.since_ms,
        until_ms: until(gate.until_ms),
        result_bytes: gate.result_bytes.map(|bytes| bytes as u64),
    }
}
