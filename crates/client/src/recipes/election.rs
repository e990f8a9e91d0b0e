//! Leader election (etcd's `concurrency.Election`, Curator's `LeaderLatch`): the lock queue decides who leads, and a
//! node beside it names the leader.
//!
//! The leader's node is ephemeral and belongs to the same session as the lock, so both end in one transaction with that
//! session. The node is named by the token, so that no candidate takes another leader's node for its own. It is written
//! only in transactions that check the lock, so that a deposed leader cannot write it any more.

use std::time::Duration;

use lockkeeper_api::Data;

use super::ephemeral::run_to_completion;
use super::error::{RecipeError, check_data};
use super::gapless_watch::{GaplessWatch, Observed, bytes_of, read_node};
use super::leadership::{ElectionPaths, Leadership, MAX_DATA_BYTES};
use crate::client::Client;
use crate::locks::Guard;
use crate::routes::Reading;
use crate::session::Session;

/// One leader at a time, first come first served.
///
/// Candidates wait in the queue of the lock [`lock_name`](Self::lock_name). The queue is fair and has no herd effect:
/// each candidate watches only the one before it. A change of leaders notifies the next candidate, and each observer
/// once or twice (the old leader's end, the new leader's beginning).
///
/// Leadership follows the cluster's order, not the wall clock: a leader that was paused may act after it was deposed.
/// Show the fencing token ([`Leadership::token`]) with each write, or write in transactions with
/// [`Leadership::guard`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let election = session.election("reports")?;
/// let leadership = election.campaign(b"10.0.0.1:80").await?;
/// assert_eq!(election.leader().await?.expect("it is us").data, b"10.0.0.1:80");
/// // The work is dropped where it stands when the leadership is lost. What it writes should carry the token.
/// let token = leadership.token();
/// let written = leadership.run(async move { token }).await?;
/// assert_eq!(written, leadership.token());
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    session: Session,
    paths: ElectionPaths,
    label: String,
}

impl Election {
    pub(crate) fn new(session: Session, name: &str) -> Result<Self, RecipeError> {
        Ok(Self { session, paths: ElectionPaths::of(name)?, label: "candidate".into() })
    }

    /// A name for this candidate, for people who look at the queue.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// The election's name.
    pub fn name(&self) -> &str {
        &self.paths.name
    }

    /// The lock whose holder leads.
    pub fn lock_name(&self) -> String {
        self.paths.lock()
    }

    /// Waits until this candidate leads. Observers see `data`, such as an address, as soon as it leads and not before.
    /// Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the session is lost; otherwise see [`RecipeError`].
    pub async fn campaign(&self, data: &[u8]) -> Result<Leadership, RecipeError> {
        check_data("a leader's", data, MAX_DATA_BYTES)?;
        let guard = self.lock().lock().await?;
        self.announce(guard, data).await
    }

    /// Leads if there is no leader and no other candidate.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self, data: &[u8]) -> Result<Option<Leadership>, RecipeError> {
        check_data("a leader's", data, MAX_DATA_BYTES)?;
        match self.lock().try_lock().await? {
            Some(guard) => self.announce(guard, data).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`campaign`](Self::campaign), waiting at most that long.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_timeout(&self, data: &[u8], wait: Duration) -> Result<Option<Leadership>, RecipeError> {
        check_data("a leader's", data, MAX_DATA_BYTES)?;
        match self.lock().lock_timeout(wait).await? {
            Some(guard) => self.announce(guard, data).await.map(Some),
            None => Ok(None),
        }
    }

    fn lock(&self) -> crate::locks::Lock {
        self.session.lock(self.paths.lock()).label(self.label.as_str())
    }

    async fn announce(&self, guard: Guard, data: &[u8]) -> Result<Leadership, RecipeError> {
        let leadership = Leadership::new(&self.session, self.paths.clone(), guard);
        let data = Data::from_bytes(data);
        run_to_completion(&self.session, async move {
            leadership.announce(data).await?;
            Ok(leadership)
        })
        .await
    }

    /// Who leads now, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn leader(&self) -> Result<Option<Leader>, RecipeError> {
        Ok(leader_now(self.session.client(), &self.paths).await?.0)
    }

    /// Follows who leads. Needs no session, and outlives the session that it was made through.
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch::new(self.session.client().anonymous(), self.paths.clone())
    }
}

impl Client {
    /// Follows who leads an election, without being a candidate. See [`LeaderWatch`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn observe_election(&self, name: &str) -> Result<LeaderWatch, RecipeError> {
        Ok(LeaderWatch::new(self.anonymous(), ElectionPaths::of(name)?))
    }
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its fencing token; larger than that of every earlier leader.
    pub token: u64,
    /// Its session.
    pub session_id: u64,
    /// The data that it published last.
    pub data: Vec<u8>,
    /// The zxid as of which this is true.
    pub zxid: u64,
}

/// Who leads, and as of which zxid. The node of a leader that was deposed by force may remain for a while, so the lock
/// decides.
async fn leader_now(client: &Client, paths: &ElectionPaths) -> Result<(Option<Leader>, u64), RecipeError> {
    loop {
        let reading = Reading { children: true, ..Reading::default() };
        let Observed { node, as_of } = read_node(client, &paths.leaders(), &reading).await?;
        let names = node.and_then(|node| node.children).unwrap_or_default();
        let Some(token) = names.iter().filter_map(|name| name.parse().ok()).max() else { return Ok((None, as_of)) };
        let Some(node) = read_node(client, &paths.node(token), &Reading::default()).await?.node else { continue };
        let held = client.verify(&paths.lock(), token).await?.held;
        let session_id = node.stat.ephemeral_owner.unwrap_or_default();
        let leader = Leader { token, session_id, data: bytes_of(&node)?, zxid: node.zxid };
        return Ok((held.then_some(leader), as_of));
    }
}

/// Follows who leads: first the current leader, then each change. Leaders that came and went between two calls may be
/// skipped; the last one never is.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let mut watch = client.observe_election("reports")?;
/// assert_eq!(watch.next().await?, None, "nobody leads");
/// let leadership = session.election("reports")?.campaign(b"me").await?;
/// assert_eq!(watch.next().await?.expect("somebody leads").token, leadership.token());
/// # Ok(()) }
/// ```
pub struct LeaderWatch {
    client: Client,
    paths: ElectionPaths,
    follow: GaplessWatch,
    /// What was told last, and as of when.
    told: Option<(Option<Leader>, u64)>,
}

impl LeaderWatch {
    fn new(client: Client, paths: ElectionPaths) -> Self {
        let follow = GaplessWatch::tree(&client, &paths.leaders());
        Self { client, paths, follow, told: None }
    }

    /// The next leader, or other data of the same one; `None` when nobody leads. Dropping the future loses nothing.
    ///
    /// # Errors
    /// See [`RecipeError`]; it may be asked again after each.
    pub async fn next(&mut self) -> Result<Option<Leader>, RecipeError> {
        loop {
            if let Some((_, as_of)) = &self.told {
                self.follow.change(*as_of, |_| true).await?;
            }
            let (leader, as_of) = leader_now(&self.client, &self.paths).await?;
            let what = |leader: &Option<Leader>| leader.as_ref().map(|l| (l.token, l.data.clone()));
            let news = self.told.as_ref().is_none_or(|(told, _)| what(told) != what(&leader));
            self.told = Some((leader.clone(), as_of));
            if news {
                return Ok(leader);
            }
        }
    }
}
