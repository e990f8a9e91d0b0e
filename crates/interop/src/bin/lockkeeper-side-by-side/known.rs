//! The known differences with their reasons. Each entry must occur in each run: an unused entry is a failure.

/// A difference and its reason.
#[derive(Debug)]
pub(crate) struct KnownDifference {
    /// Its name in the script, after `~`.
    pub(crate) key: &'static str,
    /// The request or value that differs.
    pub(crate) what: &'static str,
    /// What ZooKeeper does.
    pub(crate) zookeeper: &'static str,
    /// What Lockkeeper does.
    pub(crate) lockkeeper: &'static str,
    /// The differing text in ZooKeeper's and in Lockkeeper's lines. Lockkeeper's is empty if it depends on the request;
    /// each step then has it.
    pub(crate) seen: [&'static str; 2],
    /// Why Lockkeeper behaves differently.
    pub(crate) reason: &'static str,
}

/// The key of the difference that is in no line: events with a zxid.
pub(crate) const EVENT_ZXID: &str = "event-zxid";

pub(crate) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        key: EVENT_ZXID,
        what: "The zxid in the header of a watch event",
        zookeeper: "none (-1)",
        lockkeeper: "that of the change",
        seen: ["none (-1)", "that of the change"],
        reason: "ZooKeeper sends it since 3.9",
    },
    KnownDifference {
        key: "watch-types",
        what: "checkWatches and removeWatches of types 4 (persistent) and 5 (recursive)",
        zookeeper: "`MarshallingError`",
        lockkeeper: "supported",
        seen: ["MarshallingError", ""],
        reason: "ZooKeeper supports them since 3.9",
    },
    KnownDifference {
        key: "watch-modes",
        what: "A persistent, a recursive and a one-shot watch of one client on one node",
        zookeeper: "only the last one exists; checkWatches finds any kind",
        lockkeeper: "each exists until it is removed or fires",
        seen: ["ok", ""],
        reason: "They are independent since ZooKeeper 3.9; before, each replaced the others",
    },
    KnownDifference {
        key: "others-watches",
        what: "checkWatches if only another client watches",
        zookeeper: "there is one",
        lockkeeper: "`NoWatcher`",
        seen: ["ok", "NoWatcher"],
        reason: "ZooKeeper checks only the caller's own watches since 3.9",
    },
    KnownDifference {
        key: "wrong-password-closes",
        what: "A client with a session's id and a wrong password",
        zookeeper: "closes the owner's connection, then refuses",
        lockkeeper: "refuses",
        seen: ["is closed by the server", "refused"],
        reason: "ZooKeeper closes the owner's connection before it checks the password, so anybody could disconnect \
         anybody",
    },
    KnownDifference {
        key: "timeout-stays",
        what: "Reconnecting to a session with another timeout",
        zookeeper: "grants it",
        lockkeeper: "replies with the negotiated one",
        seen: ["timeout 4000", "timeout 20000"],
        reason: "A session's timeout is negotiated when it is opened",
    },
    KnownDifference {
        key: "long-path",
        what: "A part of a path of more than 255 bytes, a path of more than 1024",
        zookeeper: "done",
        lockkeeper: "`BadArguments`",
        seen: ["ok", "BadArguments"],
        reason: "Every input is limited",
    },
    KnownDifference {
        key: "long-acl",
        what: "An id in an ACL of more than 256 bytes",
        zookeeper: "done",
        lockkeeper: "`InvalidAcl`",
        seen: ["ok", "InvalidAcl"],
        reason: "Every input is limited",
    },
    KnownDifference {
        key: "long-multi",
        what: "A multi of more than 1,024 operations",
        zookeeper: "done",
        lockkeeper: "`BadArguments`",
        seen: ["ok", "BadArguments"],
        reason: "Every input is limited",
    },
    KnownDifference {
        key: "permission-bits",
        what: "Permissions beyond the five defined bits",
        zookeeper: "stored",
        lockkeeper: "`InvalidAcl`",
        seen: ["ok", "InvalidAcl"],
        reason: "They have no meaning; the client's mistake should be visible",
    },
    KnownDifference {
        key: "nothing-changed",
        what: "The zxid of a multi that changes nothing (only checks, or empty)",
        zookeeper: "a new zxid",
        lockkeeper: "the latest zxid",
        seen: ["at z", ""],
        reason: "ZooKeeper logs a transaction for it; here only changes have a zxid of their own",
    },
    KnownDifference {
        key: "ttl-without-ttl",
        what: "create with the flags of a TTL node within a multi",
        zookeeper: "`MarshallingError`",
        lockkeeper: "`BadArguments` among the results",
        seen: ["MarshallingError", "BadArguments"],
        reason: "The request is well-formed but its flags are invalid, as outside a multi",
    },
    KnownDifference {
        key: "unknown-keeps",
        what: "An operation that does not exist or is used between servers only",
        zookeeper: "`Unimplemented`, and closes the connection",
        lockkeeper: "`Unimplemented`",
        seen: ["closed by the server", "Unimplemented"],
        reason: "Both reply Unimplemented, but ZooKeeper also closes the connection, which loses the session's watches",
    },
    KnownDifference {
        key: "servers-only",
        what: "deleteContainer from a client",
        zookeeper: "executed: `BadArguments` if the node is not a container",
        lockkeeper: "`Unimplemented`",
        seen: ["BadArguments", "Unimplemented"],
        reason: "It is meant between servers only; ZooKeeper accepts it from any client",
    },
    KnownDifference {
        key: "create-session",
        what: "createSession within a session",
        zookeeper: "a second connect response among the replies",
        lockkeeper: "`Unimplemented`",
        seen: ["to xid 0", "Unimplemented"],
        reason: "Only a connection's first frame opens a session",
    },
    KnownDifference {
        key: "sasl",
        what: "sasl",
        zookeeper: "an empty token",
        lockkeeper: "`Unimplemented`",
        seen: ["token of 0 bytes", "Unimplemented"],
        reason: "SASL is not supported; ZooKeeper without SASL replies with an empty token",
    },
    KnownDifference {
        key: "null-path",
        what: "A path that is null",
        zookeeper: "`MarshallingError`",
        lockkeeper: "as the empty path: the root for reads, `BadArguments` for changes",
        seen: ["MarshallingError", ""],
        reason: "Null and empty strings are equal here",
    },
    KnownDifference {
        key: "negative-count",
        what: "An ACL of less than -1 entries",
        zookeeper: "`InvalidAcl`, as for an empty ACL",
        lockkeeper: "`MarshallingError`",
        seen: ["InvalidAcl", "MarshallingError"],
        reason: "A length below -1 is invalid",
    },
    KnownDifference {
        key: "not-utf8",
        what: "A path that is not UTF-8",
        zookeeper: "`NoNode`",
        lockkeeper: "`MarshallingError`",
        seen: ["NoNode", "MarshallingError"],
        reason: "ZooKeeper replaces invalid bytes, so that two names may become one",
    },
    KnownDifference {
        key: "special-multi",
        what: "Checks of nodes below /zookeeper in a multi",
        zookeeper: "checked",
        lockkeeper: "`NoNode`",
        seen: ["ok", "NoNode"],
        reason: "Only reads show them; the state does not contain them",
    },
    KnownDifference {
        key: "special-missing",
        what: "Deleting an absent node below /zookeeper",
        zookeeper: "`NoNode`",
        lockkeeper: "`NoAuth`",
        seen: ["NoNode", "NoAuth"],
        reason: "Nothing there can be changed, whether it exists or not",
    },
    KnownDifference {
        key: "special-stays",
        what: "Changes below /zookeeper",
        zookeeper: "done",
        lockkeeper: "`NoAuth`",
        seen: ["ok", "NoAuth"],
        reason: "It is read-only: there are no quotas, and nothing else belongs there",
    },
    KnownDifference {
        key: "others-requests",
        what: "Changing data or ACL of another session's lock request below /locks",
        zookeeper: "done",
        lockkeeper: "`NoAuth`",
        seen: ["ok", "NoAuth"],
        reason: "A request belongs to its session; others must not rewrite the holder",
    },
    KnownDifference {
        key: "nobodys-requests",
        what: "A lock request below /locks that is not an ephemeral node",
        zookeeper: "done",
        lockkeeper: "`BadArguments`",
        seen: ["ok", "BadArguments"],
        reason: "It would hold for ever and nobody would own it",
    },
    KnownDifference {
        key: "foreign-names",
        what: "An ephemeral sequential node below /locks, in a queue whose clients do not recognize its name",
        zookeeper: "done",
        lockkeeper: "`BadArguments`, unless `locks.foreign_names` is `allow`",
        seen: ["ok", "BadArguments"],
        reason: "Both clients would hold the lock at once",
    },
    KnownDifference {
        key: "service-tops",
        what: "setACL of /, /locks and /gates; setData or delete of /locks and /gates; an ACL given when those are \
         created",
        zookeeper: "done",
        lockkeeper: "`NoAuth` for all but `super`; they are created open to everybody",
        seen: ["ok", "NoAuth"],
        reason: "Otherwise an anonymous client could lock everybody out",
    },
    KnownDifference {
        key: "gates-by-hand",
        what: "Creating a node below /gates that is not a container, and changing a gate's data",
        zookeeper: "done",
        lockkeeper: "`NoAuth`",
        seen: ["ok", "NoAuth"],
        reason: "Only the gate calls write a gate's record, so that nobody can forge a result",
    },
    KnownDifference {
        key: "config-stat",
        what: "The times in the stat of /zookeeper/config",
        zookeeper: "when the server started",
        lockkeeper: "0",
        seen: ["a time that is not that of its zxid", "version="],
        reason: "It is derived from the membership, outside any transaction",
    },
    KnownDifference {
        key: "path-first",
        what: "create with an invalid path, if the parent is absent or may not be changed",
        zookeeper: "`NoNode`, `NoAuth`",
        lockkeeper: "`BadArguments`",
        seen: ["No", "BadArguments"],
        reason: "The path is checked before the tree; ZooKeeper first looks up the part before the last slash",
    },
    KnownDifference {
        key: "moved-reads",
        what: "A read over a session's former connection",
        zookeeper: "answered",
        lockkeeper: "the connection is closed",
        seen: ["ok", "the server has closed the connection"],
        reason: "ZooKeeper continues to answer reads there; changes close the connection on both systems",
    },
];

/// Requests that the script leaves out because a real ZooKeeper does not survive them or answers by chance.
pub(crate) const NOT_ASKED: &[[&str; 3]] = &[
    [
        "reconfig with a truncated body, at a follower",
        "never replies, to any client of this follower",
        "MarshallingError",
    ],
    [
        "createTTL with a mode without TTL, and TTL -1",
        "stops and cannot be restarted: the transaction is in its log",
        "BadArguments",
    ],
    [
        "setACL, directly followed by a change that the new ACL allows or forbids",
        "applies the old ACL or the new one, by chance",
        "applies the new one",
    ],
    ["Requests after closeSession in one piece", "are answered by chance", "are not answered"],
    [
        "checkWatches and removeWatches of a path without a slash that is watched",
        "fails internally and replies MarshallingError",
        "as for every path",
    ],
];

/// The entry with this key.
pub(crate) fn find(key: &str) -> Option<&'static KnownDifference> {
    KNOWN.iter().find(|known| known.key == key)
}

/// Both lists as Markdown tables for `docs/zookeeper.md`, without the reasons.
pub(crate) fn table() -> String {
    let header = "| what | ZooKeeper 3.8 | Lockkeeper |\n|---|---|---|\n";
    let mut text = String::from(header);
    for known in KNOWN {
        text.push_str(&row(&[known.what, known.zookeeper, known.lockkeeper]));
    }
    text.push_str(
        "\nNot compared, because a real ZooKeeper does not survive the request or its answer depends on chance:\n\n",
    );
    text.push_str(header);
    for cells in NOT_ASKED {
        text.push_str(&row(cells));
    }
    text
}

fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_these_differences_and_no_others() {
        let documentation = include_str!("../../../../../docs/zookeeper.md");
        let (_, rest) = documentation.split_once("<!-- differences -->\n").unwrap();
        let (there, _) = rest.split_once("<!-- end of the differences -->").unwrap();
        assert_eq!(there, table(), "put what --print-known prints between the two marks");
    }

    #[test]
    fn each_difference_has_a_key_of_its_own() {
        let mut keys: Vec<&str> = KNOWN.iter().map(|known| known.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), KNOWN.len());
    }
}
