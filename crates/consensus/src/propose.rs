//! Proposals: made here when this node leads, otherwise sent to the leader; and the outcome when no answer comes.
//!
//! `NoLeader` only if the entry was certainly never appended: openraft refused it before the append, or the request was
//! never sent. Every other failure is `Unknown`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::LogPosition;
use openraft::errors::{ClientWriteError, RaftError};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::application::{StateMachine, Timekeeper};
use crate::calls::peers::Peers;
use crate::calls::validation;
use crate::calls::wire::{self, Command, ProposeReply};
use crate::connection::order::{Ticket, Tickets};
use crate::error::ProposeError;
use crate::raft::node::RaftNode;
use crate::raft::types::{Stamped, position_of};
use crate::status_publisher::status_of;
use crate::transport::PeerKind;

/// Takes proposals of this node and, while it leads, of its peers.
pub(crate) struct Proposer {
    node: Arc<RaftNode>,
    peers: Peers,
    machine: Arc<dyn StateMachine>,
    time: Arc<dyn Timekeeper>,
    /// The order of the proposals to the leader of a term.
    order: Mutex<Option<(u64, Tickets)>>,
}

impl Proposer {
    pub(crate) fn new(
        node: Arc<RaftNode>,
        peers: Peers,
        machine: Arc<dyn StateMachine>,
        time: Arc<dyn Timekeeper>,
    ) -> Self {
        Self { node, peers, machine, time, order: Mutex::default() }
    }

    /// On any node.
    pub(crate) async fn propose(&self, payload: Bytes) -> Result<LogPosition, ProposeError> {
        let max_bytes = self.node.config.max_proposal_bytes;
        if payload.len() > max_bytes {
            return Err(ProposeError::TooLarge { bytes: payload.len(), max_bytes });
        }
        if self.node.is_closing() {
            return Err(ProposeError::ShuttingDown);
        }
        let started = Instant::now();
        let leads = self.node.leads();
        let outcome = match leads.leader {
            _ if leads.leading => self.propose_here(self.node.config.node, payload).await,
            Some(leader) if leader != self.node.config.node => self.forward_in_order(leader, leads.term, payload).await,
            _ => Err(ProposeError::NoLeader),
        };
        let result = match &outcome {
            Ok(_) => "committed",
            Err(ProposeError::NoLeader | ProposeError::ShuttingDown) => "not_taken",
            Err(ProposeError::TooLarge { .. } | ProposeError::Unreadable(_)) => "refused",
            Err(ProposeError::Unknown(_) | ProposeError::Fatal(_)) => "unknown",
        };
        metrics::counter!("lockkeeper_proposals_total", "result" => result).increment(1);
        metrics::histogram!("lockkeeper_proposal_seconds").record(started.elapsed().as_secs_f64());
        outcome
    }

    /// On the leader: appends what `from` proposes, waits for the quorum and for the application here.
    pub(crate) async fn propose_here(&self, from: u64, payload: Bytes) -> Result<LogPosition, ProposeError> {
        let term = self.node.leads().term;
        if let Err(why) = self.machine.check(Some(from), &payload) {
            self.peers.refused(from, PeerKind::Propose, "proposal", &why);
            return Err(ProposeError::Unreadable(why));
        }
        self.check_level(&payload)?;
        if self.machine.is_ahead(&payload) {
            return Err(ProposeError::NoLeader);
        }
        let _step = self.machine.replicating(&payload);
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(self.node.propose_timeout(), self.write(term, payload)) => outcome,
            () = self.node.term_over(term) => {
                return Err(ProposeError::Unknown("this node lost the leadership before the outcome was known".into()));
            }
        };
        outcome.unwrap_or_else(|_| {
            Err(ProposeError::Unknown(format!(
                "not committed within {} ms; the leader may have lost its majority",
                self.node.config.propose_timeout_ms
            )))
        })
    }

    /// Refuses to raise the feature level beyond the reach of a member. The node that proposed it has checked that as
    /// well, but its batch may come late: members may have gone back to an older program meanwhile.
    fn check_level(&self, payload: &[u8]) -> Result<(), ProposeError> {
        let Some(level) = self.machine.raises_level_to(payload) else { return Ok(()) };
        if status_of(&self.node, &self.peers).common_feature_level().is_some_and(|common| common >= level) {
            return Ok(());
        }
        Err(ProposeError::Unreadable(format!("not every member supports feature level {level} at the moment")))
    }

    async fn write(&self, term: u64, payload: Bytes) -> Result<LogPosition, ProposeError> {
        let started = Instant::now();
        loop {
            let stamped = Stamped { clock_ms: self.time.lead(), payload: payload.clone() };
            let error = match self.node.raft.client_write(stamped).await {
                Ok(response) => return Ok(position_of(response.log_id())),
                Err(error) => error,
            };
            return Err(match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(refused)) => {
                    if self.node.majority_may_answer_yet(&refused, term, started).await {
                        continue;
                    }
                    ProposeError::NoLeader
                }
                RaftError::APIError(other) => ProposeError::Unknown(other.to_string()),
                RaftError::Fatal(fatal) if self.node.is_closing() => {
                    ProposeError::Unknown(format!("this node shut down before the outcome was known: {fatal}"))
                }
                RaftError::Fatal(fatal) => ProposeError::Fatal(fatal.to_string()),
            });
        }
    }

    /// For a proposal to the leader of this term.
    fn ticket(&self, leader: u64, term: u64) -> Ticket {
        let mut order = self.order.lock();
        let (_, tickets) = match &mut *order {
            Some(known) if known.0 == term => known,
            other => other.insert((term, self.peers.begin_sequence(leader))),
        };
        self.peers.next_ticket(leader, tickets)
    }

    /// After the proposals that were made before. If this one fails, the leader may never begin it: later ones begin a
    /// new sequence, so that they do not wait for it.
    async fn forward_in_order(&self, leader: u64, term: u64, payload: Bytes) -> Result<LogPosition, ProposeError> {
        let ticket = self.ticket(leader, term);
        let outcome = self.forward(leader, term, Command::Propose { payload, ticket }).await;
        if outcome.is_err() {
            self.order.lock().take_if(|(_, tickets)| tickets.are_of(ticket));
        }
        outcome
    }

    async fn forward(&self, leader: u64, term: u64, proposal: Command) -> Result<LogPosition, ProposeError> {
        let unknown = |what: String| ProposeError::Unknown(format!("node {leader}, which led, gave no answer: {what}"));
        let body = wire::encode(&proposal).map_err(|error| unknown(error.to_string()))?;
        // The leader's own limit, and a little more for the network.
        let deadline = self.node.propose_timeout() + Duration::from_millis(500);
        let answer = tokio::select! {
            answer = self.peers.call(leader, PeerKind::Propose, body, deadline) => answer,
            () = self.node.term_over(term) => return Err(unknown("its term is over".into())),
        };
        match answer {
            Ok(answer) => {
                let reply: ProposeReply = wire::decode(&answer).map_err(|error| unknown(error.to_string()))?;
                match reply {
                    Ok((term, index)) => {
                        let (term, index) = validation::check_answered_position(term, index).map_err(unknown)?;
                        Ok(LogPosition { term, index })
                    }
                    // The leader is going down: for this node there is none at the moment.
                    Err(ProposeError::ShuttingDown) => Err(ProposeError::NoLeader),
                    // The leader fails, this node does not.
                    Err(ProposeError::Fatal(what)) => Err(ProposeError::Unknown(what)),
                    Err(other) => Err(other),
                }
            }
            Err(error) if error.surely_not_acted_on() => Err(ProposeError::NoLeader),
            Err(error) => Err(unknown(error.to_string())),
        }
    }
}
