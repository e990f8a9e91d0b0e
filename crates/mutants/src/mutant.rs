//! The mutants. Each breaks a promise by a defect that has been shipped somewhere or could be.

/// The tiers that must catch a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaughtBy {
    /// The simulation; a run would not show it for sure. `crates/sim/src/mutants.rs` has what it needs there.
    Simulation,
    /// A run of real processes (`jepsen-style-tests/src/mutants/trials.rs`), because its part is not simulated.
    Run,
    /// Each of the two.
    SimulationAndRun,
    /// A test of its own, `cargo test` with these arguments. The simulation has a disk of its own in place of journal
    /// and sled, and chance does not bring every course of events. The test passes if it notices the mutant.
    Test(&'static str),
}

impl CaughtBy {
    /// Whether the simulation must catch it.
    #[must_use]
    pub const fn is_simulated(self) -> bool {
        matches!(self, Self::Simulation | Self::SimulationAndRun)
    }

    /// Whether a run of real processes must catch it.
    #[must_use]
    pub const fn has_run(self) -> bool {
        matches!(self, Self::Run | Self::SimulationAndRun)
    }
}

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal by $tier:ident $(($test:literal))?,)+) => {
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

            /// What must catch it.
            #[must_use]
            pub const fn caught_by(self) -> CaughtBy {
                match self { $(Mutant::$variant => CaughtBy::$tier $(($test))?),+ }
            }
        }
    };
}

mutants! {
    /// The store completes queued writes before they are durable.
    AckBeforeBarrier = "ack-before-barrier" by SimulationAndRun,
    /// The store syncs neither its journal nor sled's file: a write and sled's own `flush` are all there is.
    BareFlush = "bare-flush" by SimulationAndRun,
    /// The journal syncs a frame with the one after it, and says before that it is durable.
    AckBeforeJournalSync = "ack-before-journal-sync"
        by Test("-p lockkeeper-store --lib of_mutants::ack_before_journal_sync"),
    /// A segment of the journal is used again before a durable frame says that none of its frames is needed.
    ReuseSegmentEarly = "reuse-segment-early"
        by Test("-p lockkeeper-store --lib of_mutants::reuse_segment_early"),
    /// A vote is not put into the journal: only sled gets it, later.
    VoteOnlyInSled = "vote-only-in-sled"
        by Test("-p lockkeeper-store --lib of_mutants::vote_only_in_sled"),
    /// Recovery takes the log from sled alone and leaves out what the frames of the journal change.
    RecoverFromSledAlone = "recover-from-sled-alone"
        by Test("-p lockkeeper-store --lib of_mutants::recover_from_sled_alone"),
    /// sled is given one block after the other without a barrier between them.
    BlockWithoutBarrier = "block-without-barrier"
        by Test("-p lockkeeper-store --test it block_without_barrier_is_noticed"),
    /// sled relies on a new index of its log before the name of that file is durable.
    UnsyncedSledIndex = "unsynced-sled-index"
        by Test("-p jepsen-style-tests --lib unsynced_sled_index_is_noticed"),
    /// A vote is kept in memory only.
    VoteNotPersisted = "vote-not-persisted" by SimulationAndRun,
    /// A node whose data directory was restored from an older copy takes part as if nothing were missing.
    AcceptRolledBackDirectory = "accept-rolled-back-directory" by SimulationAndRun,
    /// Linearizable reads are answered from the local replica without a read index.
    SkipReadIndex = "skip-read-index" by SimulationAndRun,
    /// The leader gives out a read index without a quorum round that confirms its leadership.
    ReadIndexWithoutQuorum = "read-index-without-quorum" by SimulationAndRun,
    /// A keepalive is acknowledged without a quorum round.
    KeepaliveWithoutQuorum = "keepalive-without-quorum" by SimulationAndRun,
    /// A deposed leader continues to expire sessions.
    ExpireByDeposedLeader = "expire-by-deposed-leader" by SimulationAndRun,
    /// A new leader counts every session as silent since the start of its clock.
    NoGraceForNewLeader = "no-grace-for-new-leader" by SimulationAndRun,
    /// The leader counts a session's timeout from the arrival of a keepalive, however old the keepalive is.
    CountSignsFromArrival = "count-signs-from-arrival" by SimulationAndRun,
    /// A new leader restarts every session timer, ignoring the ages that the nodes report.
    IgnoreReportedAges = "ignore-reported-ages" by SimulationAndRun,
    /// A keepalive is acknowledged before a majority has it in their tables.
    CopyWithoutQuorum = "copy-without-quorum" by Simulation,
    /// A new leader relies on the session tables of restarted nodes, which are incomplete.
    CountForgetfulTables = "count-forgetful-tables" by Simulation,
    /// Restoring a snapshot restarts tokens from the nodes left in the tree.
    ResetTokensAtRestore = "reset-tokens-at-restore" by SimulationAndRun,
    /// A cluster restored from a backup counts on from the backup, without a gap.
    NoGapInNewCluster = "no-gap-in-new-cluster" by Run,
    /// A snapshot omits the record of answered requests.
    ForgetRequestsAtSnapshot = "forget-requests-at-snapshot" by SimulationAndRun,
    /// A batch that is sent twice is applied twice.
    ApplyBatchTwice = "apply-batch-twice" by SimulationAndRun,
    /// A batch is applied although an earlier batch of its node is missing.
    ApplyOutOfSequence = "apply-out-of-sequence" by Simulation,
    /// Batches that a node takes back at a change of the leader are sent again in reverse order.
    SwapReturnedBatches = "swap-returned-batches"
        by Test("-p lockkeeper-node --lib its_mutant_is_noticed"),
    /// An answer to an append is passed on although it confirms a later append that is unanswered.
    CreditAppendEarly = "credit-append-early"
        by Test("-p lockkeeper-consensus --lib its_mutant_is_noticed"),
    /// The leader tells followers that all entries it sends are committed.
    PromiseUncommitted = "promise-uncommitted"
        by Test("-p lockkeeper-consensus --lib promise_uncommitted_is_noticed"),
    /// A waiter is registered a moment after its request was checked, and misses a grant between.
    RegisterWaiterLate = "register-waiter-late" by Simulation,
    /// The ephemerals of an ended session are deleted one by one instead of in its transaction.
    EphemeralsOneByOne = "ephemerals-one-by-one" by SimulationAndRun,
    /// When a session ends, only its first thousand ephemerals are deleted.
    LeaveNodesOfLargeSessions = "leave-nodes-of-large-sessions" by Simulation,
    /// The limit on a session's ephemerals is not checked.
    NoEphemeralBound = "no-ephemeral-bound" by Simulation,
    /// The limits of a namespace are not checked.
    NoNamespaceBound = "no-namespace-bound" by SimulationAndRun,
    /// A node reports a session as expired before it has applied the expiry.
    ExpiredBeforeApplied = "expired-before-applied" by Simulation,
    /// A release wakes every waiter instead of the next one.
    WakeAllWaiters = "wake-all-waiters" by SimulationAndRun,
    /// An exclusive request ignores its predecessor, so that two hold the lock.
    TwoHolders = "two-holders" by SimulationAndRun,
    /// A new request gets the sequence of the last waiter and may be granted before it.
    GrantOutOfOrder = "grant-out-of-order" by SimulationAndRun,
    /// A waiter that timed out stays in the queue.
    LeaveWithdrawnInQueue = "leave-withdrawn-in-queue" by SimulationAndRun,
    /// A caller gets the timeout error while its request stays in the queue.
    BusyWithoutWithdrawal = "busy-without-withdrawal" by Simulation,
    /// A request whose caller disconnected is not cancelled.
    IgnoreHangUp = "ignore-hang-up" by Simulation,
    /// A disconnect that is noticed late cancels a request that another call has taken over meanwhile.
    AbandonIgnoresVersions = "abandon-ignores-versions" by Simulation,
    /// A waiter is not woken when its blocker is deleted.
    LoseWakeup = "lose-wakeup" by Simulation,
    /// The lock delay of an expired session is ignored.
    NoLockDelay = "no-lock-delay" by SimulationAndRun,
    /// One release frees a lock that its session holds several times.
    ReleaseAllHolds = "release-all-holds" by Simulation,
    /// A snapshot omits how often sessions hold their locks.
    ForgetHoldsAtSnapshot = "forget-holds-at-snapshot" by Simulation,
    /// The bucket of a rate limit refills at twice its rate.
    RefillTwice = "refill-twice" by Simulation,
    /// A node hands out the permits that it has leased without counting them.
    HandOutLeaseAgain = "hand-out-lease-again" by Simulation,
    /// A gate in progress admits the next caller as well.
    GateLetsAllIn = "gate-lets-all-in" by SimulationAndRun,
    /// Any client may delete another session's lock request.
    ForeignDeleteBreaksLock = "foreign-delete-breaks-lock" by Simulation,
    /// A queue accepts names that the clients in it do not recognize.
    ForeignNamesAllowed = "foreign-names-allowed" by Simulation,
    /// Roles are not looked at: every caller may do everything.
    AllowEverything = "allow-everything" by SimulationAndRun,
    /// The sessions of a withdrawn token go on.
    RevokedSessionLives = "revoked-session-lives" by SimulationAndRun,
    /// The checks of a transaction are skipped.
    SkipTxnGuards = "skip-txn-guards" by SimulationAndRun,
    /// The client library forgets a watch when it reconnects.
    DropWatchAtReconnect = "drop-watch-at-reconnect" by Run,
    /// A replica does not re-check its watches after installing a snapshot.
    ForgetWatchesAtInstall = "forget-watches-at-install" by SimulationAndRun,
    /// The client library counts a lease from the answer instead of from sending the keepalive.
    LeaseFromAnswer = "lease-from-answer" by Run,
    /// The leader stamps entries with its wall clock.
    TrustWallClock = "trust-wall-clock" by Simulation,
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
