//! Failure detector: notices that the leader's *process* is dead, frozen or cut off, and elects without waiting for its
//! lease.
//!
//! Each follower keeps one call open at the leader, which answers when it stops leading or after [`HOLD`]. The kernel
//! closes the connections of a dead process, so the call breaks. The follower probes after a broken call: only a
//! refused connection counts as death. A frozen or cut-off leader breaks nothing, so each follower also probes it once
//! per heartbeat (see [`crate::leader_probe`]).
//!
//! The follower then gives up the leader lease early (the lease spares a *living* leader needless elections) and asks
//! for a pre-vote. It stops as soon as a silent leader answers again. Votes, terms and the log check stay as they are,
//! so a mistake here can cost an election and never safety. Because of this, reads must not rely on leases; they do not
//! (read index only).

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use openraft::vote::RaftLeaderId;

use crate::calls::peers::Peers;
use crate::calls::wire::{self, LivenessCheck};
use crate::leader_probe::{ProbeTimes, ProbingEnd, is_dead, probe_until_silent, run_until_answered};
use crate::raft::node::RaftNode;
use crate::status::Leadership;
use crate::transport::PeerKind;

/// The leader holds a call open this long at most.
const HOLD: Duration = Duration::from_secs(20);
/// The follower waits longer than that.
const HOLD_DEADLINE: Duration = Duration::from_secs(25);
/// Pause before a call that ended in another way is made again.
const REOPEN: Duration = Duration::from_millis(100);
/// Pause before the dead leader is probed again when no leader was elected: the majority may be gone as well.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pauses before the pre-votes of a turn after a death. No pre-vote succeeds before the peers have noticed as well,
/// and they usually notice as soon as this node does; one that comes too early changes nothing.
const AFTER_DEATH: &[Duration] =
    &[Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8), Duration::from_millis(16)];
/// The same after silence: the peers notice it within a heartbeat of each other. Each asks once, because by then their
/// ordinary election timeouts may be over as well, and a pre-vote beside another election may split the vote.
const AFTER_SILENCE: &[Duration] = &[Duration::from_millis(8)];
/// The length of a turn: one follower after the other, so that they do not split the vote.
const TURN: Duration = Duration::from_millis(40);
const _: () = assert!(sum_ms(AFTER_DEATH) < TURN.as_millis() && sum_ms(AFTER_SILENCE) < TURN.as_millis());
/// Rounds of turns before it is left to the ordinary election timeout.
const ROUNDS: u32 = 4;

const fn sum_ms(pauses: &[Duration]) -> u128 {
    match pauses {
        [first, rest @ ..] => first.as_millis() + sum_ms(rest),
        [] => 0,
    }
}

/// The leader's side: holds the call open. `None` if this node is going down.
pub(crate) async fn hold(node: &RaftNode, check: LivenessCheck) -> Option<()> {
    if matches!(check, LivenessCheck::Probe) && node.is_going_down() {
        return None;
    }
    if let LivenessCheck::Hold { term } = check {
        let mut leadership = node.leadership.clone();
        let over = leadership.wait_for(|now| !now.leading || now.term != term);
        tokio::select! {
            _ = over => {}
            () = node.tasks.stop.cancelled() => {}
            () = tokio::time::sleep(HOLD) => {}
        }
    }
    Some(())
}

/// Why a follower elects without waiting for the leader's lease.
#[derive(Clone, Copy)]
enum LeaderFailure {
    Dead,
    Silent,
}

impl LeaderFailure {
    fn as_str(self) -> &'static str {
        match self {
            LeaderFailure::Dead => "the leader's process is gone",
            LeaderFailure::Silent => "the leader does not answer",
        }
    }

    fn pre_vote_pauses(self) -> &'static [Duration] {
        match self {
            LeaderFailure::Dead => AFTER_DEATH,
            LeaderFailure::Silent => AFTER_SILENCE,
        }
    }
}

/// The follower's side; runs as long as the node.
pub(crate) async fn run(node: Arc<RaftNode>, peers: Peers) {
    let mut leadership = node.leadership.clone();
    let mut logged = None;
    loop {
        let now = *leadership.borrow_and_update();
        match now.leader {
            Some(leader) if !now.leading && leader != node.config.node => tokio::select! {
                () = watch_leader(&node, &peers, now, leader, &mut logged) => {}
                changed = leadership.changed() => if changed.is_err() { return },
            },
            _ => {
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// One call to one leader. Returns when it should be made again. `logged` is the leadership whose end was logged last.
async fn watch_leader(node: &RaftNode, peers: &Peers, now: Leadership, leader: u64, logged: &mut Option<Leadership>) {
    let Ok(body) = wire::encode(&LivenessCheck::Hold { term: now.term }) else { return };
    let fast_path = node.config.fast_path;
    let failure = tokio::select! {
        biased;
        held = peers.call(leader, PeerKind::LivenessCheck, body, HOLD_DEADLINE) => match held {
            Err(error) if error.process_gone() && fast_path && is_dead(peers, leader).await => {
                Some(LeaderFailure::Dead)
            }
            _ => None,
        },
        end = probe_until_silent(peers, leader, ProbeTimes::of(&node.config)), if fast_path => {
            (end == ProbingEnd::Silent).then_some(LeaderFailure::Silent)
        }
    };
    let pause = match failure {
        Some(failure) => {
            let news = logged.replace(now) != Some(now);
            let rounds = elect_without(node, now, leader, failure, news);
            let answers_again = match failure {
                // An answer would be that of a new process, which does not lead.
                LeaderFailure::Dead => {
                    rounds.await;
                    false
                }
                LeaderFailure::Silent => run_until_answered(peers, leader, rounds).await,
            };
            if answers_again {
                tracing::info!(leader, term = now.term, "the leader answers again; no further pre-votes are asked for");
                *logged = None;
                REOPEN
            } else {
                LOOK_AGAIN
            }
        }
        None => REOPEN,
    };
    tokio::time::sleep(pause).await;
}

/// Drops the leader's lease and asks for votes, in turns. Cancelled by any change of the leadership, and by an answer
/// of a leader that was silent.
async fn elect_without(node: &RaftNode, now: Leadership, leader: u64, failure: LeaderFailure, news: bool) {
    let (vote, rank, voters) = {
        let metrics = node.raft.metrics().borrow_watched().clone();
        let voters: Vec<u64> =
            metrics.membership_config.membership().voter_ids().filter(|voter| *voter != leader).collect();
        (metrics.vote, voters.iter().position(|voter| *voter == node.config.node), voters.len() as u32)
    };
    let still_its_term =
        vote.is_committed() && *vote.leader_id().node_id() == leader && vote.leader_id().term() == now.term;
    let Some(rank) = rank.filter(|_| still_its_term) else { return };
    let (why, pauses) = (failure.as_str(), failure.pre_vote_pauses());
    // Without a majority this comes again and again.
    if news {
        tracing::info!(leader, term = now.term, rank, "{why}; electing without waiting for its lease");
    } else {
        tracing::debug!(leader, term = now.term, rank, "{why}, as before; trying again");
    }
    metrics::counter!("lockkeeper_fast_elections_total").increment(1);
    let earlier_turns = TURN * rank as u32;
    for _ in 0..ROUNDS {
        // Since it names the dead leader and not this node, openraft only ends the lease.
        let release = TransferLeaderRequest::new(vote, leader, None);
        if node.raft.handle_transfer_leader(release).await.is_err() {
            return;
        }
        tokio::time::sleep(earlier_turns).await;
        for pause in pauses {
            tokio::time::sleep(*pause).await;
            // Waits until a vote that openraft is writing down is durable. An election that has begun, by this node or
            // another, must not be disturbed.
            let present = node.raft.with_raft_state(|state| *state.vote_ref()).await;
            if present.ok() != Some(vote) || node.raft.trigger().elect(true).await.is_err() {
                return;
            }
        }
        let asked = earlier_turns + pauses.iter().sum::<Duration>();
        tokio::time::sleep((TURN * voters).saturating_sub(asked)).await;
    }
}
