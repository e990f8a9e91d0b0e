//! The names of modes in the script, which are ZooKeeper's.

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

/// A mode of addWatch.
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
