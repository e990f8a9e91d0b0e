//! An ephemeral node that is created again whenever it is gone (Curator's `PersistentEphemeralNode`): for service
//! discovery, where a process should be found while it runs, whatever becomes of its sessions.
//!
//! It has a session of its own, and a task that compares the node with its desired state at each change of either. A
//! lost answer, an update over a broken connection, a deleted node, a remaining node of an old session: all end in the
//! same comparison, and the task needs no memory of them.

use std::time::Duration;

use lockkeeper_api::nodes::{Create, Kind, SetData};
use lockkeeper_api::{Code, Data};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::error::{RecipeError, check_data};
use super::gapless_watch::{GaplessWatch, Observed, bytes_of, read_node};
use super::path::{self, RecipePath};
use crate::client::Client;
use crate::error::Error;
use crate::routes::Reading;
use crate::session::{Session, SessionOptions};

/// Largest data, in bytes.
const MAX_BYTES: usize = 256 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The state of the node, as far as the client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PersistentState {
    /// The node does not exist, or has other data.
    Absent {
        /// The reason.
        because: String,
    },
    /// The node exists with the desired data.
    Present {
        /// The session that owns it.
        session_id: u64,
        /// Its data.
        data: Vec<u8>,
        /// The zxid as of which this is true.
        zxid: u64,
    },
}

/// An ephemeral node that is created again when its session is lost or the node is deleted.
///
/// Between the end of a session and the next creation there is a gap without the node, as with every ephemeral node.
/// While a node of another session is at the path (such as that of an earlier run of this process), this one waits
/// until it is gone, and says so in its [`state`](Self::state); it never deletes or takes over a foreign node. The
/// last data [set](Self::set_data) win, also across sessions.
///
/// [`close`](Self::close) removes the node. Dropping does so in the background; if the process dies, the node ends
/// with its session.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::recipes::PersistentNode;
///
/// let options = lockkeeper_client::SessionOptions::default();
/// let node = PersistentNode::start(&client, options, "/services/web-1", b"10.0.0.1:80")?;
/// node.present().await;
/// node.set_data(b"10.0.0.2:80")?;
/// node.present().await;
/// node.close().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PersistentNode {
    desired: watch::Sender<Vec<u8>>,
    state: watch::Receiver<PersistentState>,
    path: String,
    /// [`close`](Self::close) waits for it. A drop cannot wait; the task then ends by itself.
    task: JoinHandle<()>,
}

impl PersistentNode {
    /// Starts to maintain a node at `path`, with a session of its own that is opened with `options`. Does not wait: the
    /// cluster need not be reachable yet.
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or too much data.
    pub fn start(client: &Client, options: SessionOptions, path: &str, data: &[u8]) -> Result<Self, RecipeError> {
        let checked = RecipePath::parse(path)?;
        check_data("the", data, MAX_BYTES)?;
        let (desired, wanted) = watch::channel(data.to_vec());
        let (report, state) = watch::channel(PersistentState::Absent { because: "it was not created yet".into() });
        let client = client.anonymous();
        let maintainer = NodeMaintainer { client, options, path: checked, wanted, report };
        Ok(Self { desired, state, path: path.into(), task: tokio::spawn(maintainer.run()) })
    }

    /// The path of the node.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The state as known now.
    pub fn state(&self) -> PersistentState {
        self.state.borrow().clone()
    }

    /// Waits until the node exists with the data that were set last.
    pub async fn present(&self) -> PersistentState {
        let fits = |state: &PersistentState| match state {
            PersistentState::Present { data, .. } => *data == *self.desired.borrow(),
            PersistentState::Absent { .. } => false,
        };
        match self.state.clone().wait_for(fits).await {
            Ok(state) => state.clone(),
            // The task ended with its runtime: the state will not change any more.
            Err(_) => std::future::pending().await,
        }
    }

    /// Sets the node's data, now and whenever the node is created again. Does not wait; [`present`](Self::present)
    /// does.
    ///
    /// # Errors
    /// Too much data.
    pub fn set_data(&self, data: &[u8]) -> Result<(), RecipeError> {
        check_data("the", data, MAX_BYTES)?;
        self.desired.send_replace(data.to_vec());
        Ok(())
    }

    /// Removes the node and closes its session. If the cluster cannot be reached, the node ends when its session
    /// expires.
    pub async fn close(self) {
        let Self { desired, task, .. } = self;
        drop(desired);
        // The task ends by itself now. A panic was reported where it happened.
        let _ = task.await;
    }
}

/// Why the task stops to use a session.
enum End {
    Stopped,
    Lost,
}

struct NodeMaintainer {
    client: Client,
    options: SessionOptions,
    path: RecipePath,
    wanted: watch::Receiver<Vec<u8>>,
    report: watch::Sender<PersistentState>,
}

impl NodeMaintainer {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let opened = tokio::select! {
                opened = Session::open(&self.client, &self.options) => opened,
                () = stopped(self.wanted.clone()) => return,
            };
            match opened {
                Ok(session) => {
                    pause = FIRST_PAUSE;
                    if let End::Stopped = self.keep(&session).await {
                        if let Err(error) = session.close().await {
                            tracing::debug!(%error, "a session is left to expire");
                        }
                        return;
                    }
                }
                Err(error) => {
                    self.absent(format!("no session could be opened: {error}"));
                    if timeout(pause, stopped(self.wanted.clone())).await.is_ok() {
                        return;
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Maintains the node while one session lives.
    async fn keep(&mut self, session: &Session) -> End {
        let mut follow = GaplessWatch::node(session.client(), self.path.as_str());
        let mut pause = FIRST_PAUSE;
        loop {
            self.wanted.borrow_and_update();
            let news = tokio::select! {
                biased;
                because = session.lost() => {
                    self.absent(format!("its session was lost: {because}"));
                    return End::Lost;
                }
                compared = self.compare(session) => match compared {
                    Ok(as_of) => {
                        pause = FIRST_PAUSE;
                        Some(as_of)
                    }
                    Err(error) => {
                        self.absent(error.to_string());
                        None
                    }
                },
            };
            let wait = async {
                match news {
                    // The next comparison meets the same error again.
                    Some(as_of) => drop(follow.change(as_of, |_| true).await),
                    None => sleep(pause).await,
                }
            };
            tokio::select! {
                () = wait => {}
                changed = self.wanted.changed() => if changed.is_err() { return End::Stopped },
                _ = session.lost() => {}
            }
            pause = if news.is_none() { (pause * 2).min(LONGEST_PAUSE) } else { pause };
        }
    }

    /// Compares the node with its desired state, corrects it by one step at most, and returns the zxid from which on
    /// changes matter.
    async fn compare(&self, session: &Session) -> Result<u64, RecipeError> {
        let (client, path) = (session.client(), self.path.as_str());
        let wanted = self.wanted.borrow().clone();
        let Observed { node, as_of } = read_node(client, path, &Reading::default()).await?;
        let done = match node {
            None => {
                let data = Data::from_bytes(&wanted);
                path::create_node(client, path, &Create { data, kind: Kind::Ephemeral, ..Create::default() }).await
            }
            Some(node) if node.stat.ephemeral_owner != Some(session.id()) => {
                let owner = node.stat.ephemeral_owner;
                let owner = owner.map_or_else(|| "no session".to_owned(), |id| format!("session {id}"));
                self.absent(format!("a node of {owner} is at the path; waiting until it is gone"));
                return Ok(as_of);
            }
            Some(node) if bytes_of(&node)? == wanted => {
                self.report.send_replace(PersistentState::Present {
                    session_id: session.id(),
                    data: wanted,
                    zxid: as_of,
                });
                return Ok(as_of);
            }
            Some(node) => client.set(path, &SetData { data: Data::from_bytes(&wanted) }, Some(node.stat.version)).await,
        };
        match done {
            // The watch reports this change, or the faster change of another; both lead to the next comparison.
            Ok(_) => Ok(as_of),
            Err(Error::Refused(problem)) if is_race(problem.code) => Ok(as_of),
            Err(error) => Err(error.into()),
        }
    }

    fn absent(&self, because: String) {
        self.report.send_replace(PersistentState::Absent { because });
    }
}

async fn stopped(mut wanted: watch::Receiver<Vec<u8>>) {
    while wanted.changed().await.is_ok() {}
}

fn is_race(code: Code) -> bool {
    matches!(code, Code::NodeExists | Code::NoNode | Code::BadVersion)
}
