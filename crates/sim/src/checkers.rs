//! Checks the whole world: follows the replicated order as soon as the first replica has applied it, and gets every
//! answer that clients get.
//!
//! It applies the log once more, entry by entry and never from a snapshot, to compare the replicas with. It never
//! acts on the world, and keeps only the first violation: later ones may be its consequences.

use std::collections::BTreeMap;

use lockkeeper_core::{Batch, Event, LockName, NodeData, Op, RateName, Refusal, Reply, State, Term};
use lockkeeper_node::{WatchItem, WatchSpec};
use lockkeeper_store::Record;

use crate::checks::access::AccessControl;
use crate::checks::applied_agreement::AppliedAgreement;
use crate::checks::calls::Calls;
use crate::checks::change::{Change, zxid_of};
use crate::checks::ephemerals::Ephemerals;
use crate::checks::gates::Gates;
use crate::checks::herd::Herd;
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
    leaders: OneLeader,
    committed: LogMatching,
    sessions: Sessions,
    ephemerals: Ephemerals,
    locks: Locks,
    herd: Herd,
    requests: Retries,
    reads: Linearizable,
    watches: Watches,
    gates: Gates,
    rates: Rates,
    access: AccessControl,
    namespaces: Namespaces,
    pace: Pace,
    calls: Calls,
    agreement: AppliedAgreement,
    state: State,
    /// The last batch of each node, by incarnation and sequence.
    batches: BTreeMap<u64, (u64, u64)>,
    violation: Option<Violation>,
}

/// What the checkers have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Log entries.
    pub entries: u64,
    /// The last zxid.
    pub zxid: u64,
    /// Terms with a leader.
    pub terms: u64,
    /// Sessions that expired.
    pub expired: u64,
    /// Grants of locks.
    pub grants: u64,
    /// Requests that were answered as before.
    pub repeated: u64,
    /// Events told to watches.
    pub watch_events: u64,
    /// Checksums of replicas that were compared.
    pub compared: u64,
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
            herd: Herd::default(),
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

    fn hold(&mut self, check: Check, checked: Checked) {
        if let Err(what) = checked {
            self.broken(check, what);
        }
    }

    /// Figures of this run.
    pub fn seen(&self) -> Seen {
        Seen {
            entries: self.committed.last().unwrap_or(0),
            zxid: self.state.zxid().0,
            terms: self.leaders.terms() as u64,
            expired: self.sessions.expired() as u64,
            grants: self.locks.grants(),
            repeated: self.requests.repeated(),
            watch_events: self.watches.received_count(),
            compared: self.agreement.compared(),
        }
    }

    // What the nodes show.

    /// A node names the leader of a term.
    pub fn leader(&mut self, witness: u64, term: u64, leader: u64) {
        let checked = self.leaders.saw(witness, term, leader);
        self.hold(Check::OneLeader, checked);
    }

    /// What stands in a node's log, in order and without gaps.
    pub fn log(&mut self, node: u64, records: &[Record]) {
        let mut before = None;
        for record in records {
            let checked = self.committed.in_log(node, record.position.index, mark_of(record), before);
            self.hold(Check::LogMatching, checked);
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

    /// The last entry that any node has applied.
    pub fn last_applied(&self) -> u64 {
        self.committed.last().unwrap_or(0)
    }

    /// A replica shows its state. That is one which the log gives, whenever it is looked at.
    pub fn replica(&mut self, node: u64, shown: &State) {
        let checked = self.agreement.shown(node, shown);
        self.hold(Check::AppliedAgreement, checked);
    }

    /// A replica's state is summed up, as operators compare it, and looked through for what its own invariants forbid.
    pub fn look_through(&mut self, node: u64, shown: &State) {
        let checked = self.agreement.summed(node, shown);
        self.hold(Check::AppliedAgreement, checked);
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

    /// How many waiters the nodes have woken in all.
    pub fn woken(&mut self, woken: u64) {
        let checked = self.herd.counted(woken);
        self.hold(Check::Herd, checked);
    }

    /// Waiters woken, and those who could have been.
    pub fn woken_and_due(&self) -> (u64, u64) {
        self.herd.figures()
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
        let checked = self.ephemerals.bounded(batch.rules.max_ephemerals_per_session);
        self.hold(Check::Ephemerals, checked);
    }

    /// Zxids rise by one with every transaction, and an outcome names the last.
    fn in_order(&mut self, change: &Change<'_>, mut last: u64) -> u64 {
        for zxid in
            change.outcome.events.chunk_by(|a, b| zxid_of(a) == zxid_of(b)).map(|events: &[Event]| zxid_of(&events[0]))
        {
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
        let checked = self.reads.change(change);
        self.hold(Check::Linearizable, checked);
        let checked = self.requests.change(change);
        self.hold(Check::Retries, checked);
        let (early, untold) = self.sessions.change(change);
        self.hold(Check::SessionEarly, early);
        self.hold(Check::HolderTold, untold);
        let checked = self.ephemerals.change(change);
        self.hold(Check::Ephemerals, checked);
        match self.locks.change(change) {
            Ok(entitled) => self.herd.entitled(&entitled),
            Err(what) => self.broken(Check::Locks, what),
        }
        let checked = self.gates.change(change);
        self.hold(Check::Gates, checked);
        let checked = self.rates.change(change);
        self.hold(Check::Rates, checked);
        let checked = self.access.change(change);
        self.hold(Check::Access, checked);
        let checked = self.namespaces.change(change);
        self.hold(Check::Namespaces, checked);
        let checked = self.pace.change(change);
        self.hold(Check::Pace, checked);
    }

    // What clients see.

    /// A linearizable operation begins; gives what its answer must not be older than.
    pub fn began(&self) -> u64 {
        self.reads.began()
    }

    /// A linearizable operation was answered.
    pub fn answered(&mut self, what: &str, began: u64, zxid: u64) {
        let checked = self.reads.answered(what, began, zxid);
        self.hold(Check::Linearizable, checked);
        if zxid > self.state.zxid().0 {
            let what = format!("{what} was answered with zxid {zxid}, and the log has come to {}", self.state.zxid());
            self.broken(Check::Durable, what);
        }
    }

    /// A read of a node's data gave this.
    pub fn read(&mut self, path: &str, zxid: u64, data: Option<&NodeData>) {
        let checked = self.reads.read(path, zxid, data);
        self.hold(Check::Linearizable, checked);
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
        self.hold(Check::AppliedAgreement, checked);
    }

    /// A client was given this answer to a request with an id.
    pub fn reply(&mut self, session: u64, id: u128, op: &Op, answer: &Result<Reply, Refusal>, zxid: u64) {
        let checked = self.requests.answered(session, id, op, answer, zxid);
        self.hold(Check::Durable, checked);
    }

    /// A client was promised that its session lives for so long.
    pub fn promised(&mut self, session: u64, what: &str, from_us: u64, for_ms: u64) {
        let checked = self.sessions.promised(session, what, from_us, for_ms);
        self.hold(Check::SessionEarly, checked);
    }

    /// A client relies on its session until then.
    pub fn relied_on(&mut self, session: u64, until_us: u64) {
        let checked = self.sessions.relied_on(session, until_us);
        self.hold(Check::HolderTold, checked);
    }

    /// A client has been told that its session is no more.
    pub fn session_end_reported(&mut self, session: u64, now_us: u64) {
        let checked = self.ephemerals.session_end_reported(session);
        self.hold(Check::Ephemerals, checked);
        self.sessions.reported_lost(session, now_us);
    }

    /// A node begins to serve a request of a session.
    pub fn served(&mut self, session: u64, now_us: u64) {
        self.sessions.served(session, now_us);
    }

    /// It has done so; see [`Sessions::left`].
    pub fn left(&mut self, session: u64, now_us: u64) {
        self.sessions.left(session, now_us);
    }

    /// Time goes on; `right` if nothing is wrong with the world.
    pub fn time_passes(&mut self, now_us: u64, right: bool) {
        let checked = self.sessions.pass(now_us, right);
        self.hold(Check::SessionLate, checked);
    }

    /// See [`Sessions::no_majority_up`].
    pub fn no_majority_up(&mut self, now_us: u64) {
        self.sessions.no_majority_up(now_us);
    }

    /// A node says so; this is its state at that moment.
    pub fn session_end_shown(&mut self, session: u64, shown: &State) {
        let checked = self.ephemerals.session_end_shown(session, shown);
        self.hold(Check::Ephemerals, checked);
    }

    /// A client asks for a lock.
    pub fn requested(&mut self, uuid: &str) {
        self.herd.requested(uuid);
    }

    /// A client was told at `zxid` that it holds.
    pub fn granted(&mut self, locks: &[LockName], token: u64, zxid: u64) {
        let checked = self.locks.granted(locks, token, zxid);
        self.hold(Check::Locks, checked);
    }

    /// A client asked whether a token holds.
    pub fn verified(&mut self, lock: &str, token: u64, zxid: u64, answer: bool) {
        let checked = self.locks.verified(lock, token, zxid, answer);
        self.hold(Check::Locks, checked);
    }

    /// A node gives permits of a rate limit to a client.
    pub fn given(&mut self, name: &RateName, permits: u32) {
        self.rates.given(name, permits);
    }

    /// The log has been followed as far as any node has applied it.
    pub fn log_is_followed(&mut self) {
        let checked = self.rates.compare();
        self.hold(Check::Rates, checked);
    }

    /// A client was told that its request for locks is no more: its wait is over, or it was refused.
    pub fn left_queue(&mut self, uuid: &str, what: &str) {
        let checked = self.locks.left_queue(uuid, what);
        self.hold(Check::Locks, checked);
    }

    /// A node begins to serve a call for a lock; gives its number.
    pub fn call_begins(&mut self, uuid: &str, node: u64, now_us: u64) -> u64 {
        self.calls.begins(uuid, node, now_us)
    }

    /// It is over; see [`Calls::ends`].
    pub fn call_ends(&mut self, call: u64, keeps: bool, now_us: u64) {
        self.calls.ends(call, keeps, now_us);
    }

    /// A client has a certain answer to its request for a lock.
    pub fn settled(&mut self, uuid: &str) {
        self.calls.settled(uuid);
    }

    /// A client has gone, or has given up, and knows of no answer.
    pub fn gave_up(&mut self, uuid: &str, now_us: u64) {
        self.calls.gave_up(uuid, now_us);
    }

    /// A node has gone down.
    pub fn node_died(&mut self, node: u64, now_us: u64) {
        self.calls.died(node);
        self.pace.died(node, now_us);
    }

    /// Nothing has been wrong with the world since `right_us`: whoever waits for something that is due has it by now.
    pub fn all_is_well(&mut self, now_us: u64, right_us: u64) {
        let locks = &self.locks;
        let checked = self.calls.overdue(now_us, right_us, |uuid| locks.stands(uuid));
        self.hold(Check::Calls, checked);
        let checked = self.access.overdue(now_us, right_us);
        self.hold(Check::Access, checked);
    }

    /// A node refused a watch from `from` on, because it has events from `oldest` on only.
    pub fn compacted(&mut self, spec: &WatchSpec, from: u64, oldest: u64) {
        let checked = self.watches.compacted(spec, from, oldest);
        self.hold(Check::Watches, checked);
    }

    /// A watch that had heard everything up to `from` was told this. None if it should not have been.
    pub fn watch_received(&mut self, spec: &WatchSpec, from: u64, item: &WatchItem) -> Option<Received> {
        match self.watches.received(spec, from, item) {
            Ok(received) => Some(received),
            Err(what) => {
                self.broken(Check::Watches, what);
                None
            }
        }
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
