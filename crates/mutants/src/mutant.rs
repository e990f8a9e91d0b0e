//! The mutants. Each breaks a promise by a defect that has been shipped somewhere or could be.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// A deliberate defect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Mutant { $($(#[doc = $doc])+ $variant,)+ }

        impl Mutant {
            /// All mutants, in the order of their definition.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant),+];

            /// Name on command lines and in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$variant => $name),+ }
            }

            /// Description of the defect.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Mutant::$variant => concat!($($doc),+)),+ }
            }
        }
    };
}

mutants! {
    /// The store completes queued writes before they are durable.
    AckBeforeBarrier = "ack-before-barrier",
    /// The store syncs neither its journal nor sled's file: a write and sled's own `flush` are all there is.
    BareFlush = "bare-flush",
    /// The journal syncs a frame with the one after it, and says before that it is durable.
    AckBeforeJournalSync = "ack-before-journal-sync",
    /// A segment of the journal is used again before a durable frame says that none of its frames is needed.
    ReuseSegmentEarly = "reuse-segment-early",
    /// A vote is not put into the journal: only sled gets it, later.
    VoteOnlyInSled = "vote-only-in-sled",
    /// Recovery takes the log from sled alone and leaves out what the frames of the journal change.
    RecoverFromSledAlone = "recover-from-sled-alone",
    /// sled is given one block after the other without a barrier between them.
    BlockWithoutBarrier = "block-without-barrier",
    /// sled relies on a new index of its log before the name of that file is durable.
    UnsyncedSledIndex = "unsynced-sled-index",
    /// A vote is kept in memory only.
    VoteNotPersisted = "vote-not-persisted",
    /// A node whose data directory was restored from an older copy takes part as if nothing were missing.
    AcceptRolledBackDirectory = "accept-rolled-back-directory",
    /// Linearizable reads are answered from the local replica without a read index.
    SkipReadIndex = "skip-read-index",
    /// The leader gives out a read index without a quorum round that confirms its leadership.
    ReadIndexWithoutQuorum = "read-index-without-quorum",
    /// A keepalive is acknowledged without a quorum round.
    KeepaliveWithoutQuorum = "keepalive-without-quorum",
    /// A deposed leader continues to expire sessions.
    ExpireByDeposedLeader = "expire-by-deposed-leader",
    /// A new leader counts every session as silent since the start of its clock.
    NoGraceForNewLeader = "no-grace-for-new-leader",
    /// The leader counts a session's timeout from the arrival of a keepalive, however old the keepalive is.
    CountSignsFromArrival = "count-signs-from-arrival",
    /// A new leader restarts every session timer, ignoring the ages that the nodes report.
    IgnoreReportedAges = "ignore-reported-ages",
    /// A keepalive is acknowledged before a majority has it in their tables.
    CopyWithoutQuorum = "copy-without-quorum",
    /// A new leader relies on the session tables of restarted nodes, which are incomplete.
    CountForgetfulTables = "count-forgetful-tables",
    /// Restoring a snapshot restarts tokens from the nodes left in the tree.
    ResetTokensAtRestore = "reset-tokens-at-restore",
    /// A cluster restored from a backup counts on from the backup, without a gap.
    NoGapInNewCluster = "no-gap-in-new-cluster",
    /// A snapshot omits the record of answered requests.
    ForgetRequestsAtSnapshot = "forget-requests-at-snapshot",
    /// A batch that is sent twice is applied twice.
    ApplyBatchTwice = "apply-batch-twice",
    /// A batch is applied although an earlier batch of its node is missing.
    ApplyOutOfSequence = "apply-out-of-sequence",
    /// Batches that a node takes back at a change of the leader are sent again in reverse order.
    SwapReturnedBatches = "swap-returned-batches",
    /// An answer to an append is passed on although it confirms a later append that is unanswered.
    CreditAppendEarly = "credit-append-early",
    /// A waiter is registered a moment after its request was checked, and misses a grant between.
    RegisterWaiterLate = "register-waiter-late",
    /// The ephemerals of an ended session are deleted one by one instead of in its transaction.
    EphemeralsOneByOne = "ephemerals-one-by-one",
    /// When a session ends, only its first thousand ephemerals are deleted.
    LeaveNodesOfLargeSessions = "leave-nodes-of-large-sessions",
    /// The limit on a session's ephemerals is not checked.
    NoEphemeralBound = "no-ephemeral-bound",
    /// The limits of a namespace are not checked.
    NoNamespaceBound = "no-namespace-bound",
    /// A node reports a session as expired before it has applied the expiry.
    ExpiredBeforeApplied = "expired-before-applied",
    /// A release wakes every waiter instead of the next one.
    WakeAllWaiters = "wake-all-waiters",
    /// An exclusive request ignores its predecessor, so that two hold the lock.
    TwoHolders = "two-holders",
    /// A new request gets the sequence of the last waiter and may be granted before it.
    GrantOutOfOrder = "grant-out-of-order",
    /// A waiter that timed out stays in the queue.
    LeaveWithdrawnInQueue = "leave-withdrawn-in-queue",
    /// A caller gets the timeout error while its request stays in the queue.
    BusyWithoutWithdrawal = "busy-without-withdrawal",
    /// A request whose caller disconnected is not cancelled.
    IgnoreHangUp = "ignore-hang-up",
    /// A disconnect that is noticed late cancels a request that another call has taken over meanwhile.
    AbandonIgnoresVersions = "abandon-ignores-versions",
    /// A waiter is not woken when its blocker is deleted.
    LoseWakeup = "lose-wakeup",
    /// The lock delay of an expired session is ignored.
    NoLockDelay = "no-lock-delay",
    /// One release frees a lock that its session holds several times.
    ReleaseAllHolds = "release-all-holds",
    /// A snapshot omits how often sessions hold their locks.
    ForgetHoldsAtSnapshot = "forget-holds-at-snapshot",
    /// The bucket of a rate limit refills at twice its rate.
    RefillTwice = "refill-twice",
    /// A node hands out the permits that it has leased without counting them.
    HandOutLeaseAgain = "hand-out-lease-again",
    /// A gate in progress admits the next caller as well.
    GateLetsAllIn = "gate-lets-all-in",
    /// Any client may delete another session's lock request.
    ForeignDeleteBreaksLock = "foreign-delete-breaks-lock",
    /// A queue accepts names that the clients in it do not recognize.
    ForeignNamesAllowed = "foreign-names-allowed",
    /// Roles are not looked at: every caller may do everything.
    AllowEverything = "allow-everything",
    /// The sessions of a withdrawn token go on.
    RevokedSessionLives = "revoked-session-lives",
    /// The checks of a transaction are skipped.
    SkipTxnGuards = "skip-txn-guards",
    /// The client library forgets a watch when it reconnects.
    DropWatchAtReconnect = "drop-watch-at-reconnect",
    /// A replica does not re-check its watches after installing a snapshot.
    ForgetWatchesAtInstall = "forget-watches-at-install",
    /// The client library counts a lease from the answer instead of from sending the keepalive.
    LeaseFromAnswer = "lease-from-answer",
    /// The leader stamps entries with its wall clock.
    TrustWallClock = "trust-wall-clock",
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
