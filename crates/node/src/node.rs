//! The node as the frontends see it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_consensus::{
    Blocking, Consensus, LogPosition, PeerCaller, PeerKind, PeerMemory, ServeError, StartError, Transport, blocking,
};
use lockkeeper_core::{
    Actor, ClusterUid, FencingToken, GateKey, LockName, Op, Principals, Reply, SessionId, State, Zxid,
};
use lockkeeper_store::{LogStorage, Opened, SnapshotStorage};
use rand::RngCore;
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::calls::in_order::OrderedReply;
use crate::config::NodeConfig;
use crate::engine::Engine;
use crate::error::NodeError;
use crate::locks::cancellation::Undecided;
use crate::observers::Observer;
use crate::observers::watches::{WatchSpec, WatchStream};
use crate::rates::{PermitsTaken, TakePermits};
use crate::replica::{ForcedDeletionHook, Replica, validation};
use crate::request::{
    Acquire, Acquired, At, Attached, Caller, Consistency, Credential, ForceReleased, KeepaliveAck, OpenedSession,
};
use crate::sessions::leader_tasks::PeerServiceSlot;
use crate::sessions::session_events::SessionEvents;
use crate::status::{NodeStatus, not_ready_because};
use crate::time::clock::Clock;
use crate::traces::{TraceSink, Traces};

/// Longest time for a majority to confirm that it is in touch with this node.
const CONFIRM_WITHIN: Duration = Duration::from_millis(500);

/// The parts from which a node is made.
pub struct Parts {
    /// Settings.
    pub config: NodeConfig,
    /// Log and vote.
    pub store: Arc<dyn LogStorage>,
    /// The result of opening the store.
    pub opened: Opened,
    /// Snapshot files.
    pub snapshots: Arc<dyn SnapshotStorage>,
    /// Where blocking work is done.
    pub blocking: Arc<dyn Blocking>,
    /// Calls to peers.
    pub transport: Arc<dyn Transport>,
    /// The durable memory of this node's starts and of its peers.
    pub memory: Arc<dyn PeerMemory>,
    /// Drawn at random for this start; the same as in the identity that the transport sends.
    pub boot: u64,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For the secrets of sessions; must not be predictable.
    pub random: Box<dyn RngCore + Send>,
    /// Called once, with one line, when this node cannot go on; the process must end.
    pub fatal: Arc<dyn Fn(String) + Send + Sync>,
    /// Records the spans of traced requests.
    pub traces: Option<Arc<dyn TraceSink>>,
}

/// Handle of a node; cheap to clone.
#[derive(Clone)]
pub struct Node {
    engine: Arc<Engine>,
    consensus: Consensus,
    blocking: Arc<dyn Blocking>,
}

impl Node {
    /// Restores the state and joins the cluster.
    ///
    /// # Errors
    /// Names the setting that is wrong, or the stored data that cannot be used.
    pub async fn start(parts: Parts) -> Result<Self, StartError> {
        parts.config.validate().map_err(StartError::Config)?;
        let incarnation = parts.opened.incarnation;
        let replica = Replica::traced(
            &parts.config,
            incarnation,
            parts.clock.clone(),
            parts.fatal.clone(),
            Traces::new(parts.traces, parts.opened.last.map_or(0, |last| last.index)),
        );
        let slot = Arc::new(PeerServiceSlot::default());
        let consensus = Consensus::start(lockkeeper_consensus::Parts {
            config: parts.config.consensus.clone(),
            store: parts.store,
            opened: parts.opened,
            snapshots: parts.snapshots,
            blocking: parts.blocking.clone(),
            machine: replica.clone(),
            service: slot.clone(),
            transport: parts.transport,
            memory: parts.memory,
            boot: parts.boot,
            time: replica.time.clone(),
            fatal: parts.fatal,
        })
        .await?;
        validation::start(replica.clone(), parts.blocking.clone());
        let engine =
            Engine::start(parts.config, incarnation, replica, Arc::new(consensus.clone()), &slot, parts.random);
        Ok(Self { engine, consensus, blocking: parts.blocking })
    }

    /// Opens a session that belongs to no principal. Its secret is drawn here and returned once.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn open_session(&self, timeout_ms: u32, label: &str) -> Result<At<OpenedSession>, NodeError> {
        self.engine.open_session(Principals::default(), false, timeout_ms, label).await
    }

    /// Opens a session that belongs to the caller's principal. `proves_later` lets in a caller that has proved nothing,
    /// because its protocol has it prove who it is only with a session.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn open_session_as(
        &self,
        principals: Principals,
        proves_later: bool,
        timeout_ms: u32,
        label: &str,
    ) -> Result<At<OpenedSession>, NodeError> {
        self.engine.open_session(principals, proves_later, timeout_ms, label).await
    }

    /// Keeps a session alive: once this returns, the session is not expired before its timeout has passed since the
    /// call (promise P5).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn keepalive(&self, credential: &Credential) -> Result<At<KeepaliveAck>, NodeError> {
        self.engine.keepalive(credential, false).await
    }

    /// As [`keepalive`](Self::keepalive), but it may wait for up to 30 ms to go to the leader along with others, if its
    /// session has more than half of its timeout left.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn keepalive_with_others(&self, credential: &Credential) -> Result<At<KeepaliveAck>, NodeError> {
        self.engine.keepalive(credential, true).await
    }

    /// Closes a session and deletes everything it owned.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn close_session(&self, credential: &Credential) -> Result<At<()>, NodeError> {
        self.engine.close_session(credential).await
    }

    /// Checks a credential and returns the session's timeout; counts as a sign of life. For calls that name a session
    /// and make no other call that does so.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn authorise(&self, credential: &Credential) -> Result<u32, NodeError> {
        let timeout_ms = self.engine.authorise(credential).await?;
        self.engine.replica.sessions.touch(credential.session, timeout_ms);
        Ok(timeout_ms)
    }

    /// Executes an operation.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn execute(&self, caller: Caller, op: impl Into<Op>) -> Result<At<Reply>, NodeError> {
        self.engine.execute(caller, op.into()).await
    }

    /// Takes permits of a rate limit, or says when they will be there. Belongs to no session: of the caller only its
    /// principals count.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn take_permits(&self, caller: Caller, permits: TakePermits) -> Result<At<PermitsTaken>, NodeError> {
        self.engine.take_permits(caller, permits).await
    }

    /// Submits an operation and returns at once. `on_reply` gets its answer in the order of the log: after the events
    /// of the commands before it and before those of the commands after it. Operations submitted one after the other
    /// enter the log in that order. `on_reply` is called under the state's lock; it must not wait, and must not call
    /// the node. It is not called if this function returns an error.
    ///
    /// A request behind many others in the queue of a lock may wait a few milliseconds for another command; see
    /// [`propose_delayed`](Self::propose_delayed). Reads the state, whose lock the caller must not hold.
    ///
    /// # Errors
    /// The node is going down, or a queue is full.
    pub fn submit(
        &self,
        actor: Actor,
        op: Op,
        on_reply: impl FnOnce(OrderedReply) + Send + 'static,
    ) -> Result<(), NodeError> {
        self.engine.submit(actor, op, on_reply)
    }

    /// Whether an operation finds no room in the state as this replica has it, which may be behind.
    pub fn is_full_for(&self, actor: &Actor, op: &Op) -> bool {
        self.engine.full_for(actor, op).is_some()
    }

    /// Refuses an operation for which there is no room, so that it takes none in the log either. For callers of
    /// [`submit`](Self::submit), once all that they submitted before is answered.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn refuse_when_full(&self, actor: &Actor, op: &Op) -> Result<(), NodeError> {
        self.engine.refuse_when_full(actor, op).await
    }

    /// Proposes now the requests that wait for another command.
    pub fn propose_delayed(&self) {
        self.engine.proposer.propose_delayed();
    }

    /// Closes a session, ordered like [`submit`](Self::submit). The caller must have verified the session's secret.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_close(
        &self,
        session: SessionId,
        on_reply: impl FnOnce(OrderedReply) + Send + 'static,
    ) -> Result<(), NodeError> {
        self.engine.submit_close(session, on_reply)
    }

    /// Attaches a session to the caller, who has its secret: operations over an earlier attachment are refused from
    /// then on.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn attach(&self, credential: &Credential) -> Result<At<Attached>, NodeError> {
        self.engine.attach(credential).await
    }

    /// Reads this replica as it is, however far it is behind. What `look` sends comes between the deliveries before and
    /// after it.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        self.engine.peek(look)
    }

    /// Waits, where access control is enforced, until this replica's rights are not older than a second or so. For
    /// reads by [`look`](Self::look).
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn rights_are_current(&self) -> Result<(), NodeError> {
        self.engine.rights_are_current().await
    }

    /// Notes that the tokens of a caller are in use. The replicated state gets a record of it once an hour, if they
    /// count.
    pub fn note_token_use(&self, principals: &Principals) {
        self.engine.token_uses.note(principals);
    }

    /// Waits until this replica has applied this zxid.
    ///
    /// # Errors
    /// It does not within the time that a request may take.
    pub async fn catch_up(&self, zxid: Zxid) -> Result<(), NodeError> {
        self.engine.catch_up(zxid).await
    }

    /// As [`keepalive_with_others`](Self::keepalive_with_others); the caller must have verified the session's secret.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn keepalive_of_verified(&self, session: SessionId) -> Result<At<KeepaliveAck>, NodeError> {
        self.engine.keep_alive(session, true).await
    }

    /// Sends the keepalives that wait for others to the leader now.
    pub fn send_keepalives(&self) {
        self.engine.keepalives.send_now();
    }

    /// Notes a sign of life of a session whose secret was verified. This node reports it to the leader in time.
    pub fn touch(&self, session: SessionId, timeout_ms: u32) {
        self.engine.replica.sessions.touch(session, timeout_ms);
    }

    /// Delivers everything that happens from now on to an observer; once in a node's life.
    ///
    /// Holds the observer weakly: the observer owns the node, and a strong reference would be a cycle.
    pub fn observe(&self, observer: Weak<dyn Observer>) {
        self.engine.replica.observe(observer);
    }

    /// Has each forced deletion through this node reported for the audit log; once in a node's life. Not reported are a
    /// forced release by [`force_release`](Self::force_release), whose caller has the result, and a deletion whose
    /// outcome this replica learns from a snapshot.
    pub fn on_forced_deletion(&self, hook: ForcedDeletionHook) {
        self.engine.replica.on_forced_deletion(hook);
    }

    /// Asks for a lock and waits for it. Dropping the future cancels the request, and releases the lock if it holds
    /// by then.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn acquire(&self, caller: Caller, acquire: Acquire) -> Result<At<Acquired>, NodeError> {
        self.engine.acquire(caller, acquire, None).await
    }

    /// Like [`acquire`](Self::acquire), for callers that want to know when a dropped request is cancelled:
    /// `on_cancelled` is dropped once this call has nothing left to cancel. A call that asked again under the same
    /// request id meanwhile owns the request from then on, and is not disturbed.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn acquire_with_cancellation(
        &self,
        caller: Caller,
        acquire: Acquire,
        on_cancelled: oneshot::Sender<Undecided>,
    ) -> Result<At<Acquired>, NodeError> {
        self.engine.acquire(caller, acquire, Some(on_cancelled)).await
    }

    /// Checks that a lock request of a session that is still to be opened would find room in its namespaces.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn check_room_for_request(&self, who: &Principals, locks: &[LockName]) -> Result<(), NodeError> {
        self.engine.refuse_request_when_full(who, locks).await
    }

    /// Checks, before a gate is begun, that its result can be stored by an operation like `finish`.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn check_gate_result(&self, key: &GateKey, finish: &Op) -> Result<(), NodeError> {
        self.engine.refuse_above_level(finish).await?;
        let check = |engine: &Engine| engine.replica.state().check_room_for_result(&engine.config.rules, key);
        self.engine.refuse_early(check).await
    }

    /// Takes a lock from its holder. The frontend has verified that the caller may, and writes the audit record.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn force_release(
        &self,
        lock: LockName,
        token: FencingToken,
        principals: Principals,
    ) -> Result<At<ForceReleased>, NodeError> {
        self.engine.force_release(lock, token, principals).await
    }

    /// Whether a lock is held with this token now.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn verify(&self, lock: &LockName, token: FencingToken) -> Result<At<bool>, NodeError> {
        self.read(Consistency::Linearizable, |state| state.verify(lock, token)).await
    }

    /// Reads the state. `read` runs under the state's lock: it must be quick.
    ///
    /// # Errors
    /// See [`NodeError`]. A stale read never fails.
    pub async fn read<T: Send>(
        &self,
        consistency: Consistency,
        read: impl FnOnce(&State) -> T + Send,
    ) -> Result<At<T>, NodeError> {
        self.engine.read(consistency, read).await
    }

    /// Begins a watch.
    ///
    /// # Errors
    /// [`NodeError::Compacted`] if the history from which to resume is gone; [`NodeError::Overloaded`] if there are
    /// too many watches.
    pub async fn watch(&self, spec: WatchSpec) -> Result<WatchStream, NodeError> {
        self.engine.watch(spec)
    }

    /// Subscribes to the end of a session, and to the loss of the locks it holds and of those
    /// [watched](SessionEvents::watch_lock) later.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn session_events(&self, session: SessionId) -> Result<At<SessionEvents>, NodeError> {
        self.engine.session_events(session).await
    }

    /// What a session has left if it stays silent: by the leader's record, or at another node since the last sign of
    /// life that was acknowledged through it. `None` if this node does not know.
    pub fn session_remaining(&self, session: SessionId) -> Option<Duration> {
        self.engine.session_remaining_ms(session).map(Duration::from_millis)
    }

    /// The uid of the cluster, once this node knows it. Does not wait for the state's lock.
    pub fn cluster_uid(&self) -> Option<ClusterUid> {
        self.engine.replica.cluster_uid()
    }

    /// Whether any namespace has limits, as this replica has it. Does not wait for the state's lock.
    pub fn has_namespaces(&self) -> bool {
        self.engine.replica.has_namespaces()
    }

    /// For how long nothing has been heard of a session: by the leader's record, or at another node by what the leader
    /// has replicated to it. `None` if this node does not know.
    pub fn session_silence(&self, session: SessionId) -> Option<Duration> {
        self.engine.session_silent_ms(session).map(Duration::from_millis)
    }

    /// The status of this node.
    pub fn status(&self) -> NodeStatus {
        let consensus = self.consensus.status();
        let not_ready_because =
            not_ready_because(&consensus, self.engine.caught_up_ago_ms(), self.engine.closing.is_cancelled());
        let replica = &self.engine.replica;
        let (watches, waiters) = (replica.watches.len(), replica.waiters.len());
        let state = replica.state();
        NodeStatus {
            consensus,
            zxid: state.zxid(),
            feature_level: state.feature_level(),
            sessions: state.session_count(),
            nodes: state.node_count(),
            ephemerals: state.ephemeral_count(),
            state_bytes: state.bytes(),
            state_bytes_limit: replica.state_size.limit(),
            alarms: replica.state_size.alarm(state.bytes()).into_iter().collect(),
            watches,
            waiters,
            ready: not_ready_because.is_none(),
            not_ready_because,
        }
    }

    /// Asks a majority whether callers should use this node: for a while a leader that was cut off, and a follower of a
    /// dead leader, know of no trouble.
    ///
    /// # Errors
    /// Why they should use another one.
    pub async fn confirm_ready(&self) -> Result<(), String> {
        let status = self.status();
        if !status.ready {
            return Err(status.not_ready_because.unwrap_or_else(|| "it is not caught up".into()));
        }
        let clock = &self.engine.replica.clock;
        tokio::select! {
            read = self.consensus.read_barrier() => read.map(drop).map_err(|error| error.to_string()),
            () = clock.sleep_until(clock.now() + CONFIRM_WITHIN) => {
                Err(format!("no majority answered within {} ms", CONFIRM_WITHIN.as_millis()))
            }
        }
    }

    /// A copy of this replica's state, O(1), and as stale as the replica.
    pub fn state(&self) -> State {
        self.engine.replica.state_now()
    }

    /// A copy of the first state of this replica that has at least this zxid, O(1); or after that time, or if it is
    /// further already, of its present state. All replicas that are asked before they reach the zxid copy the same
    /// state, because they apply the same entries.
    ///
    /// # Errors
    /// Too many such calls wait.
    pub async fn state_from(&self, from: Option<(Zxid, Duration)>) -> Result<State, NodeError> {
        match from {
            Some((zxid, limit)) => self.engine.state_from(zxid, limit).await,
            None => Ok(self.state()),
        }
    }

    /// A copy of the state for a backup: it has everything that was acknowledged before this call. With it comes the
    /// entry of the log that changed it last. O(1); encode it on another thread.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn state_for_backup(&self) -> Result<(State, LogPosition), NodeError> {
        self.read(Consistency::Linearizable, |_| ()).await?;
        Ok(self.engine.replica.state_and_position())
    }

    /// A checksum of the whole state and the zxid at which it was taken. Computed on another thread, from an O(1) copy.
    pub async fn checksum(&self) -> (Zxid, String) {
        self.checksum_of(self.state()).await
    }

    /// The same of a copy.
    pub async fn checksum_of(&self, state: State) -> (Zxid, String) {
        let zxid = state.zxid();
        let checksum = blocking(&*self.blocking, move || Ok(format!("{:016x}", state.checksum()))).await;
        (zxid, checksum.unwrap_or_else(|error| format!("not computed: {error}")))
    }

    /// The replicated clock, as far as this node knows it, in milliseconds since 1970; 0 while the cluster has no time.
    pub fn clock_ms(&self) -> u64 {
        self.engine.replica.time.shows()
    }

    /// Consensus: membership, leadership, its status.
    pub fn consensus(&self) -> &Consensus {
        &self.consensus
    }

    /// Answers a peer's call, which has passed the [`PeerAuth`](lockkeeper_consensus::PeerAuth).
    ///
    /// # Errors
    /// Says why the call was refused.
    pub async fn serve_peer(&self, caller: PeerCaller, kind: PeerKind, body: Bytes) -> Result<Bytes, ServeError> {
        self.consensus.serve(caller, kind, body).await
    }

    /// While the token lives, [`shutdown`](Self::shutdown) waits, within its bound: for work of several commands that
    /// is not to end half-way.
    pub fn delay_shutdown(&self) -> TaskTrackerToken {
        self.engine.unfinished.token()
    }

    /// Shuts down: refuses new requests, hands leadership over, waits for unfinished work within a bound, and joins all
    /// tasks.
    pub async fn shutdown(&self) {
        self.engine.closing.cancel();
        self.consensus.step_down().await;
        self.engine.drain().await;
        self.consensus.shutdown().await;
        self.engine.end().await;
    }
}
