//! Linearizable reads on this replica: a read index from the leader, shared by all callers that wait for one, then the
//! local state (Ongaro's dissertation, section 6.4). No leases.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_consensus::{BarrierError, Coalescer};

use lockkeeper_mutants::mutant;

use crate::backoff::Backoff;
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::leader_limit::shortened;
use crate::replica::Replica;
use crate::replication::Replication;

/// Brings this replica up to every change that was acknowledged before the call.
#[derive(Clone)]
pub(crate) struct ReadBarrier {
    rounds: Coalescer<Result<(), BarrierError>>,
    replica: Arc<Replica>,
    replication: Arc<dyn Replication>,
    request_timeout: Duration,
}

impl ReadBarrier {
    pub(crate) fn new(config: &NodeConfig, replica: Arc<Replica>, replication: Arc<dyn Replication>) -> Self {
        let source = replication.clone();
        let (rounds, run) = Coalescer::new(config.max_waiting_calls, move || {
            let source = source.clone();
            async move { source.read_barrier().await }
        });
        replica.tasks.spawn_vital("read barrier", run);
        Self { rounds, replica, replication, request_timeout: Duration::from_millis(config.request_timeout_ms) }
    }

    /// Tries once. True if this replica is up to date with a leader that has a majority.
    pub(crate) async fn try_once(&self) -> bool {
        matches!(self.rounds.try_join().await, Ok(Ok(())))
    }

    /// Passes the barrier. Waits out a change of leader; having no leader for as long as a request may take is an
    /// error.
    pub(crate) async fn pass(&self) -> Result<(), NodeError> {
        if mutant!(SkipReadIndex) {
            return Ok(());
        }
        let limit = shortened(self.request_timeout);
        if limit == self.request_timeout {
            return self.try_for(limit).await;
        }
        let clock = &self.replica.clock;
        tokio::select! {
            biased;
            passed = self.try_for(limit) => passed,
            // A round may take longer.
            () = clock.sleep_until(clock.now() + limit) => Err(NodeError::no_leader()),
        }
    }

    async fn try_for(&self, limit: Duration) -> Result<(), NodeError> {
        let mut backoff: Option<Backoff> = None;
        loop {
            match self.rounds.try_join().await? {
                Ok(()) => return Ok(()),
                Err(BarrierError::Fatal(why)) => return Err(NodeError::Fatal(why)),
                Err(BarrierError::ShuttingDown) => return Err(NodeError::ShuttingDown),
                Err(BarrierError::NoLeader | BarrierError::NoQuorum | BarrierError::TimedOut(_)) => {}
            }
            let backoff = backoff
                .get_or_insert_with(|| Backoff::new(self.replica.clock.clone(), self.replication.leadership(), limit));
            backoff.wait().await?;
        }
    }
}
