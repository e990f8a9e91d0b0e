//! The numbers of the operations.

numbered! {
    /// An operation, by the number in a request's header.
    OpCode("operation") {
        /// Used inside servers only.
        Notification = 0,
        /// Creates a node, answers its path.
        Create = 1,
        /// Deletes a node.
        Delete = 2,
        /// Whether a node exists; leaves a watch that also sees its creation.
        Exists = 3,
        /// A node's data.
        GetData = 4,
        /// Replaces a node's data.
        SetData = 5,
        /// A node's access control list.
        GetAcl = 6,
        /// Replaces a node's access control list.
        SetAcl = 7,
        /// The names of a node's children.
        GetChildren = 8,
        /// Waits until this server has what the leader had.
        Sync = 9,
        /// Keeps the session alive.
        Ping = 11,
        /// The names of a node's children, and its stat.
        GetChildren2 = 12,
        /// Whether a node has a version; of use in a multi.
        Check = 13,
        /// Several writes, all or none.
        Multi = 14,
        /// Creates a node, answers its path and stat.
        Create2 = 15,
        /// Changes the ensemble's members.
        Reconfig = 16,
        /// Whether a watch is set.
        CheckWatches = 17,
        /// Removes watches.
        RemoveWatches = 18,
        /// Creates a container node.
        CreateContainer = 19,
        /// Used inside servers only.
        DeleteContainer = 20,
        /// Creates a node with a time to live.
        CreateTtl = 21,
        /// Several reads.
        MultiRead = 22,
        /// Adds an identity to the connection.
        Auth = 100,
        /// Sets a session's watches again after it moved.
        SetWatches = 101,
        /// A step of a SASL exchange.
        Sasl = 102,
        /// The session's ephemeral nodes under a prefix.
        GetEphemerals = 103,
        /// How many nodes are below a node.
        GetAllChildrenNumber = 104,
        /// As [`Self::SetWatches`], with the persistent ones.
        SetWatches2 = 105,
        /// Sets a persistent watch.
        AddWatch = 106,
        /// The identities of the connection.
        WhoAmI = 107,
        /// Used inside servers only.
        CreateSession = -10,
        /// Ends the session.
        CloseSession = -11,
        /// Marks an error among the results of a multi.
        Error = -1,
    }
}
