//! Read indexes: many callers share one round to the quorum (Ongaro's dissertation, section 6.4).
//!
//! A round that began before a caller arrived must never answer that caller: it may have read from before the call.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_mutants::mutant;
use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};

use crate::calls::peers::Peers;
use crate::calls::validation;
use crate::calls::wire::{self, ReadIndexReply};
use crate::error::BarrierError;
use crate::raft::node::RaftNode;
use crate::raft::state_machine::Raft;
use crate::raft::types::position_of;
use crate::status::ReadIndex;
use crate::transport::{PeerKind, TransportError};

/// Most callers waiting for the next round; further callers wait for room.
pub(crate) const WAITING_CALLERS: usize = 16 * 1024;

pub(crate) type ReadResult = Result<ReadIndex, BarrierError>;

/// Lets many callers share a round: those who arrive while one is in flight get the result of the next. A clone is the
/// same coalescer.
#[derive(Debug)]
pub struct Coalescer<T> {
    callers: mpsc::Sender<oneshot::Sender<T>>,
}

impl<T> Clone for Coalescer<T> {
    fn clone(&self) -> Self {
        Self { callers: self.callers.clone() }
    }
}

/// Why a caller got no result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// As many callers wait as may.
    Full,
    /// The task that runs the rounds has ended.
    Stopped,
}

impl<T: Clone + Send + 'static> Coalescer<T> {
    /// A coalescer, and the task that runs its rounds one after the other. The caller of this function spawns the task.
    pub fn new<F>(
        max_waiting: usize,
        round: impl Fn() -> F + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (callers, mut waiting) = mpsc::channel::<oneshot::Sender<T>>(max_waiting);
        let run = async move {
            let mut group = Vec::new();
            while waiting.recv_many(&mut group, max_waiting).await > 0 {
                let result = round().await;
                for caller in group.drain(..) {
                    // The caller may have gone.
                    let _ = caller.send(result.clone());
                }
            }
        };
        (Self { callers }, run)
    }

    /// The result of a round that began after this call. Waits for its turn while as many callers wait as may; `None`
    /// once the task has ended.
    pub async fn join(&self) -> Option<T> {
        let (caller, result) = oneshot::channel();
        self.callers.send(caller).await.ok()?;
        result.await.ok()
    }

    /// As [`join`](Self::join), but refuses at once when as many callers wait as may.
    ///
    /// # Errors
    /// Too many callers wait, or the task has ended.
    pub async fn try_join(&self) -> Result<T, JoinError> {
        let (caller, result) = oneshot::channel();
        self.callers.try_send(caller).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => JoinError::Full,
            mpsc::error::TrySendError::Closed(_) => JoinError::Stopped,
        })?;
        result.await.map_err(|_| JoinError::Stopped)
    }
}

pub(crate) type ReadRounds = Coalescer<ReadResult>;

impl ReadRounds {
    /// The read index of a round that began after this call.
    pub(crate) async fn read_index(&self) -> ReadResult {
        self.join().await.unwrap_or(Err(BarrierError::ShuttingDown))
    }
}

/// One round of the leader: a quorum acknowledged what was sent after the round began.
pub(crate) async fn leader_round(raft: &Raft) -> ReadResult {
    if mutant!(ReadIndexWithoutQuorum) {
        let known = raft.metrics().borrow_watched().clone();
        let applied = known.last_applied.as_ref().map(position_of).ok_or(BarrierError::NoLeader)?;
        return Ok(ReadIndex { term: known.current_term, index: applied.index });
    }
    let started = Instant::now();
    let outcome = match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => {
            let position = position_of(linearizer.read_log_id().log_id());
            Ok(ReadIndex { term: position.term, index: position.index })
        }
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(BarrierError::NoLeader),
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(BarrierError::NoQuorum),
        Err(RaftError::Fatal(fatal)) => Err(BarrierError::Fatal(fatal.to_string())),
    };
    metrics::histogram!("lockkeeper_read_round_seconds").record(started.elapsed().as_secs_f64());
    outcome
}

/// One round of reads for this node: by itself when it leads, otherwise asked of the leader.
pub(crate) async fn read_round(node: &RaftNode, peers: &Peers, leader_rounds: &ReadRounds) -> ReadResult {
    let leads = node.leads();
    let leader = match leads.leader {
        _ if leads.leading => return leader_rounds.read_index().await,
        Some(leader) if leader != node.config.node => leader,
        _ => return Err(BarrierError::NoLeader),
    };
    let deadline = read_index_deadline(node.config.election_timeout_max_ms);
    let answer = tokio::select! {
        answer = peers.call(leader, PeerKind::ReadIndex, Bytes::new(), deadline) => answer,
        () = node.term_over(leads.term) => return Err(BarrierError::NoLeader),
    };
    match answer {
        Ok(body) => {
            let reply: ReadIndexReply =
                wire::decode(&body).map_err(|error| BarrierError::TimedOut(error.to_string()))?;
            match reply {
                Ok((term, index)) => {
                    let (term, index) =
                        validation::check_answered_position(term, index).map_err(BarrierError::TimedOut)?;
                    Ok(ReadIndex { term, index })
                }
                // The leader stops or fails, this node does not.
                Err(BarrierError::ShuttingDown | BarrierError::Fatal(_)) => Err(BarrierError::NoLeader),
                Err(other) => Err(other),
            }
        }
        Err(TransportError::TimedOut) => {
            Err(BarrierError::TimedOut(format!("node {leader}, which led, gave no read index")))
        }
        Err(_) => Err(BarrierError::NoLeader),
    }
}

/// How long a follower waits for the leader's read index, beyond the leader's own limit for a round.
fn read_index_deadline(election_timeout_max_ms: u64) -> Duration {
    Duration::from_millis(election_timeout_max_ms + 400)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn callers_share_the_round_that_begins_after_they_asked() {
        let (begun, end) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
        let (coalescer, run) = Coalescer::new(1_000, {
            let (begun, end) = (begun.clone(), end.clone());
            move || {
                let round = begun.fetch_add(1, Ordering::SeqCst) + 1;
                let end = end.clone();
                async move {
                    end.acquire().await.unwrap().forget();
                    round
                }
            }
        });
        let running = tokio::spawn(run);
        let join = || {
            let coalescer = coalescer.clone();
            tokio::spawn(async move { coalescer.join().await })
        };
        let first = join();
        while begun.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // Round 1 is in flight: these ask too late for it.
        let late: Vec<_> = (0..100).map(|_| join()).collect();
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        end.add_permits(2);
        assert_eq!(first.await.unwrap(), Some(1));
        for caller in late {
            assert_eq!(caller.await.unwrap(), Some(2), "one round for all of them");
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        running.abort();
        while coalescer.join().await.is_some() {}
        assert_eq!(coalescer.try_join().await, Err(JoinError::Stopped));
    }

    #[tokio::test]
    async fn waiting_callers_are_bounded() {
        let (coalescer, run) = Coalescer::new(1, || async { 7 });
        let first = coalescer.try_join();
        tokio::pin!(first);
        assert!(futures::poll!(&mut first).is_pending());
        assert_eq!(coalescer.try_join().await, Err(JoinError::Full));
        let running = tokio::spawn(run);
        assert_eq!(first.await, Ok(7));
        running.abort();
    }

    #[tokio::test]
    async fn nobody_waits_for_a_round_that_panicked() {
        let (coalescer, run) = Coalescer::<()>::new(10, || async { panic!("on purpose") });
        let running = tokio::spawn(run);
        for _ in 0..2 {
            assert_eq!(coalescer.try_join().await, Err(JoinError::Stopped));
        }
        assert!(running.await.unwrap_err().is_panic());
    }
}
