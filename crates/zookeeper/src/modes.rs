//! The numbers inside requests: how to create a node, how and what to watch.
//!
//! Requests carry them as they came. A number that is none of these is an argument error, for the server to report.

numbered! {
    /// The flags of a create request.
    CreateMode("create mode") {
        /// Stays until it is deleted.
        Persistent = 0,
        /// Goes with its session.
        Ephemeral = 1,
        /// Stays; its name ends in the parent's counter.
        PersistentSequential = 2,
        /// Goes with its session; its name ends in the parent's counter.
        EphemeralSequential = 3,
        /// Goes when its last child has gone.
        Container = 4,
        /// Goes when it has not been touched for its time to live and has no children.
        PersistentWithTtl = 5,
        /// As [`Self::PersistentWithTtl`]; its name ends in the parent's counter.
        PersistentSequentialWithTtl = 6,
    }
}

impl CreateMode {
    /// Whether the node goes with its session.
    #[must_use]
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Whether the parent's counter is appended to the name.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(self, Self::PersistentSequential | Self::EphemeralSequential | Self::PersistentSequentialWithTtl)
    }

    /// Whether the node goes when its last child has gone.
    #[must_use]
    pub const fn is_container(self) -> bool {
        matches!(self, Self::Container)
    }

    /// Whether the node has a time to live.
    #[must_use]
    pub const fn is_ttl(self) -> bool {
        matches!(self, Self::PersistentWithTtl | Self::PersistentSequentialWithTtl)
    }
}

numbered! {
    /// How a watch set by addWatch behaves.
    AddWatchMode("watch mode") {
        /// Stays set after it fires; on one node.
        Persistent = 0,
        /// Stays set after it fires; on a node and everything below it.
        PersistentRecursive = 1,
    }
}

numbered! {
    /// Which watches checkWatches and removeWatches mean.
    WatcherType("watcher type") {
        /// On the children.
        Children = 1,
        /// On the data or the existence.
        Data = 2,
        /// All of them.
        Any = 3,
        /// Persistent ones.
        Persistent = 4,
        /// Persistent recursive ones.
        PersistentRecursive = 5,
    }
}
