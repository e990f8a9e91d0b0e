//! The names of operations and modes in the script, which are ZooKeeper's.

use lockkeeper_zookeeper::OpCode;

/// An operation's name in the script.
pub(crate) fn name(operation: OpCode) -> &'static str {
    match operation {
        OpCode::Notification => "notification",
        OpCode::Create => "create",
        OpCode::Delete => "delete",
        OpCode::Exists => "exists",
        OpCode::GetData => "getData",
        OpCode::SetData => "setData",
        OpCode::GetAcl => "getACL",
        OpCode::SetAcl => "setACL",
        OpCode::GetChildren => "getChildren",
        OpCode::Sync => "sync",
        OpCode::Ping => "ping",
        OpCode::GetChildren2 => "getChildren2",
        OpCode::Check => "check",
        OpCode::Multi => "multi",
        OpCode::Create2 => "create2",
        OpCode::Reconfig => "reconfig",
        OpCode::CheckWatches => "checkWatches",
        OpCode::RemoveWatches => "removeWatches",
        OpCode::CreateContainer => "createContainer",
        OpCode::DeleteContainer => "deleteContainer",
        OpCode::CreateTtl => "createTTL",
        OpCode::MultiRead => "multiRead",
        OpCode::Auth => "auth",
        OpCode::SetWatches => "setWatches",
        OpCode::Sasl => "sasl",
        OpCode::GetEphemerals => "getEphemerals",
        OpCode::GetAllChildrenNumber => "getAllChildrenNumber",
        OpCode::SetWatches2 => "setWatches2",
        OpCode::AddWatch => "addWatch",
        OpCode::WhoAmI => "whoAmI",
        OpCode::CreateSession => "createSession",
        OpCode::CloseSession => "closeSession",
        OpCode::Error => "error",
    }
}

/// The operation with this name.
pub(super) fn operation(word: &str) -> Option<OpCode> {
    OpCode::ALL.iter().copied().find(|operation| name(*operation) == word)
}

/// The flags of a create mode.
pub(super) fn flags(word: &str) -> Option<i32> {
    Some(match word {
        "persistent" => 0,
        "ephemeral" => 1,
        "sequential" => 2,
        "ephemeral-sequential" => 3,
        "container" => 4,
        "ttl" => 5,
        "ttl-sequential" => 6,
        _ => return None,
    })
}

/// A mode of addWatch, or a type of checkWatches and removeWatches.
pub(super) fn watch(word: &str) -> Option<i32> {
    Some(match word {
        "persistent" => 0,
        "recursive" => 1,
        _ => word.parse().ok()?,
    })
}

/// A type of checkWatches and removeWatches.
pub(super) fn watcher(word: &str) -> Option<i32> {
    Some(match word {
        "children" => 1,
        "data" => 2,
        "any" => 3,
        "persistent" => 4,
        "recursive" => 5,
        _ => word.parse().ok()?,
    })
}
