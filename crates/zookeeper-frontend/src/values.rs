//! Translates the state's values into the protocol's: stats, node kinds, refusals.

use lockkeeper_core::{NodeKind, NodePath, Refusal, Zxid};
use lockkeeper_zookeeper::{CreateMode, ErrorCode, Stat};

/// A zxid in a header or a stat. The sign bit is never reached: at a million changes a second that takes 292,000 years.
pub(super) fn zxid(zxid: Zxid) -> i64 {
    zxid.0.cast_signed()
}

/// A node's stat.
pub(super) fn stat(stat: &lockkeeper_core::Stat) -> Stat {
    Stat {
        czxid: zxid(stat.czxid),
        mzxid: zxid(stat.mzxid),
        ctime_ms: stat.ctime_ms.cast_signed(),
        mtime_ms: stat.mtime_ms.cast_signed(),
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        // ZooKeeper marks containers and TTLs here internally, but shows neither.
        ephemeral_owner: stat.ephemeral_owner.map_or(0, |session| session.0.cast_signed()),
        // Both are bounded far below the sign bit.
        data_length: stat.data_length.cast_signed(),
        num_children: stat.num_children.cast_signed(),
        pzxid: zxid(stat.pzxid),
    }
}

/// The node kind that flags stand for, and whether the name gets a sequence number.
///
/// # Errors
/// `BadArguments` for unknown flags, a TTL without a TTL kind, or a TTL out of range.
pub(super) fn kind(flags: i32, ttl_ms: Option<i64>) -> Result<(NodeKind, bool), ErrorCode> {
    let mode = CreateMode::from_number(flags).ok_or(ErrorCode::BadArguments)?;
    let kind = match (mode.is_ttl(), ttl_ms) {
        (true, Some(ttl_ms @ 1..)) => {
            let ttl_ms = ttl_ms.cast_unsigned();
            if ttl_ms > lockkeeper_core::limits::MAX_TTL_MS {
                return Err(ErrorCode::BadArguments);
            }
            NodeKind::Ttl { ttl_ms }
        }
        (true, _) | (false, Some(_)) => return Err(ErrorCode::BadArguments),
        (false, None) if mode.is_ephemeral() => NodeKind::Ephemeral,
        (false, None) if mode.is_container() => NodeKind::Container,
        (false, None) => NodeKind::Persistent,
    };
    Ok((kind, mode.is_sequential()))
}

/// The path of a read. An invalid path is an absent node, and an empty one the root, as in ZooKeeper.
///
/// # Errors
/// `NoNode` for an invalid path.
pub(super) fn path_to_read(text: &str) -> Result<NodePath, ErrorCode> {
    if text.is_empty() { Ok(NodePath::root()) } else { NodePath::parse(text).map_err(|_| ErrorCode::NoNode) }
}

/// The path of a change.
///
/// # Errors
/// `BadArguments` for an invalid path.
pub(super) fn path(text: &str) -> Result<NodePath, ErrorCode> {
    NodePath::parse(text).map_err(|_| ErrorCode::BadArguments)
}

/// The version that a request expects; −1 matches any.
pub(super) fn version(version: i32) -> Option<i32> {
    (version != -1).then_some(version)
}

/// The error code of a refusal.
pub(super) fn code(refusal: &Refusal) -> ErrorCode {
    match refusal {
        Refusal::NoNode(_) => ErrorCode::NoNode,
        Refusal::NodeExists(_) => ErrorCode::NodeExists,
        Refusal::NotEmpty(_) => ErrorCode::NotEmpty,
        Refusal::BadVersion { .. } => ErrorCode::BadVersion,
        Refusal::NoChildrenForEphemerals(_) => ErrorCode::NoChildrenForEphemerals,
        Refusal::InvalidAcl(_) => ErrorCode::InvalidAcl,
        Refusal::NoAuth { .. } | Refusal::Forbidden(_) | Refusal::Unauthenticated(_) => ErrorCode::NoAuth,
        Refusal::SessionExpired(_) => ErrorCode::SessionExpired,
        Refusal::SessionMoved(_) => ErrorCode::SessionMoved,
        Refusal::MultiFailed { cause, .. } => code(cause),
        Refusal::TooManyEphemerals { .. } | Refusal::StateFull { .. } | Refusal::NamespaceFull { .. } => {
            ErrorCode::QuotaExceeded
        }
        Refusal::BadArguments(_)
        | Refusal::SessionRequired
        | Refusal::NotHeld { .. }
        | Refusal::NotQueued { .. }
        | Refusal::RequestMismatch
        | Refusal::LockMismatch { .. }
        | Refusal::ForeignNames { .. }
        | Refusal::GateNotPending { .. }
        | Refusal::GateMismatch { .. }
        | Refusal::GateTokenMismatch { .. }
        | Refusal::NotThere(_)
        | Refusal::RoleChanged { .. }
        | Refusal::NamespaceChanged { .. }
        | Refusal::FeatureLevelTooLow { .. }
        | Refusal::OutOfBounds { .. }
        | Refusal::NotANumber { .. }
        | Refusal::RateMismatch { .. } => ErrorCode::BadArguments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_give_the_node_kind() {
        assert_eq!(kind(0, None), Ok((NodeKind::Persistent, false)));
        assert_eq!(kind(1, None), Ok((NodeKind::Ephemeral, false)));
        assert_eq!(kind(2, None), Ok((NodeKind::Persistent, true)));
        assert_eq!(kind(3, None), Ok((NodeKind::Ephemeral, true)));
        assert_eq!(kind(4, None), Ok((NodeKind::Container, false)));
        assert_eq!(kind(5, Some(9)), Ok((NodeKind::Ttl { ttl_ms: 9 }, false)));
        assert_eq!(kind(6, Some(9)), Ok((NodeKind::Ttl { ttl_ms: 9 }, true)));
        for wrong in [(7, None), (-1, None), (0, Some(9)), (5, None), (5, Some(0)), (5, Some(-1)), (5, Some(i64::MAX))]
        {
            assert_eq!(kind(wrong.0, wrong.1), Err(ErrorCode::BadArguments), "{wrong:?}");
        }
    }
}
