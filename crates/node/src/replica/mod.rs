//! This node's copy of the replicated state: committed entries are applied here, and what they changed is delivered.
//!
//! Under the write lock of the state, and in this order: apply a batch; then, command by command, deliver the events
//! to every [`Observer`] and make the answer. Callers that wait for an answer are woken once the lock is free. So
//! nobody reads data before the event that announces it, and a caller that has an answer cannot miss what led to it.
//!
//! Lock order: the state's lock, then the lock inside one observer. No observer's lock leaves the observer, and an
//! observer knows neither the replica nor another observer, so nothing else is locked while it is held. Nothing here
//! waits.

pub(crate) mod copies;
mod decoded_batches;
mod forced_deletion;
pub(crate) mod inflight;
pub(crate) mod request_status;
mod slow_apply;
mod state_size;
pub(crate) mod validation;

use std::any::Any;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lockkeeper_consensus::{Committed, LogPosition, Restored, StateMachine, StepGuard};
use lockkeeper_core::lock::parse_request;
use lockkeeper_core::{
    Batch, ClusterUid, Command, Event, FeatureLevel, LockName, NodeEventKind, NodeId, NodePath, Origin, Outcome,
    Refusal, Reply, State, Term, TraceContext, Zxid,
};
use lockkeeper_mutants::{invariant, mutant};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;

use crate::config::NodeConfig;
use crate::observers::Observer;
use crate::observers::records::SessionRecords;
use crate::observers::session_event_table::SessionEventRegistry;
use crate::observers::waiters::Waiters;
use crate::observers::watches::Watches;
use crate::observers::watches::history::History;
use crate::replica::copies::Copies;
use crate::replica::decoded_batches::DecodedBatches;
use crate::replica::inflight::{Answers, Completions, Inflight};
use crate::replica::slow_apply::SlowApply;
use crate::replica::state_size::StateSize;
use crate::tasks::{FatalHook, Tasks};
use crate::time::Time;
use crate::time::clock::Clock;
use crate::traces::{TraceSpan, Traces};

pub use forced_deletion::{ForcedDeletion, ForcedDeletionHook};

/// See the module's text.
pub(crate) struct Replica {
    node: NodeId,
    /// The present start of this node's data directory.
    start: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) time: Arc<Time>,
    pub(crate) tasks: Tasks,
    state: RwLock<State>,
    /// The entry of the log that changed the state last. Locked only under the state's lock.
    position: Mutex<LogPosition>,
    pub(crate) watches: Arc<Watches>,
    frontend: OnceLock<Weak<dyn Observer>>,
    forced_deletions: OnceLock<ForcedDeletionHook>,
    pub(crate) session_events: SessionEventRegistry,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) sessions: SessionRecords,
    pub(crate) inflight: Inflight,
    decoded: DecodedBatches,
    slow_apply: SlowApply,
    pub(crate) state_size: StateSize,
    pub(crate) copies: Copies,
    pub(crate) traces: Traces,
    /// That of the state, for those who may hold the state's lock already.
    feature_level: AtomicU32,
    /// The highest feature level that this node reads.
    pub(crate) supported_level: FeatureLevel,
    /// 0 where the cluster has none.
    cluster_uid: AtomicU64,
    has_namespaces: AtomicBool,
    zxid: watch::Sender<Zxid>,
    delay_end_ms: watch::Sender<Option<u64>>,
}

impl Replica {
    #[cfg(test)]
    pub(crate) fn new(config: &NodeConfig, start: u64, clock: Arc<dyn Clock>, fatal: FatalHook) -> Arc<Self> {
        Self::traced(config, start, clock, fatal, Traces::default())
    }

    pub(crate) fn traced(
        config: &NodeConfig,
        start: u64,
        clock: Arc<dyn Clock>,
        fatal: FatalHook,
        traces: Traces,
    ) -> Arc<Self> {
        let history = History::new(config.history_events, config.history_bytes);
        Arc::new(Self {
            node: NodeId(config.consensus.node),
            time: Arc::new(Time::new(config.consensus.node, clock.clone())),
            start,
            sessions: SessionRecords::new(clock.clone()),
            clock,
            tasks: Tasks::new(fatal),
            state: RwLock::new(State::new()),
            position: Mutex::new(LogPosition { term: 0, index: 0 }),
            watches: Watches::new(history, config.watch_queue_events, config.max_watches),
            frontend: OnceLock::new(),
            forced_deletions: OnceLock::new(),
            session_events: SessionEventRegistry::default(),
            waiters: Arc::default(),
            inflight: Inflight::default(),
            decoded: DecodedBatches::default(),
            slow_apply: SlowApply::default(),
            state_size: StateSize::new(config.rules.max_state_bytes),
            copies: Copies::default(),
            traces,
            feature_level: AtomicU32::new(FeatureLevel::FIRST.0),
            supported_level: config.supported_level,
            cluster_uid: AtomicU64::new(0),
            has_namespaces: AtomicBool::new(false),
            zxid: watch::Sender::new(Zxid(0)),
            delay_end_ms: watch::Sender::new(None),
        })
    }

    /// The state. Nothing is applied while the guard lives, so hold it briefly, and never across an await.
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// The feature level of the cluster, as far as this replica has applied the log. Does not wait for the state's
    /// lock.
    pub(crate) fn feature_level(&self) -> FeatureLevel {
        FeatureLevel(self.feature_level.load(Ordering::Acquire))
    }

    /// The cluster's uid, as far as this replica has applied the log. Does not wait for the state's lock.
    pub(crate) fn cluster_uid(&self) -> Option<ClusterUid> {
        NonZeroU64::new(self.cluster_uid.load(Ordering::Acquire)).map(ClusterUid)
    }

    /// Whether any namespace has limits, as far as this replica has applied the log. Does not wait for the state's
    /// lock.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.has_namespaces.load(Ordering::Acquire)
    }

    /// Copies what is read without the state's lock.
    fn cache(&self, state: &State) {
        invariant!(self.feature_level() <= state.feature_level(), "the feature level never falls");
        self.feature_level.store(state.feature_level().0, Ordering::Release);
        self.cluster_uid.store(state.cluster_uid().map_or(0, |uid| uid.0.get()), Ordering::Release);
        self.has_namespaces.store(state.has_namespaces(), Ordering::Release);
    }

    /// Refuses what needs a higher feature level than this replica has applied.
    pub(crate) fn check_level(&self, needed: FeatureLevel) -> Result<(), Refusal> {
        let level = self.feature_level();
        if needed <= level { Ok(()) } else { Err(Refusal::FeatureLevelTooLow { needed, level }) }
    }

    /// The state, unless an entry is being applied.
    pub(crate) fn try_state(&self) -> Option<RwLockReadGuard<'_, State>> {
        self.state.try_read()
    }

    /// From here on everything that happens is delivered to this observer too; once in a node's life.
    pub(crate) fn observe(&self, observer: Weak<dyn Observer>) {
        // Under the lock, so that the first delivery is a whole one.
        let _state = self.state.read();
        let _ = self.frontend.set(observer);
    }

    /// From here on every forced deletion through this node is reported; once in a node's life.
    pub(crate) fn on_forced_deletion(&self, hook: ForcedDeletionHook) {
        let _ = self.forced_deletions.set(hook);
    }

    /// This node's monotonic clock in milliseconds, as sessions are timed by it.
    pub(crate) fn now_ms(&self) -> u64 {
        self.sessions.now_ms()
    }

    /// The zxid up to which this replica has applied, as it changes.
    pub(crate) fn zxid(&self) -> watch::Receiver<Zxid> {
        self.zxid.subscribe()
    }

    /// When the next lock delay is over, by the replicated clock, as it changes.
    pub(crate) fn delay_end_ms(&self) -> watch::Receiver<Option<u64>> {
        self.delay_end_ms.subscribe()
    }

    /// Runs a step that this replica cannot do without: if it panics, the process is told to end.
    ///
    /// The panic goes on and ends the task that applies. Otherwise later entries would be applied to a state with a
    /// hole, which a snapshot would keep; nobody would notice, because these locks are not poisoned by a panic.
    fn step<T>(&self, what: impl FnOnce() -> String, step: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
            self.tasks.fail(format!("{}: {}; start again, and report this", what(), message_of(&*panic)));
            resume_unwind(panic)
        })
    }

    /// The batch of an entry. If it cannot be read, the task that applies ends, as in [`step`](Self::step).
    fn read(&self, entry: &Committed) -> Batch {
        let decoded = self.decoded.take(&entry.payload).map(Ok);
        match decoded.unwrap_or_else(|| Batch::decode_at(self.supported_level, &entry.payload)) {
            Ok(batch) => Batch { clock_ms: entry.clock_ms, ..batch },
            Err(error) => {
                let remedy = if error.is_too_new() { "" } else { "; start again, and report this" };
                let why = format!("the log entry at {} cannot be read: {error}{remedy}", entry.position);
                self.tasks.fail(why.clone());
                panic!("{why}");
            }
        }
    }

    fn apply_one(&self, entry: &Committed, batch: Batch) {
        let began = self.clock.now();
        let mut state = self.state.write();
        let span = self.begin_application(&state, entry, &batch);
        let outcomes = state.apply(Term(entry.position.term), &batch);
        *self.position.lock() = entry.position;
        self.time.applied(state.clock_ms());
        self.cache(&state);
        if batch.origin.node == self.node {
            self.check_start(&state);
        }
        let answers = self.follow(&state, &batch, outcomes);
        self.copies.give(&state);
        let (zxid, delay_end_ms, bytes) = (state.zxid(), state.next_delay_end_ms(), state.bytes());
        drop(state);
        answers.send();
        if let Some(mut span) = span {
            span.set("lockkeeper.zxid", zxid.0.into());
            span.set("lockkeeper.log.index", entry.position.index.into());
        }
        self.publish(zxid, delay_end_ms);
        let took = self.clock.now() - began;
        metrics::histogram!("lockkeeper_apply_seconds").record(took.as_secs_f64());
        self.slow_apply.record(&batch, took, self.clock.now());
        self.state_size.record(bytes);
    }

    /// The span of a step of a batch on this node.
    fn begin_step(&self, name: &'static str, batch: Option<TraceContext>) -> Option<Box<dyn TraceSpan>> {
        self.traces.begin(name, batch?, &[])
    }

    /// The span of the application of a batch, unless it has no effect, or the node only repeats or catches up with
    /// what was recorded when it was new.
    fn begin_application(&self, state: &State, entry: &Committed, batch: &Batch) -> Option<Box<dyn TraceSpan>> {
        let parent = batch.trace.as_ref()?.span;
        let is_new =
            self.traces.is_first(entry.position.index) && self.is_recent(entry.clock_ms) && state.is_due(batch);
        self.begin_step("lockkeeper.apply", is_new.then_some(parent))
    }

    /// Whether the node does not catch up with an entry of that time.
    fn is_recent(&self, clock_ms: u64) -> bool {
        Traces::is_recent(clock_ms, self.clock.wall_ms())
    }

    /// The highest start of this node's data directory that the state names.
    pub(crate) fn start_named(state: &State, node: NodeId) -> Option<u64> {
        state.last_batch(node).map(|origin| origin.incarnation)
    }

    /// The log may name earlier starts of this directory, and the present one. If it names a later one, either another
    /// process runs on a copy of the directory, or an older copy was put in its place.
    fn check_start(&self, state: &State) {
        if let Some(named) = Self::start_named(state, self.node).filter(|named| *named > self.start)
            && !mutant!(AcceptRolledBackDirectory)
        {
            self.tasks.fail(format!(
                "the log names start {named} of this node's data directory, and this is start {}: the directory \
                 was put back from an older copy, or another process runs on a copy of it; put the newest directory \
                 back, or remove the node from the membership and let the machine join again under a new node id with \
                 an empty directory",
                self.start
            ));
        }
    }

    fn publish(&self, zxid: Zxid, delay_end_ms: Option<u64>) {
        invariant!(*self.zxid.borrow() <= zxid, "the zxid that callers wait for never goes back");
        self.zxid.send_if_modified(|last| std::mem::replace(last, zxid) != zxid);
        self.delay_end_ms.send_if_modified(|last| std::mem::replace(last, delay_end_ms) != delay_end_ms);
    }

    /// Delivers what a batch changed, in zxid order: of each command the events, then its answer, if this node proposed
    /// the batch. Returns the answers of callers that wait.
    fn follow(&self, state: &State, batch: &Batch, outcomes: Vec<Outcome>) -> Answers {
        self.sessions.note_callers(batch);
        if batch.origin.node == self.node {
            count_releases(state, &outcomes);
        }
        let was_applied = outcomes.len() == batch.commands.len();
        let mut completions = if was_applied {
            self.inflight.complete(batch.origin)
        } else {
            self.inflight.note_not_applied(batch.origin);
            None
        };
        if completions.is_some() {
            self.report_forced_deletions(state, batch, &outcomes);
        }
        for (command, outcome) in outcomes.into_iter().enumerate() {
            // A batch carries the traces of some requests only; those of this node's own requests are known here.
            let carried = || batch.trace.as_ref()?.of_command(command);
            self.note_trace(&outcome, completions.as_ref().and_then(Completions::next_trace).or_else(carried));
            self.for_each_observer(|observer| observer.deliver(state, &outcome.events));
            if let Some(completions) = &mut completions {
                completions.resolve_next(outcome, state, &self.waiters);
            }
        }
        completions.map(Completions::finish).unwrap_or_default()
    }

    /// Remembers the trace of a lock request, as the target of links.
    fn note_trace(&self, outcome: &Outcome, trace: Option<TraceContext>) {
        if let (Some(trace), Ok(Reply::Queued { token, .. })) = (trace, &outcome.reply) {
            self.traces.note_request(*token, trace);
        }
    }

    /// Reports the lock requests and gates that operations on nodes deleted by force, at the cluster node that took the
    /// request.
    fn report_forced_deletions(&self, state: &State, batch: &Batch, outcomes: &[Outcome]) {
        for (command, outcome) in batch.commands.iter().zip(outcomes) {
            let Command::Do { actor, .. } = command else { continue };
            for event in &outcome.events {
                let Event::ForcedDeletion { zxid, path, token } = event else { continue };
                metrics::counter!("lockkeeper_forced_releases_total").increment(1);
                let Some(hook) = self.forced_deletions.get() else { continue };
                let deletion = ForcedDeletion {
                    zxid: *zxid,
                    lock: path.parent().and_then(|directory| LockName::of_directory(&directory)),
                    path: path.clone(),
                    token: *token,
                    session: actor.session,
                    request_id: actor.request.as_ref().map(|request| request.id),
                    principals: actor.principals.clone(),
                };
                hook(deletion, state);
            }
        }
    }

    fn for_each_observer(&self, mut call: impl FnMut(&dyn Observer)) {
        call(&*self.watches);
        if let Some(frontend) = self.frontend.get().and_then(Weak::upgrade) {
            call(&*frontend);
        }
        call(&self.session_events);
        call(&*self.waiters);
        call(&self.sessions);
    }

    /// A snapshot has replaced the state: every observer is brought to where the state is. Returns the answers of
    /// callers that wait.
    fn skip(&self, state: &State) -> Answers {
        let mut answers = Answers::default();
        self.cache(state);
        self.for_each_observer(|observer| observer.skipped(state));
        self.check_start(state);
        for applied in state.batches_applied(self.node).iter() {
            if let Some(mut completions) = self.inflight.complete(applied.origin) {
                let outcomes = applied.outcomes.iter().cloned();
                outcomes.for_each(|outcome| completions.resolve_next(outcome, state, &self.waiters));
                answers.append(completions.finish());
            }
        }
        self.inflight.note_skipped();
        answers
    }

    /// A copy of the state as it is now. O(1).
    pub(crate) fn state_now(&self) -> State {
        self.state.read().clone()
    }

    /// The same, and the entry of the log that changed it last.
    pub(crate) fn state_and_position(&self) -> (State, LogPosition) {
        let state = self.state.read();
        let position = *self.position.lock();
        (state.clone(), position)
    }
}

impl StateMachine for Replica {
    fn apply(&self, entries: &[Committed]) {
        for entry in entries {
            let batch = self.read(entry);
            let what = || format!("the log entry at {} cannot be applied", entry.position);
            self.step(what, || self.apply_one(entry, batch));
        }
    }

    fn start_seen(&self, node: u64) -> Option<u64> {
        Self::start_named(&self.state.read(), NodeId(node))
    }

    fn snapshot_bytes(&self) -> u64 {
        self.state.read().bytes()
    }

    fn snapshot(&self) -> Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send> {
        let state = self.state_now();
        Box::new(move |to| state.write_snapshot(to).map_err(io::Error::other))
    }

    fn check(&self, proposer: Option<u64>, payload: &[u8]) -> Result<(), String> {
        let batch = Batch::decode_at(self.supported_level, payload).map_err(|error| error.to_string())?;
        let origin = batch.origin;
        if let Some(proposer) = proposer {
            if origin.node != NodeId(proposer) {
                return Err(format!("node {proposer} proposes a batch in the name of node {}", origin.node.0));
            }
            check_origin(self.state.read().last_batch(origin.node), origin)?;
        }
        self.decoded.keep(payload, batch);
        Ok(())
    }

    fn raises_level_to(&self, payload: &[u8]) -> Option<u32> {
        let present = self.feature_level();
        // Nothing can raise it further, so nothing needs to be decoded.
        let level = (present < self.supported_level).then(|| Batch::raised_in(self.supported_level, payload))??;
        (level > present).then_some(level.0)
    }

    fn is_ahead(&self, payload: &[u8]) -> bool {
        Batch::level_in(payload) > self.feature_level()
    }

    fn writing(&self, clock_ms: u64, payload: &[u8]) -> Option<StepGuard> {
        let batch = Batch::trace_in(payload).filter(|_| self.is_recent(clock_ms));
        Some(Box::new(self.begin_step("lockkeeper.append", batch)?))
    }

    fn replicating(&self, payload: &[u8]) -> Option<StepGuard> {
        Some(Box::new(self.begin_step("lockkeeper.replicate", Batch::trace_in(payload))?))
    }

    fn is_observed(&self) -> bool {
        // A command under way may make a request that waits, or its caller may watch.
        let mut is_awaited = self.inflight.first().is_some();
        self.for_each_observer(|observer| is_awaited = is_awaited || observer.is_awaited());
        is_awaited
    }

    fn restore(self: Arc<Self>, position: LogPosition, from: &mut dyn Read) -> Result<Restored, String> {
        let restored = State::read_snapshot_at(self.supported_level, &mut *from)
            .map_err(|error| format!("the snapshot at {position} cannot be read: {error}"))?;
        // The reader reports the end only once it has verified the whole stream.
        match from.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return Err(format!("the snapshot at {position} goes on behind its end")),
            Err(error) => return Err(format!("the snapshot at {position} cannot be used: {error}")),
        }
        Ok(Box::new(move || {
            let jump = || {
                let mut state = self.state.write();
                *state = restored;
                *self.position.lock() = position;
                self.time.applied(state.clock_ms());
                let answers = self.skip(&state);
                self.copies.give(&state);
                let (zxid, delay_end_ms) = (state.zxid(), state.next_delay_end_ms());
                drop(state);
                answers.send();
                self.publish(zxid, delay_end_ms);
            };
            self.step(|| format!("the snapshot at {position} cannot be taken over"), jump);
        }))
    }
}

/// The state refuses batches of a node that come before the last one it has seen, so a batch far ahead would silence
/// that node.
fn check_origin(known: Option<Origin>, origin: Origin) -> Result<(), String> {
    let known_incarnation = known.map_or(0, |known| known.incarnation);
    if origin.incarnation > known_incarnation.saturating_add(MAX_STARTS) {
        return Err(format!("incarnation {} of a node last seen in {known_incarnation} cannot be", origin.incarnation));
    }
    let sequence = known.filter(|known| known.incarnation == origin.incarnation).map_or(0, |known| known.sequence);
    if origin.sequence > sequence.saturating_add(MAX_UNSEEN_BATCHES) {
        return Err(format!("batch {} of a node whose last one was {sequence} cannot be", origin.sequence));
    }
    Ok(())
}

/// The most starts of a node between two of its batches that were applied.
const MAX_STARTS: u64 = 1 << 24;
/// The most batches of a node in a row that were not applied.
const MAX_UNSEEN_BATCHES: u64 = 1 << 40;

/// The message of a panic, in one line.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    message.unwrap_or("a panic without a word").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Counts the locks that were given up, by release or otherwise. Only the node that proposed the batch counts them, so
/// each counts once in the cluster.
fn count_releases(state: &State, outcomes: &[Outcome]) {
    let released: usize = outcomes.iter().map(|outcome| released_by(state, outcome)).sum();
    if released > 0 {
        metrics::counter!("lockkeeper_lock_releases_total").increment(released as u64);
    }
}

fn released_by(state: &State, outcome: &Outcome) -> usize {
    let gone = || outcome.events.iter().filter_map(request_gone);
    match &outcome.reply {
        // Answered from memory: the first answer was counted.
        _ if outcome.events.is_empty() => 0,
        Ok(Reply::Released | Reply::ForceReleased { .. }) => gone().count(),
        Ok(Reply::Withdrawn) if gone().count() == 1 => 0,
        Ok(Reply::Created { .. } | Reply::Queued { .. } | Reply::Downgraded { .. }) => 0,
        _ => gone().filter(|path| state.held_to_the_end(path)).count(),
    }
}

/// The node of a lock request that was deleted.
fn request_gone(event: &Event) -> Option<&NodePath> {
    let Event::Node { kind: NodeEventKind::Deleted, path, .. } = event else { return None };
    parse_request(path.name()).map(|_| path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use bytes::Bytes;
    use tokio::sync::mpsc;

    use lockkeeper_core::{
        Actor, BatchTrace, FencingToken, IfHolding, LockMode, LockOp, RequestId, RequestKey, SessionId,
    };

    use super::*;
    use crate::observers::watches::WatchSpec;
    use crate::time::clock::SystemClock;
    use crate::traces::tests::{Recorder, trace};

    fn replica() -> (Arc<Replica>, mpsc::UnboundedReceiver<String>) {
        replica_with(Arc::new(SystemClock::default()))
    }

    pub(super) fn replica_with(clock: Arc<dyn Clock>) -> (Arc<Replica>, mpsc::UnboundedReceiver<String>) {
        let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned())]);
        let config = NodeConfig::new(lockkeeper_consensus::Config::new("test", 1, peers));
        let (failures, reported) = mpsc::unbounded_channel();
        let fatal = Arc::new(move |why| failures.send(why).unwrap());
        (Replica::new(&config, 1, clock, fatal), reported)
    }

    fn traced_replica(repeated: u64) -> (Arc<Replica>, Recorder) {
        let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned())]);
        let config = NodeConfig::new(lockkeeper_consensus::Config::new("test", 1, peers));
        let recorder = Recorder::default();
        let traces = Traces::new(Some(Arc::new(recorder.clone())), repeated);
        let fatal = Arc::new(|why| panic!("{why}"));
        (Replica::traced(&config, 1, Arc::new(SystemClock::default()), fatal, traces), recorder)
    }

    /// A batch of another node.
    fn traced_batch(sequence: u64, commands: Vec<Command>, requests: Vec<(u32, TraceContext)>) -> Bytes {
        let origin = Origin { node: NodeId(2), incarnation: 1, sequence };
        let batch = Batch::consecutive(origin, 1, commands);
        Batch { trace: Some(BatchTrace { span: trace(1), requests }), ..batch }.encode().into()
    }

    #[tokio::test]
    async fn a_replica_is_observed_while_a_request_waits_or_a_watch_is_open() {
        let (replica, _reported) = replica();
        assert!(!replica.is_observed());
        let path = NodePath::parse("/a").unwrap();
        let waiting = replica.waiters.register(std::slice::from_ref(&path), 0, path.clone());
        assert!(replica.is_observed());
        drop(waiting);
        assert!(!replica.is_observed());
        let watch = replica.watches.add(WatchSpec { path, recursive: false, from: None }, Zxid(0)).unwrap();
        assert!(replica.is_observed());
        drop(watch);
        assert!(!replica.is_observed());
    }

    #[tokio::test]
    async fn each_lock_request_of_a_batch_is_remembered_with_its_own_trace() {
        let (replica, _) = traced_replica(0);
        let apply = |index, payload| {
            let position = LogPosition { term: 1, index };
            replica.apply(&[Committed { position, clock_ms: replica.clock.wall_ms(), payload }]);
        };
        let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
        apply(1, traced_batch(1, vec![open], vec![]));
        let session = replica.state().sessions().next().map(|(id, _)| id).unwrap();
        let locks = ["a", "b", "c"].map(|name| LockName::parse(name).unwrap());
        let acquire = |lock: &LockName| {
            let (mode, label, uuid) = (LockMode::Exclusive, "".into(), RequestId(1));
            let op = LockOp::Acquire { locks: vec![lock.clone()], mode, delay_ms: 0, uuid, label };
            Command::Do { actor: Actor::of(session), op: op.into() }
        };
        let commands = locks.iter().map(acquire).collect();
        apply(2, traced_batch(2, commands, vec![(0, trace(2)), (2, trace(3))]));
        let known = locks.map(|lock| {
            let token = replica.state().lock(&lock).unwrap().requests().next().unwrap().token;
            replica.traces.of_request(token)
        });
        assert_eq!(known, [Some(trace(2)), None, Some(trace(3))]);
    }

    fn lock() -> LockName {
        LockName::parse("a").unwrap()
    }

    /// A state to which the commands of one node are applied one by one.
    struct OneByOne {
        state: State,
        sequence: u64,
    }

    impl OneByOne {
        /// How many locks the command gave up, and its reply.
        fn apply(&mut self, command: Command) -> (usize, Reply) {
            self.sequence += 1;
            let origin = Origin { node: NodeId(2), incarnation: 1, sequence: self.sequence };
            let outcomes = self.state.apply(Term(1), &Batch::consecutive(origin, 1, vec![command]));
            (released_by(&self.state, &outcomes[0]), outcomes[0].reply.clone().unwrap())
        }

        fn open(&mut self) -> SessionId {
            let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
            let (_, Reply::SessionOpened { session, .. }) = self.apply(open) else { panic!("no session") };
            session
        }

        fn acquire(&mut self, session: SessionId) -> FencingToken {
            let (locks, mode, uuid) = (vec![lock()], LockMode::Exclusive, RequestId(self.sequence.into()));
            let op = LockOp::Acquire { locks, mode, delay_ms: 0, uuid, label: "".into() };
            match self.apply(Command::Do { actor: Actor::of(session), op: op.into() }) {
                (0, Reply::Queued { token, .. }) => token,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_lock_counts_as_released_once_and_only_if_it_was_held() {
        let mut node = OneByOne { state: State::new(), sequence: 0 };
        let [holder, waiter, other] = std::array::from_fn(|_| node.open());
        let token = node.acquire(holder);
        let withdraw =
            LockOp::Withdraw { locks: vec![lock()], token: node.acquire(waiter), if_holding: IfHolding::Keep };
        let withdraw = Command::Do { actor: Actor::of(waiter), op: withdraw.into() };
        assert_eq!(node.apply(withdraw), (0, Reply::Withdrawn));
        node.acquire(other);
        assert_eq!(node.apply(Command::CloseSession { session: other }), (0, Reply::SessionClosed), "it waited");

        let next = node.acquire(waiter);
        let actor = Actor::of(holder).asking(Some(RequestKey { id: RequestId(1_000), acknowledged: vec![] }));
        let release = Command::Do { actor, op: LockOp::Release { locks: vec![lock()], token }.into() };
        assert_eq!(node.apply(release.clone()), (1, Reply::Released));
        assert_eq!(node.apply(release), (0, Reply::Released), "from memory");

        let actor = Actor { may_force: true, ..Actor::default() };
        let break_it = Command::Do { actor, op: LockOp::ForceRelease { lock: lock(), token: next }.into() };
        assert_eq!(node.apply(break_it), (1, Reply::ForceReleased { holder: waiter }));
        node.acquire(holder);
        node.acquire(waiter);
        assert_eq!(node.apply(Command::CloseSession { session: holder }), (1, Reply::SessionClosed), "it held");
    }

    #[tokio::test]
    async fn only_what_is_new_is_recorded() {
        let (replica, recorder) = traced_replica(5);
        let now = replica.clock.wall_ms();
        let reap = || vec![Command::Reap { paths: Vec::new() }];
        for (index, sequence, clock_ms, spans) in [
            (5, 1, now, 0),
            (6, 2, now, 1),
            // A repeat.
            (7, 2, now, 1),
            // It does not follow the last one.
            (8, 9, now, 1),
            (9, 3, now - 120_000, 1),
            (10, 4, now, 2),
        ] {
            let payload = traced_batch(sequence, reap(), vec![]);
            replica.apply(&[Committed { position: LogPosition { term: 1, index }, clock_ms, payload }]);
            assert_eq!(recorder.named("lockkeeper.apply").len(), spans, "entry {index}");
        }
        let payload = traced_batch(5, reap(), vec![]);
        drop(replica.writing(now, &payload));
        drop(replica.writing(now - 120_000, &payload));
        assert_eq!(recorder.named("lockkeeper.append").len(), 1);
    }

    #[tokio::test]
    async fn an_entry_that_cannot_be_read_ends_the_applying() {
        let (replica, mut reported) = replica();
        let position = LogPosition { term: 1, index: 7 };
        let entry = Committed { position, clock_ms: 1, payload: Bytes::from_static(b"\xff") };
        assert!(
            catch_unwind(AssertUnwindSafe(|| replica.apply(&[entry]))).is_err(),
            "later entries must not be applied"
        );
        let why = reported.recv().await.unwrap();
        assert!(why.contains("cannot be read") && why.contains("upgrade this node"), "{why}");
    }

    #[tokio::test]
    async fn what_needs_a_higher_feature_level_is_refused_until_it_is_applied() {
        let next = FeatureLevel(FeatureLevel::LATEST.0 + 1);
        let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned())]);
        let mut config = NodeConfig::new(lockkeeper_consensus::Config::new("test", 1, peers));
        config.supported_level = next;
        let replica = Replica::new(&config, 1, Arc::new(SystemClock::default()), Arc::new(|why| panic!("{why}")));
        let too_low = Refusal::FeatureLevelTooLow { needed: next, level: FeatureLevel::FIRST };
        assert_eq!(replica.check_level(next), Err(too_low));
        let origin = Origin { node: NodeId(2), incarnation: 1, sequence: 1 };
        let raise = Batch::consecutive(origin, 1, vec![Command::RaiseFeatureLevel { level: next }]).encode();
        let mut of_next = raise.clone();
        of_next[0] = next.0 as u8;
        assert_eq!((replica.raises_level_to(&raise), replica.is_ahead(&of_next)), (Some(next.0), true));
        let position = LogPosition { term: 1, index: 1 };
        replica.apply(&[Committed { position, clock_ms: 1, payload: raise.clone().into() }]);
        assert_eq!(replica.check_level(next), Ok(()));
        assert_eq!((replica.raises_level_to(&raise), replica.is_ahead(&of_next)), (None, false));
    }

    /// Panics when it is read for the last time.
    struct Mine(AtomicU32);

    #[async_trait]
    impl Clock for Mine {
        fn now(&self) -> Duration {
            assert_ne!(self.0.fetch_sub(1, Ordering::SeqCst), 1, "an injected\ndefect");
            Duration::ZERO
        }
        fn wall_ms(&self) -> u64 {
            0
        }
        async fn sleep_until(&self, _: Duration) {}
    }

    #[tokio::test]
    async fn a_panic_while_applying_ends_the_node_and_the_applying() {
        for looks in [1, 2] {
            let (replica, mut reported) = replica_with(Arc::new(Mine(AtomicU32::new(looks))));
            let origin = Origin { node: NodeId(2), incarnation: 1, sequence: 1 };
            let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
            let payload = Batch::consecutive(origin, 1, vec![open]).encode().into();
            let position = LogPosition { term: 1, index: 7 };
            let entry = Committed { position, clock_ms: 1, payload };
            let applied = catch_unwind(AssertUnwindSafe(|| replica.apply(&[entry.clone(), entry])));
            assert!(applied.is_err(), "later entries must not be applied");
            let message = reported.try_recv().unwrap();
            assert!(message.contains(&position.to_string()) && message.contains("an injected defect"), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
            assert!(reported.try_recv().is_err(), "it is reported once");
        }
    }
}
