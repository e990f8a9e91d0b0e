//! A session that keeps itself alive, and says when it can no longer be relied on.
//!
//! A background task sends a keepalive every third of the timeout. What counts is when the last *acknowledged* one was
//! sent: from then on the clock runs, whatever the network does. When it has run down to the safety margin, the session is
//! lost, for good: a later answer does not bring it back, because its holder has been told (promise P11).

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::Credential;
use lockkeeper_api::sessions::OpenSession;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::clock::Moment;
use crate::error::Error;
use crate::keepalive::{RoundOutcome, keepalive_round};
use crate::lease::Lease;
use crate::stream::{Renewal, StreamHandle};

/// The clock is looked at this often at least: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);
const SHORTEST_NAP: Duration = Duration::from_millis(1);
/// Pause after a round in which nobody acknowledged.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// How a session talks to the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// One connection, the session's stream, for all that it asks and is told; plain HTTP where no endpoint has streams.
    #[default]
    Stream,
    /// One HTTP request for each call. Nobody tells the holder of a lock that it was taken by force.
    Http,
}

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long it lives without a sign of life; the server clamps it to its limits.
    pub timeout: Duration,
    /// Who this is, for people.
    pub label: String,
    /// How it talks to the cluster.
    pub transport: Transport,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), label: String::new(), transport: Transport::default() }
    }
}

/// What is known of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Keepalives are acknowledged.
    Connected,
    /// None was acknowledged for half the timeout. The session is still sure to live for a while.
    RenewalFailing {
        /// How long, counted from when this was said; [`Session::left`] has it at any time.
        left: Duration,
    },
    /// It is over, or cannot be relied on any more. Final.
    Lost {
        /// Why.
        because: String,
    },
}

#[derive(Debug)]
struct SessionShared {
    client: Client,
    lease: Mutex<Lease>,
    state: watch::Sender<SessionState>,
    renewed: watch::Sender<Moment>,
    /// What its lock handles share.
    locks: crate::locks::SessionLocks,
}

impl SessionShared {
    /// Lost for good, and for the first reason that is given.
    fn tell_lost(&self, because: &str) {
        self.state.send_if_modified(|state| {
            let news = !matches!(state, SessionState::Lost { .. });
            if news {
                *state = SessionState::Lost { because: because.to_owned() };
            }
            news
        });
    }
}

/// Says that the session is lost however its keepalive task ends: with the runtime on which it was opened, too, while others on another
/// runtime wait to hear of it.
struct LostOnDrop(Arc<SessionShared>);

impl Drop for LostOnDrop {
    fn drop(&mut self) {
        self.0.tell_lost("nobody renews it any more: it was dropped, or the runtime on which it was opened has ended");
    }
}

/// An open session; clones are the same session. When the last is dropped, the keepalives stop and it expires;
/// [`close`](Session::close) ends it at once.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<SessionShared>,
    credential: Credential,
    tasks: Arc<SessionTasks>,
}

/// What keeps it alive, for as long as somebody has the session.
#[derive(Debug)]
struct SessionTasks {
    task: JoinHandle<()>,
    stream: Option<Arc<StreamHandle>>,
}

impl SessionTasks {
    fn stop(&self) {
        self.task.abort();
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
    /// Opens a session and begins to keep it alive on the current runtime. When that runtime ends, the session is lost.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        let timeout_ms = u32::try_from(options.timeout.as_millis()).unwrap_or(u32::MAX);
        let open = OpenSession { timeout_ms: Some(timeout_ms), label: Some(options.label.clone()) };
        // Counting from before the first try can only make the client more careful than it needs to be.
        let sent = Moment::now();
        let opened = client.open_session(&open).await?;
        let credential = opened.credential.parse().map_err(|e| Error::NotLockkeeper {
            endpoint: client.preferred().to_string(),
            why: format!("session credential: {e}"),
        })?;
        let lease = Lease::new(sent, Duration::from_millis(opened.timeout_ms.into()));
        let mut client = client.as_session(credential);
        let stream = (options.transport == Transport::Stream).then(|| StreamHandle::start(&client, lease.timeout()));
        client.stream = stream.clone();
        let shared = Arc::new(SessionShared {
            client,
            lease: Mutex::new(lease),
            state: watch::Sender::new(SessionState::Connected),
            renewed: watch::Sender::new(lease.lost_at()),
            locks: crate::locks::SessionLocks::default(),
        });
        let tasks = Arc::new(SessionTasks { task: tokio::spawn(keep(LostOnDrop(shared.clone()))), stream });
        Ok(Self { shared, credential, tasks })
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.credential.session_id
    }

    /// What proves it. Whoever has this *is* the session.
    pub fn credential(&self) -> Credential {
        self.credential
    }

    /// The timeout that the cluster granted.
    pub fn timeout(&self) -> Duration {
        self.shared.lease.lock().timeout()
    }

    /// A client that speaks for it.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Follows its state.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.shared.state.subscribe()
    }

    /// Follows [`lost_at`](Self::lost_at) as keepalives are acknowledged.
    pub fn renewals(&self) -> watch::Receiver<Moment> {
        self.shared.renewed.subscribe()
    }

    /// When it counts as lost if no further keepalive is acknowledged. In the past once it is lost.
    pub fn lost_at(&self) -> Moment {
        match *self.shared.state.borrow() {
            SessionState::Lost { .. } => Moment::from_millis(0),
            _ => self.shared.lease.lock().lost_at(),
        }
    }

    /// Until then the cluster does not give its locks to another, as far as this client knows.
    pub fn expires_at(&self) -> Moment {
        self.shared.lease.lock().expires_at()
    }

    /// How long it may be relied on, right now.
    pub fn left(&self) -> Duration {
        Moment::now().until(self.lost_at())
    }

    /// Why it is not to be relied on any more, if that is so. Looks at the clock, not only at what its tasks had the time to notice.
    pub(crate) fn loss(&self) -> Option<String> {
        if !self.left().is_zero() {
            return None;
        }
        match &*self.shared.state.borrow() {
            SessionState::Lost { because } => Some(because.clone()),
            _ => Some("the session was not renewed in time".into()),
        }
    }

    /// Completes when it is lost, with the reason.
    pub async fn lost(&self) -> String {
        let mut state = self.state();
        loop {
            if let SessionState::Lost { because } = &*state.borrow_and_update() {
                return because.clone();
            }
            if state.changed().await.is_err() {
                return "its tasks has stopped".into();
            }
        }
    }

    /// Completes, with the reason, when the cluster tells that the grant with that token is over without having been given
    /// back: broken by force, or its node was deleted. That the session is lost is for [`lost`](Self::lost) to tell; over
    /// [`Transport::Http`] nobody tells, and this never completes.
    pub(crate) fn watch_grant(&self, lock: &str, token: u64) -> impl Future<Output = String> + Send + use<> {
        let told = self.tasks.stream.as_ref().map(|stream| stream.grants.watch(lock, token));
        async move {
            match told {
                Some(told) => told.await,
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn session_locks(&self) -> &crate::locks::SessionLocks {
        &self.shared.locks
    }

    /// Ends it, with all it owns, in one transaction of the cluster; for all clones.
    ///
    /// # Errors
    /// See [`Error`]; then it expires by itself within its timeout. That it was gone already is no error.
    pub async fn close(&self) -> Result<(), Error> {
        // Said before the keepalive task can say that it was stopped.
        self.shared.tell_lost("it was closed");
        self.tasks.task.abort();
        let closed = self.shared.client.close_session().await;
        self.tasks.stop();
        match closed {
            Err(Error::Lost(_)) | Ok(()) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

/// The keepalive task: renews, and says what it finds, until the session is lost.
async fn keep(last_word: LostOnDrop) {
    let shared = &last_word.0;
    let mut told = shared.client.stream.as_ref().map(|stream| stream.renewals());
    let because = loop {
        // The handshake of a stream counts, and so does an answer that came over it after its round had been given up.
        let renewal = told.as_mut().and_then(|told| *told.borrow_and_update());
        if let Some((sent, timeout)) = renewal {
            renew(shared, sent, timeout);
        }
        let now = Moment::now();
        let lease = *shared.lease.lock();
        let until_lost = now.until(lease.lost_at());
        if until_lost.is_zero() {
            let timeout_ms = lease.timeout().as_millis();
            break format!("no keepalive was acknowledged in time to trust the {timeout_ms} ms timeout further");
        }
        tell_if_failing(shared, &lease, now);
        let until_renewal = now.until(lease.renew_at());
        if !until_renewal.is_zero() {
            tokio::select! {
                () = sleep(until_renewal.min(LONGEST_NAP).max(SHORTEST_NAP)) => continue,
                () = renewed(&mut told) => continue,
                because = told_over(shared) => break because,
            }
        }
        // A round is cut short to tell of trouble and to look at the clock; it is begun again at once.
        let until_failing = now.until(lease.failing_at());
        let cut = if until_failing.is_zero() { until_lost } else { until_failing.min(until_lost) };
        let attempt = keepalive_round(&shared.client, lease.timeout(), lease.timeout() / 3);
        let attempt = timeout(cut.min(LONGEST_NAP.max(lease.timeout() / 3)), attempt);
        let attempted = tokio::select! {
            biased;
            attempted = attempt => attempted,
            () = renewed(&mut told) => continue,
            because = told_over(shared) => break because,
        };
        match attempted {
            Ok(RoundOutcome::Acknowledged { sent, timeout }) => {
                if !renew(shared, sent, timeout) {
                    // What began when the old deadline had passed cannot be taken back.
                    break "a keepalive was acknowledged too late".into();
                }
            }
            Ok(RoundOutcome::Over(why)) => break why,
            Ok(RoundOutcome::Failed(why)) => {
                tracing::debug!(why, "keepalive not acknowledged");
                sleep(PAUSE_AFTER_FAILURE.min(until_lost)).await;
            }
            Err(_) => {}
        }
    };
    shared.tell_lost(&because);
}

/// A keepalive that was sent then is acknowledged. False if that came after the session was lost without it.
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
            // What is lost stays lost: it may have been closed in this moment.
            let news = matches!(state, SessionState::RenewalFailing { .. });
            if news {
                *state = SessionState::Connected;
            }
            news
        });
    }
    true
}

/// Completes when the stream has brought an acknowledgement.
async fn renewed(told: &mut Option<watch::Receiver<Option<Renewal>>>) {
    let news = match told {
        Some(told) => told.changed().await.is_ok(),
        None => false,
    };
    if !news {
        std::future::pending().await
    }
}

/// Completes when the cluster has said on the stream that the session is over.
async fn told_over(shared: &SessionShared) -> String {
    match &shared.client.stream {
        Some(stream) => stream.over().await,
        None => std::future::pending().await,
    }
}

fn tell_if_failing(shared: &SessionShared, lease: &Lease, now: Moment) {
    if now < lease.failing_at() {
        return;
    }
    let left = now.until(lease.lost_at());
    shared.state.send_if_modified(|state| {
        let news = *state == SessionState::Connected;
        if news {
            *state = SessionState::RenewalFailing { left };
        }
        news
    });
}
