//! An ephemeral node that comes back (Curator's `PersistentEphemeralNode`): for service discovery, where a process wants to be found
//! for as long as it runs, whatever becomes of its sessions.
//!
//! It has a session of its own, and a task that compares what there is with what there should be, at each change of either.
//! So an answer that was lost, an update that met a broken connection, a node that somebody deleted, an old session's node that is
//! still there: all end in the same comparison, and nothing must be remembered.

use std::time::Duration;

use lockkeeper_api::nodes::{Create, Kind, SetData};
use lockkeeper_api::{Code, Data};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::error::RecipeError;
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

/// What is known of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PersistentState {
    /// It is not there, or not with the data it should have.
    Absent {
        /// Why.
        because: String,
    },
    /// It is there as it should be.
    Present {
        /// The session it belongs to now.
        session_id: u64,
        /// The data it has.
        data: Vec<u8>,
        /// The zxid at which this was true.
        zxid: u64,
    },
}

/// An ephemeral node that is made again when its session is lost, or when somebody deletes it.
///
/// Between the end of a session and the making of the next node there is a gap in which the node is not there: that is the point of an ephemeral
/// node. While another session's node stands at the path (such as that of this process's former life) it waits for that one to go, and says so in its
/// [`state`](Self::state); it never deletes or takes over what is another's. The last data that were [set](Self::set_data) win, also across
/// sessions.
///
/// [`close`](Self::close) removes the node. Dropping does so in the background; if the process dies the node ends with its session.
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
    /// Begins to keep a node there, over a session that is opened for it with `options`. Does not wait for anything: the cluster need
    /// not even be reachable yet.
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or too much data.
    pub fn start(client: &Client, options: SessionOptions, path: &str, data: &[u8]) -> Result<Self, RecipeError> {
        let checked = RecipePath::parse(path)?;
        check_data(data)?;
        let (desired, wanted) = watch::channel(data.to_vec());
        let (report, state) = watch::channel(PersistentState::Absent { because: "it was not made yet".into() });
        let client = client.anonymous();
        let maintainer = NodeMaintainer { client, options, path: checked, wanted, report };
        Ok(Self { desired, state, path: path.into(), task: tokio::spawn(maintainer.run()) })
    }

    /// Where it is.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is known of it now.
    pub fn state(&self) -> PersistentState {
        self.state.borrow().clone()
    }

    /// Waits until it is there with the data that were set last.
    pub async fn present(&self) -> PersistentState {
        let fits = |state: &PersistentState| matches!(state, PersistentState::Present { data, .. } if *data == *self.desired.borrow());
        match self.state.clone().wait_for(fits).await {
            Ok(state) => state.clone(),
            // The maintainer ends with its runtime: nothing will come any more.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives it other data, now and whenever it is made again. Does not wait; [`present`](Self::present) does.
    ///
    /// # Errors
    /// Too much data.
    pub fn set_data(&self, data: &[u8]) -> Result<(), RecipeError> {
        check_data(data)?;
        self.desired.send_replace(data.to_vec());
        Ok(())
    }

    /// Removes it and closes its session. If the cluster cannot be reached it goes with the session's timeout.
    pub async fn close(self) {
        let Self { desired, task, .. } = self;
        drop(desired);
        // It ends by itself, whether or not this is waited for; that it panicked was said where it did.
        let _ = task.await;
    }
}

fn check_data(data: &[u8]) -> Result<(), RecipeError> {
    if data.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(RecipeError::BadArgument(format!("the data are at most {MAX_BYTES} bytes, these are {}", data.len())))
}

/// Why a session is no longer used.
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

    /// Keeps the node there for the life of one session.
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
                    // An error shows again in the next comparison.
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

    /// Makes what there is what there should be, by one step at most, and gives the zxid from which on changes matter.
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
                let owner = owner.map_or_else(|| "nobody's session".to_owned(), |id| format!("session {id}"));
                self.absent(format!("a node of {owner} is there; waiting for it to go"));
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
            // Its own change comes back by the watch, and so does another's that was faster: then it is compared again.
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
