//! The error codes of `KeeperException`, as they stand in reply headers and in the results of a multi.

numbered! {
    /// What an operation came to.
    ErrorCode("error code") {
        /// It was done.
        Ok = 0,
        /// The range of server-side errors; never sent.
        SystemError = -1,
        /// In a multi: not tried, because an operation before it failed.
        RuntimeInconsistency = -2,
        /// The server's data contradicts itself.
        DataInconsistency = -3,
        /// The connection was lost; on the client's side only.
        ConnectionLoss = -4,
        /// The request could not be read.
        MarshallingError = -5,
        /// No such operation here.
        Unimplemented = -6,
        /// It took too long.
        OperationTimeout = -7,
        /// The arguments make no sense.
        BadArguments = -8,
        /// A new configuration has no quorum.
        NewConfigNoQuorum = -13,
        /// Another reconfiguration is under way.
        ReconfigInProgress = -14,
        /// No such session; inside servers only.
        UnknownSession = -12,
        /// The range of API errors; never sent.
        ApiError = -100,
        /// No such node.
        NoNode = -101,
        /// Not allowed for the connection's identities.
        NoAuth = -102,
        /// The version is another.
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
        /// A write at a server that serves reads only.
        NotReadOnly = -119,
        /// An ephemeral node on a session that one server alone knows.
        EphemeralOnLocalSession = -120,
        /// No such watch.
        NoWatcher = -121,
        /// Not done within the client's time limit; on the client's side only.
        RequestTimeout = -122,
        /// Reconfiguration is switched off.
        ReconfigDisabled = -123,
        /// The server demands SASL or another authentication.
        SessionClosedRequireSaslAuth = -124,
        /// The quota of the subtree is used up.
        QuotaExceeded = -125,
        /// The server is overloaded and did not try.
        ThrottledOp = -127,
    }
}
