//! Leader election (etcd's `concurrency.Election`, Curator's `LeaderLatch`): the lock queue decides who leads, and a node beside it
//! says who that is.
//!
//! The leader's node is ephemeral and belongs to the same session as the lock, so both go in one transaction when that session ends. It is
//! named by the token, so that nobody can take another leader's for its own, and written only in transactions that are guarded by
//! the lock, so that one that was deposed cannot speak as the leader any more.

use std::time::Duration;

use lockkeeper_api::Data;

use super::ephemeral::run_to_completion;
use super::error::RecipeError;
use super::gapless_watch::{GaplessWatch, Observed, bytes_of, read_node};
use super::leadership::Leadership;
use super::path::RecipePath;
use crate::client::Client;
use crate::locks::Guard;
use crate::routes::Reading;
use crate::session::Session;

/// Largest data of a leader, in bytes.
const MAX_DATA_BYTES: usize = 64 * 1024;
/// Where leaders' nodes are; the part of a name that they have to themselves.
const ROOT: &str = "/elections";
const LEADER: &str = "_leader";

/// Where an election takes place.
#[derive(Clone, Debug)]
pub(super) struct ElectionPaths {
    pub(super) name: String,
    directory: String,
}

impl ElectionPaths {
    fn of(name: &str) -> Result<Self, RecipeError> {
        let bad = |why: String| RecipeError::BadPath { path: name.into(), why };
        let directory = format!("{ROOT}/{name}");
        RecipePath::parse(&directory).map_err(|error| match error {
            RecipeError::BadPath { why, .. } => bad(why),
            other => other,
        })?;
        if name.split('/').any(|part| part == LEADER) {
            return Err(bad(format!("'{LEADER}' is where the leader's node is; choose another name")));
        }
        Ok(Self { name: name.into(), directory })
    }

    pub(super) fn lock(&self) -> String {
        format!("elections/{}", self.name)
    }

    /// Where leaders' nodes are: one, and for a while that of a leader that was deposed by force.
    pub(super) fn leaders(&self) -> String {
        format!("{}/{LEADER}", self.directory)
    }

    /// Twenty digits, so that the order of the names is that of the tokens.
    pub(super) fn node(&self, token: u64) -> String {
        format!("{}/{token:020}", self.leaders())
    }
}

/// One leader at a time, first come first served.
///
/// Candidates stand in the queue of the lock [`lock_name`](Self::lock_name): fair, and without a herd, since each candidate watches only the one before it. A
/// change of leaders notifies the next candidate, and each observer once or twice (the old leader's end, the new one's beginning).
///
/// A leader is one by the cluster's order, not by the wall clock: one that was paused may act after it was deposed. Give what it writes to the
/// fencing token ([`Leadership::token`]), or write through transactions with [`Leadership::guard`].
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

    /// Who stands for election, for people who look at the queue.
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

    /// Stands for election and waits until this candidate leads. `data` is what observers are given, such as an address: it can be
    /// seen as soon as it leads and not before. Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the session is lost; otherwise see [`RecipeError`].
    pub async fn campaign(&self, data: &[u8]) -> Result<Leadership, RecipeError> {
        check_data(data)?;
        let guard = self.candidacy().lock().await?;
        self.take_office(guard, data).await
    }

    /// Leads if nobody does and nobody waits to.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self, data: &[u8]) -> Result<Option<Leadership>, RecipeError> {
        check_data(data)?;
        match self.candidacy().try_lock().await? {
            Some(guard) => self.take_office(guard, data).await.map(Some),
            None => Ok(None),
        }
    }

    /// The same as [`campaign`](Self::campaign), waiting for so long at most.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_timeout(&self, data: &[u8], wait: Duration) -> Result<Option<Leadership>, RecipeError> {
        check_data(data)?;
        match self.candidacy().lock_timeout(wait).await? {
            Some(guard) => self.take_office(guard, data).await.map(Some),
            None => Ok(None),
        }
    }

    fn candidacy(&self) -> crate::locks::Lock {
        self.session.lock(self.paths.lock()).label(self.label.as_str())
    }

    async fn take_office(&self, guard: Guard, data: &[u8]) -> Result<Leadership, RecipeError> {
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

    /// Follows who leads. Needs no session, and goes on when the one through which it was made is lost.
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch::new(self.session.client().anonymous(), self.paths.clone())
    }
}

impl Client {
    /// Follows who leads an election, without taking part in it. See [`LeaderWatch`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn observe_election(&self, name: &str) -> Result<LeaderWatch, RecipeError> {
        Ok(LeaderWatch::new(self.anonymous(), ElectionPaths::of(name)?))
    }
}

pub(super) fn check_data(data: &[u8]) -> Result<(), RecipeError> {
    if data.len() <= MAX_DATA_BYTES {
        return Ok(());
    }
    Err(RecipeError::BadArgument(format!(
        "a leader's data are at most {MAX_DATA_BYTES} bytes, these are {}",
        data.len()
    )))
}

/// Somebody leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// With this fencing token; larger than that of each leader before.
    pub token: u64,
    /// By this session.
    pub session_id: u64,
    /// What it said of itself last.
    pub data: Vec<u8>,
    /// The zxid at which this was true.
    pub zxid: u64,
}

/// Who leads, and as of when. A leader that was deposed by force may have left its node behind: the lock is asked.
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

/// Follows who leads: at first who does now, then each change that is still news when it is asked for. Leaders that came and went in between
/// may be passed over; the last one never is.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let paths = ElectionPaths::of("db/primary").unwrap();
        assert_eq!(
            (paths.lock().as_str(), paths.leaders().as_str()),
            ("elections/db/primary", "/elections/db/primary/_leader")
        );
        assert!(paths.node(9) < paths.node(10), "the order of the names is that of the tokens");
        for bad in ["", "/", "a/", "/a", "a/_leader", "a/../b", "a\n"] {
            assert!(matches!(ElectionPaths::of(bad), Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
        }
    }
}
