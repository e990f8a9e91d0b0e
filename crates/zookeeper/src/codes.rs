//! The protocol's closed sets: error codes, create and watch modes, event types, and the four-letter words. The opcodes
//! are in `opcode.rs`.
//!
//! A request carries its mode as the client sent it. An unknown mode is an argument error, which the server reports.

numbered! {
    /// An error code of `KeeperException`, in reply headers and in the results of a multi.
    ErrorCode("error code") {
        /// The operation succeeded.
        Ok = 0,
        /// The range of server-side errors; never sent.
        SystemError = -1,
        /// In a multi: not executed because an operation before it failed.
        RuntimeInconsistency = -2,
        /// The server's data is inconsistent.
        DataInconsistency = -3,
        /// The connection was lost; on the client's side only.
        ConnectionLoss = -4,
        /// The request could not be decoded.
        MarshallingError = -5,
        /// The operation is not supported.
        Unimplemented = -6,
        /// The operation timed out.
        OperationTimeout = -7,
        /// The arguments are invalid.
        BadArguments = -8,
        /// A new configuration has no quorum.
        NewConfigNoQuorum = -13,
        /// Another reconfiguration is under way.
        ReconfigInProgress = -14,
        /// No such session; between servers only.
        UnknownSession = -12,
        /// The range of API errors; never sent.
        ApiError = -100,
        /// No such node.
        NoNode = -101,
        /// The connection's identities lack the permission.
        NoAuth = -102,
        /// The version does not match.
        BadVersion = -103,
        /// An ephemeral node cannot have children.
        NoChildrenForEphemerals = -108,
        /// The node exists.
        NodeExists = -110,
        /// The node has children.
        NotEmpty = -111,
        /// The session has expired.
        SessionExpired = -112,
        /// On the client's side only.
        InvalidCallback = -113,
        /// The access control list is empty or names an unknown scheme.
        InvalidAcl = -114,
        /// The credentials are wrong or their scheme is unknown.
        AuthFailed = -115,
        /// The client is closing; on the C client's side only.
        Closing = -116,
        /// Nothing to report; on the C client's side only.
        Nothing = -117,
        /// The session has moved to another server.
        SessionMoved = -118,
        /// A write at a read-only server.
        NotReadOnly = -119,
        /// An ephemeral node of a session that only one server knows.
        EphemeralOnLocalSession = -120,
        /// No such watch.
        NoWatcher = -121,
        /// The client's time limit passed; on the client's side only.
        RequestTimeout = -122,
        /// Reconfiguration is disabled.
        ReconfigDisabled = -123,
        /// The server requires SASL or another authentication.
        SessionClosedRequireSaslAuth = -124,
        /// The subtree's quota is exceeded.
        QuotaExceeded = -125,
        /// The server is overloaded and did not execute the operation.
        ThrottledOp = -127,
    }
}

numbered! {
    /// The flags of a create request.
    CreateMode("create mode") {
        /// A node that stays until it is deleted.
        Persistent = 0,
        /// A node that is deleted when its session ends.
        Ephemeral = 1,
        /// As [`Self::Persistent`]; the parent's counter is appended to the name.
        PersistentSequential = 2,
        /// As [`Self::Ephemeral`]; the parent's counter is appended to the name.
        EphemeralSequential = 3,
        /// A node that is deleted after its last child.
        Container = 4,
        /// A node that is deleted when it has no children and was not changed for its TTL.
        PersistentWithTtl = 5,
        /// As [`Self::PersistentWithTtl`]; the parent's counter is appended to the name.
        PersistentSequentialWithTtl = 6,
    }
}

impl CreateMode {
    /// Whether the node is deleted when its session ends.
    #[must_use]
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Whether the parent's counter is appended to the name.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(self, Self::PersistentSequential | Self::EphemeralSequential | Self::PersistentSequentialWithTtl)
    }

    /// Whether the node is deleted after its last child.
    #[must_use]
    pub const fn is_container(self) -> bool {
        matches!(self, Self::Container)
    }

    /// Whether the node has a TTL.
    #[must_use]
    pub const fn is_ttl(self) -> bool {
        matches!(self, Self::PersistentWithTtl | Self::PersistentSequentialWithTtl)
    }
}

numbered! {
    /// The mode of addWatch.
    AddWatchMode("watch mode") {
        /// A watch on one node that stays after it fires.
        Persistent = 0,
        /// A watch on a node and all nodes below that stays after it fires.
        PersistentRecursive = 1,
    }
}

numbered! {
    /// The watches that checkWatches and removeWatches select.
    WatcherType("watcher type") {
        /// On the children.
        Children = 1,
        /// On the data or the existence.
        Data = 2,
        /// All watches.
        Any = 3,
        /// Persistent ones.
        Persistent = 4,
        /// Persistent recursive ones.
        PersistentRecursive = 5,
    }
}

numbered! {
    /// The type of an event.
    EventType("event type") {
        /// Not an event of a node: the connection or session changed its state.
        None = -1,
        /// The node was created.
        NodeCreated = 1,
        /// The node was deleted.
        NodeDeleted = 2,
        /// The node's data changed.
        NodeDataChanged = 3,
        /// A child was created or deleted.
        NodeChildrenChanged = 4,
        /// A data watch was removed; on the client's side only.
        DataWatchRemoved = 5,
        /// A child watch was removed; on the client's side only.
        ChildWatchRemoved = 6,
        /// A persistent watch was removed; on the client's side only.
        PersistentWatchRemoved = 7,
    }
}

numbered! {
    /// The session's state. Servers send [`Self::SyncConnected`] with events of nodes.
    KeeperState("session state") {
        /// Not used any more.
        Unknown = -1,
        /// Not connected.
        Disconnected = 0,
        /// Not used any more.
        NoSyncConnected = 1,
        /// Connected to a server of the ensemble.
        SyncConnected = 3,
        /// Authentication failed.
        AuthFailed = 4,
        /// Connected to a server without a quorum.
        ConnectedReadOnly = 5,
        /// Authenticated by SASL.
        SaslAuthenticated = 6,
        /// Closed by its client.
        Closed = 7,
        /// Expired.
        Expired = -112,
    }
}

/// A four-letter word (`ruok`, `srvr`, …), which a client sends instead of a first frame to get a line of text. The
/// server decides which words are allowed and what it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourLetterWord(&'static str);

/// The words of ZooKeeper 3.9. `stmk` is followed by an 8-byte mask, which is discarded when the connection closes.
const WORDS: [&str; 18] = [
    "ruok", "srvr", "stat", "mntr", "conf", "cons", "crst", "dump", "envi", "wchs", "wchc", "wchp", "dirs", "isro",
    "srst", "gtmk", "stmk", "hash",
];

impl FourLetterWord {
    /// All words.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        WORDS.iter().copied().map(Self)
    }

    /// The word with these four bytes, if it is known.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        Self::all().find(|word| word.as_str().as_bytes() == bytes)
    }

    /// The word with this name, as in a configuration's allow-list.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|word| word.as_str() == name)
    }

    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl std::fmt::Display for FourLetterWord {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0)
    }
}
