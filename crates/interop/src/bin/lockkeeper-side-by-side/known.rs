//! Where the two differ, and why that is right. Each entry must show itself in each run: an excuse that nothing needs any
//! more is a failure.

/// A difference that has a reason.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its name in the script, behind `~`.
    pub(crate) key: &'static str,
    /// What differs.
    pub(crate) what: &'static str,
    /// What ZooKeeper does.
    pub(crate) zookeeper: &'static str,
    /// What Lockkeeper does.
    pub(crate) lockkeeper: &'static str,
    /// What stands in ZooKeeper's line and in Lockkeeper's, wherever they differ. Nothing for Lockkeeper's where that depends on what was
    /// asked: each step then says it.
    pub(crate) seen: [&'static str; 2],
    /// Why Lockkeeper does otherwise.
    pub(crate) reason: &'static str,
}

/// The one that is in no line: events with a zxid.
pub(crate) const EVENT_ZXID: &str = "event-zxid";

/// All of them.
pub(crate) const KNOWN: &[Known] = &[
    Known {
        key: EVENT_ZXID,
        what: "The zxid in the header of a watch event",
        zookeeper: "none (-1)",
        lockkeeper: "that of the change",
        seen: ["none (-1)", "that of the change"],
        reason: "ZooKeeper tells it since 3.9",
    },
    Known {
        key: "watch-types",
        what: "checkWatches and removeWatches of types 4 (persistent) and 5 (recursive)",
        zookeeper: "`MarshallingError`",
        lockkeeper: "does it",
        seen: ["MarshallingError", ""],
        reason: "ZooKeeper knows them since 3.9",
    },
    Known {
        key: "watch-modes",
        what: "A persistent watch, a recursive one and a read's on one node, by one client",
        zookeeper: "the last one counts; checkWatches finds any of them",
        lockkeeper: "each is there until it is removed or used up",
        seen: ["ok", ""],
        reason: "They live side by side since ZooKeeper 3.9; before, the last one took the place of the others",
    },
    Known {
        key: "others-watches",
        what: "checkWatches where somebody else watches",
        zookeeper: "there is one",
        lockkeeper: "`NoWatcher`",
        seen: ["ok", "NoWatcher"],
        reason: "ZooKeeper looks for the caller's own watches since 3.9",
    },
    Known {
        key: "wrong-password-closes",
        what: "A stranger who knows a session's id and not its password",
        zookeeper: "closes the owner's connection, then refuses",
        lockkeeper: "refuses",
        seen: ["is closed by the server", "refused"],
        reason: "ZooKeeper closes the owner's connection before it looks at the password: anybody could cut anybody off",
    },
    Known {
        key: "timeout-stays",
        what: "Going on with a session and asking for another timeout",
        zookeeper: "grants it",
        lockkeeper: "tells the one that was agreed",
        seen: ["timeout 4000", "timeout 20000"],
        reason: "A session's timeout is agreed when it is opened, and told again whenever it goes on",
    },
    Known {
        key: "long-path",
        what: "A part of a path of more than 255 bytes, a path of more than 1024",
        zookeeper: "done",
        lockkeeper: "`BadArguments`",
        seen: ["ok", "BadArguments"],
        reason: "Every input is bounded",
    },
    Known {
        key: "long-acl",
        what: "An id in an ACL of more than 256 bytes",
        zookeeper: "done",
        lockkeeper: "`InvalidAcl`",
        seen: ["ok", "InvalidAcl"],
        reason: "Every input is bounded",
    },
    Known {
        key: "long-multi",
        what: "A multi of more than 1,024 operations",
        zookeeper: "done",
        lockkeeper: "`BadArguments`",
        seen: ["ok", "BadArguments"],
        reason: "Every input is bounded",
    },
    Known {
        key: "permission-bits",
        what: "Permissions beyond the five that there are",
        zookeeper: "stored",
        lockkeeper: "`InvalidAcl`",
        seen: ["ok", "InvalidAcl"],
        reason: "They mean nothing; who sets them has made a mistake that should be seen",
    },
    Known {
        key: "nothing-changed",
        what: "The zxid of a multi that changes nothing: of checks alone, or empty",
        zookeeper: "one of its own",
        lockkeeper: "the newest that there is",
        seen: ["at z", ""],
        reason: "ZooKeeper logs a transaction for it; what changes nothing has no zxid of its own, and is told the newest",
    },
    Known {
        key: "ttl-without-ttl",
        what: "create with the flags of a TTL node within a multi",
        zookeeper: "`MarshallingError`",
        lockkeeper: "`BadArguments` among the results",
        seen: ["MarshallingError", "BadArguments"],
        reason: "The request can be read; its flags make no sense there, as outside a multi",
    },
    Known {
        key: "unknown-keeps",
        what: "An operation that does not exist, or that servers use among themselves",
        zookeeper: "`Unimplemented`, and closes the connection",
        lockkeeper: "`Unimplemented`",
        seen: ["closed by the server", "Unimplemented"],
        reason: "Both answer Unimplemented; ZooKeeper closes the connection then, and the session's watches are lost for nothing",
    },
    Known {
        key: "servers-only",
        what: "deleteContainer from a client",
        zookeeper: "looks at it: `BadArguments` for a node that is none",
        lockkeeper: "`Unimplemented`",
        seen: ["BadArguments", "Unimplemented"],
        reason: "It is for servers among themselves; ZooKeeper takes it from anybody",
    },
    Known {
        key: "create-session",
        what: "createSession amid a session",
        zookeeper: "greets a second time, amid the answers",
        lockkeeper: "`Unimplemented`",
        seen: ["to xid 0", "Unimplemented"],
        reason: "Sessions are opened by a connection's first frame alone; ZooKeeper answers with a second greeting",
    },
    Known {
        key: "sasl",
        what: "sasl",
        zookeeper: "an empty token",
        lockkeeper: "`Unimplemented`",
        seen: ["token of 0 bytes", "Unimplemented"],
        reason: "There is no SASL here, and it is said; ZooKeeper without it answers an empty token",
    },
    Known {
        key: "null-path",
        what: "A path that is null",
        zookeeper: "`MarshallingError`",
        lockkeeper: "as for the empty path: the root for reads, `BadArguments` for changes",
        seen: ["MarshallingError", ""],
        reason: "Null and empty strings are the same here",
    },
    Known {
        key: "negative-count",
        what: "An ACL of less than -1 entries",
        zookeeper: "`InvalidAcl`, as for none",
        lockkeeper: "`MarshallingError`",
        seen: ["InvalidAcl", "MarshallingError"],
        reason: "A length below -1 is none",
    },
    Known {
        key: "not-utf8",
        what: "A path that is not UTF-8",
        zookeeper: "`NoNode`",
        lockkeeper: "`MarshallingError`",
        seen: ["NoNode", "MarshallingError"],
        reason: "ZooKeeper replaces what it cannot read, so that two names may become one",
    },
    Known {
        key: "special-multi",
        what: "Checks of nodes below /zookeeper in a multi",
        zookeeper: "looks at them",
        lockkeeper: "`NoNode`",
        seen: ["ok", "NoNode"],
        reason: "They are shown to reads; the state does not have them",
    },
    Known {
        key: "special-missing",
        what: "Deleting what is not there below /zookeeper",
        zookeeper: "`NoNode`",
        lockkeeper: "`NoAuth`",
        seen: ["NoNode", "NoAuth"],
        reason: "Nothing there can be changed, whether it is there or not",
    },
    Known {
        key: "special-stays",
        what: "Changes below /zookeeper",
        zookeeper: "done",
        lockkeeper: "`NoAuth`",
        seen: ["ok", "NoAuth"],
        reason: "It is shown and never changed: quotas are not kept here, and nothing else belongs there",
    },
    Known {
        key: "others-requests",
        what: "Changing data or list of another session's lock request, below /locks",
        zookeeper: "done",
        lockkeeper: "`NoAuth`",
        seen: ["ok", "NoAuth"],
        reason: "A request belongs to its session; who holds a lock must not be anybody's to rewrite",
    },
    Known {
        key: "nobodys-requests",
        what: "A lock request that is no ephemeral node, below /locks",
        zookeeper: "done",
        lockkeeper: "`BadArguments`",
        seen: ["ok", "BadArguments"],
        reason: "It would hold for ever, and be nobody's to give back",
    },
    Known {
        key: "foreign-names",
        what: "An ephemeral sequential node beside lock requests whose clients do not see its name, below /locks",
        zookeeper: "done",
        lockkeeper: "`BadArguments`, unless `locks.foreign_names` is `allow`",
        seen: ["ok", "BadArguments"],
        reason: "Both clients would hold the lock at once",
    },
    Known {
        key: "service-tops",
        what: "setACL of /, /locks and /gates, and setData or delete of the latter two; a list given when those are created",
        zookeeper: "done",
        lockkeeper: "`NoAuth` for all but `super`; they are created open to everybody",
        seen: ["ok", "NoAuth"],
        reason: "One anonymous client could keep everybody from every lock",
    },
    Known {
        key: "gates-by-hand",
        what: "Creating a node below /gates that is no container, and changing a gate's data",
        zookeeper: "done",
        lockkeeper: "`NoAuth`",
        seen: ["ok", "NoAuth"],
        reason: "A gate's record is written by the gate's own calls, so that nobody can forge a result",
    },
    Known {
        key: "config-stat",
        what: "The times in the stat of /zookeeper/config",
        zookeeper: "when the server started",
        lockkeeper: "0",
        seen: ["a time that is not that of its zxid", "version="],
        reason: "It is made from the membership, outside any transaction",
    },
    Known {
        key: "path-first",
        what: "create with a path that is none, where the parent is not there or may not be changed",
        zookeeper: "`NoNode`, `NoAuth`",
        lockkeeper: "`BadArguments`",
        seen: ["No", "BadArguments"],
        reason: "A path is looked at before the tree; ZooKeeper looks for what stands before the last slash first",
    },
    Known {
        key: "moved-reads",
        what: "A read over the connection that a session has left",
        zookeeper: "answered",
        lockkeeper: "the connection is closed",
        seen: ["ok", "the server has closed the connection"],
        reason: "ZooKeeper goes on answering reads there, from a server that the client has turned its back on; changes end the connection on both sides",
    },
];

/// What the script does not ask, because real ZooKeeper does not survive it, or answers it now so and now so.
pub(crate) const NOT_ASKED: &[[&str; 3]] = &[
    [
        "reconfig whose body is cut short, at a follower",
        "never answers it, nor anybody else at that follower",
        "MarshallingError",
    ],
    [
        "createTTL with a mode without a time to live, and -1 for it",
        "stops, and cannot be started again: the transaction is in its log",
        "BadArguments",
    ],
    [
        "setACL, and right behind it a change that the new list allows or forbids",
        "goes by the old list or the new one, by chance",
        "goes by the new one",
    ],
    ["Requests behind closeSession in one piece", "are answered or not, by chance", "are not answered"],
    [
        "checkWatches and removeWatches of a path without a slash that is watched",
        "fails within and answers MarshallingError",
        "as of every path",
    ],
];

/// The entry of that key.
pub(crate) fn find(key: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.key == key)
}

/// All of them as tables in Markdown, as they stand in `docs/zookeeper.md`.
pub(crate) fn table() -> String {
    let mut text = String::from("| what | ZooKeeper 3.8 | Lockkeeper | why |\n|---|---|---|---|\n");
    for known in KNOWN {
        text.push_str(&row(&[known.what, known.zookeeper, known.lockkeeper, known.reason]));
    }
    text.push_str(
        "\nNot asked, because a real ZooKeeper does not survive it or answers by chance:\n\n\
         | what | ZooKeeper 3.8 | Lockkeeper |\n|---|---|---|\n",
    );
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
