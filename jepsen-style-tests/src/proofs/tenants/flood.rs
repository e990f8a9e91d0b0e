//! The noisy tenant: closed loops at every node that go on whatever they are told, and a holder of the same namespace
//! that keeps, verifies and gives back meanwhile.

use lockkeeper_api::Data;
use lockkeeper_api::access::NamespaceLimits;
use lockkeeper_api::nodes::Kind;

use super::NOISY;
use crate::proofs::prelude::*;

/// Clients at each node.
const CLIENTS: usize = 32;
const WITHIN: Duration = Duration::from_secs(10);
const SESSION_TIMEOUT_MS: u32 = 10_000;
const LARGE_BYTES: usize = 64 * 1024;
/// The holder's pause between two rounds.
const HOLDER_EVERY: Duration = Duration::from_millis(50);

named! {
    /// What a flood takes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum FloodClass {
        Sessions = "sessions",
        LockRequests = "lock requests",
        Bytes = "bytes",
        Nodes = "nodes",
        Requests = "requests",
    }
}

impl FloodClass {
    /// The limit that this class meets, beside that of requests.
    pub(super) fn limits(self) -> NamespaceLimits {
        let rate = NamespaceLimits { requests_per_s: Some(40), ..NamespaceLimits::default() };
        match self {
            Self::Sessions => NamespaceLimits { sessions: Some(40), ..rate },
            Self::LockRequests => NamespaceLimits { lock_requests: Some(60), ..rate },
            Self::Bytes => NamespaceLimits { bytes: Some(1 << 20), ..rate },
            Self::Nodes => NamespaceLimits { nodes: Some(150), ..rate },
            Self::Requests => rate,
        }
    }

    /// Whether this refusal is by the limit of this class.
    fn is_met(self, failure: &Failure) -> bool {
        match failure {
            Failure::Refused(problem) if problem.code == Code::NamespaceFull => problem.detail.contains(self.name()),
            other => self == Self::Requests && other.to_string().contains("(rate_limited)"),
        }
    }
}

/// How a flood ended.
pub(super) struct Ended {
    pub(super) carried_out: u64,
    pub(super) refused: u64,
    /// Of the holder.
    pub(super) failures: Vec<String>,
}

#[derive(Default)]
struct Counts {
    carried_out: AtomicU64,
    refused: AtomicU64,
    failures: Mutex<Vec<String>>,
    opened: Mutex<Vec<(Api, String)>>,
}

impl Counts {
    fn fail(&self, what: &str, why: &Failure) {
        let mut failures = self.failures.lock();
        failures.push(format!("the flooded namespace's {what} failed: {why}"));
    }

    fn opened(&self, api: &Api, credential: String) {
        self.opened.lock().push((api.clone(), credential));
    }
}

/// See the module's text.
pub(super) struct Flood {
    counts: Arc<Counts>,
    tasks: Tasks<()>,
}

impl Flood {
    pub(super) async fn start(apis: &[Api], class: FloodClass) -> Result<Self, Failed> {
        let (counts, mut tasks) = (Arc::new(Counts::default()), Tasks::default());
        if let Some(first) = apis.first() {
            // Below it the flood makes its nodes; it is there from an earlier class, or now.
            let _ = first.create(&format!("/{NOISY}"), &Create::default(), None).await;
        }
        let not_had = "the noisy tenant gets nothing in calm";
        let mut clients = Vec::new();
        for (node, api) in apis.iter().enumerate() {
            let credential = api.open_session(SESSION_TIMEOUT_MS, NOISY).await.or_broken(not_had)?.value.credential;
            counts.opened(api, credential.clone());
            if node == 0 {
                let lock = format!("{NOISY}/held");
                let held = api.acquire(&credential, &lock, &Acquire::default(), WITHIN).await.or_broken(not_had)?;
                let held = (lock, held.value.token);
                tasks.start(|stop| hold(api.clone(), credential.clone(), held, counts.clone(), stop));
            }
            clients.extend((0..CLIENTS).map(|_| Client { api: api.clone(), credential: credential.clone(), class }));
        }
        // All begin together, once each has what it needs.
        for (number, client) in clients.into_iter().enumerate() {
            tasks.start(|stop| client.work(number, counts.clone(), stop));
        }
        Ok(Self { counts, tasks })
    }

    /// Ends it, and closes its sessions: they must close although the namespace is full.
    pub(super) async fn end(self) -> Result<Ended, Failed> {
        self.tasks.end().await?;
        let opened = std::mem::take(&mut *self.counts.opened.lock());
        for (api, credential) in opened {
            if let Err(why) = api.close_session(&credential).await
                && why.code() != Some(Code::SessionExpired)
            {
                self.counts.fail("close of a session", &why);
            }
        }
        let failures = std::mem::take(&mut *self.counts.failures.lock());
        let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
        Ok(Ended { carried_out: count(&self.counts.carried_out), refused: count(&self.counts.refused), failures })
    }
}

struct Client {
    api: Api,
    credential: String,
    class: FloodClass,
}

impl Client {
    async fn work(self, number: usize, counts: Arc<Counts>, stop: CancellationToken) {
        for round in 0_u64.. {
            if stop.is_cancelled() {
                return;
            }
            match self.once(&format!("{}-{number}-{round}", self.class.name().replace(' ', "-")), &counts).await {
                Ok(()) => counts.carried_out.fetch_add(1, Ordering::SeqCst),
                Err(failure) if self.class.is_met(&failure) => counts.refused.fetch_add(1, Ordering::SeqCst),
                Err(_) => continue,
            };
        }
    }

    async fn once(&self, name: &str, counts: &Counts) -> Result<(), Failure> {
        let (api, session) = (&self.api, Some(self.credential.as_str()));
        // They go with the session, so that the next class finds room.
        let node = |data| Create { data, kind: Kind::Ephemeral, ..Create::default() };
        match self.class {
            FloodClass::Sessions => {
                let opened = api.open_session(SESSION_TIMEOUT_MS, NOISY).await?;
                counts.opened(api, opened.value.credential);
            }
            FloodClass::LockRequests => {
                let lock = format!("{NOISY}/{name}");
                api.acquire(&self.credential, &lock, &Acquire::default(), WITHIN).await?;
            }
            FloodClass::Bytes => {
                let data = Data::Text("x".repeat(LARGE_BYTES));
                api.create(&format!("/{NOISY}/{name}"), &node(data), session).await?;
            }
            FloodClass::Nodes => drop(api.create(&format!("/{NOISY}/{name}"), &node(Data::default()), session).await?),
            FloodClass::Requests => drop(api.lock(&format!("{NOISY}/held")).await?),
        }
        Ok(())
    }
}

/// Keeps a session alive, verifies its lock, and gives it back at the end: none of it may be refused.
async fn hold(
    api: Api,
    credential: String,
    (lock, token): (String, u64),
    counts: Arc<Counts>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        if let Err(why) = api.keepalive(&credential, WITHIN).await {
            counts.fail("keepalive", &why);
        }
        if let Err(why) = api.verify(&lock, token, WITHIN).await {
            counts.fail("verify", &why);
        }
        tokio::time::sleep(HOLDER_EVERY).await;
    }
    if let Err(why) = api.release(&credential, &lock, token).await {
        counts.fail("release", &why);
    }
}
