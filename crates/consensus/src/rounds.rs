//! Read rounds: what many callers ask at once is answered by one round to the quorum.
//!
//! A caller is served by a round that *begins after it asked*; joining one in flight would read from before the call (Ongaro's
//! dissertation, section 6.4).

use std::time::{Duration, Instant};

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::BarrierError;
use crate::status::ReadIndex;
use crate::types::{Raft, position_of};

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

/// How long a follower waits for the leader's read index, beyond the leader's own limit for a round.
pub(crate) fn read_index_deadline(election_timeout_max_ms: u64) -> Duration {
    Duration::from_millis(election_timeout_max_ms + 400)
}
