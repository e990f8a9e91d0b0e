//! Calls of gates: begin, finish, fail, look at.

use std::sync::Arc;

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::gates::{Begin, Fail, Finish, Gate, GateView, Settled};
use lockkeeper_api::{Answer, Code, Data};
use lockkeeper_core::limits::{MAX_FINGERPRINT_BYTES, MAX_GATE_KEEP_MS, MAX_GATE_PENDING_MS, MAX_GATE_RESULT_BYTES};
use lockkeeper_core::{FencingToken, GateKey, GateOp, GateStanding, Reply as Outcome, State};
use lockkeeper_node::NodeError;

use super::sessions::check_label;
use super::{Answered, CallScope, level, unexpected};
use crate::failure::Failure;
use crate::principals::may_read;
use crate::reply::Reply;

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

fn view(standing: GateStanding) -> Gate {
    match standing {
        GateStanding::Proceed { token, until_ms } => Gate::Proceed { token: token.0, until_ms },
        GateStanding::InProgress { token, session, label, since_ms, until_ms } => Gate::InProgress {
            token: token.0,
            session_id: session.map(|session| session.0),
            label: label.to_string(),
            since_ms,
            until_ms,
        },
        GateStanding::Done { token, result, since_ms, until_ms } => {
            Gate::Done { token: token.0, result: Data::from_bytes(&result), since_ms, until_ms }
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("lockkeeper_gate_outcomes_total", "outcome" => outcome).increment(1);
}

/// Asks to do an operation that is to be done once: the answer says to proceed, who does it, or what came of it.
///
/// With a session the gate opens again when that session ends; in any case once its pending time is over.
pub(super) async fn begin(scope: CallScope, key: String, ask: Begin) -> Answered {
    let key = GateKey::parse(&key)?;
    let op = GateOp::Begin {
        key: key.clone(),
        fingerprint: check_fingerprint(&ask.fingerprint)?,
        pending_ms: time("pending_ms", ask.pending_ms, DEFAULT_PENDING_MS, MAX_GATE_PENDING_MS)?,
        label: Arc::from(check_label(ask.label)?),
    };
    let done = scope.context.node.execute(scope.caller, op).await.map_err(Failure::from).inspect_err(|failure| {
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
    let body = GateView { key: key.to_string(), gate: view(standing), zxid: done.zxid.0 };
    Ok(Reply::ok(done.zxid, Answer::Gate(body)))
}

/// Stores what came of the operation, for those who ask for it later.
pub(super) async fn finish(scope: CallScope, key: String, ask: Finish) -> Answered {
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
    let keep_ms = time("keep_ms", ask.keep_ms, DEFAULT_KEEP_MS, MAX_GATE_KEEP_MS)?;
    let token = FencingToken(ask.token);
    let op = GateOp::Finish { key: key.clone(), token, result: Arc::from(result), keep_ms };
    settle(scope, key, (ask.token, op), "finished").await
}

/// Opens the gate again: the operation did not take place.
pub(super) async fn fail(scope: CallScope, key: String, Fail { token }: Fail) -> Answered {
    let key = GateKey::parse(&key)?;
    let op = GateOp::Fail { key: key.clone(), token: FencingToken(token) };
    settle(scope, key, (token, op), "failed").await
}

async fn settle(scope: CallScope, key: GateKey, (token, op): (u64, GateOp), outcome: &'static str) -> Answered {
    let done = scope.context.node.execute(scope.caller, op).await?;
    match done.value {
        Outcome::GateSettled => {
            count(outcome);
            let body = Settled { key: key.to_string(), token, zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, Answer::GateSettled(body)))
        }
        other => Err(unexpected(&other)),
    }
}

/// Shows how a gate stands.
pub(super) async fn show(scope: CallScope, key: String, query: ReadQuery) -> Answered {
    let key = GateKey::parse(&key)?;
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let wanted = key.clone();
    let read = node
        .read(level(query.consistency), move |state: &State| {
            may_read(&principals, state, &wanted.path())?;
            state.gate(&wanted)
        })
        .await?;
    let standing = read.value.map_err(NodeError::Refused)?;
    match standing {
        Some(standing) => {
            let body = GateView { key: key.to_string(), gate: view(standing), zxid: read.zxid.0 };
            Ok(Reply::ok(read.zxid, Answer::Gate(body)))
        }
        None => {
            let detail = format!("gate {key} is open: nobody has begun it, or what was known of it is over; begin it");
            Err(Failure::new(Code::NotFound, detail).at(read.zxid))
        }
    }
}
