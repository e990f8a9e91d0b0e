//! Read rounds: what many callers ask at once is answered by one round to the quorum.
//!
//! A caller is served by a round that *begins after it asked*; joining one in flight would read from before the call (Ongaro's
//! dissertation, section 6.4).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_mutants::mutant;
use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::BarrierError;
use crate::inner::Inner;
use crate::peer::transport::{PeerKind, TransportError};
use crate::peer::validation;
use crate::peer::wire::{self, ReadIndexReply};
use crate::raft_types::{Raft, position_of};
use crate::status::ReadIndex;

/// Callers waiting for the next round at most; beyond, callers wait to be let in.
const WAITING_CALLERS: usize = 16 * 1024;

type Outcome = Result<ReadIndex, BarrierError>;

/// Groups callers into rounds.
#[derive(Clone)]
pub(crate) struct Rounds {
    callers: mpsc::Sender<oneshot::Sender<Outcome>>,
}

impl Rounds {
    /// `round` does one round; it is never run twice at the same time.
    pub(crate) fn new<F, Fut>(stop: CancellationToken, round: F) -> Rounds
    where
        F: Fn() -> Fut + Send + 'static,
        Fut: Future<Output = Outcome> + Send,
    {
        let (callers, mut waiting) = mpsc::channel::<oneshot::Sender<Outcome>>(WAITING_CALLERS);
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let mut group = Vec::new();
            while waiting.recv_many(&mut group, WAITING_CALLERS).await > 0 {
                let outcome = round().await;
                for caller in group.drain(..) {
                    // A caller that has gone needs no answer.
                    let _ = caller.send(outcome.clone());
                }
            }
        }));
        Rounds { callers }
    }

    /// Joins the next round.
    pub(crate) async fn join(&self) -> Outcome {
        let (caller, outcome) = oneshot::channel();
        self.callers.send(caller).await.map_err(|_| BarrierError::ShuttingDown)?;
        outcome.await.map_err(|_| BarrierError::ShuttingDown)?
    }
}

/// One round of the leader: a quorum acknowledged what was sent after the round began.
pub(crate) async fn leader_round(raft: &Raft) -> Outcome {
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
pub(crate) async fn read_round(inner: &Arc<Inner>) -> Outcome {
    let leads = inner.leads();
    let leader = match leads.leader {
        _ if leads.leading => return inner.leader_rounds.join().await,
        Some(leader) if leader != inner.config.node => leader,
        _ => return Err(BarrierError::NoLeader),
    };
    let deadline = read_index_deadline(inner.config.election_timeout_max_ms);
    let answer = tokio::select! {
        answer = inner.peers.call(leader, PeerKind::ReadIndex, Bytes::new(), deadline) => answer,
        () = inner.term_over(leads.term) => return Err(BarrierError::NoLeader),
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn callers_share_the_round_that_begins_after_they_asked() {
        let begun = Arc::new(AtomicU64::new(0));
        let end = Arc::new(Semaphore::new(0));
        let stop = CancellationToken::new();
        let rounds = {
            let (begun, end) = (begun.clone(), end.clone());
            Rounds::new(stop.clone(), move || {
                let round = begun.fetch_add(1, Ordering::SeqCst) + 1;
                let end = end.clone();
                async move {
                    end.acquire().await.map_err(|_| BarrierError::NoLeader)?.forget();
                    Ok(ReadIndex { term: 1, index: round })
                }
            })
        };
        let join = || {
            let rounds = rounds.clone();
            tokio::spawn(async move { rounds.join().await })
        };
        let first = join();
        while begun.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // Round 1 is in flight: these ask too late for it.
        let late: Vec<_> = (0..10).map(|_| join()).collect();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        end.add_permits(2);
        assert_eq!(first.await.unwrap().unwrap().index, 1);
        for caller in late {
            assert_eq!(caller.await.unwrap().unwrap().index, 2, "one round for all of them");
        }
        stop.cancel();
        while rounds.join().await.is_ok() {}
        assert_eq!(rounds.join().await, Err(BarrierError::ShuttingDown));
    }
}
