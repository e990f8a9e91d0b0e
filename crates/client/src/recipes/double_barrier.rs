//! A barrier at which N parties wait for each other on the way in and on the way out (ZooKeeper's recipe, Curator's
//! `DistributedDoubleBarrier`).
//!
//! ZooKeeper's recipe marks a full barrier by a child `ready`. Here the mark is the data of the barrier's own node:
//! the names of the parties of the round. A party sets it by compare-and-set, in a transaction that checks that the
//! party's own node still exists. So no party enters by the mark of an earlier round, and a party that comes too late
//! for a round waits for the next.

use std::collections::BTreeSet;

use lockkeeper_api::Data;
use lockkeeper_api::nodes::{Changed, Create, Kind, Txn, TxnOp};
use lockkeeper_api::watch::ChangeKind;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, refused_operation};
use super::gapless_watch::{GaplessWatch, Observed, bytes_of, read_node};
use super::path::{self, RecipePath, make_directories};
use super::stale_participants::{NodeGuard, ParticipantGuard, Participants};
use super::until_lost::until_lost;
use crate::routes::Reading;
use crate::session::Session;

/// Most parties: each listing and each mark contains all names.
const MAX_PARTIES: u32 = 1_000;

/// [`enter`](Self::enter) waits until N parties have come; [`Entered::leave`] waits until all of them have left.
///
/// Parties are ephemeral nodes, so nobody waits for a dead party:
/// - a party that dies or gives up before the round is full does not count, and another may take its place;
/// - a party that dies inside counts as having left.
///
/// The first N parties make a round; a further party waits until that round is over and belongs to the next. All
/// parties state the same N.
///
/// An arrival notifies no other party; the last one notifies all N. A party that waits to leave watches one random
/// party that is still inside, so a departure notifies few. Parties that came too late for a round are notified of
/// each departure. When a waiting party's session is lost, its wait ends in [`Error::Lost`](crate::Error::Lost). If
/// the last party stops between its arrival and its mark, the round opens when it continues, or when another party
/// comes after its session has ended.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let phase = session.double_barrier("/app/phase-1", 2)?;
/// let other = tokio::spawn({
///     let phase = phase.clone();
///     async move { phase.enter().await?.leave().await }
/// });
/// let entered = phase.enter().await?;
/// // … both are inside …
/// entered.leave().await?;
/// other.await??;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    session: Session,
    path: RecipePath,
    parties: u32,
}

/// A round, as its mark describes it.
struct BarrierRound {
    members: BTreeSet<String>,
    parties: u32,
    version: i32,
    as_of: u64,
}

impl DoubleBarrier {
    pub(crate) fn new(session: Session, path: RecipePath, parties: u32) -> Result<Self, RecipeError> {
        if !(1..=MAX_PARTIES).contains(&parties) {
            return Err(RecipeError::BadArgument(format!("a barrier has 1 to {MAX_PARTIES} parties, not {parties}")));
        }
        Ok(Self { session, path, parties })
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    fn directory(&self) -> String {
        self.path.child("parties")
    }

    /// Waits until all parties have come. Dropping the future removes this party again; if the round opens at that
    /// moment, the others see this party as having left.
    ///
    /// Entering continues through an outage that the session outlives. A party that comes again never counts twice: it
    /// first waits until the nodes that this session left behind here are gone.
    ///
    /// # Errors
    /// [`RecipeError::Mismatch`] if the other parties state another N; otherwise see [`RecipeError`].
    pub async fn enter(&self) -> Result<Entered, RecipeError> {
        let parties = self.session.extension::<Participants>();
        let entering = async {
            // A party with two nodes would count as two.
            parties.no_stale_nodes(self.path()).await;
            let (participant_guard, node_guard) = parties.arrive(self.path());
            let arriving = self.clone();
            let own = run_to_completion(&self.session, async move { arriving.arrive(node_guard).await }).await?;
            let members = self.wait_for_round(own.name()).await?;
            Ok(Entered { barrier: self.clone(), members, participant_guard, own })
        };
        until_lost(&self.session, entering).await
    }

    /// Creates this party's node. Without an answer it retries until there is one: a node that may exist would count.
    async fn arrive(self, node_guard: NodeGuard) -> Result<EphemeralNode, RecipeError> {
        let prefix = format!("{}/{}-", self.directory(), Uuid::new_v4().simple());
        let create = Create { kind: Kind::Ephemeral, sequential: true, ..Create::default() };
        let mut undecided = None;
        let made = match path::create_node_tracked(self.session.client(), &prefix, &create, &mut undecided).await {
            Err(error) => match undecided {
                Some(change) => change.decided::<Changed>(&self.session).await?,
                None => return Err(error.into()),
            },
            Ok(made) => made,
        };
        Ok(EphemeralNode::new(&self.session, made.path).guarded_by(node_guard))
    }

    async fn wait_for_round(&self, own: &str) -> Result<BTreeSet<String>, RecipeError> {
        loop {
            let round = self.round().await?;
            if round.members.contains(own) {
                return self.same_size(round.parties).map(|()| round.members);
            }
            let (names, _) = self.present().await?;
            if !names.contains(own) {
                return Err(RecipeError::Removed { path: format!("{}/{own}", self.directory()) });
            }
            let (path, client) = (self.path(), self.session.client());
            if names.iter().any(|name| round.members.contains(name)) {
                self.same_size(round.parties)?;
                let matters = |kind, at: &str| kind == ChangeKind::Deleted || at == path;
                GaplessWatch::tree(client, path)
                    .change(round.as_of, |change| matters(change.kind, &change.path))
                    .await?;
            } else if names.len() >= self.parties as usize {
                self.open(own, &names, round.version).await?;
            } else {
                let is_mark = |kind| matches!(kind, ChangeKind::DataChanged | ChangeKind::Deleted);
                GaplessWatch::node(client, path).change(round.as_of, |change| is_mark(change.kind)).await?;
            }
        }
    }

    /// Marks the first N parties as those of the round, unless another party has set a mark since.
    async fn open(&self, own: &str, present: &BTreeSet<String>, version: i32) -> Result<(), RecipeError> {
        let mut by_arrival: Vec<&String> = present.iter().collect();
        by_arrival.sort_by_key(|name| name.rsplit('-').next().map(str::to_owned));
        by_arrival.truncate(self.parties as usize);
        let names: Vec<&str> = by_arrival.into_iter().map(String::as_str).collect();
        let data = Data::Text(format!("{}\n{}", self.parties, names.join("\n")));
        let operations = vec![
            TxnOp::Check { path: format!("{}/{own}", self.directory()), version: None },
            TxnOp::Set { path: self.path().to_owned(), data, version: Some(version) },
        ];
        match self.session.client().txn(&Txn { operations }).await {
            Err(error) if refused_operation(&error).is_none() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn round(&self) -> Result<BarrierRound, RecipeError> {
        let Observed { node, as_of } = read_node(self.session.client(), self.path(), &Reading::default()).await?;
        let Some(node) = node else {
            // The node is created above the directory of its parties, and never removed while one is there.
            make_directories(self.session.client(), self.path()).await?;
            return Ok(BarrierRound { members: BTreeSet::new(), parties: self.parties, version: -1, as_of });
        };
        let foreign = || RecipeError::Foreign {
            path: self.path().into(),
            recipe: "double barrier",
            why: "its data is not a number of parties and their names".into(),
        };
        let text = String::from_utf8(bytes_of(&node)?).map_err(|_| foreign())?;
        let mut lines = text.lines();
        let parties = match lines.next() {
            Some(first) => first.parse().map_err(|_| foreign())?,
            None => self.parties,
        };
        Ok(BarrierRound { members: lines.map(str::to_owned).collect(), parties, version: node.stat.version, as_of })
    }

    /// The names of the parties that have a node.
    async fn present(&self) -> Result<(BTreeSet<String>, u64), RecipeError> {
        let reading = Reading { children: true, ..Reading::default() };
        let seen = read_node(self.session.client(), &self.directory(), &reading).await?;
        let names = seen.node.and_then(|node| node.children).unwrap_or_default();
        Ok((names.into_iter().collect(), seen.as_of))
    }

    fn same_size(&self, parties: u32) -> Result<(), RecipeError> {
        if parties == self.parties {
            return Ok(());
        }
        Err(RecipeError::Mismatch {
            path: self.path().into(),
            asked: format!("{} parties", self.parties),
            found: format!("{parties} parties"),
        })
    }
}

/// A party inside the barrier. Dropping it leaves without waiting for the others.
#[derive(Debug)]
#[must_use = "dropping this leaves the barrier"]
pub struct Entered {
    barrier: DoubleBarrier,
    members: BTreeSet<String>,
    /// Dropped before the node is removed.
    participant_guard: ParticipantGuard,
    own: EphemeralNode,
}

impl Entered {
    /// The number of parties of the round, this one included.
    pub fn parties(&self) -> usize {
        self.members.len()
    }

    /// Leaves, and waits until all other parties of the round have left or died. This party has left even if the
    /// future is dropped.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn leave(self) -> Result<(), RecipeError> {
        let Self { barrier, members, participant_guard, own } = self;
        drop(participant_guard);
        let wait = async {
            run_to_completion(&barrier.session, own.remove()).await?;
            loop {
                let (names, as_of) = barrier.present().await?;
                let inside: Vec<&String> = names.intersection(&members).collect();
                let Some(one) = inside.choose(&mut rand::rng()) else { return Ok(()) };
                let path = format!("{}/{one}", barrier.directory());
                let is_gone = |kind| kind == ChangeKind::Deleted;
                GaplessWatch::node(barrier.session.client(), &path)
                    .change(as_of, |change| is_gone(change.kind))
                    .await?;
            }
        };
        until_lost(&barrier.session, wait).await
    }
}
