//! Where the two differ, and why that is right. Each entry must show itself in each run: an excuse that nothing needs any
//! more is a failure.

/// A difference that has a reason.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its name in the script, behind `~`.
    pub(crate) key: &'static str,
    /// What differs.
    pub(crate) what: &'static str,
    /// A piece of ZooKeeper's line, wherever the lines differ.
    pub(crate) zookeeper: &'static str,
    /// A piece of Lockkeeper's line, wherever the lines differ.
    pub(crate) lockkeeper: &'static str,
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
        reason: "ZooKeeper tells it since 3.9",
    },
    Known {
        key: "watch-types",
        what: "checkWatches and removeWatches of types 4 (persistent) and 5 (recursive)",
        zookeeper: "MarshallingError",
        lockkeeper: "",
        reason: "ZooKeeper knows them since 3.9",
    },
    Known {
        key: "watch-modes",
        what: "A persistent watch, a recursive one and a read's on one node, by one client",
        zookeeper: "ok",
        lockkeeper: "",
        reason: "They live side by side since ZooKeeper 3.9; before, the last one took the place of the others",
    },
    Known {
        key: "others-watches",
        what: "checkWatches where somebody else watches",
        zookeeper: "ok",
        lockkeeper: "NoWatcher",
        reason: "ZooKeeper looks for the caller's own watches since 3.9",
    },
    Known {
        key: "wrong-password-closes",
        what: "A stranger who knows a session's id and not its password",
        zookeeper: "is closed by the server",
        lockkeeper: "refused",
        reason: "ZooKeeper closes the owner's connection before it looks at the password: anybody could cut anybody off",
    },
    Known {
        key: "timeout-stays",
        what: "Going on with a session and asking for another timeout",
        zookeeper: "timeout 4000",
        lockkeeper: "timeout 20000",
        reason: "A session's timeout is agreed when it is opened, and told again whenever it goes on",
    },
    Known {
        key: "null-data",
        what: "Data that are null, read again",
        zookeeper: "null",
        lockkeeper: "\"\"",
        reason: "Nodes hold bytes; none are none, for clients of both doors",
    },
    Known {
        key: "any-character",
        what: "Names with characters outside Unicode's first plane or in its private area",
        zookeeper: "BadArguments",
        lockkeeper: "ok",
        reason: "ZooKeeper takes their halves in Java's strings for invalid; there is nothing wrong with them",
    },
    Known {
        key: "long-path",
        what: "A part of a path of more than 255 bytes, a path of more than 1024",
        zookeeper: "ok",
        lockkeeper: "BadArguments",
        reason: "Every input is bounded",
    },
    Known {
        key: "long-acl",
        what: "An id in an ACL of more than 256 bytes",
        zookeeper: "ok",
        lockkeeper: "InvalidAcl",
        reason: "Every input is bounded",
    },
    Known {
        key: "long-multi",
        what: "A multi of more than 128 operations",
        zookeeper: "ok",
        lockkeeper: "BadArguments",
        reason: "Every input is bounded",
    },
    Known {
        key: "permission-bits",
        what: "Permissions beyond the five that there are",
        zookeeper: "ok",
        lockkeeper: "InvalidAcl",
        reason: "They mean nothing; who sets them has made a mistake that should be seen",
    },
    Known {
        key: "nothing-changed",
        what: "The zxid of a multi that changes nothing: of checks alone, or empty",
        zookeeper: "at z",
        lockkeeper: "at z",
        reason: "ZooKeeper logs a transaction for it; what changes nothing has no zxid of its own, and is told the newest",
    },
    Known {
        key: "ttl-without-ttl",
        what: "create with the flags of a TTL node within a multi",
        zookeeper: "MarshallingError",
        lockkeeper: "BadArguments",
        reason: "The request can be read; its flags make no sense there, as outside a multi",
    },
    Known {
        key: "unknown-keeps",
        what: "An operation that does not exist, or that servers use among themselves",
        zookeeper: "closed by the server",
        lockkeeper: "Unimplemented",
        reason: "Both answer Unimplemented; ZooKeeper closes the connection then, and the session's watches are lost for nothing",
    },
    Known {
        key: "servers-only",
        what: "deleteContainer from a client",
        zookeeper: "BadArguments",
        lockkeeper: "Unimplemented",
        reason: "It is for servers among themselves; ZooKeeper takes it from anybody",
    },
    Known {
        key: "create-session",
        what: "createSession amid a session",
        zookeeper: "to xid 0",
        lockkeeper: "Unimplemented",
        reason: "Sessions are opened by a connection's first frame alone; ZooKeeper answers with a second greeting",
    },
    Known {
        key: "sasl",
        what: "sasl",
        zookeeper: "token of 0 bytes",
        lockkeeper: "Unimplemented",
        reason: "There is no SASL here, and it is said; ZooKeeper without it answers an empty token",
    },
    Known {
        key: "null-path",
        what: "A path that is null",
        zookeeper: "MarshallingError",
        lockkeeper: "",
        reason: "Null and empty strings are the same here",
    },
    Known {
        key: "negative-count",
        what: "An ACL of less than -1 entries",
        zookeeper: "InvalidAcl",
        lockkeeper: "MarshallingError",
        reason: "A length below -1 is none",
    },
    Known {
        key: "not-utf8",
        what: "A path that is not UTF-8",
        zookeeper: "NoNode",
        lockkeeper: "MarshallingError",
        reason: "ZooKeeper replaces what it cannot read, so that two names may become one",
    },
    Known {
        key: "special-multi",
        what: "Checks of nodes below /zookeeper in a multi",
        zookeeper: "ok",
        lockkeeper: "NoNode",
        reason: "They are shown to reads; the state does not have them",
    },
    Known {
        key: "special-missing",
        what: "Deleting what is not there below /zookeeper",
        zookeeper: "NoNode",
        lockkeeper: "NoAuth",
        reason: "Nothing there can be changed, whether it is there or not",
    },
    Known {
        key: "special-stays",
        what: "Changes below /zookeeper",
        zookeeper: "ok",
        lockkeeper: "NoAuth",
        reason: "It is shown and never changed: quotas are not kept here, and nothing else belongs there",
    },
    Known {
        key: "standalone-config",
        what: "/zookeeper/config of one server that is a cluster of its own",
        zookeeper: "length=0",
        lockkeeper: "length=",
        reason: "ZooKeeper has none when it runs alone; ours is the same for one node as for three",
    },
];

/// What the script does not ask, because real ZooKeeper does not survive it, or answers it now so and now so.
pub(crate) const NOT_ASKED: &[[&str; 3]] = &[
    [
        "createTTL with a mode without a time to live, and -1 for it",
        "stops, and cannot be started again: the transaction is in its log",
        "BadArguments",
    ],
    [
        "setACL, and in the same piece a request that the new list allows or forbids",
        "goes by the old list or the new one, by chance",
        "goes by the new one",
    ],
    [
        "checkWatches and removeWatches of a path without a slash that is watched",
        "fails within and answers MarshallingError",
        "as of every path",
    ],
    [
        "A ping between other requests in one piece",
        "is answered in its turn",
        "is answered when the leader has confirmed that the session lives; others do not wait for it",
    ],
];

/// The entry of that key.
pub(crate) fn find(key: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.key == key)
}

/// All of them as a table in Markdown.
pub(crate) fn table() -> String {
    let mut text = String::from("| what | ZooKeeper 3.8 | Lockkeeper | why |\n|---|---|---|---|\n");
    for known in KNOWN {
        let cell = |cell: &str| cell.replace('|', "\\|");
        let row = [known.what, known.zookeeper, known.lockkeeper, known.reason].map(cell).join(" | ");
        text.push_str(&format!("| {row} |\n"));
    }
    text.push_str("\nNot compared, as there is nothing to compare with:\n\n| what | ZooKeeper 3.8 | Lockkeeper |\n|---|---|---|\n");
    for row in NOT_ASKED {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}
