//! Checks the whole world: follows the replicated order as soon as the first replica has applied it, and gets every
//! answer that clients get.
//!
//! It applies the log once more, entry by entry and never from a snapshot, to compare the replicas with. It never
//! acts on the world, and keeps only the first violation: later ones may be its consequences.

use std::collections::BTreeMap;

use lockkeeper_core::{Batch, State, Term};
use lockkeeper_node::{WatchItem, WatchSpec};
use lockkeeper_store::Record;

use crate::checks::access::AccessControl;
use crate::checks::applied_agreement::AppliedAgreement;
use crate::checks::calls::Calls;
use crate::checks::change::Change;
use crate::checks::ephemerals::Ephemerals;
use crate::checks::gates::Gates;
use crate::checks::linearizable::Linearizable;
use crate::checks::locks::Locks;
use crate::checks::log_matching::{LogMatching, Mark, hash_of};
use crate::checks::namespaces::Namespaces;
use crate::checks::one_leader::OneLeader;
use crate::checks::pace::Pace;
use crate::checks::rates::Rates;
use crate::checks::retries::Retries;
use crate::checks::sessions::Sessions;
use crate::checks::watches::{Received, Watches};
use crate::checks::{Check, Checked, Violation};
use crate::settings::LATER_LEVEL;

/// See the module's text.
#[derive(Debug)]
pub struct Checkers {
    pub(crate) leaders: OneLeader,
    pub(crate) committed: LogMatching,
    pub(crate) sessions: Sessions,
    pub(crate) ephemerals: Ephemerals,
    pub(crate) locks: Locks,
    pub(crate) requests: Retries,
    pub(crate) reads: Linearizable,
    pub(crate) watches: Watches,
    gates: Gates,
    pub(crate) rates: Rates,
    access: AccessControl,
    namespaces: Namespaces,
    pace: Pace,
    pub(crate) calls: Calls,
    pub(crate) agreement: AppliedAgreement,
    state: State,
    /// The last batch of each node, by incarnation and sequence.
    batches: BTreeMap<u64, (u64, u64)>,
    violation: Option<Violation>,
}

impl Checkers {
    /// `fastest` is the highest rate at which any node's clock may go.
    pub fn new(fastest: f64) -> Self {
        Self {
            leaders: OneLeader::default(),
            committed: LogMatching::default(),
            sessions: Sessions::new(fastest),
            ephemerals: Ephemerals::default(),
            locks: Locks::default(),
            requests: Retries::default(),
            reads: Linearizable::default(),
            watches: Watches::default(),
            gates: Gates::default(),
            rates: Rates::default(),
            access: AccessControl::default(),
            namespaces: Namespaces::default(),
            pace: Pace::new(fastest),
            calls: Calls::default(),
            agreement: AppliedAgreement::default(),
            state: State::new(),
            batches: BTreeMap::new(),
            violation: None,
        }
    }

    /// The first broken promise.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Notes a broken promise.
    pub fn broken(&mut self, check: Check, what: String) {
        self.violation.get_or_insert(Violation { check, what });
    }

    /// Shows something to a check. What it cannot accept is noted under the name.
    pub(crate) fn judge(&mut self, check: Check, show: impl FnOnce(&mut Self) -> Checked) {
        if let Err(what) = show(self) {
            self.broken(check, what);
        }
    }

    /// Figures of this run.
    pub fn seen(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::from([
            ("log entries followed", self.committed.last().unwrap_or(0)),
            ("transactions followed", self.state.zxid().0),
            ("terms with a leader", self.leaders.terms() as u64),
            ("grants of locks", self.locks.grants()),
            ("sessions expired", self.sessions.expired() as u64),
            ("requests answered from memory", self.requests.repeated()),
            ("watch events checked", self.watches.received_count()),
            ("states of replicas compared", self.agreement.compared()),
        ])
    }

    // What the nodes show.

    /// What stands in a node's log, in order and without gaps.
    pub fn log(&mut self, node: u64, records: &[Record]) {
        let mut before = None;
        for record in records {
            self.judge(Check::LogMatching, |it| {
                it.committed.in_log(node, record.position.index, mark_of(record), before)
            });
            before = Some(record.position.term);
        }
    }

    /// A node has applied these, which stand in its log.
    pub fn applied(&mut self, node: u64, records: &[Record], now_us: u64) {
        self.pace.runs(node);
        for record in records {
            match self.committed.applied(node, record.position.index, mark_of(record)) {
                Err(what) => self.broken(Check::LogMatching, what),
                Ok(false) => {}
                Ok(true) => self.follow(record, now_us),
            }
        }
    }

    /// A replica's state is summed up, as operators compare it, and looked through for what its own invariants forbid.
    pub fn look_through(&mut self, node: u64, shown: &State) {
        self.judge(Check::AppliedAgreement, |it| it.agreement.summed(node, shown));
        self.validate(node, shown);
    }

    /// A replica's state breaks one of its invariants.
    pub fn validate(&mut self, node: u64, shown: &State) {
        if let Err(what) = shown.validate() {
            self.broken(Check::Invariants, format!("node {node} at zxid {}: {what}", shown.zxid()));
        }
    }

    /// The state that the log gives.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Applies an entry that is new.
    fn follow(&mut self, record: &Record, now_us: u64) {
        let (index, term) = (record.position.index, record.position.term);
        let proposal = lockkeeper_consensus::proposal_of(record).map_err(|error| error.to_string());
        let batch = proposal.and_then(|proposal| {
            let Some(proposal) = proposal else { return Ok(None) };
            let batch = Batch::decode_at(LATER_LEVEL, &proposal.payload).map_err(|error| error.to_string())?;
            Ok(Some(Batch { clock_ms: proposal.clock_ms, ..batch }))
        });
        match batch {
            Ok(Some(batch)) => self.follow_batch(index, term, batch, now_us),
            Ok(None) => {}
            Err(error) => self.broken(Check::LogMatching, format!("entry {index} cannot be read: {error}")),
        }
        self.agreement.follow(index, &self.state);
    }

    fn follow_batch(&mut self, index: u64, term: u64, batch: Batch, now_us: u64) {
        let before = self.state.zxid();
        let outcomes = self.state.apply(Term(term), &batch);
        let rank = (batch.origin.incarnation, batch.origin.sequence);
        let last = self.batches.entry(batch.origin.node.0).or_default();
        if rank <= *last {
            if self.state.zxid() != before {
                let what = format!("the batch {:?} was applied before, and again at log index {index}", batch.origin);
                self.broken(Check::Retries, what);
            }
            return;
        }
        let due = if last.0 == rank.0 { last.1 } else { 0 };
        if batch.follows != due {
            if self.state.zxid() != before || !outcomes.is_empty() {
                let what = format!("the batch {:?} was applied before {}", batch.origin, batch.follows);
                self.broken(Check::Retries, what);
            }
            return;
        }
        *last = rank;
        let clock_ms = self.state.clock_ms();
        let mut last = before.0;
        for (command, outcome) in batch.commands.iter().zip(&outcomes) {
            let change = Change { index, term, clock_ms, at_us: now_us, command, outcome };
            last = self.in_order(&change, last);
            self.check(&change);
        }
        self.judge(Check::Ephemerals, |it| it.ephemerals.bounded(batch.rules.max_ephemerals_per_session));
    }

    /// Zxids rise by one with every transaction, and an outcome names the last.
    fn in_order(&mut self, change: &Change<'_>, mut last: u64) -> u64 {
        for (zxid, _) in change.transactions() {
            if zxid != last + 1 {
                let what = format!("zxid {zxid} follows {last}, at log index {}", change.index);
                self.broken(Check::AppliedAgreement, what);
            }
            last = zxid;
        }
        // What changed nothing that anybody can see, such as an ACL, takes a zxid all the same.
        last.max(change.outcome.zxid.0)
    }

    fn check(&mut self, change: &Change<'_>) {
        self.watches.change(change);
        self.judge(Check::Linearizable, |it| it.reads.change(change));
        self.judge(Check::Retries, |it| it.requests.change(change));
        let (early, untold) = self.sessions.change(change);
        self.judge(Check::SessionEarly, |_| early);
        self.judge(Check::HolderTold, |_| untold);
        self.judge(Check::Ephemerals, |it| it.ephemerals.change(change));
        self.judge(Check::Locks, |it| it.locks.change(change));
        self.judge(Check::Gates, |it| it.gates.change(change));
        self.judge(Check::Rates, |it| it.rates.change(change));
        self.judge(Check::Access, |it| it.access.change(change));
        self.judge(Check::Namespaces, |it| it.namespaces.change(change));
        self.judge(Check::Pace, |it| it.pace.change(change));
    }

    // What clients see.

    /// A linearizable operation was answered.
    pub fn answered(&mut self, what: &str, began: u64, zxid: u64) {
        self.judge(Check::Linearizable, |it| it.reads.answered(what, began, zxid));
        if zxid > self.state.zxid().0 {
            let what = format!("{what} was answered with zxid {zxid}, and the log has come to {}", self.state.zxid());
            self.broken(Check::Durable, what);
        }
    }

    /// Something was read of the state at `zxid`, and `again` reads the same of a state.
    pub fn looked<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        zxid: u64,
        reply: &T,
        again: impl Fn(&State) -> T,
    ) {
        let checked = match self.agreement.at(zxid) {
            Err(cannot_be) => Err(format!("{what} was given as of {zxid}: {cannot_be}")),
            // Too long ago.
            Ok(None) => Ok(()),
            Ok(Some(state)) => match again(state) {
                expected if expected == *reply => Ok(()),
                expected => Err(format!("{what} at {zxid} was {reply:?}, and the log gives {expected:?}")),
            },
        };
        self.judge(Check::AppliedAgreement, |_| checked);
    }

    /// A client has been told that its session is no more.
    pub fn session_end_reported(&mut self, session: u64, now_us: u64) {
        self.judge(Check::Ephemerals, |it| it.ephemerals.session_end_reported(session));
        self.sessions.reported_lost(session, now_us);
    }

    /// A node has gone down.
    pub fn node_died(&mut self, node: u64, now_us: u64) {
        self.calls.died(node);
        self.pace.died(node, now_us);
    }

    /// Nothing has been wrong with the world since `right_us`: whoever waits for something that is due has it by now.
    pub fn all_is_well(&mut self, now_us: u64, right_us: u64) {
        self.judge(Check::Calls, |Self { calls, locks, .. }| {
            calls.overdue(now_us, right_us, |uuid| locks.stands(uuid))
        });
        self.judge(Check::Access, |it| it.access.overdue(now_us, right_us));
    }

    /// A watch that had heard everything up to `from` was told this. None if it should not have been.
    pub fn watch_received(&mut self, spec: &WatchSpec, from: u64, item: &WatchItem) -> Option<Received> {
        let mut received = None;
        self.judge(Check::Watches, |it| it.watches.received(spec, from, item).map(|to| received = Some(to)));
        received
    }

    /// Nobody is left: whatever still stands in a queue, or belongs to a session, was forgotten there.
    pub fn deserted(&self) -> Result<(), String> {
        if let Some((lock, token, session)) = self.locks.standing().next() {
            return Err(format!("the request with token {token} of session {session:?} stands in the queue of {lock}"));
        }
        match self.ephemerals.live().next() {
            None => Ok(()),
            Some(session) => Err(format!("session {session} lives")),
        }
    }
}

fn mark_of(record: &Record) -> Mark {
    Mark { term: record.position.term, hash: hash_of(&record.payload) }
}

#[cfg(test)]
#[path = "checkers_tests.rs"]
mod tests;
