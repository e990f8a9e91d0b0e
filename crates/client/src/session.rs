//! A session that keeps itself alive, and says when it can no longer be relied on.
//!
//! A background task sends a keepalive every third of the timeout. The session is good for its timeout, counted from
//! when the last *acknowledged* keepalive was sent, whatever the network does. A safety margin before the end of that
//! time the session is lost, for good: a later answer does not bring it back, because its holder has been told
//! (promise P11).

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_api::sessions::OpenSession;
use lockkeeper_api::{Code, Credential, Problem};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Tried};
use crate::keepalive::{RoundOutcome, keepalive_round};
use crate::label::own_label;
use crate::lease::Lease;
use crate::stream::{Renewal, StreamHandle};

/// The clock is read at least this often: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);
const SHORTEST_NAP: Duration = Duration::from_millis(1);
/// Pause after a round of keepalives that no endpoint acknowledged.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);
/// How long one round of keepalives may take before the session's timeout is known.
const ADOPTION_ROUND: Duration = Duration::from_secs(2);
/// How long rounds are repeated.
const LONGEST_ADOPTION: Duration = Duration::from_secs(10);

/// How a session's requests reach the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// One WebSocket, the session's stream, for requests and events; plain HTTP where no endpoint serves streams.
    #[default]
    Stream,
    /// One HTTP request for each call. The holder of a lock is not told when its lock is taken away by force.
    Http,
}

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long the session lives without a keepalive. The server clamps it to its limits.
    pub timeout: Duration,
    /// A name for people who look at sessions. By default user, host, process id and name of the program, as
    /// [`process_label`](crate::process_label) makes it.
    pub label: String,
    /// How its requests reach the cluster.
    pub transport: Transport,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), label: own_label(), transport: Transport::default() }
    }
}

/// The state of a session, as far as the client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Keepalives are acknowledged.
    Connected,
    /// No keepalive was acknowledged for half the timeout. The session is still sure to live for a while.
    RenewalFailing {
        /// How long, counted from this report; [`Session::left`] gives the time at any moment.
        left: Duration,
    },
    /// The session is over, or cannot be relied on any more. Final.
    Lost {
        /// The reason.
        because: String,
    },
}

/// Values that other modules keep for a session, one of each type.
type Extensions = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

#[derive(Debug)]
struct SessionShared {
    client: Client,
    lease: Mutex<Lease>,
    state: watch::Sender<SessionState>,
    renewed: watch::Sender<Moment>,
    /// Not renewed any more: it ends by the clock.
    fixed: AtomicBool,
    extensions: Mutex<Extensions>,
    last_busy: Mutex<Option<Box<Problem>>>,
}

impl SessionShared {
    /// Sets the final state. The first reason counts.
    fn set_lost(&self, because: &str) {
        self.state.send_if_modified(|state| {
            let changed = !matches!(state, SessionState::Lost { .. });
            if changed {
                *state = SessionState::Lost { because: because.to_owned() };
            }
            changed
        });
    }
}

/// Marks the session as lost however its keepalive task ends: also with the runtime on which it was opened, while
/// tasks on another runtime wait for the loss.
struct LostOnDrop(Arc<SessionShared>);

impl Drop for LostOnDrop {
    fn drop(&mut self) {
        self.0.set_lost("its keepalives have stopped: it was dropped, or the runtime on which it was opened has ended");
    }
}

/// An open session; clones are the same session. When the last clone is dropped, the keepalives stop and the session
/// expires; [`close`](Session::close) ends it at once.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<SessionShared>,
    credential: Credential,
    tasks: Arc<SessionTasks>,
}

/// The tasks that keep the session alive, until its last clone is dropped. A drop cannot wait for them to end;
/// [`Session::close`] does.
#[derive(Debug)]
struct SessionTasks {
    keepalive: AbortHandle,
    stream: Option<Arc<StreamHandle>>,
}

impl SessionTasks {
    fn stop(&self) {
        self.keepalive.abort();
        if let Some(stream) = &self.stream {
            stream.stop();
        }
    }
}

impl Drop for SessionTasks {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Session {
    /// Opens a session and keeps it alive on the current runtime. When that runtime ends, the session is lost.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        let timeout_ms = u32::try_from(options.timeout.as_millis()).unwrap_or(u32::MAX);
        let open = OpenSession { timeout_ms: Some(timeout_ms), label: Some(options.label.clone()) };
        // Counting from before the first attempt can only make the client more careful than it needs to be.
        let (sent, opened) = client.open_session_timed(&open).await?;
        let credential = opened.credential.parse().map_err(|e| Error::NotLockkeeper {
            endpoint: client.preferred().to_string(),
            why: format!("session credential: {e}"),
        })?;
        let lease = Lease::new(sent, Duration::from_millis(opened.timeout_ms.into()));
        let mut client = client.as_session(credential);
        if options.transport == Transport::Stream {
            let leader = opened.leader.and_then(|address| client.context.leader_to_prefer(&address));
            client = client.with_stream(lease.timeout(), leader);
        }
        Ok(Self::start(client, credential, lease))
    }

    /// Uses a session that another process opened, and keeps it alive as well, over HTTP, so that the other process
    /// keeps its stream. Dropping the last clone stops only these keepalives: the session goes on as long as the other
    /// process keeps it alive. [`close`](Self::close) ends it for both.
    ///
    /// # Errors
    /// [`Error::Lost`] if the cluster does not know the session (any more), or the secret is not its own;
    /// [`Error::Refused`] if access control refuses this client, while the session may well live. After
    /// [`Error::Unreachable`] ask [`Client::is_outage`] before you act without the cluster: any endpoint's failure is
    /// reported like that. Otherwise see [`Error`].
    pub async fn adopt(client: &Client, credential: Credential) -> Result<Self, Error> {
        let client = client.as_session(credential);
        let began = Moment::now();
        let lease = loop {
            // A node of another cluster would call the session expired.
            client.context.compare_endpoints(client.context.options.patience).await?;
            // How long the session lives is not known before the first answer.
            match keepalive_round(&client, ADOPTION_ROUND, ADOPTION_ROUND).await {
                RoundOutcome::Acknowledged { sent, timeout } => break Lease::new(sent, timeout),
                RoundOutcome::Over(error) => {
                    let is_refused = matches!(error.code(), Some(Code::Unauthenticated | Code::Forbidden));
                    return Err(if is_refused { error } else { Error::Lost(error.to_string()) });
                }
                RoundOutcome::Failed(why) if began.until(Moment::now()) >= LONGEST_ADOPTION => {
                    let endpoint = client.preferred().to_string();
                    return Err(Error::Unreachable { tried: vec![Tried { endpoint, why, code: None }] });
                }
                RoundOutcome::Failed(_) => sleep(PAUSE_AFTER_FAILURE).await,
            }
        };
        Ok(Self::start(client, credential, lease))
    }

    /// Renews the session once more and then never again: it ends `length` after that, or earlier if no endpoint
    /// answers.
    pub(crate) async fn fix_lease(&self, length: Duration) {
        let shared = &self.shared;
        shared.fixed.store(true, Ordering::Release);
        let round = keepalive_round(&shared.client, length, length / 3);
        if let RoundOutcome::Acknowledged { sent, timeout } = round.await {
            renew(shared, sent, timeout.min(length));
        }
    }

    /// A session whose lease is known, with the task that keeps it alive.
    fn start(client: Client, credential: Credential, lease: Lease) -> Self {
        let stream = client.stream.clone();
        let shared = Arc::new(SessionShared {
            client,
            lease: Mutex::new(lease),
            state: watch::Sender::new(SessionState::Connected),
            renewed: watch::Sender::new(lease.lost_at()),
            fixed: AtomicBool::new(false),
            extensions: Mutex::default(),
            last_busy: Mutex::default(),
        });
        let keepalive = shared.client.context.tasks.spawn(keep_alive(LostOnDrop(shared.clone()))).abort_handle();
        Self { shared, credential, tasks: Arc::new(SessionTasks { keepalive, stream }) }
    }

    /// The session's id.
    pub fn id(&self) -> u64 {
        self.credential.session_id
    }

    /// The credential that authenticates the session. A process that has it can act as the session.
    pub fn credential(&self) -> Credential {
        self.credential
    }

    /// The timeout that the cluster granted.
    pub fn timeout(&self) -> Duration {
        self.shared.lease.lock().timeout()
    }

    /// A client that acts for the session.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Follows the session's state.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.shared.state.subscribe()
    }

    /// Follows [`lost_at`](Self::lost_at) as keepalives are acknowledged.
    pub fn renewals(&self) -> watch::Receiver<Moment> {
        self.shared.renewed.subscribe()
    }

    /// When the session counts as lost if no further keepalive is acknowledged. In the past once it is lost.
    pub fn lost_at(&self) -> Moment {
        match *self.shared.state.borrow() {
            SessionState::Lost { .. } => Moment::from_millis(0),
            _ => self.shared.lease.lock().lost_at(),
        }
    }

    /// The cluster does not grant the session's locks to others before this time, as far as this client knows.
    pub fn expires_at(&self) -> Moment {
        self.shared.lease.lock().expires_at()
    }

    /// How much longer the session can be relied on.
    pub fn left(&self) -> Duration {
        Moment::now().until(self.lost_at())
    }

    /// Why the session is lost; `None` if it is not. Reads the clock, since the tasks that report a loss may be late.
    pub(crate) fn loss(&self) -> Option<String> {
        if !self.left().is_zero() {
            return None;
        }
        match &*self.shared.state.borrow() {
            SessionState::Lost { because } => Some(because.clone()),
            _ => Some("the session was not renewed in time".into()),
        }
    }

    /// Completes, with the reason, when the session is lost.
    pub async fn lost(&self) -> String {
        session_lost(self.state()).await
    }

    /// Completes, with the reason, when the cluster reports that the grant with that token is over without a release:
    /// it was broken by force, or its node was deleted. Never completes for a session that is lost (see
    /// [`lost`](Self::lost)), nor over [`Transport::Http`], which has no such reports.
    pub(crate) fn watch_grant(&self, lock: &str, token: u64) -> impl Future<Output = String> + Send + use<> {
        let reported = self.tasks.stream.as_ref().map(|stream| stream.loss_reports.watch(lock, token));
        async move {
            match reported {
                Some(reported) => reported.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Why the latest wait for a lock in this session ended without a grant: the problem `lock_busy`, with the
    /// [place](Problem::place) of the request and the [holders](Problem::holders) at that time, their labels and since
    /// when they are in the queue. `None` before the first such wait.
    pub fn last_busy(&self) -> Option<Problem> {
        self.shared.last_busy.lock().as_deref().cloned()
    }

    pub(crate) fn set_last_busy(&self, problem: Box<Problem>) {
        *self.shared.last_busy.lock() = Some(problem);
    }

    /// The value of that type that all clones of this session share, for modules that keep state per session.
    pub(crate) fn extension<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut extensions = self.shared.extensions.lock();
        let value = extensions.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The key is the value's type.
        value.clone().downcast().unwrap_or_default()
    }

    /// Closes the session, for all clones. The cluster deletes all it owns in one transaction. Then waits for the
    /// session's background tasks to end, for 3 s at most.
    ///
    /// # Errors
    /// See [`Error`]; the session then expires within its timeout. A session that is already gone is no error.
    pub async fn close(&self) -> Result<(), Error> {
        // Set before the keepalive task can say that it was stopped.
        self.shared.set_lost("it was closed");
        self.tasks.keepalive.abort();
        let closed = self.shared.client.close_session().await;
        self.tasks.stop();
        match closed {
            Err(Error::Lost(_)) | Ok(()) => {}
            Err(other) => return Err(other),
        }
        self.shared.client.context.join_tasks().await;
        Ok(())
    }
}

/// Completes, with the reason, when the session is lost. Does not keep the session alive.
pub(crate) async fn session_lost(mut state: watch::Receiver<SessionState>) -> String {
    loop {
        if let SessionState::Lost { because } = &*state.borrow_and_update() {
            return because.clone();
        }
        if state.changed().await.is_err() {
            return "the session was dropped".into();
        }
    }
}

/// The keepalive task: renews the session and reports its state, until the session is lost.
async fn keep_alive(lost_on_drop: LostOnDrop) {
    let shared = &lost_on_drop.0;
    let mut renewals = shared.client.stream.as_ref().map(|stream| stream.renewals());
    let mut last_failure = String::new();
    let because = loop {
        // The handshake of a stream counts too, and so does an answer that comes after its round has ended.
        let renewal = renewals.as_mut().and_then(|renewals| *renewals.borrow_and_update());
        if let Some((sent, timeout)) = renewal {
            renew(shared, sent, timeout);
        }
        let now = Moment::now();
        let lease = *shared.lease.lock();
        let until_lost = now.until(lease.lost_at());
        if shared.fixed.load(Ordering::Acquire) {
            if until_lost.is_zero() {
                break "its fixed time has passed".into();
            }
            tokio::select! {
                () = sleep(until_lost.clamp(SHORTEST_NAP, LONGEST_NAP)) => continue,
                because = session_over(shared) => break because,
            }
        }
        if until_lost.is_zero() {
            let timeout_ms = lease.timeout().as_millis();
            break format!(
                "no keepalive was acknowledged in time to trust the {timeout_ms} ms timeout further{last_failure}"
            );
        }
        report_if_failing(shared, &lease, now);
        let until_renewal = now.until(lease.renew_at());
        if !until_renewal.is_zero() {
            tokio::select! {
                () = sleep(until_renewal.min(LONGEST_NAP).max(SHORTEST_NAP)) => continue,
                () = renewed(&mut renewals) => continue,
                because = session_over(shared) => break because,
            }
        }
        // A round is cut short to report failing renewals and to read the clock; the next begins at once.
        let until_failing = now.until(lease.failing_at());
        let cut = if until_failing.is_zero() { until_lost } else { until_failing.min(until_lost) };
        let attempt = keepalive_round(&shared.client, lease.timeout(), lease.timeout() / 3);
        let attempt = timeout(cut.min(LONGEST_NAP.max(lease.timeout() / 3)), attempt);
        let attempted = tokio::select! {
            biased;
            attempted = attempt => attempted,
            () = renewed(&mut renewals) => continue,
            because = session_over(shared) => break because,
        };
        match attempted {
            Ok(RoundOutcome::Acknowledged { sent, timeout }) => {
                if !renew(shared, sent, timeout) {
                    // A loss that was already reported cannot be taken back.
                    break "a keepalive was acknowledged too late".into();
                }
                last_failure.clear();
            }
            Ok(RoundOutcome::Over(error)) => break error.to_string(),
            Ok(RoundOutcome::Failed(why)) => {
                tracing::debug!(why, "keepalive not acknowledged");
                last_failure = format!(": {why}");
                sleep(PAUSE_AFTER_FAILURE.min(until_lost)).await;
            }
            Err(_) => {}
        }
    };
    shared.set_lost(&because);
    // While it is connected, the cluster would keep alive what this client has given up, and closed what that holds.
    if let Some(stream) = &shared.client.stream {
        stream.give_up(&because);
    }
}

/// Notes that a keepalive sent at `sent` was acknowledged. False if the session was lost before that.
fn renew(shared: &SessionShared, sent: Moment, timeout: Duration) -> bool {
    let (before, after) = {
        let mut lease = shared.lease.lock();
        let before = lease.lost_at();
        if Moment::now() >= before {
            return false;
        }
        lease.acknowledged(sent, timeout);
        (before, lease.lost_at())
    };
    if before != after {
        shared.renewed.send_replace(after);
        shared.state.send_if_modified(|state| {
            // A lost session stays lost: it may have been closed at this moment.
            let changed = matches!(state, SessionState::RenewalFailing { .. });
            if changed {
                *state = SessionState::Connected;
            }
            changed
        });
    }
    true
}

/// Completes when a keepalive was acknowledged on the stream.
async fn renewed(renewals: &mut Option<watch::Receiver<Option<Renewal>>>) {
    let changed = match renewals {
        Some(renewals) => renewals.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        std::future::pending().await
    }
}

/// Completes, with the reason, when the cluster says on the stream that the session is over.
async fn session_over(shared: &SessionShared) -> String {
    match &shared.client.stream {
        Some(stream) => stream.over().await,
        None => std::future::pending().await,
    }
}

fn report_if_failing(shared: &SessionShared, lease: &Lease, now: Moment) {
    if now < lease.failing_at() {
        return;
    }
    let left = now.until(lease.lost_at());
    shared.state.send_if_modified(|state| {
        let changed = *state == SessionState::Connected;
        if changed {
            *state = SessionState::RenewalFailing { left };
        }
        changed
    });
}
