//! Replicates the leader's record of sessions to the other voters, so that the next leader goes on from it
//! (`ARCHITECTURE.md`, Sessions).
//!
//! Before a keepalive is acknowledged, a majority of the voters has it in its [`LivenessTable`]. A new leader
//! collects the tables. If a majority of the voters, itself included, has a whole one, every acknowledged keepalive
//! is in one of them, and each timer begins at the last sign of life in any of them. If not, every timer starts in
//! full (promise P5). A node that has restarted gets the leader's whole table, and counts from then on.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lockkeeper_consensus::{BarrierError, TransportError};
use lockkeeper_core::SessionId;
use lockkeeper_mutants::mutant;
use parking_lot::Mutex;

use crate::config::NodeConfig;
use crate::observers::records::liveness::{Ages, Fenced, LivenessTable, age_ms};
use crate::observers::records::tracker::Liveness;
use crate::observers::records::{LeaderRecord, Records};
use crate::replica::Replica;
use crate::replication::Replication;
use crate::sessions::messages::{MAX_GROUP, SessionMessage, TableAnswer, TableCall};

/// How long a new leader waits for the tables of the others. A node that is gone refuses at once; a node that is cut
/// off never answers.
const COLLECT_WITHIN: Duration = Duration::from_millis(500);
/// The pause between two calls to a node that is not ready.
const CALL_AGAIN: Duration = Duration::from_millis(20);
/// How often a node whose table is whole is asked whether it still is: it may have restarted.
const LOOK_EVERY: Duration = Duration::from_millis(400);
/// How long after its latest answer a node's table still counts as whole for the metric.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Most calls in flight to a node that does not answer.
const MAX_UNANSWERED: usize = 8;

/// The result of collecting the tables.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// A majority has whole tables: every acknowledged sign of life is known.
    pub(crate) whole: bool,
    /// Members have not answered and their processes are gone: signs of life that only they heard are lost.
    pub(crate) some_gone: bool,
    /// Members have not answered but may run: they may have heard signs of life that they report later.
    pub(crate) some_silent: bool,
    pub(crate) voters: Vec<u64>,
}

/// The state of one member's table, as a new leader collects it.
enum CollectedTable {
    Whole,
    /// The node has restarted, or skipped part of the log, and has not received the whole table since.
    Incomplete,
    /// The node's process is gone.
    Gone,
    Silent,
}

/// See the module's text.
pub(crate) struct LivenessReplication {
    node: u64,
    incarnation: u64,
    replica: Arc<Replica>,
    replication: Arc<dyn Replication>,
    call_timeout: Duration,
    /// Calls in flight to each node.
    unanswered: Mutex<BTreeMap<u64, usize>>,
    /// The voters whose tables are known to be whole, and when they were last asked.
    whole: Mutex<BTreeMap<u64, Duration>>,
    syncs: AtomicU64,
}

impl LivenessReplication {
    pub(crate) fn new(
        config: &NodeConfig,
        incarnation: u64,
        replica: Arc<Replica>,
        replication: Arc<dyn Replication>,
    ) -> Arc<Self> {
        Arc::new(Self {
            node: config.consensus.node,
            incarnation,
            replica,
            replication,
            call_timeout: Duration::from_millis(config.keepalive_group_timeout_ms),
            unanswered: Mutex::default(),
            whole: Mutex::default(),
            syncs: AtomicU64::new(0),
        })
    }

    fn voters(&self) -> Vec<u64> {
        self.replication.members().borrow().voters.keys().copied().collect()
    }

    fn is_majority(&self, some: &BTreeSet<u64>, voters: &[u64]) -> bool {
        voters.iter().filter(|voter| some.contains(voter)).count() > voters.len() / 2
    }

    /// Answers another node, if it leads the term that it names. If it is not known to lead it yet, it calls again,
    /// as after every `NotYet`.
    pub(crate) fn answer_to(&self, from: u64, call: TableCall) -> TableAnswer {
        let known = *self.replication.leadership().borrow();
        match (call.term().cmp(&known.term), known.leader) {
            // This node may have voted for its leader, but has not heard from it as the leader.
            (Ordering::Greater, _) | (Ordering::Equal, None) => TableAnswer::NotYet,
            (Ordering::Equal, Some(leader)) if leader == from => self.answer(call),
            _ => TableAnswer::Fenced,
        }
    }

    /// Answers the leader of that term.
    fn answer(&self, call: TableCall) -> TableAnswer {
        self.try_answer(call).unwrap_or(TableAnswer::Fenced)
    }

    fn try_answer(&self, call: TableCall) -> Result<TableAnswer, Fenced> {
        let term = call.term();
        // A term that consensus does not know must not fence the table.
        if term > self.replication.leadership().borrow().term {
            return Ok(TableAnswer::NotYet);
        }
        let now_ms = self.replica.now_ms();
        let applied = self.replica.state().zxid();
        self.replica.sessions.with(|Records { liveness: table, delegated, .. }| {
            Ok(match call {
                TableCall::Accept { voters, ages, .. } => {
                    TableAnswer::Accepted { whole: table.accept(term, &voters, &ages, now_ms)? }
                }
                TableCall::Begin { zxid, .. } if applied < zxid => TableAnswer::NotYet,
                TableCall::Begin { number, .. } => {
                    table.begin_sync(term, number)?;
                    TableAnswer::Ready { incarnation: self.incarnation }
                }
                TableCall::Finish { incarnation, .. } if incarnation != self.incarnation => TableAnswer::NotYet,
                TableCall::Finish { number, voters, .. } => {
                    TableAnswer::Accepted { whole: table.finish_sync(term, number, &voters)? }
                }
                TableCall::Collect { voters, after, .. } => {
                    table.fence(term)?;
                    if after.is_none() {
                        // Signs that were heard here and have not reached a leader count too.
                        note_all(table, delegated.all_alive_ms(now_ms));
                    }
                    let (ages, more) = table.page(after, MAX_GROUP, now_ms);
                    TableAnswer::Page { whole: table.is_whole_for(&voters), ages, more }
                }
            })
        })
    }

    async fn call(&self, to: u64, call: TableCall, deadline: Duration) -> Option<TableAnswer> {
        self.try_call(to, call, deadline).await.ok()
    }

    async fn try_call(&self, to: u64, call: TableCall, deadline: Duration) -> Result<TableAnswer, TransportError> {
        let garbled = |error: postcard::Error| TransportError::Garbled(error.to_string());
        let body = Bytes::from(postcard::to_stdvec(&SessionMessage::Table(call)).map_err(garbled)?);
        let answer = self.replication.call_service(to, body, deadline).await?;
        postcard::from_bytes(&answer).map_err(garbled)
    }

    /// Replicates the latest signs of life to a majority. Returns the term in which this node leads.
    pub(crate) async fn replicate(self: &Arc<Self>) -> Result<u64, BarrierError> {
        let (term, news) = self.replica.sessions.with(|records| {
            let leader = records.leader.as_mut().ok_or(BarrierError::NoLeader)?;
            Ok((leader.term, std::mem::take(&mut leader.unreplicated)))
        })?;
        let copied = self.replicate_to_majority(term, &news).await;
        if copied.is_err() {
            self.put_back(term, news);
        }
        copied
    }

    /// Signs of life that no majority has go with the next round, which may answer groups that noted them.
    fn put_back(&self, term: u64, news: BTreeMap<SessionId, u64>) {
        self.replica.sessions.with(|records| {
            let Some(leader) = records.leader_of(term) else { return };
            news.into_iter().for_each(|(session, alive_ms)| leader.note_unreplicated(session, alive_ms));
            let LeaderRecord { unreplicated, tracker, .. } = leader;
            // While no majority answers, keepalives of ended sessions pile up; they are never acknowledged, so drop
            // them.
            if unreplicated.len() > 2 * tracker.len() + MAX_GROUP {
                unreplicated.retain(|session, _| tracker.liveness(*session) != Liveness::Unknown);
            }
        });
    }

    async fn replicate_to_majority(
        self: &Arc<Self>,
        term: u64,
        news: &BTreeMap<SessionId, u64>,
    ) -> Result<u64, BarrierError> {
        let voters = self.voters();
        let now_ms = self.replica.now_ms();
        let ages: Ages = news.iter().map(|(session, alive_ms)| (*session, age_ms(*alive_ms, now_ms))).collect();
        let mut accepted = BTreeSet::new();
        match self.answer(TableCall::Accept { term, voters: voters.clone(), ages: ages.clone() }) {
            TableAnswer::Accepted { .. } => drop(accepted.insert(self.node)),
            _ => return Err(BarrierError::NoLeader),
        }
        // The leader's own table is always whole, whoever votes.
        self.replica.sessions.with(|records| records.liveness.lead(&voters));
        if mutant!(CopyWithoutQuorum) {
            return Ok(term);
        }
        let mut copies: FuturesUnordered<_> =
            voters.iter().filter(|to| **to != self.node).map(|to| self.copy_to(*to, term, &voters, &ages)).collect();
        while !self.is_majority(&accepted, &voters) {
            match copies.next().await {
                Some(Some(to)) => drop(accepted.insert(to)),
                Some(None) => {}
                None => return Err(BarrierError::NoQuorum),
            }
        }
        Ok(term)
    }

    /// Completes with the node's id once it has accepted all. Goes on if the future is dropped.
    fn copy_to(
        self: &Arc<Self>,
        to: u64,
        term: u64,
        voters: &[u64],
        ages: &Ages,
    ) -> impl Future<Output = Option<u64>> + use<> {
        let full = {
            let mut unanswered = self.unanswered.lock();
            let count = unanswered.entry(to).or_default();
            *count += 1;
            *count > MAX_UNANSWERED
        };
        let under_way = InflightCall { this: self.clone(), to };
        let mut parts: Vec<Ages> = ages.chunks(MAX_GROUP).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Ages::new());
        }
        let voters = voters.to_vec();
        let copy = self.replica.tasks.spawn(async move {
            let this = &under_way.this;
            for ages in parts.into_iter().filter(|_| !full) {
                let call = TableCall::Accept { term, voters: voters.clone(), ages };
                let Some(TableAnswer::Accepted { whole }) = this.call(to, call, this.call_timeout).await else {
                    return None;
                };
                this.note_whole(to, whole);
            }
            (!full).then_some(to)
        });
        copy.map(|copied| copied.ok().flatten().flatten())
    }

    fn note_whole(&self, of: u64, whole: bool) {
        let mut known = self.whole.lock();
        if whole {
            known.insert(of, self.replica.clock.now());
        } else {
            known.remove(&of);
        }
    }

    /// Voters whose tables are whole, this one included. One that does not answer any more may have restarted without
    /// its table.
    pub(crate) fn whole_tables(&self) -> usize {
        let now = self.replica.clock.now();
        1 + self.whole.lock().values().filter(|at| now < **at + KNOWN_FOR).count()
    }

    /// Sends the whole table to each voter that has none, one after the other. `confirm` is a round that confirms this
    /// leader.
    pub(crate) async fn sync_tables<F>(self: &Arc<Self>, term: u64, confirm: impl Fn() -> F)
    where
        F: Future<Output = bool>,
    {
        let voters = self.voters();
        for to in voters.iter().copied().filter(|to| *to != self.node) {
            let now = self.replica.clock.now();
            let asked = self.whole.lock().get(&to).copied();
            match asked {
                Some(at) if now < at + LOOK_EVERY => continue,
                Some(_) => {
                    // The answer says whether the node still has its table.
                    drop(self.copy_to(to, term, &voters, &Ages::new()));
                }
                None => {
                    let whole = self.sync(to, term, &voters, &confirm).await.unwrap_or(false);
                    self.note_whole(to, whole);
                }
            }
        }
        metrics::gauge!("lockkeeper_whole_session_tables").set(self.whole_tables() as f64);
    }

    async fn sync<F>(&self, to: u64, term: u64, voters: &[u64], confirm: &impl Fn() -> F) -> Option<bool>
    where
        F: Future<Output = bool>,
    {
        let number = self.syncs.fetch_add(1, Relaxed) + 1;
        let zxid = self.replica.state().zxid();
        let begin = TableCall::Begin { term, number, zxid };
        let TableAnswer::Ready { incarnation } = self.call(to, begin, COLLECT_WITHIN).await? else { return None };
        // Signs acknowledged after this moment reach that node beside the table.
        let alive = self.replica.sessions.with(|records| Some(records.leader_of(term)?.tracker.all_alive_ms()));
        let all: Vec<(SessionId, u64)> = alive?.into_iter().collect();
        for part in all.chunks(MAX_GROUP) {
            let now_ms = self.replica.now_ms();
            let ages = part.iter().map(|(session, alive_ms)| (*session, age_ms(*alive_ms, now_ms))).collect();
            let call = TableCall::Accept { term, voters: voters.to_vec(), ages };
            let TableAnswer::Accepted { .. } = self.call(to, call, self.call_timeout).await? else { return None };
        }
        // A deposed leader does not know every sign that was acknowledged.
        if !confirm().await {
            return None;
        }
        let finish = TableCall::Finish { term, number, incarnation, voters: voters.to_vec() };
        let TableAnswer::Accepted { whole } = self.call(to, finish, self.call_timeout).await? else { return None };
        tracing::debug!(node = to, term, sessions = all.len(), whole, "a node has the whole liveness table");
        Some(whole)
    }

    /// As the leader of this term, collects the tables of all members into this node's own.
    pub(crate) async fn collect(self: &Arc<Self>, term: u64) -> Collected {
        let (voters, members) = {
            let members = self.replication.members();
            let members = members.borrow();
            let voters: Vec<u64> = members.voters.keys().copied().collect();
            let all: Vec<u64> = members.all().map(|(node, _)| *node).collect();
            (voters, all)
        };
        self.whole.lock().clear();
        let mut whole = BTreeSet::new();
        let own = self.answer(TableCall::Collect { term, voters: voters.clone(), after: None });
        let own_whole = matches!(own, TableAnswer::Page { whole: true, .. }) || mutant!(CountForgetfulTables);
        whole.extend(own_whole.then_some(self.node));
        let others: FuturesUnordered<_> = members
            .iter()
            .filter(|from| **from != self.node)
            .map(|from| self.collect_from(*from, term, &voters))
            .collect();
        let (mut some_gone, mut some_silent) = (false, false);
        let collecting = others.for_each(|(from, table)| {
            match table {
                CollectedTable::Whole => drop(whole.insert(from)),
                CollectedTable::Incomplete if mutant!(CountForgetfulTables) => drop(whole.insert(from)),
                CollectedTable::Incomplete => {}
                CollectedTable::Gone => some_gone = true,
                CollectedTable::Silent => some_silent = true,
            }
            std::future::ready(())
        });
        let end = self.replica.clock.now() + COLLECT_WITHIN;
        let in_time = tokio::select! {
            () = collecting => true,
            () = self.replica.clock.sleep_until(end) => false,
        };
        // This node notes itself the sessions whose commands it applied; without a whole table it may lack some.
        let enough = own_whole && self.is_majority(&whole, &voters) && !mutant!(IgnoreReportedAges);
        Collected { whole: enough, some_gone, some_silent: some_silent || !in_time, voters }
    }

    /// Merges a node's table into this one's. Returns the state of that table.
    async fn collect_from(&self, from: u64, term: u64, voters: &[u64]) -> (u64, CollectedTable) {
        let mut after = None;
        loop {
            let call = TableCall::Collect { term, voters: voters.to_vec(), after };
            match self.try_call(from, call, COLLECT_WITHIN).await {
                Ok(TableAnswer::Page { whole, ages, more }) => {
                    let now_ms = self.replica.now_ms();
                    let alive = ages.iter().map(|(session, age)| (*session, now_ms.saturating_sub(u64::from(*age))));
                    self.replica.sessions.with(|records| note_all(&mut records.liveness, alive));
                    match ages.last().filter(|_| more) {
                        Some((last, _)) => after = Some(*last),
                        None => return (from, if whole { CollectedTable::Whole } else { CollectedTable::Incomplete }),
                    }
                }
                Ok(TableAnswer::NotYet) => {
                    let again = self.replica.clock.now() + CALL_AGAIN;
                    self.replica.clock.sleep_until(again).await;
                }
                Err(error) if error.process_gone() => return (from, CollectedTable::Gone),
                _ => return (from, CollectedTable::Silent),
            }
        }
    }
}

fn note_all(table: &mut LivenessTable, alive: impl Iterator<Item = (SessionId, u64)>) {
    alive.for_each(|(session, at_ms)| table.note(session, at_ms));
}

/// Counts a call to a node as in flight.
struct InflightCall {
    this: Arc<LivenessReplication>,
    to: u64,
}

impl Drop for InflightCall {
    fn drop(&mut self) {
        if let Some(count) = self.this.unanswered.lock().get_mut(&self.to) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
#[path = "liveness_replication_tests.rs"]
mod tests;
