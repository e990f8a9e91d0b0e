//! Guard against data directories restored from an older copy: a node takes part in Raft only after its peers have
//! checked the starts of its directory, and it has checked theirs.
//!
//! A node sends a claim of its directory's starts to every peer (see [`crate::admission::claim`]); the answer
//! holds the peer's claim. Until a majority of the voters, itself included, has found its claim in order, and every
//! other peer has answered or cannot be reached, it neither votes nor campaigns nor acknowledges anything. After that
//! it exchanges Raft messages only with peers that have found it in order and that it has found in order. A claim that
//! contradicts a peer's memory ends the process: see `Peers::handle_rejection`.
//!
//! Nodes that restart together admit each other: a node answers claims before it is admitted. An old message of a peer
//! must never undo what is known of its present start, and an intact directory must never be refused: a memory may be
//! old, and then knows less, never more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::admission::auth::PeerCaller;
use crate::admission::claim::{
    Acknowledged, ClaimReply, DirectoryClaim, KnownPeer, PeerMemory, PeerRejection, StartId,
};
use crate::application::FatalHook;
use crate::error::ServeError;
use crate::status::MemberRole;
use crate::transport::TransportError;

/// The receiver is not admitted itself yet.
pub(crate) const CODE_NOT_ADMITTED: &str = "not_admitted";
/// The two have not found each other's present starts in order yet: the caller must claim again.
pub(crate) const CODE_START_UNCONFIRMED: &str = "start_unconfirmed";

/// A peer that has not answered so many claims counts as unreachable; a peer whose process is gone counts at once.
const SILENT_AFTER: u32 = 3;
const MAX_VOTERS: usize = 256;
pub(crate) const MALFORMED: &str =
    "does not name the starts of the caller's data directory, in order and within bounds";

/// A peer that needs a task: new, or mentioned again after it was forgotten; and what wakes its task.
pub(crate) type Wanted = (u64, Arc<Notify>);

/// This node and one peer.
#[derive(Default)]
struct Pair {
    /// The start of the peer that this node has found in order.
    verified: Option<StartId>,
    /// The start of the peer that has found this node's in order.
    approved_by: Option<StartId>,
    /// Whether the peer says that it belongs to a formed cluster.
    formed: Option<bool>,
    /// The peer says that it is a front node.
    front: bool,
    /// Claims since the last answer.
    unanswered: u32,
    /// Why the latest claim got no answer. Nothing listens there if the connection was refused.
    failure: Option<TransportError>,
    /// The peer has rejected a message because the two have not found each other in order.
    asked_again: bool,
    turned_away: Option<String>,
    acknowledged: Acknowledged,
    saved: Acknowledged,
    claim_now: Arc<Notify>,
}

impl Pair {
    fn is_complete(&self) -> bool {
        self.approved_by.is_some() && self.approved_by == self.verified
    }
}

#[derive(Default)]
struct Table {
    admitted: bool,
    condemned: bool,
    peers: BTreeMap<u64, Pair>,
    /// The voters by the latest membership that this node or one of its peers knows, and the log index of that.
    voters: Option<(u64, BTreeSet<u64>)>,
}

/// See the module's text.
pub(crate) struct RollbackGuard {
    node: u64,
    pub(crate) claim: DirectoryClaim,
    memory: Arc<dyn PeerMemory>,
    fatal: FatalHook,
    configured: BTreeSet<u64>,
    table: Mutex<Table>,
    /// Peers for which a task is wanted.
    wanted: mpsc::UnboundedSender<Wanted>,
}

impl RollbackGuard {
    pub(crate) fn new(
        node: u64,
        claim: DirectoryClaim,
        memory: Arc<dyn PeerMemory>,
        fatal: FatalHook,
        configured: BTreeSet<u64>,
        fresh: bool,
    ) -> (Arc<RollbackGuard>, mpsc::UnboundedReceiver<Wanted>) {
        let (wanted, requests) = mpsc::unbounded_channel();
        // A directory without a vote and a log has acknowledged nothing. Its peers recognise a wiped one by its id.
        let table = Mutex::new(Table { admitted: fresh, ..Table::default() });
        let guard = RollbackGuard { node, claim, memory, fatal, configured, table, wanted };
        for peer in guard.configured.iter().filter(|peer| **peer != node) {
            guard.pair(&mut guard.table.lock(), *peer);
        }
        (Arc::new(guard), requests)
    }

    /// The pair with a peer; the first mention of a peer starts its task.
    fn pair<'t>(&self, table: &'t mut Table, peer: u64) -> &'t mut Pair {
        table.peers.entry(peer).or_insert_with(|| {
            let acknowledged = self.memory.peer(peer).map(|known| known.acknowledged).unwrap_or_default();
            let pair = Pair { acknowledged, saved: acknowledged, ..Pair::default() };
            // The receiver is gone only when consensus has stopped.
            let _ = self.wanted.send((peer, pair.claim_now.clone()));
            pair
        })
    }

    /// Whether Raft messages may go to a peer.
    pub(crate) fn may_call(&self, peer: u64) -> bool {
        let mut table = self.table.lock();
        let open = table.admitted && !table.condemned;
        self.pair(&mut table, peer).approved_by.is_some() && open
    }

    /// The latest start of a peer that this node has found in order: connections go to that one.
    pub(crate) fn start_of(&self, peer: u64) -> Option<StartId> {
        self.memory.peer(peer).and_then(|known| known.start)
    }

    /// Whether a Raft message of a peer may be acted on.
    pub(crate) fn check_caller(&self, caller: PeerCaller) -> Result<(), ServeError> {
        let expected = caller.expects.map_or(Ok(()), |start| self.claim.agrees_with_start(self.node, start));
        let mut table = self.table.lock();
        let open = table.admitted && !table.condemned;
        let pair = self.pair(&mut table, caller.node);
        if let Err(no) = expected {
            if pair.verified == Some(caller.start) {
                drop(table);
                self.condemn(&format!("node {} does not accept this node: {}", caller.node, no.detail));
            } else {
                // Not verified. If it is true, the peer's answer to a claim will say it too.
                pair.approved_by = None;
                pair.claim_now.notify_one();
            }
            // The caller's own directory is not what is wrong here.
            return Err(ServeError::new(CODE_NOT_ADMITTED, no.detail));
        }
        if !open {
            pair.claim_now.notify_one();
            return Err(ServeError::new(CODE_NOT_ADMITTED, format!("node {} is not let in yet", self.node)));
        }
        if pair.is_complete() && pair.verified == Some(caller.start) {
            return Ok(());
        }
        if pair.approved_by != Some(caller.start) {
            pair.approved_by = None;
            pair.claim_now.notify_one();
        }
        let detail = format!("nodes {} and {} have not found each other's starts in order yet", self.node, caller.node);
        Err(ServeError::new(CODE_START_UNCONFIRMED, detail))
    }

    /// A peer asks for a new claim. Its approval counts until it answers: it may ask only because its own claim to this
    /// node is still on the way, and two nodes that each forgot the other's approval would reject each other in turns.
    pub(crate) fn claim_again(&self, peer: u64) {
        if let Some(pair) = self.table.lock().peers.get_mut(&peer) {
            pair.asked_again = true;
            pair.claim_now.notify_one();
        }
    }

    /// A removed member.
    pub(crate) fn forget(&self, peer: u64) {
        if let Some(pair) = self.table.lock().peers.remove(&peer) {
            pair.claim_now.notify_one();
        }
    }

    /// This node's directory must not be used.
    pub(crate) fn condemn(&self, why: &str) {
        if !std::mem::replace(&mut self.table.lock().condemned, true) {
            (self.fatal)(why.to_owned());
        }
    }

    /// A peer has acknowledged a log index, or granted its vote, or as a leader has reported the durable end of its
    /// log.
    pub(crate) fn acknowledged(&self, peer: u64, what: Acknowledged) {
        if let Some(pair) = self.table.lock().peers.get_mut(&peer) {
            pair.acknowledged = pair.acknowledged.max(what);
            // It takes part: the claim turned away in its name was of another process.
            pair.turned_away = None;
        }
    }

    /// Compares a peer's claim with what this node remembers of it, and remembers the claim if it is in order.
    pub(crate) fn judge(
        &self,
        peer: u64,
        claim: &DirectoryClaim,
        replicated: Option<u64>,
    ) -> Result<(), PeerRejection> {
        let acknowledged = {
            let mut table = self.table.lock();
            self.pair(&mut table, peer).acknowledged
        };
        let new = KnownPeer { directory: claim.directory, start: None, acknowledged };
        let mut in_order = Ok(());
        let updated = self.memory.update(peer, &mut |known| {
            let known = known.get_or_insert(new);
            // Evidence against the directory must outlive this process, whatever the verdict on the claim.
            known.acknowledged = known.acknowledged.max(acknowledged);
            in_order = claim
                .agrees_with(peer, known)
                .and_then(|()| replicated.map_or(Ok(()), |number| claim.agrees_with_replicated(peer, number)));
            if in_order.is_ok() && known.start.is_none_or(|start| start.number <= claim.start().number) {
                known.start = Some(claim.start());
            }
        });
        if let Err(error) = updated {
            let detail = format!("node {} cannot write down the start of node {peer}: {error}", self.node);
            return Err(PeerRejection { code: CODE_NOT_ADMITTED, detail });
        }
        self.record_verdict(peer, claim, &in_order);
        in_order
    }

    fn record_verdict(&self, peer: u64, claim: &DirectoryClaim, in_order: &Result<(), PeerRejection>) {
        let mut table = self.table.lock();
        let pair = self.pair(&mut table, peer);
        match in_order {
            Ok(()) => {
                pair.verified = Some(claim.start());
                pair.turned_away = None;
            }
            Err(no) => {
                tracing::error!(peer, code = no.code, "{}", no.detail);
                metrics::counter!("lockkeeper_peers_turned_away_total", "code" => no.code).increment(1);
                pair.turned_away = Some(no.detail.clone());
                // An old message, or a copy, says nothing against the process that was found in order.
                if pair.verified == Some(claim.start()) {
                    pair.verified = None;
                }
            }
        }
    }

    /// Admits this node, if that is due.
    pub(crate) fn admit_if_due(&self) {
        let mut table = self.table.lock();
        if table.admitted || table.condemned {
            return;
        }
        let voters = table.voters.as_ref().map_or(&self.configured, |(_, voters)| voters);
        let others: Vec<u64> = voters.iter().copied().filter(|voter| *voter != self.node).collect();
        let needed = (voters.len() / 2 + 1).saturating_sub(usize::from(voters.contains(&self.node)));
        let pair = |peer: &u64| table.peers.get(peer);
        let complete = others.iter().filter_map(pair).filter(|pair| pair.is_complete()).count();
        let settled = |pair: &Pair| {
            pair.is_complete()
                || pair.turned_away.is_some()
                || pair.failure == Some(TransportError::Refused)
                || pair.unanswered >= SILENT_AFTER
        };
        let all_settled = others.iter().all(|peer| pair(peer).is_some_and(settled));
        if complete >= needed && all_settled {
            table.admitted = true;
            tracing::info!(
                start = self.claim.start().number,
                peers = complete,
                "this node's data directory is in order; taking part"
            );
        }
    }

    /// Why this node does not take part yet.
    pub(crate) fn not_admitted_because(&self) -> Option<String> {
        let table = self.table.lock();
        if table.admitted && !table.condemned {
            return None;
        }
        if table.condemned {
            return Some("its data directory was turned away by its peers; see the log".into());
        }
        let missing = self.missing_in(&table).into_iter().map(|(peer, why)| format!("node {peer} ({why})"));
        Some(format!(
            "its data directory is not confirmed yet: it takes a majority of the voters to compare it with what they \
             remember; waiting for {}",
            missing.collect::<Vec<_>>().join(", ")
        ))
    }

    /// The voters, or the configured peers where no voters are known, that this node and the peer have not found in
    /// order yet, and why.
    pub(crate) fn missing(&self) -> Vec<(u64, String)> {
        self.missing_in(&self.table.lock())
    }

    fn missing_in(&self, table: &Table) -> Vec<(u64, String)> {
        let why = |peer: u64| match table.peers.get(&peer) {
            Some(pair) if pair.is_complete() => None,
            Some(Pair { turned_away: Some(why), .. }) => Some(why.clone()),
            Some(Pair { failure: Some(failure), .. }) => Some(failure.to_string()),
            Some(Pair { formed: None, .. }) | None => Some("has not answered yet".into()),
            Some(_) => Some("answers, and has not found this node yet".into()),
        };
        let voters = table.voters.as_ref().map_or(&self.configured, |(_, voters)| voters);
        let others = voters.iter().copied().filter(|peer| *peer != self.node);
        others.filter_map(|peer| Some((peer, why(peer)?))).collect()
    }

    /// Peers whose data directories are not in order, and why.
    pub(crate) fn turned_away(&self) -> BTreeMap<u64, String> {
        let table = self.table.lock();
        let away = |(peer, pair): (&u64, &Pair)| pair.turned_away.clone().map(|why| (*peer, why));
        table.peers.iter().filter_map(away).collect()
    }

    /// A peer by the configuration that says it is a front node, and so must not found a cluster.
    pub(crate) fn front_among_founders(&self) -> Option<u64> {
        let table = self.table.lock();
        self.configured.iter().copied().find(|peer| table.peers.get(peer).is_some_and(|pair| pair.front))
    }

    /// On a directory without a cluster: `None` while a peer has not answered or is a front node, then whether a
    /// cluster exists already.
    pub(crate) fn is_formed(&self) -> Option<bool> {
        let table = self.table.lock();
        let mut formed = self
            .configured
            .iter()
            .filter(|peer| **peer != self.node)
            .map(|peer| table.peers.get(peer).filter(|pair| pair.is_complete()).and_then(|pair| pair.formed));
        if formed.clone().flatten().any(|formed| formed) {
            return Some(true);
        }
        let no_front = !self.configured.iter().any(|peer| table.peers.get(peer).is_some_and(|pair| pair.front));
        (no_front && formed.all(|formed| formed == Some(false))).then_some(false)
    }

    /// The caller's claim is in order: what the caller expects of this node counts from now on.
    pub(crate) fn accepted(&self, caller: PeerCaller) {
        // What a peer expects counts against this node only if the peer is in order itself.
        if let Some(expected) = caller.expects
            && let Err(no) = self.claim.agrees_with_start(self.node, expected)
        {
            self.condemn(&format!("node {} does not accept this node: {}", caller.node, no.detail));
        }
        let mut table = self.table.lock();
        let pair = self.pair(&mut table, caller.node);
        if pair.approved_by != Some(caller.start) {
            pair.approved_by = None;
            pair.claim_now.notify_one();
        }
    }

    pub(crate) fn learn_voters(&self, voters: Option<(u64, Vec<u64>)>) {
        let Some((index, voters)) = voters.filter(|(_, voters)| (1..=MAX_VOTERS).contains(&voters.len())) else {
            return;
        };
        let mut table = self.table.lock();
        if table.voters.as_ref().is_none_or(|(known, _)| *known < index) {
            for peer in voters.iter().filter(|peer| **peer != self.node) {
                self.pair(&mut table, *peer);
            }
            table.voters = Some((index, voters.into_iter().collect()));
        }
    }

    /// Whether this node must claim at a peer; `None` if the peer was forgotten since the task that `now` wakes was
    /// started.
    pub(crate) fn must_claim(&self, peer: u64, now: &Arc<Notify>) -> Option<bool> {
        let table = self.table.lock();
        let pair = table.peers.get(&peer).filter(|pair| Arc::ptr_eq(&pair.claim_now, now))?;
        let unknown = pair.verified.is_none() && pair.turned_away.is_none();
        let open = pair.asked_again || pair.approved_by.is_none() || unknown;
        Some(open && !table.condemned)
    }

    /// Handles the answer to a claim; returns whether the two have found each other in order now.
    pub(crate) fn answered(&self, peer: u64, outcome: Result<ClaimReply, TransportError>) -> bool {
        let complete = match outcome {
            Ok(reply) => self.answered_with(peer, reply),
            Err(error) => {
                if let Some(pair) = self.table.lock().peers.get_mut(&peer) {
                    pair.failure = Some(error);
                    pair.unanswered = pair.unanswered.saturating_add(1);
                }
                false
            }
        };
        self.admit_if_due();
        complete
    }

    fn answered_with(&self, peer: u64, reply: ClaimReply) -> bool {
        let start = reply.claim.start();
        let well_formed = reply.claim.is_well_formed();
        let in_order = well_formed && self.judge(peer, &reply.claim, None).is_ok();
        let complete = {
            let mut table = self.table.lock();
            let pair = self.pair(&mut table, peer);
            (pair.unanswered, pair.failure, pair.asked_again, pair.formed) = (0, None, false, Some(reply.formed));
            pair.front = reply.role == MemberRole::Front;
            pair.approved_by = in_order.then_some(start);
            if !well_formed {
                pair.turned_away = Some(format!("node {peer} is turned away: it {MALFORMED}"));
            }
            pair.is_complete()
        };
        if in_order {
            self.learn_voters(reply.voters);
        }
        complete
    }

    /// What peers have acknowledged and is not saved.
    pub(crate) fn unsaved(&self) -> Vec<(u64, Acknowledged)> {
        let table = self.table.lock();
        let changed = table.peers.iter().filter(|(_, pair)| pair.acknowledged != pair.saved);
        changed.map(|(peer, pair)| (*peer, pair.acknowledged)).collect()
    }

    pub(crate) fn save(&self, peer: u64, acknowledged: Acknowledged) -> io::Result<()> {
        self.memory.update(peer, &mut |known| {
            if let Some(known) = known {
                known.acknowledged = known.acknowledged.max(acknowledged);
            }
        })?;
        if let Some(pair) = self.table.lock().peers.get_mut(&peer) {
            pair.saved = acknowledged;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
