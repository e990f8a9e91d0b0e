//! Locks (promises P1, P2 and P14, as far as the simulated clients can break it): works out who is in which queue and
//! who holds from nothing but the nodes that are created and deleted and their names, and compares that with every
//! answer that replicas and clients got.
//!
//! A request is identified by its token in the queue of its lock. It holds a lock when nothing blocks it there, and
//! holds as a whole when it holds each of its locks. Only its own session changes a request, and others delete one only
//! with the right to force. Names that do not see each other are not in one queue.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_checkers::name;
use lockkeeper_checkers::queue::{Came, Entry, Queue, Went};
use lockkeeper_core::{
    Actor, Command, Event, FencingToken, IfHolding, LockName, LockOp, NodeEventKind, NodeOp, Op, Refusal, Reply,
    SessionEnd,
};

use super::Checked;
use super::change::Change;

/// Who made a request or a kept place, and when.
#[derive(Clone, Copy, Debug)]
struct Made {
    session: Option<u64>,
    /// The replicated clock.
    at_ms: u64,
    /// Under a name of kazoo's own, whose clients see no others.
    is_kazoos: bool,
}

type Place = Entry<Made>;

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// In no queue.
    Not,
    /// In a queue at least.
    Waits,
    /// It holds every lock that it had asked for.
    Holds,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Locks {
    queues: BTreeMap<String, Queue<Made>>,
    /// The last place given in a queue's present life, and the last token ever given in it.
    last_sequence: BTreeMap<String, u64>,
    last_token: BTreeMap<String, u64>,
    /// Which locks a token asks for.
    wholes: BTreeMap<u64, BTreeSet<String>>,
    /// The token of each request.
    tokens: BTreeMap<String, u64>,
    /// How often its session holds a lock by this request: by lock and token, where it is more than once.
    holds: BTreeMap<(String, u64), u32>,
    /// Requests whose own caller has gone, while other calls of the session hold the lock by them.
    without_caller: BTreeSet<(String, u64)>,
    /// Requests of which a client was told that they are no more.
    left: BTreeSet<String>,
    /// Tokens of which a client was told that it holds; it has not hung up on them.
    reported: BTreeSet<u64>,
    /// Tokens that were taken back because their callers were gone.
    abandoned: BTreeSet<u64>,
    grants: u64,
    /// How often each request was asked for.
    asked: BTreeMap<String, u64>,
    /// Waiters that the nodes may have woken, and those that they have.
    woken_due: u64,
    woken: u64,
}

impl Locks {
    /// Takes in a command of the log.
    ///
    /// # Errors
    /// Whatever breaks a rule of the queues, or an answer that does not fit them.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let before = Before::of(self, change.command);
        let session = match change.command {
            Command::Do { actor, .. } => actor.session.map(|session| session.0),
            _ => None,
        };
        for (zxid, events) in change.transactions() {
            self.transaction(zxid, events, session, change)?;
        }
        if let Command::Do { op, actor: Actor { request, .. } } = change.command {
            // An answer from memory was true when it was given first.
            let fresh = change.outcome.changed || request.is_none();
            self.answer(op, session, &change.outcome.reply, &before, change.outcome.zxid.0, fresh)?;
            if fresh {
                self.count(op, &change.outcome.reply);
            }
        }
        Ok(())
    }

    fn transaction(&mut self, zxid: u64, events: &[Event], session: Option<u64>, change: &Change<'_>) -> Checked {
        let due = self.delays_due(events);
        let mut changes: BTreeMap<&str, Vec<(bool, &str)>> = BTreeMap::new();
        for event in events {
            let Event::Node { kind, path, .. } = event else { continue };
            let path = path.as_str();
            // A lock's directory begins a new life when it is made again.
            if let Some(lock) = path.strip_prefix("/locks/").filter(|_| *kind == NodeEventKind::Deleted) {
                self.last_sequence.remove(lock);
            }
            let Some((lock, node)) = name::lock_and_name(path) else { continue };
            let created = match kind {
                NodeEventKind::Created => true,
                NodeEventKind::Deleted => false,
                NodeEventKind::DataChanged => {
                    self.may_write(lock, node, change)?;
                    continue;
                }
                NodeEventKind::ChildrenChanged => continue,
            };
            if name::parse(node).is_some() {
                changes.entry(lock).or_default().push((created, node));
            }
        }
        for (lock, changes) in changes {
            let made = |node: &str| Made { session, at_ms: change.clock_ms, is_kazoos: is_kazoos(node) };
            let queue = self.queues.entry(lock.to_owned()).or_default();
            let moves = queue.transaction(zxid, changes, made).map_err(|what| format!("lock {lock}: {what}"))?;
            for Went { entry, .. } in &moves.went {
                self.may_go(lock, entry, change)?;
                let request = (lock.to_owned(), entry.token);
                self.holds.remove(&request);
                self.without_caller.remove(&request);
            }
            for came in &moves.came {
                self.enter(lock, came, zxid)?;
            }
            self.grants += moves.gained.len() as u64;
            // Everyone else waited for one that went.
            let permits = moves.gained.into_iter().filter(|place| place.name.mode.permits().is_some());
            let woken = moves.freed.into_iter().chain(permits).filter_map(|place| place.name.uuid);
            // A request may wait in several calls, if its client has retried elsewhere.
            self.woken_due += woken.map(|uuid| self.asked.get(&uuid).copied().unwrap_or(1)).sum::<u64>();
        }
        due.iter().try_for_each(|(lock, token)| self.has_delay(lock, *token, zxid))
    }

    fn enter(&mut self, lock: &str, came: &Came<Made>, zxid: u64) -> Checked {
        let Came { entry: place, is_renamed } = came;
        let mut others = self.queues.get(lock).into_iter().flat_map(Queue::entries);
        if others.any(|other| other.value.is_kazoos != place.value.is_kazoos) {
            return Err(format!(
                "a request came into the queue of {lock} at {zxid} beside one of another recipe, and the two do not \
                 see each other"
            ));
        }
        if let Some(uuid) = place.name.uuid.as_ref().filter(|uuid| self.left.contains(*uuid)) {
            return Err(format!(
                "request {uuid} came into the queue of {lock} at {zxid}, after its client was told that it is no more"
            ));
        }
        if place.name.keeps_place_of.is_some() || *is_renamed {
            return Ok(());
        }
        let (sequence, token) = (place.name.sequence, place.token);
        if let Some(before) = self.last_sequence.insert(lock.to_owned(), sequence).filter(|before| *before >= sequence)
        {
            return Err(format!("lock {lock} gave place {sequence} at {zxid}, after {before}"));
        }
        if let Some(before) = self.last_token.insert(lock.to_owned(), token).filter(|before| *before >= token) {
            return Err(format!("lock {lock} gave token {token}, after {before}"));
        }
        self.wholes.entry(token).or_default().insert(lock.to_owned());
        if let Some(uuid) = &place.name.uuid {
            self.tokens.insert(uuid.clone(), token);
        }
        Ok(())
    }

    /// By hand, only its own session writes a request.
    fn may_write(&self, lock: &str, node: &str, change: &Change<'_>) -> Checked {
        let Some((session, _)) = by_hand(change.command) else { return Ok(()) };
        match self.queues.get(lock).and_then(|queue| queue.node(node)).map(|place| place.value.session) {
            Some(owner) if owner.is_none() || owner != session => Err(format!(
                "{node} of session {owner:?} in the queue of {lock} was written by {session:?} at {}",
                change.outcome.zxid
            )),
            _ => Ok(()),
        }
    }

    /// A dead holder's place is kept for as long as it had asked for, unless somebody takes it by force.
    fn may_go(&mut self, lock: &str, place: &Place, change: &Change<'_>) -> Checked {
        let owner = place.value.session;
        if let Some((session, may_force)) = by_hand(change.command)
            && !may_force
            && (owner.is_none() || owner != session)
        {
            return Err(format!(
                "token {} of session {owner:?} in the queue of {lock} was deleted by {session:?} without the right to \
                 force",
                place.token
            ));
        }
        if place.name.keeps_place_of.is_none() {
            return self.request_may_go(lock, place, change);
        }
        let forced = matches!(change.command, Command::Do { op: Op::Lock(LockOp::ForceRelease { .. }), .. });
        let until_ms = place.value.at_ms + u64::from(place.name.delay_ms);
        if forced || change.clock_ms >= until_ms {
            return Ok(());
        }
        Err(format!(
            "the delay of lock {lock} for token {:?} ended at {} ms, and was to be kept until {until_ms} ms",
            place.name.keeps_place_of, change.clock_ms
        ))
    }

    /// A request may be deleted with its session (which another check covers), by its own session, by force, or
    /// because its caller has gone. A caller that was told that it holds has not gone: that would take the lock from
    /// it unnoticed.
    fn request_may_go(&mut self, lock: &str, place: &Place, change: &Change<'_>) -> Checked {
        let (token, command) = (place.token, change.command);
        let held = self.holds_of(lock, token);
        if held > 1
            && let Command::Do {
                op: Op::Lock(LockOp::Release { .. } | LockOp::Withdraw { .. } | LockOp::Abandon { .. }),
                ..
            } = command
        {
            return Err(format!(
                "token {token} left the queue of {lock}, of which it has {held} holds, by {command:?}"
            ));
        }
        let good = match command {
            Command::CloseSession { .. } | Command::ExpireSessions { .. } | Command::EndUnauthorised { .. } => true,
            Command::OpenSession { .. }
            | Command::OpenSessionAs { .. }
            | Command::AttachSession { .. }
            | Command::RecordTokenUses { .. }
            | Command::RaiseFeatureLevel { .. }
            | Command::SetClusterUid { .. }
            | Command::Reap { .. } => false,
            Command::Do { actor: Actor { session, .. }, op } => match op {
                Op::Lock(
                    LockOp::Release { token: named, .. }
                    | LockOp::Withdraw { token: named, .. }
                    | LockOp::Downgrade { token: named, .. },
                ) => named.0 == token && session.map(|session| session.0) == place.value.session,
                Op::Lock(LockOp::ForceRelease { token: named, .. }) => named.0 == token,
                Op::Lock(LockOp::Abandon { token: named, .. }) => {
                    self.abandoned.insert(token);
                    if self.reported.contains(&token) {
                        return Err(format!(
                            "token {token} of lock {lock} was taken back as one whose caller has gone, and a client \
                             had been told that it holds"
                        ));
                    }
                    named.0 == token
                }
                // By hand, as ZooKeeper's clients do.
                Op::Node(NodeOp::Delete { .. }) | Op::Multi(_) => true,
                _ => false,
            },
        };
        if good {
            return Ok(());
        }
        Err(format!("token {token} of session {:?} left the queue of {lock} by {command:?}", place.value.session))
    }

    /// What is held by sessions that expire in these events and must stay closed.
    fn delays_due(&self, events: &[Event]) -> Vec<(String, u64)> {
        let mut due = Vec::new();
        for event in events {
            let Event::SessionEnded { session, cause: SessionEnd::Expired, .. } = event else { continue };
            for (lock, queue) in &self.queues {
                let own =
                    queue.entries().filter(|place| place.value.session == Some(session.0) && place.name.delay_ms > 0);
                due.extend(own.filter(|place| self.holds_whole(place.token)).map(|place| (lock.clone(), place.token)));
            }
        }
        due
    }

    fn has_delay(&self, lock: &str, token: u64, zxid: u64) -> Checked {
        let mut places = self.queues.get(lock).into_iter().flat_map(Queue::entries);
        let kept = places.any(|place| place.name.keeps_place_of == Some(token));
        if kept {
            return Ok(());
        }
        Err(format!("the holder of lock {lock} with token {token} expired at {zxid}, and its place is not kept"))
    }

    fn place(&self, lock: &str, token: u64) -> Option<&Place> {
        self.queues.get(lock)?.request(token)
    }

    fn holds(&self, lock: &str, token: u64) -> bool {
        self.queues.get(lock).is_some_and(|queue| queue.holds(token))
    }

    /// Whether a request holds every lock that it had asked for.
    fn holds_whole(&self, token: u64) -> bool {
        self.wholes.get(&token).is_some_and(|locks| locks.iter().all(|lock| self.holds(lock, token)))
    }

    fn held_at(&self, lock: &str, token: u64, zxid: u64) -> bool {
        self.queues.get(lock).is_some_and(|queue| queue.held_at(token, zxid))
    }

    fn holds_of(&self, lock: &str, token: u64) -> u32 {
        self.holds.get(&(lock.to_owned(), token)).copied().unwrap_or(1)
    }

    /// Counts the holds of a request, by the answer to one of its operations.
    fn count(&mut self, op: &Op, reply: &Result<Reply, Refusal>) {
        match (op, reply) {
            (Op::Lock(LockOp::AcquireReentrant { lock, .. }), Ok(Reply::Reentered { token, holds, .. })) => {
                self.holds.insert((lock.to_string(), token.0), *holds);
            }
            (
                Op::Lock(
                    LockOp::Release { locks, token }
                    | LockOp::Withdraw { locks, token, .. }
                    | LockOp::Abandon { locks, token, .. },
                ),
                Ok(Reply::StillHeld { .. }),
            ) => {
                for lock in locks {
                    if self.place(lock.as_str(), token.0).is_none() {
                        continue;
                    }
                    let request = (lock.to_string(), token.0);
                    let holds = self.holds_of(lock.as_str(), token.0).saturating_sub(1);
                    if !matches!(op, Op::Lock(LockOp::Release { .. })) {
                        self.without_caller.insert(request.clone());
                    }
                    self.holds.insert(request, holds);
                }
            }
            _ => {}
        }
    }

    /// Holds an answer of the log against the queues.
    fn answer(
        &self,
        op: &Op,
        session: Option<u64>,
        reply: &Result<Reply, Refusal>,
        before: &Before,
        zxid: u64,
        fresh: bool,
    ) -> Checked {
        let fail =
            |what: &str| Err(format!("{op:?} of session {session:?} was answered {reply:?} at {zxid}, but {what}"));
        let Op::Lock(on_locks) = op else {
            return match (op, reply) {
                (Op::Multi(_), Ok(_)) if fresh && !before.guards_hold => {
                    fail("a lock that it is guarded by was not held so")
                }
                _ => Ok(()),
            };
        };
        match (on_locks, reply) {
            (LockOp::Acquire { locks, .. }, Ok(Reply::Queued { token, held, .. })) if fresh => {
                if token.0 != zxid {
                    return fail("the token is not the zxid of the request");
                }
                if locks.iter().any(|lock| self.place(lock.as_str(), token.0).is_none()) {
                    return fail("it does not stand in the queue of each");
                }
                if *held != locks.iter().all(|lock| self.holds(lock.as_str(), token.0)) {
                    return fail("the queues say otherwise");
                }
                Ok(())
            }
            (LockOp::AcquireReentrant { lock, .. }, Ok(Reply::Queued { token, held, .. })) if fresh => {
                if before.reenters.is_some() {
                    return fail("its session held the lock, and was to hold it once more");
                }
                if token.0 != zxid || self.place(lock.as_str(), token.0).is_none() {
                    return fail("it does not stand in the queue with this token");
                }
                if *held != self.holds(lock.as_str(), token.0) {
                    return fail("the queue says otherwise");
                }
                Ok(())
            }
            (LockOp::AcquireReentrant { lock, .. }, Ok(Reply::Reentered { token, holds, .. })) if fresh => {
                if before.reenters != Some(token.0) {
                    return fail("its session did not hold the lock by this request");
                }
                if *holds != self.holds_of(lock.as_str(), token.0) + 1 {
                    return fail("it was not one hold more");
                }
                Ok(())
            }
            (
                LockOp::Release { locks, token }
                | LockOp::Withdraw { locks, token, .. }
                | LockOp::Abandon { locks, token, .. },
                Ok(Reply::StillHeld { holds }),
            ) if fresh => {
                let left = locks.iter().filter(|lock| self.place(lock.as_str(), token.0).is_some());
                let left = left.map(|lock| self.holds_of(lock.as_str(), token.0).saturating_sub(1)).max();
                if left != Some(*holds) || *holds == 0 {
                    return fail("it was not one hold less");
                }
                Ok(())
            }
            (LockOp::Release { .. }, Ok(_)) if fresh && !before.all_held => fail("it did not hold them"),
            (LockOp::Release { .. }, Err(Refusal::NotHeld { .. })) if before.all_held => fail("it held them"),
            (LockOp::Withdraw { .. }, Ok(Reply::HeldInstead)) if !before.all_held => fail("it did not hold them"),
            (LockOp::Withdraw { if_holding: IfHolding::Keep, .. }, Ok(Reply::Withdrawn))
                if fresh && before.all_held =>
            {
                fail("it held them, and was to keep them")
            }
            (LockOp::Withdraw { .. }, Err(Refusal::NotQueued { .. })) if before.any_there => fail("it stood there"),
            (
                LockOp::Release { locks, token } | LockOp::Withdraw { locks, token, .. },
                Ok(Reply::Released | Reply::Withdrawn),
            ) if fresh => self.left(op, locks, *token),
            (LockOp::ForceRelease { lock, token }, Ok(Reply::ForceReleased { .. })) if fresh => {
                self.left(op, std::slice::from_ref(lock), *token)
            }
            (LockOp::Abandon { locks, token, .. }, Ok(_)) if fresh => self.left(op, locks, *token),
            _ => Ok(()),
        }
    }

    fn left(&self, op: &Op, locks: &[LockName], token: FencingToken) -> Checked {
        match locks.iter().find(|lock| self.place(lock.as_str(), token.0).is_some()) {
            None => Ok(()),
            Some(lock) => Err(format!("{op:?} was carried out, and the request still stands in the queue of {lock}")),
        }
    }

    /// A client asks for a lock under this uuid, for the first time or again.
    pub fn requested(&mut self, uuid: &str) {
        *self.asked.entry(uuid.to_owned()).or_default() += 1;
    }

    /// The nodes have woken so many waiters in all. Promise P3: a node that leaves a queue wakes the requests that
    /// waited for it, and no others, so that they are never more than those that could have been.
    ///
    /// # Errors
    /// If they are.
    pub fn counted(&mut self, woken: u64) -> Checked {
        self.woken = woken;
        if woken <= self.woken_due {
            return Ok(());
        }
        Err(format!("{woken} waiters were woken in all, and at most {} had anything to learn", self.woken_due))
    }

    /// Waiters woken, and those who could have been.
    pub fn woken_and_due(&self) -> (u64, u64) {
        (self.woken, self.woken_due)
    }

    /// A client was told at `zxid` that it holds these.
    ///
    /// # Errors
    /// If it did not, or if it was taken for one whose caller had gone.
    pub fn granted(&mut self, locks: &[LockName], token: u64, zxid: u64) -> Checked {
        self.reported.insert(token);
        if self.abandoned.contains(&token) {
            return Err(format!(
                "a client was told at {zxid} that it holds {locks:?} with token {token}, which had been taken back \
                 as one whose caller has gone"
            ));
        }
        match locks.iter().find(|lock| !self.held_at(lock.as_str(), token, zxid)) {
            None => Ok(()),
            Some(lock) => Err(format!(
                "a client was told at {zxid} that it holds {locks:?} with token {token}, but {lock} was held by {:?}",
                self.holders_at(lock.as_str(), zxid)
            )),
        }
    }

    /// A client was told that its request is no more: its wait is over, or it was refused.
    ///
    /// # Errors
    /// If it stands in a queue.
    pub fn left_queue(&mut self, uuid: &str, what: &str) -> Checked {
        self.left.insert(uuid.to_owned());
        match self.stands(uuid) {
            Stands::Not => Ok(()),
            stands => Err(format!("a client was told {what} of request {uuid}, which {stands:?} all the same")),
        }
    }

    /// How a request stands now.
    pub fn stands(&self, uuid: &str) -> Stands {
        let Some(&token) = self.tokens.get(uuid) else { return Stands::Not };
        let mut locks = self.wholes.get(&token).into_iter().flatten();
        match locks.any(|lock| self.place(lock, token).is_some()) {
            false => Stands::Not,
            true if self.holds_whole(token) => Stands::Holds,
            true => Stands::Waits,
        }
    }

    /// A client asked whether a token holds.
    ///
    /// # Errors
    /// If the answer is wrong at `zxid`.
    pub fn verified(&self, lock: &str, token: u64, zxid: u64, answer: bool) -> Checked {
        if self.held_at(lock, token, zxid) == answer {
            return Ok(());
        }
        let holders = self.holders_at(lock, zxid);
        Err(format!(
            "a client was told at {zxid} that token {token} of lock {lock} verifies {answer}; holders: {holders:?}"
        ))
    }

    fn holders_at(&self, lock: &str, zxid: u64) -> Vec<u64> {
        self.queues.get(lock).map(|queue| queue.holders_at(zxid)).unwrap_or_default()
    }

    /// How often a request has come to hold a lock.
    pub fn grants(&self) -> u64 {
        self.grants
    }

    /// All requests in queues: the lock, the token, the session. Kept places are left out: they stay for as long as
    /// the replicated clock says, which stands still for a while when a wall clock was set forward and back.
    pub fn standing(&self) -> impl Iterator<Item = (&str, u64, Option<u64>)> {
        self.queues.iter().flat_map(|(lock, queue)| {
            let alive = queue.entries().filter(|place| place.name.keeps_place_of.is_none());
            alive.map(move |place| (lock.as_str(), place.token, place.value.session))
        })
    }
}

fn is_kazoos(node: &str) -> bool {
    node.get(..node.len().saturating_sub(10)).is_some_and(|stem| stem.ends_with("lock__"))
}

/// Who works on nodes, and whether they may force.
fn by_hand(command: &Command) -> Option<(Option<u64>, bool)> {
    let Command::Do { actor: Actor { session, may_force, .. }, op } = command else { return None };
    let on_nodes =
        matches!(op, Op::Node(NodeOp::Delete { .. } | NodeOp::SetData { .. } | NodeOp::SetAcl { .. }) | Op::Multi(_));
    on_nodes.then_some((session.map(|session| session.0), *may_force))
}

/// How the request that an operation names stood before it, and the locks that guard a transaction.
#[derive(Debug, Default)]
struct Before {
    all_held: bool,
    any_there: bool,
    guards_hold: bool,
    /// The request by which the session holds the lock that it asks for.
    reenters: Option<u64>,
}

impl Before {
    fn of(queues: &Locks, command: &Command) -> Self {
        let Command::Do { actor: Actor { session, .. }, op } = command else { return Self::default() };
        if let Op::Multi(ops) = op {
            let holds = |op: &NodeOp| match op {
                NodeOp::CheckLock { lock, token } => queues.holds(lock.as_str(), token.0),
                _ => true,
            };
            return Self { guards_hold: ops.iter().all(holds), ..Self::default() };
        }
        let Some(session) = session else { return Self::default() };
        if let Op::Lock(LockOp::AcquireReentrant { lock, .. }) = op {
            let queue = queues.queues.get(lock.as_str());
            let held = queue.into_iter().flat_map(Queue::entries).find(|place| {
                place.value.session == Some(session.0)
                    && place.name.keeps_place_of.is_none()
                    && place.name.mode == name::LockMode::Exclusive
                    && queues.holds(lock.as_str(), place.token)
            });
            return Self { reenters: held.map(|place| place.token), ..Self::default() };
        }
        let Op::Lock(LockOp::Release { locks, token } | LockOp::Withdraw { locks, token, .. }) = op else {
            return Self::default();
        };
        let own = |lock: &LockName| {
            queues.place(lock.as_str(), token.0).is_some_and(|place| place.value.session == Some(session.0))
        };
        let held = |lock: &LockName| own(lock) && queues.holds(lock.as_str(), token.0);
        // A withdrawal is for the request's own caller; other calls of the session keep what they hold.
        let withdraws = matches!(op, Op::Lock(LockOp::Withdraw { .. }));
        let without = |lock: &LockName| queues.without_caller.contains(&(lock.to_string(), token.0));
        let meant = |lock: &LockName| !(withdraws && without(lock));
        Self {
            all_held: locks.iter().all(|lock| meant(lock) && held(lock)),
            any_there: locks.iter().any(|lock| meant(lock) && own(lock)),
            guards_hold: true,
            reenters: None,
        }
    }
}

#[cfg(test)]
#[path = "locks_tests.rs"]
mod tests;
