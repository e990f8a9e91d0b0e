//! Validation of peers' messages against this node's state: bounds on terms, indexes, clocks and memberships, and the
//! form of requests and answers that the protocol allows.
//!
//! openraft trusts its peers: a vote of the last possible term leaves no term for an election, an impossible answer
//! ends the task that reads it, and an entry that cannot be read ends every node that applies it. So every message of a
//! peer passes here first. Pure: nothing here reads a clock or changes anything. It cannot detect a peer that lies
//! within these bounds; keeping strangers from the peer port is another layer's task.

use openraft::EntryPayload;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse};
use openraft::vote::{RaftLeaderId, RaftVote};

use crate::application::{ClockReport, MAX_CLOCK_MS};
use crate::raft::node::RaftNode;
use crate::raft::types::{Entry, LogId, MAX_INDEX, Membership, SnapshotMeta, TypeConfig, Vote, position_of};
use crate::status::{MAX_ADDRESS_BYTES, MAX_MEMBERS, MemberRole};

/// The most by which one message may raise a node's term. Terms rise by one for each election, so such a gap takes ten
/// elections a second for over ten years; using up all terms takes as many messages, each with a durable vote.
pub(crate) const MAX_TERM_STEP: u64 = 1 << 32;
/// The highest term that a node without vote and log accepts: a node that joins late does not know the cluster's term.
pub(crate) const MAX_FIRST_TERM: u64 = 1 << 62;

/// Why a message is refused, in words for people.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// Checks messages against this node's state at their arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validator {
    /// This node.
    pub(crate) node: u64,
    /// Its term.
    pub(crate) term: u64,
    /// It has neither a vote nor a log.
    pub(crate) fresh: bool,
}

impl Validator {
    /// As this node stands now.
    pub(crate) fn of(node: &RaftNode) -> Validator {
        let metrics = node.raft.metrics();
        let metrics = metrics.borrow_watched();
        let term = metrics.vote.leader_id().term();
        Validator { node: node.config.node, term, fresh: term == 0 && metrics.last_log_index.is_none() }
    }

    fn max_term(&self) -> u64 {
        if self.fresh { MAX_FIRST_TERM } else { self.term.saturating_add(MAX_TERM_STEP).min(u64::MAX - 1) }
    }

    fn check_term(&self, term: u64) -> Checked {
        let max = self.max_term();
        if term <= max {
            return Ok(());
        }
        Err(format!("term {term} cannot be: this node is in term {}, and takes terms up to {max}", self.term))
    }

    /// A leader's vote, committed by the majority that elected it.
    pub(crate) fn check_leader(&self, vote: &Vote) -> Checked {
        self.check_term(vote.leader_id().term())?;
        if vote.is_committed() { Ok(()) } else { Err(format!("vote {vote} is a candidate's, not a leader's")) }
    }

    /// A position in the log of the sender, under its vote.
    fn check_position(&self, vote: &Vote, what: &str, id: Option<&LogId>) -> Checked {
        let Some(at) = id.map(position_of) else { return Ok(()) };
        if at.index > MAX_INDEX {
            return Err(format!("{what} has index {}, and no log goes beyond {MAX_INDEX}", at.index));
        }
        let term = vote.leader_id().term();
        if at.term > term {
            return Err(format!("{what} is of term {}, after the sender's own term {term}", at.term));
        }
        Ok(())
    }

    /// A request for a vote or a pre-vote.
    pub(crate) fn check_vote_request(&self, request: &VoteRequest<TypeConfig>) -> Checked {
        self.check_term(request.vote.leader_id().term())?;
        if request.vote.is_committed() {
            return Err(format!("vote {} is a leader's, not a candidate's", request.vote));
        }
        self.check_position(&request.vote, "the candidate's last entry", request.last_log_id.as_ref())
    }

    /// A leader that hands over.
    pub(crate) fn check_transfer(&self, request: &TransferLeaderRequest<TypeConfig>) -> Checked {
        self.check_leader(request.from_leader())?;
        self.check_position(request.from_leader(), "the leader's last entry", request.last_log_id())
    }

    /// An append: bounds, and entries that follow each other and the one before them. Its commit index is reduced to
    /// the entries that it covers (Raft, figure 2: the lower of the leader's and the last new entry).
    pub(crate) fn check_append(&self, request: &mut AppendEntriesRequest<TypeConfig>) -> Checked {
        self.check_leader(&request.vote)?;
        self.check_position(&request.vote, "the entry before", request.prev_log_id.as_ref())?;
        self.check_position(&request.vote, "the committed entry", request.leader_commit.as_ref())?;
        let mut last = request.prev_log_id;
        for entry in &request.entries {
            let id = entry.log_id();
            self.check_position(&request.vote, "an entry", Some(&id))?;
            follows(last.as_ref(), &id)?;
            check_entry(entry)?;
            last = Some(id);
        }
        request.leader_commit = committed_by(request, last)?;
        Ok(())
    }

    /// A snapshot's metadata, compared with what is committed here.
    pub(crate) fn check_snapshot(&self, vote: &Vote, meta: &SnapshotMeta, committed: Option<LogId>) -> Checked {
        self.check_leader(vote)?;
        self.check_position(vote, "the snapshot's last entry", meta.last_log_id.as_ref())?;
        check_membership(meta.last_membership.membership())?;
        let changed = meta.last_membership.log_id().as_ref();
        if changed > meta.last_log_id.as_ref() {
            return Err("the snapshot's membership is newer than the snapshot".into());
        }
        match (&meta.last_log_id, committed) {
            (Some(last), Some(committed)) if *last > committed && last.index() <= committed.index() => {
                Err(format!("the snapshot's last entry {last} contradicts {committed}, which is committed here"))
            }
            _ => Ok(()),
        }
    }

    /// A vote in an answer of `peer` that rejects this node. A term too far ahead is followed a step at a time, so that
    /// nodes whose terms are far apart converge. It never makes this node a leader or a candidate: a vote for this node
    /// in a term unknown to it becomes one for the peer, which has already voted in that term and cannot be a candidate
    /// in it.
    fn follow(&self, peer: u64, vote: &Vote) -> Vote {
        let (term, node) = (vote.leader_id().term(), *vote.leader_id().node_id());
        let node = if node == self.node && term > self.term { peer } else { node };
        Vote::from_leader_id(RaftLeaderId::new(term.min(self.max_term()), node), false)
    }

    /// The answer to a vote request of this node.
    pub(crate) fn check_vote_answer(
        &self,
        peer: u64,
        asked: &Vote,
        answer: VoteResponse<TypeConfig>,
    ) -> Checked<VoteResponse<TypeConfig>> {
        self.check_position(&answer.vote, "the voter's last entry", answer.last_log_id.as_ref())?;
        // A granted vote is answered with that vote, a granted pre-vote with an earlier one.
        if answer.vote_granted && answer.vote <= *asked {
            return Ok(answer);
        }
        if answer.vote_granted {
            return Err(format!("it grants {asked}, and has voted {} since", answer.vote));
        }
        Ok(VoteResponse { vote: self.follow(peer, &answer.vote), ..answer })
    }

    /// A vote that the peer calls higher than this node's, under which it called as a leader.
    pub(crate) fn check_higher_vote(&self, peer: u64, own: &Vote, higher: &Vote) -> Checked<Vote> {
        if higher > own {
            return Ok(self.follow(peer, higher));
        }
        Err(format!("it calls {higher} higher than {own}"))
    }

    /// The answer to an append. `matched` is what the peer has acknowledged under the same vote before.
    pub(crate) fn check_append_answer(
        &self,
        peer: u64,
        request: &AppendEntriesRequest<TypeConfig>,
        matched: Option<LogId>,
        answer: AppendEntriesResponse<TypeConfig>,
    ) -> Checked<AppendEntriesResponse<TypeConfig>> {
        match &answer {
            AppendEntriesResponse::Success => Ok(answer),
            AppendEntriesResponse::PartialSuccess(upto) => {
                let sent = *upto == request.prev_log_id
                    || upto.is_some_and(|upto| request.entries.iter().any(|entry| entry.log_id() == upto));
                if sent { Ok(answer) } else { Err(format!("it acknowledges {upto:?}, which it was not sent")) }
            }
            AppendEntriesResponse::Conflict => match request.prev_log_id {
                None => Err("it says that the beginning of the log does not fit".into()),
                Some(prev) if matched.is_some_and(|matched| prev.index() <= matched.index()) => {
                    Err(format!("it no longer has {prev}, which it has acknowledged: its log was put back or lost"))
                }
                Some(_) => Ok(answer),
            },
            AppendEntriesResponse::HigherVote(higher) => {
                Ok(AppendEntriesResponse::HigherVote(self.check_higher_vote(peer, &request.vote, higher)?))
            }
        }
    }
}

fn follows(before: Option<&LogId>, id: &LogId) -> Checked {
    let expected = before.map_or(0, |before| before.index() + 1);
    if id.index() != expected || before.is_some_and(|before| id < before) {
        return Err(format!("entry {id} does not follow {before:?}"));
    }
    Ok(())
}

/// The committed part of the log that this request describes, up to `last`.
fn committed_by(request: &AppendEntriesRequest<TypeConfig>, last: Option<LogId>) -> Checked<Option<LogId>> {
    let (Some(committed), Some(last)) = (request.leader_commit, last) else { return Ok(None) };
    if committed.index() > last.index() {
        return if committed >= last { Ok(Some(last)) } else { Err(contradiction(&committed, &last)) };
    }
    let sent = request.entries.iter().map(Entry::log_id).chain(request.prev_log_id);
    let fits = sent.into_iter().all(|id| match committed.index().cmp(&id.index()) {
        std::cmp::Ordering::Less => committed < id,
        std::cmp::Ordering::Equal => committed == id,
        std::cmp::Ordering::Greater => committed > id,
    });
    if fits { Ok(Some(committed)) } else { Err(contradiction(&committed, &last)) }
}

fn contradiction(committed: &LogId, last: &LogId) -> String {
    format!("the committed entry {committed} contradicts the entries up to {last}")
}

fn check_entry(entry: &Entry) -> Checked {
    match &entry.payload {
        EntryPayload::Blank => Ok(()),
        EntryPayload::Normal(stamped) => check_clock(stamped.clock_ms),
        EntryPayload::Membership(membership) => check_membership(membership),
    }
}

/// A membership that the protocol can work with: voters, each with a node; openraft relies on both.
fn check_membership(membership: &Membership) -> Checked {
    let configs = membership.get_joint_config();
    if configs.is_empty() && membership.nodes().next().is_none() {
        return Ok(());
    }
    if configs.is_empty() || configs.len() > 2 || configs.iter().any(std::collections::BTreeSet::is_empty) {
        return Err("a membership needs voters, in one set or, during a change, in two".into());
    }
    for voter in membership.voter_ids() {
        match membership.get_node(&voter).map(|entry| entry.role) {
            Some(MemberRole::Member) => {}
            Some(MemberRole::Front) => {
                return Err(format!("voter {voter} of a membership is a front node, which never votes"));
            }
            None => return Err(format!("voter {voter} of a membership has no address")),
        }
    }
    // Wider bounds than for a change of the membership: the founding members come from a configuration.
    if membership.nodes().count() > 2 * MAX_MEMBERS {
        return Err(format!("a membership has at most {} nodes", 2 * MAX_MEMBERS));
    }
    if membership.nodes().any(|(_, node)| node.addresses.each().any(|address| address.len() > 4 * MAX_ADDRESS_BYTES)) {
        return Err(format!("an address has at most {} bytes", 4 * MAX_ADDRESS_BYTES));
    }
    Ok(())
}

/// A peer's clock.
pub(crate) fn check_clock(clock_ms: u64) -> Checked {
    if clock_ms <= MAX_CLOCK_MS {
        return Ok(());
    }
    Err(format!("a clock shows {clock_ms} ms, and no clock goes beyond {MAX_CLOCK_MS}"))
}

/// A follower's clocks.
pub(crate) fn check_clocks(report: &ClockReport) -> Checked {
    check_clock(report.wall_ms)?;
    report.clock_ms.map_or(Ok(()), check_clock)
}

/// A position in a leader's answer.
pub(crate) fn check_answered_position(term: u64, index: u64) -> Checked<(u64, u64)> {
    if index > MAX_INDEX {
        return Err(format!("index {index} cannot be: no log goes beyond {MAX_INDEX}"));
    }
    Ok((term, index))
}
