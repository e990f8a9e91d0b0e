//! Leader election (etcd's `concurrency.Election`, Curator's `LeaderLatch`): the lock queue decides who leads, and a node beside it
//! says who that is.
//!
//! The leader's node is ephemeral and belongs to the same session as the lock, so both go in one transaction when that session ends. It is
//! written only in transactions that are guarded by the lock's token, so one that was deposed cannot speak as the leader any more.

use std::future::Future;
use std::time::Duration;

use lockkeeper_api::nodes::{Kind, Node, Txn, TxnOp};
use lockkeeper_api::{Code, Data};

use super::error::{RecipeError, refused_operation};
use super::follow::{Follow, Seen, anonymous, bytes_of, look};
use super::owned::{in_background, to_its_end};
use super::place::{Place, make_directories};
use crate::client::Client;
use crate::error::Error;
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
struct Seat {
    name: String,
    directory: String,
}

impl Seat {
    fn of(name: &str) -> Result<Self, RecipeError> {
        let bad = |why: String| RecipeError::BadPath { path: name.into(), why };
        let directory = format!("{ROOT}/{name}");
        Place::parse(&directory).map_err(|error| match error {
            RecipeError::BadPath { why, .. } => bad(why),
            other => other,
        })?;
        if name.split('/').any(|part| part == LEADER) {
            return Err(bad(format!("'{LEADER}' is the name of the leader's node; choose another")));
        }
        Ok(Self { name: name.into(), directory })
    }

    fn lock(&self) -> String {
        format!("elections/{}", self.name)
    }

    fn node(&self) -> String {
        format!("{}/{LEADER}", self.directory)
    }

    fn held(&self, token: u64) -> TxnOp {
        TxnOp::LockHeld { lock: self.lock(), token }
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
    seat: Seat,
}

impl Election {
    pub(crate) fn new(session: Session, name: &str) -> Result<Self, RecipeError> {
        Ok(Self { session, seat: Seat::of(name)? })
    }

    /// The election's name.
    pub fn name(&self) -> &str {
        &self.seat.name
    }

    /// The lock whose holder leads.
    pub fn lock_name(&self) -> String {
        self.seat.lock()
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
        self.session.lock(self.seat.lock()).label("candidate")
    }

    async fn take_office(&self, guard: Guard, data: &[u8]) -> Result<Leadership, RecipeError> {
        let leadership = Leadership { session: self.session.clone(), seat: self.seat.clone(), guard: Some(guard) };
        let data = record(leadership.token(), data);
        to_its_end(async move {
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
        Ok(leader_now(self.session.client(), &self.seat).await?.0)
    }

    /// Follows who leads. Needs no session, and goes on when the one through which it was made is lost.
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch::new(anonymous(self.session.client()), self.seat.clone())
    }
}

impl Client {
    /// Follows who leads an election, without taking part in it. See [`LeaderWatch`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn observe_election(&self, name: &str) -> Result<LeaderWatch, RecipeError> {
        Ok(LeaderWatch::new(anonymous(self), Seat::of(name)?))
    }
}

fn check_data(data: &[u8]) -> Result<(), RecipeError> {
    if data.len() <= MAX_DATA_BYTES {
        return Ok(());
    }
    Err(RecipeError::BadArgument(format!(
        "a leader's data are at most {MAX_DATA_BYTES} bytes, these are {}",
        data.len()
    )))
}

/// The token on a line of its own, then the data.
fn record(token: u64, data: &[u8]) -> Data {
    let mut bytes = format!("{token}\n").into_bytes();
    bytes.extend_from_slice(data);
    Data::from_bytes(&bytes)
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

fn parse(node: &Node) -> Result<Leader, RecipeError> {
    let bytes = bytes_of(node)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let parsed = end.and_then(|end| {
        let token = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
        Some(Leader { token, session_id: node.stat.ephemeral_owner?, data: bytes[end + 1..].to_vec(), zxid: node.zxid })
    });
    parsed.ok_or_else(|| RecipeError::Foreign {
        path: node.path.clone(),
        recipe: "leader's node",
        why: "it is not an ephemeral node whose data begin with a token".into(),
    })
}

/// Who leads, and as of when. A leader that was deposed by force may have left its node behind: the lock is asked.
async fn leader_now(client: &Client, seat: &Seat) -> Result<(Option<Leader>, u64), RecipeError> {
    let Seen { node, as_of } = look(client, &seat.node(), &Reading::default()).await?;
    let Some(node) = node else { return Ok((None, as_of)) };
    let leader = parse(&node)?;
    let held = client.verify(&seat.lock(), leader.token).await?.held;
    Ok((held.then_some(leader), as_of))
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
    seat: Seat,
    follow: Follow,
    /// What was told last, and as of when.
    told: Option<(Option<Leader>, u64)>,
}

impl LeaderWatch {
    fn new(client: Client, seat: Seat) -> Self {
        let follow = Follow::node(&client, &seat.node());
        Self { client, seat, follow, told: None }
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
            let (leader, as_of) = leader_now(&self.client, &self.seat).await?;
            let what = |leader: &Option<Leader>| leader.as_ref().map(|l| (l.token, l.data.clone()));
            let news = self.told.as_ref().is_none_or(|(told, _)| what(told) != what(&leader));
            self.told = Some((leader.clone(), as_of));
            if news {
                return Ok(leader);
            }
        }
    }
}

/// This candidate leads. Dropping it resigns, in the background.
#[derive(Debug)]
#[must_use = "who drops this resigns"]
pub struct Leadership {
    session: Session,
    seat: Seat,
    /// There until it resigns.
    guard: Option<Guard>,
}

impl Leadership {
    fn held(&self) -> Result<&Guard, RecipeError> {
        self.guard.as_ref().ok_or_else(|| self.stale("it was resigned"))
    }

    fn stale(&self, why: &str) -> RecipeError {
        RecipeError::Stale { what: format!("the leadership of '{}'", self.seat.name), why: why.into() }
    }

    /// The fencing token: larger than that of each leader before. Show it to what the leader writes to.
    pub fn token(&self) -> u64 {
        self.guard.as_ref().map_or(0, Guard::token)
    }

    /// The lock whose holder leads; with the token a guard for transactions.
    pub fn lock_name(&self) -> String {
        self.seat.lock()
    }

    /// An operation for transactions that refuses them when this leadership is over.
    pub fn guard(&self) -> TxnOp {
        self.seat.held(self.token())
    }

    /// Completes, with the reason, when the leadership is lost.
    pub fn lost(&self) -> impl Future<Output = String> + Send + use<> {
        let lost = self.guard.as_ref().map(Guard::lost);
        async move {
            match lost {
                Some(lost) => lost.await,
                None => "it was resigned".into(),
            }
        }
    }

    /// Whether it is lost, by the clock and by what the cluster has told.
    pub fn is_lost(&self) -> bool {
        self.guard.as_ref().is_none_or(Guard::is_lost)
    }

    /// How long it is sure to last from now on, if no further keepalive is acknowledged. Zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.as_ref().map_or(Duration::ZERO, Guard::remaining)
    }

    /// Runs `work` for as long as this candidate leads; see [`Guard::run`].
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the leadership was lost before `work` was done, or by the time it was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, RecipeError> {
        Ok(self.held()?.run(work).await?)
    }

    /// Gives observers other data, if this candidate still leads.
    ///
    /// # Errors
    /// [`RecipeError::Stale`] if it does not; otherwise see [`RecipeError`].
    pub async fn proclaim(&self, data: &[u8]) -> Result<(), RecipeError> {
        check_data(data)?;
        let data = record(self.held()?.token(), data);
        let set = TxnOp::Set { path: self.seat.node(), data: data.clone(), version: None };
        match self.guarded(vec![set]).await? {
            None => Ok(()),
            // Somebody has removed the node.
            Some(Code::NoNode) => self.announce(data).await,
            Some(code) => Err(Error::refused(code, "the leader's node could not be written").into()),
        }
    }

    /// Makes the leader's node, in the place of one that a deposed leader left behind.
    async fn announce(&self, data: Data) -> Result<(), RecipeError> {
        let node = self.seat.node();
        let create = TxnOp::Create {
            path: node.clone(),
            data,
            kind: Kind::Ephemeral,
            ttl_ms: None,
            sequential: false,
            acl: None,
        };
        let mut operations = vec![create.clone()];
        for _ in 0..MOST_TRIES {
            match self.guarded(operations).await? {
                None => return Ok(()),
                Some(Code::NodeExists) => {
                    operations = vec![TxnOp::Delete { path: node.clone(), version: None }, create.clone()];
                }
                Some(Code::NoNode) => {
                    make_directories(self.session.client(), &self.seat.directory).await?;
                    operations = vec![create.clone()];
                }
                Some(code) => return Err(Error::refused(code, format!("{node} could not be made")).into()),
            }
        }
        Err(RecipeError::Contended { path: node, tries: MOST_TRIES, elapsed_ms: 0 })
    }

    /// Carries out operations if this candidate still leads; gives the code if one of them was refused.
    async fn guarded(&self, operations: Vec<TxnOp>) -> Result<Option<Code>, RecipeError> {
        let mut all = vec![self.guard()];
        all.extend(operations);
        match self.session.client().txn(&Txn { operations: all }).await {
            Ok(_) => Ok(None),
            Err(error) => match refused_operation(&error) {
                Some((0, _)) => Err(self.stale("the lock is no longer held with its token")),
                Some((_, code)) => Ok(Some(code)),
                None => Err(error.into()),
            },
        }
    }

    /// Gives the leadership up and waits until that is certain. If the future is dropped it goes on in the background.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if it was not held any more: what was done as the leader may have been done beside another. After any
    /// error it goes on in the background until the cluster has answered or the session is over.
    pub async fn resign(mut self) -> Result<(), RecipeError> {
        let Some(guard) = self.guard.take() else { return Ok(()) };
        let (client, seat) = (self.session.client().clone(), self.seat.clone());
        to_its_end(async move {
            withdraw(&client, &seat, guard.token()).await;
            Ok(guard.release().await?)
        })
        .await
    }
}

/// How often the leader's node is tried to be made while others make and remove things there.
const MOST_TRIES: u32 = 32;

impl Drop for Leadership {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let (client, seat) = (self.session.client().clone(), self.seat.clone());
        in_background(self.session.client(), async move {
            // In this order: once the lock is given back the node is no longer this one's to remove.
            withdraw(&client, &seat, guard.token()).await;
            drop(guard);
        });
    }
}

/// Removes the leader's node, if it is still this leader's.
async fn withdraw(client: &Client, seat: &Seat, token: u64) {
    let remove = TxnOp::Delete { path: seat.node(), version: None };
    if let Err(error) = client.txn(&Txn { operations: vec![seat.held(token), remove] }).await {
        tracing::debug!(%error, election = seat.name, "the leader's node is left to its successor, or to the end of the session");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let seat = Seat::of("db/primary").unwrap();
        assert_eq!(
            (seat.lock().as_str(), seat.node().as_str()),
            ("elections/db/primary", "/elections/db/primary/_leader")
        );
        for bad in ["", "/", "a/", "/a", "a/_leader", "a/../b", "a\n"] {
            assert!(matches!(Seat::of(bad), Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
        }
    }
}
