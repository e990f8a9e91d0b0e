//! The mutants. Each one breaks a promise in a way that somebody has really shipped or could.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// One defect on purpose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Mutant { $($(#[doc = $doc])+ $variant,)+ }

        impl Mutant {
            /// All of them, in the order of this page.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant),+];

            /// Its name on command lines and in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$variant => $name),+ }
            }

            /// What it does wrong, in a sentence.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Mutant::$variant => concat!($($doc),+)),+ }
            }
        }
    };
}

mutants! {
    /// The store completes what is queued before the barrier has made it durable.
    AckBeforeBarrier = "ack-before-barrier",
    /// The barrier is sled's own `flush` alone, which does not sync the file on Linux.
    BareFlush = "bare-flush",
    /// A vote is kept in memory and never written.
    VoteNotPersisted = "vote-not-persisted",
    /// A data directory that was put back from an older copy takes part as if nothing were missing.
    AcceptRolledBackDirectory = "accept-rolled-back-directory",
    /// Linearizable reads are answered from the local replica at once.
    SkipReadIndex = "skip-read-index",
    /// The leader hands out a read index without asking a quorum whether it still leads.
    ReadIndexWithoutQuorum = "read-index-without-quorum",
    /// A keepalive is acknowledged without a quorum round.
    KeepaliveWithoutQuorum = "keepalive-without-quorum",
    /// A leader that has lost its term goes on expiring sessions by its own record.
    ExpireByDeposedLeader = "expire-by-deposed-leader",
    /// A new leader counts every session as silent from the start of its clock.
    NoGraceForNewLeader = "no-grace-for-new-leader",
    /// The leader counts a session's time from the arrival of a sign of life, however old it is.
    CountSignsFromArrival = "count-signs-from-arrival",
    /// A new leader starts every timer in full, whatever the nodes know.
    IgnoreReportedAges = "ignore-reported-ages",
    /// A keepalive is acknowledged before a majority has it in its tables.
    CopyWithoutQuorum = "copy-without-quorum",
    /// A new leader relies on the tables of nodes that have forgotten what they accepted.
    CountForgetfulTables = "count-forgetful-tables",
    /// Restoring a snapshot counts tokens again from what is left in the tree.
    ResetTokensAtRestore = "reset-tokens-at-restore",
    /// A snapshot leaves out which requests have been answered.
    ForgetRequestsAtSnapshot = "forget-requests-at-snapshot",
    /// A batch that is sent again is applied again.
    ApplyBatchTwice = "apply-batch-twice",
    /// The ephemerals of an ended session go one after the other, not with it.
    EphemeralsOneByOne = "ephemerals-one-by-one",
    /// Of a session with more than a thousand ephemerals those beyond the first thousand stay when it ends.
    LeaveNodesOfLargeSessions = "leave-nodes-of-large-sessions",
    /// How many ephemerals a session owns is not looked at.
    NoEphemeralBound = "no-ephemeral-bound",
    /// A node says that a session has expired before it has applied that itself.
    ExpiredBeforeApplied = "expired-before-applied",
    /// A release looks at every waiter instead of the next.
    WakeAllWaiters = "wake-all-waiters",
    /// An exclusive request overlooks its predecessor and holds beside it.
    TwoHolders = "two-holders",
    /// A newcomer shares the place of the last waiter, and may stand before it.
    GrantOutOfOrder = "grant-out-of-order",
    /// A waiter whose patience ended stays in the queue.
    LeaveWithdrawnInQueue = "leave-withdrawn-in-queue",
    /// A caller whose wait is over is told so, and the request stays in the queue.
    BusyWithoutWithdrawal = "busy-without-withdrawal",
    /// A request whose caller has gone is not taken back.
    IgnoreHangUp = "ignore-hang-up",
    /// A hang-up that is noticed late takes a request away from the caller who has made it theirs meanwhile.
    AbandonIgnoresVersions = "abandon-ignores-versions",
    /// Whoever waits for what has gone is not looked at again.
    LoseWakeup = "lose-wakeup",
    /// The lock-delay of a session that died is not observed.
    NoLockDelay = "no-lock-delay",
    /// A gate in progress lets the next one in as well.
    GateLetsAllIn = "gate-lets-all-in",
    /// Anybody may delete the node of another's lock request.
    ForeignDeleteBreaksLock = "foreign-delete-breaks-lock",
    /// A queue takes names that those who stand in it do not see.
    ForeignNamesAllowed = "foreign-names-allowed",
    /// Guards of a transaction are not looked at.
    SkipTxnGuards = "skip-txn-guards",
    /// The client library forgets a watch when its connection is made anew.
    DropWatchAtReconnect = "drop-watch-at-reconnect",
    /// A replica that installed a snapshot does not look again at its watches.
    ForgetWatchesAtInstall = "forget-watches-at-install",
    /// The client library counts a lease from the answer, not from when the keepalive was sent.
    LeaseFromAnswer = "lease-from-answer",
    /// The leader stamps entries with its wall clock.
    TrustWallClock = "trust-wall-clock",
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
