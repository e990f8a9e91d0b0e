//! Probes: calls that a node answers at once, whatever else it does. A node that is merely busy answers them.
//!
//! A follower probes its leader once per heartbeat. The leader counts as silent when it has answered a probe and then
//! leaves two in a row unanswered. One probe may be lost with a segment, or its connection may be stuck, so the second
//! one uses a new connection. A probe that timed out while this node itself stood still does not count, because its
//! answer may only have waited to be read.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use crate::calls::peers::Peers;
use crate::calls::wire::{self, LivenessCheck};
use crate::config::Config;
use crate::transport::{CODE_GOING_DOWN, PeerKind, TransportError};

/// How long a node that seems to be gone has for an answer.
const PROBE_DEADLINE: Duration = Duration::from_millis(150);
/// The leader is silent when so many probes in a row have timed out.
const SILENT_AFTER_TIMEOUTS: u32 = 2;
/// A timeout that is noticed this much too late shows that this node stood still.
const STALL: Duration = Duration::from_millis(50);
/// Pause before the leader is probed again when a probe failed at once.
const RETRY: Duration = Duration::from_millis(20);

/// The times of a follower's probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeTimes {
    interval: Duration,
    deadline: Duration,
}

impl ProbeTimes {
    /// Two deadlines are one and a half times the shortest election timeout, so a silent leader still loses its
    /// lease well before it ends.
    pub(crate) fn of(config: &Config) -> ProbeTimes {
        ProbeTimes {
            interval: Duration::from_millis(config.heartbeat_ms),
            deadline: Duration::from_millis(config.election_timeout_min_ms) * 3 / 4,
        }
    }
}

/// Why probing the leader has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbingEnd {
    /// The leader does not answer.
    Silent,
    /// A probe timed out and a later one did not: the connection of earlier calls may be stuck.
    Reconnected,
}

/// What follows from a probe's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    ProbeAfterInterval,
    ProbeAtOnce,
    End(ProbingEnd),
}

/// What the probes of one leader have shown.
#[derive(Debug, Default)]
struct ProbeHistory {
    /// The latest probe that did not time out was answered.
    has_answered: bool,
    /// Probes that have timed out since, those during stalls of this node left out.
    timeouts: u32,
}

impl ProbeHistory {
    /// `late` is by how much the result came after the probe's deadline.
    fn record(&mut self, result: &Result<Bytes, TransportError>, late: Duration) -> NextStep {
        match result {
            Err(TransportError::TimedOut) if late >= STALL => NextStep::ProbeAtOnce,
            Err(TransportError::TimedOut) => {
                self.timeouts += 1;
                match self.has_answered {
                    true if self.timeouts >= SILENT_AFTER_TIMEOUTS => NextStep::End(ProbingEnd::Silent),
                    true => NextStep::ProbeAtOnce,
                    false => NextStep::ProbeAfterInterval,
                }
            }
            _ if self.timeouts > 0 => NextStep::End(ProbingEnd::Reconnected),
            Ok(_) | Err(TransportError::Rejected { .. }) => {
                self.has_answered = true;
                NextStep::ProbeAfterInterval
            }
            // The open call notices a broken connection. Another process may answer next, and it may not know probes.
            Err(_) => {
                self.has_answered = false;
                NextStep::ProbeAfterInterval
            }
        }
    }
}

/// Asks a node for a sign of life.
async fn probe(peers: &Peers, node: u64, deadline: Duration) -> Result<Bytes, TransportError> {
    let body = wire::encode(&LivenessCheck::Probe).map_err(|error| TransportError::Garbled(error.to_string()))?;
    peers.call(node, PeerKind::LivenessCheck, body, deadline).await
}

fn is_going_down(result: &Result<Bytes, TransportError>) -> bool {
    matches!(result, Err(TransportError::Rejected { code, .. }) if code == CODE_GOING_DOWN)
}

/// Whether a node runs and is not going down. A node that does not answer counts as running.
pub(crate) async fn is_staying(peers: &Peers, node: u64) -> bool {
    let result = probe(peers, node, PROBE_DEADLINE).await;
    !is_going_down(&result) && !result.is_err_and(|error| error.process_gone())
}

/// True when nothing listens at the leader's address any more.
pub(crate) async fn is_dead(peers: &Peers, leader: u64) -> bool {
    // A dying process closes its sockets one by one: a connection may still be taken and then reset.
    for _ in 0..3 {
        match probe(peers, leader, PROBE_DEADLINE).await {
            Err(TransportError::Refused) => return true,
            Err(TransportError::Reset) => sleep(Duration::from_millis(3)).await,
            _ => return false,
        }
    }
    false
}

/// Probes the leader until it is silent, or until calls to it should be made again over a new connection.
pub(crate) async fn probe_until_silent(peers: &Peers, leader: u64, times: ProbeTimes) -> ProbingEnd {
    let mut history = ProbeHistory::default();
    loop {
        let sent = Instant::now();
        let result = probe(peers, leader, times.deadline).await;
        let late = sent.elapsed().saturating_sub(times.deadline);
        let timeouts = history.timeouts;
        let next = history.record(&result, late);
        if history.timeouts > timeouts {
            peers.reconnect(leader, PeerKind::LivenessCheck);
        }
        match next {
            NextStep::ProbeAfterInterval => sleep(times.interval).await,
            NextStep::ProbeAtOnce => {}
            NextStep::End(end) => return end,
        }
    }
}

/// Runs `rounds` to their end, or drops them as soon as the leader answers a probe. True if it has answered.
pub(crate) async fn run_until_answered(peers: &Peers, leader: u64, rounds: impl Future<Output = ()>) -> bool {
    tokio::select! {
        biased;
        () = rounds => false,
        () = answered(peers, leader) => true,
    }
}

/// Completes when the leader answers a probe and is not going down.
async fn answered(peers: &Peers, leader: u64) {
    loop {
        let result = probe(peers, leader, PROBE_DEADLINE).await;
        match &result {
            Err(TransportError::TimedOut) => peers.reconnect(leader, PeerKind::LivenessCheck),
            Ok(_) | Err(TransportError::Rejected { .. }) if !is_going_down(&result) => return,
            _ => sleep(RETRY).await,
        }
    }
}

#[cfg(test)]
#[path = "leader_probe_tests.rs"]
mod tests;
