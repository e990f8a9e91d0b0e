//! The call of a transaction: several operations, all or nothing, under one zxid.

use lockkeeper_api::Code;
use lockkeeper_api::nodes::{Kind, Txn, TxnDone, TxnOp, TxnResult};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_MULTI_OPS;
use lockkeeper_core::{FencingToken, LockName, NodeOp, NodePath, Op, Reply as Outcome};

use super::nodes::{acl_in, data_in, kind_in, not_reserved, stat_out};
use super::{CallScope, unexpected};
use crate::failure::Failure;
use crate::reply::{Answered, Reply};

/// Carries out a transaction: all of it or nothing.
pub(super) async fn run_transaction(scope: CallScope, ask: Txn) -> Answered<TxnDone> {
    let count = ask.operations.len();
    if count == 0 || count > MAX_MULTI_OPS {
        return Err(Failure::bad_request(format!(
            "a transaction has 1 to {MAX_MULTI_OPS} operations, this one has {count}"
        )));
    }
    let needs_session = |op: &TxnOp| matches!(op, TxnOp::Create { kind: Kind::Ephemeral, .. });
    if ask.operations.iter().any(needs_session) {
        scope.credential()?;
    }
    let mut ops = Vec::with_capacity(count);
    for (index, op) in ask.operations.into_iter().enumerate() {
        ops.push(operation(op, &scope.caller.principals).map_err(|failure| in_operation(failure, index))?);
    }
    let done = scope.context.node.execute(scope.caller, Op::Multi(ops)).await?;
    let Outcome::Multi(replies) = done.value else { return Err(unexpected(&done.value)) };
    let results = replies.into_iter().map(result).collect::<Result<Vec<_>, _>>()?;
    Ok(Reply::ok(done.zxid, TxnDone { results, zxid: done.zxid.0 }))
}

fn in_operation(failure: Failure, index: usize) -> Failure {
    failure.with(|problem| {
        problem.detail = format!("operation {index}: {}", problem.detail);
        problem.operation = u32::try_from(index).ok();
    })
}

fn operation(op: TxnOp, principals: &Principals) -> Result<NodeOp, Failure> {
    Ok(match op {
        TxnOp::Create { path, data, kind, ttl_ms, sequential, acl } => NodeOp::Create {
            path: {
                let path = NodePath::parse(&path)?;
                not_reserved(&path)?;
                path
            },
            data: data_in(&data)?,
            kind: kind_in(kind, ttl_ms)?,
            sequential: sequential.into(),
            acl: acl_in(principals, acl)?,
        },
        TxnOp::Delete { path, version } => NodeOp::Delete { path: NodePath::parse(&path)?, version },
        TxnOp::Set { path, data, version } => {
            NodeOp::SetData { path: NodePath::parse(&path)?, data: data_in(&data)?, version }
        }
        TxnOp::Check { path, version } => NodeOp::Check { path: NodePath::parse(&path)?, version },
        TxnOp::Add { path, delta, min, max } => {
            let path = NodePath::parse(&path)?;
            not_reserved(&path)?;
            NodeOp::Add { path, delta, min, max }
        }
        TxnOp::LockHeld { lock, token } => {
            NodeOp::CheckLock { lock: LockName::parse(&lock)?, token: FencingToken(token) }
        }
    })
}

fn result(reply: Outcome) -> Result<TxnResult, Failure> {
    Ok(match reply {
        Outcome::Created { path, stat } => TxnResult::Create { path: path.to_string(), stat: stat_out(stat) },
        Outcome::Deleted => TxnResult::Delete,
        Outcome::Added(value) => TxnResult::Add { value },
        Outcome::DataSet(stat) => TxnResult::Set { stat: stat_out(stat) },
        // A lock's check answers as a node's check does; the client knows which one it sent.
        Outcome::Checked => TxnResult::Check,
        other => {
            return Err(Failure::new(Code::Internal, format!("an operation answered with something else: {other:?}")));
        }
    })
}
