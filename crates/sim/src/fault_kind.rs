//! The kinds of faults.

/// An enum whose variants have names in reports.
macro_rules! kinds {
    ($(#[doc = $about:literal])+ $kind:ident: $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $kind { $($(#[doc = $doc])+ $variant,)+ }

        impl $kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As reports name it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}
pub(crate) use kinds;

kinds! {
    /// A kind of fault.
    FaultKind:
    /// One node is cut off from everybody.
    PartitionOne = "partition-one",
    /// The leader is.
    PartitionLeader = "partition-leader",
    /// The nodes fall into two halves; clients reach both.
    PartitionHalves = "partition-halves",
    /// Each node reaches its neighbours only.
    PartitionRing = "partition-ring",
    /// Two halves that see each other only through one node.
    PartitionBridge = "partition-bridge",
    /// Nothing passes from one host to another, but back.
    OneWay = "one-way",
    /// Clients reach some nodes only.
    PartitionClients = "partition-clients",
    /// A process is killed.
    KillOne = "kill-one",
    /// That of the leader.
    KillLeader = "kill-leader",
    /// All of them at once.
    KillAll = "kill-all",
    /// A machine loses power, and what it has not synced.
    PowerOne = "power-one",
    /// That of the leader.
    PowerLeader = "power-leader",
    /// Most of them at once.
    PowerMajority = "power-majority",
    /// All of them at once.
    PowerAll = "power-all",
    /// A machine loses power in the middle of an append of several entries: a while may pass until there is one.
    PowerMidAppend = "power-mid-append",
    /// A process is frozen.
    PauseOne = "pause-one",
    /// That of the leader.
    PauseLeader = "pause-leader",
    /// All of them.
    PauseAll = "pause-all",
    /// All clients are frozen.
    PauseClients = "pause-clients",
    /// One host's links lose and repeat messages and hold them up.
    BadLinks = "bad-links",
    /// One node's disk is slow, and stalls.
    SlowDisk = "slow-disk",
    /// A wall clock jumps.
    ClockJump = "clock-jump",
    /// A wall clock is put years off, or right again; those of all nodes, now and then.
    ClockYears = "clock-years",
    /// A node's clocks go too fast or too slow, within the plan's drift.
    ClockRate = "clock-rate",
    /// A node takes a snapshot now.
    Snapshot = "snapshot",
    /// A node's disk is put back to an older copy. Counted when it happens: when nothing else has been wrong for a
    /// while, because nobody can tell what is lost while the nodes that know are away.
    Rollback = "rollback",
    /// A node joins the cluster.
    AddNode = "add-node",
    /// A node leaves it.
    RemoveNode = "remove-node",
}
