//! Helpers of the checks: the cluster's addresses, clients, faults, comparing and waiting.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

/// Why a check failed.
pub(crate) type Wrong = Box<dyn std::error::Error + Send + Sync>;
/// Result of a check.
pub(crate) type Checked<T = ()> = Result<T, Wrong>;

/// Time limit for anything that should happen at once, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Options of a persistent node.
pub(crate) const PLAIN: &CreateOptions<'static> = &CreateMode::Persistent.with_acls(Acls::anyone_all());
/// Options of an ephemeral node.
pub(crate) const EPHEMERAL: &CreateOptions<'static> = &CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// Compares. The error has what was checked, the expected and the actual value.
macro_rules! same {
    ($seen:expr, $expected:expr) => {{
        let (seen, expected) = (&$seen, &$expected);
        if seen != expected {
            let at = (file!().rsplit('/').next().unwrap_or_default(), line!());
            return Err(format!("{at:?} {}: expected {expected:?}, saw {seen:?}", stringify!($seen)).into());
        }
    }};
}
pub(crate) use same;

/// The cluster given by environment variables.
pub(crate) struct Cluster {
    pub(crate) hosts: Vec<String>,
    script: String,
    directory: String,
    paths: AtomicU32,
}

impl Cluster {
    pub(crate) fn from_environment() -> Checked<Self> {
        let variable =
            |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: start it by scripts/interop"));
        Ok(Self {
            hosts: variable("INTEROP_HOSTS")?.split(',').map(ToOwned::to_owned).collect(),
            script: variable("INTEROP_CLUSTER_SCRIPT")?,
            directory: variable("INTEROP_CLUSTER_DIR")?,
            paths: AtomicU32::new(0),
        })
    }

    /// Opens a new session at any node.
    pub(crate) async fn client(&self) -> Checked<Client> {
        self.client_at(&self.hosts.join(","), Duration::from_secs(10)).await
    }

    pub(crate) async fn client_at(&self, hosts: &str, timeout: Duration) -> Checked<Client> {
        Ok(Client::connector().with_session_timeout(timeout).connect(hosts).await?)
    }

    /// An unused path.
    pub(crate) fn fresh(&self) -> String {
        format!("/rust-{}-{}", std::process::id(), self.paths.fetch_add(1, Ordering::Relaxed))
    }

    /// An unused path, created as a node.
    pub(crate) async fn fresh_node(&self, zk: &Client) -> Checked<String> {
        let path = self.fresh();
        zk.create(&path, b"", PLAIN).await?;
        Ok(path)
    }

    /// Runs `kill` or `restart` for node `number`.
    pub(crate) fn cluster(&self, what: &str, number: usize) -> Checked {
        let status = Command::new(&self.script)
            .args([what, &number.to_string(), "--dir", &self.directory])
            .stdout(Stdio::null())
            .status()?;
        if status.success() { Ok(()) } else { Err(format!("{} {what} {number}: {status}", self.script).into()) }
    }
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) -> Checked {
    let end = Instant::now() + PATIENCE;
    while !condition().await {
        if Instant::now() > end {
            return Err(format!("after {PATIENCE:?} not yet: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits for a future, with the time limit.
pub(crate) async fn soon<T>(what: &str, coming: impl Future<Output = T>) -> Checked<T> {
    tokio::time::timeout(PATIENCE, coming).await.map_err(|_| format!("after {PATIENCE:?} not yet: {what}").into())
}
