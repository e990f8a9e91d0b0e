//! The faults of the trials, and what an engine must be able to do to have them.

use std::fmt;

use async_trait::async_trait;
use lockkeeper_bench::spent_us;
use lockkeeper_engines_contract::Subject;

use crate::proofs::prelude::*;

named! {
    /// What happens while a slow holder holds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Fault {
        Calm = "none",
        /// The holder itself is paused past its lease and then writes without a look.
        PausedHolder = "holder paused",
        /// The server that decides, or one of several equal ones, is killed. Of a replicated Redis the replica takes
        /// over; a database is started again at once.
        Kill = "server killed",
        /// The server that decides is stopped as its operator would, and started again at once.
        Restart = "server restarted",
        /// The same is stopped for longer than the lease.
        Pause = "server paused",
        /// Servers restart without their data: the only one, or as many as a majority.
        RestartEmpty = "restart without data",
        /// A replica takes over that had not got the write.
        FailoverBehind = "failover to a replica behind",
        /// The clocks of a majority jump forward by more than a lease.
        ClockJump = "clock jump",
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Fault {
    pub(super) fn must_show_two_holders(self) -> bool {
        matches!(self, Self::RestartEmpty | Self::FailoverBehind | Self::ClockJump)
    }
}

/// An engine with its servers, which go when it is dropped.
#[async_trait]
pub(super) trait System: Send + Sync {
    /// The engine and what the contract asks of it.
    fn subject(&self) -> &dyn Subject;

    /// The CPU time that the servers have used so far, in microseconds.
    fn cpu_us(&mut self) -> Result<u64, Failed>;

    /// What must happen before the slow holder acquires.
    async fn prepare(&mut self, _fault: Fault) -> Result<(), Failed> {
        Ok(())
    }

    async fn inject(&mut self, fault: Fault) -> Result<(), Failed>;

    /// Brings back what the fault took.
    async fn heal(&mut self, fault: Fault) -> Result<(), Failed>;
}

/// The CPU time of these processes.
pub(super) fn spent(pids: &[u32]) -> Result<u64, Failed> {
    spent_us(pids).or_cannot_run("CPU time of the servers")
}

pub(super) fn cannot<T>(fault: Fault) -> Result<T, Failed> {
    cannot_run(format!("this engine has no fault '{fault}'"))
}
