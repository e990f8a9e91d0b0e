//! `watches`: clients change a tree, one node or several at a time, and each follows it, or a part of it, with a watch
//! of the library. Faults break the watches, and clients drop and resume them on purpose. Each watch must give, in
//! order and once, exactly what the log has of its part from where it began (P8), or say `compacted`.
//!
//! Half of the watches go over a session's stream, the others over server-sent events without a session.

mod check;
mod follow;
mod once;
pub(super) mod zookeeper;

use lockkeeper_client::Error;
use lockkeeper_client::api::nodes::{SetData, Txn, TxnOp};
use lockkeeper_client::api::watch::ChangeKind;

use super::client_kit::end;
use crate::workload::prelude::*;

const ROOT: &str = "/watched";
/// Parts of the tree that can be watched by themselves.
const PARTS: u32 = 3;
const NODES: u32 = 12;

/// An operation: what it changes where it is carried out.
const CHANGE: &str = "change";
// What is told of a watch.
const BEGUN: &str = "begun";
const SEEN: &str = "seen";
const BOOKMARK: &str = "bookmark";
const RESUMED: &str = "resumed";
const COMPACTED: &str = "compacted";
const ENDED: &str = "ended";

/// One change of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct NodeChange {
    kind: WatchedChange,
    path: String,
}

/// What a watch says of a node: [`ChangeKind`], ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WatchedChange {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
}

impl From<ChangeKind> for WatchedChange {
    fn from(kind: ChangeKind) -> Self {
        match kind {
            ChangeKind::Created => Self::Created,
            ChangeKind::Deleted => Self::Deleted,
            ChangeKind::DataChanged => Self::DataChanged,
            ChangeKind::ChildrenChanged => Self::ChildrenChanged,
        }
    }
}

/// Told as `begun`: a watch of a path and all below it, from a zxid on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Begins {
    watch: u32,
    path: String,
    from: u64,
}

/// Told as `seen`, with its zxid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sees {
    watch: u32,
    #[serde(flatten)]
    effect: NodeChange,
}

/// Told as `resumed`: it was dropped, and a new one was begun where it said that it could be taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Resumes {
    watch: u32,
    from: u64,
}

/// Told as `bookmark` with its zxid, and as `compacted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marks {
    watch: u32,
}

/// Told as `ended`: the client is done with it, and whether it had come as far as the client knew that it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ends {
    watch: u32,
    caught_up: bool,
    /// How far that was.
    goal: u64,
}

/// The workload.
#[derive(Debug)]
pub(super) struct WatchesWorkload;

/// A client in whose sight the tree is there; none if there is no time left.
async fn prepared(context: ClientContext) -> Result<Option<ClientKit>, String> {
    let mut kit = ClientKit::new(context)?;
    let parts: Vec<String> = (0..PARTS).map(part).collect();
    let mut paths = vec![ROOT];
    paths.extend(parts.iter().map(String::as_str));
    Ok(kit.prepare(&paths).await.then_some(kit))
}

/// Changes the tree, and follows what becomes of it.
async fn change_and_follow(mut kit: ClientKit) -> Result<(), String> {
    let written = CancellationToken::new();
    let following = tokio::spawn(follow::follow(kit.context.clone(), written.clone()));
    while kit.think(60..240).await {
        change(&mut kit).await;
    }
    written.cancel();
    following.await.map_err(|error| error.to_string())?
}

#[async_trait]
impl Workload for WatchesWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "watches",
            about: "watches of a changing tree, broken off and taken up again: ordered, complete, unique, or \
                `compacted`",
            promises: "P8 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        match prepared(context).await? {
            Some(kit) => change_and_follow(kit).await,
            None => Ok(()),
        }
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

fn part(number: u32) -> String {
    format!("{ROOT}/p{number}")
}

/// A part of the tree, or all of it.
fn some_part(kit: &mut ClientKit) -> String {
    let of = kit.rng.random_range(0..PARTS + 2);
    if of < PARTS { part(of) } else { ROOT.to_owned() }
}

/// Changes a node, or several in one transaction.
async fn change(kit: &mut ClientKit) {
    let effects = some_effects(kit);
    let begun = kit.context.recorder.begin(CHANGE, &effects);
    let came = carry_out(&kit.client, &effects).await;
    end(begun, came.map(|zxid| ((), Some(zxid))), sure);
}

/// What is to be done to a node, or to several.
fn some_effects(kit: &mut ClientKit) -> Vec<NodeChange> {
    let several = kit.chance(30);
    let mut effects: Vec<NodeChange> = Vec::new();
    for _ in 0..if several { kit.rng.random_range(2..5) } else { 1 } {
        let (of, node) = (kit.rng.random_range(0..PARTS), kit.rng.random_range(0..NODES));
        let path = format!("{}/n{node}", part(of));
        let kind = match kit.rng.random_range(0..3) {
            0 => WatchedChange::Created,
            1 => WatchedChange::Deleted,
            _ => WatchedChange::DataChanged,
        };
        // Each node once: then what a transaction does to it can be told from the request.
        if effects.iter().all(|effect| effect.path != path) {
            effects.push(NodeChange { kind, path });
        }
    }
    effects
}

async fn carry_out(client: &Client, effects: &[NodeChange]) -> Result<u64, Error> {
    let data = || Data::from_bytes(uuid::Uuid::new_v4().to_string().as_bytes());
    if let [NodeChange { kind, path }] = effects {
        return Ok(match kind {
            WatchedChange::Created => client.create(path, &Create::default()).await?.zxid,
            WatchedChange::Deleted => client.delete(path, None).await?.zxid,
            WatchedChange::DataChanged | WatchedChange::ChildrenChanged => {
                client.set(path, &SetData { data: data() }, None).await?.zxid
            }
        });
    }
    let operations = effects.iter().map(|NodeChange { kind, path }| match kind {
        WatchedChange::Created => TxnOp::Create {
            path: path.clone(),
            data: data(),
            kind: lockkeeper_client::api::nodes::Kind::Persistent,
            ttl_ms: None,
            sequential: false,
            acl: None,
        },
        WatchedChange::Deleted => TxnOp::Delete { path: path.clone(), version: None },
        WatchedChange::DataChanged | WatchedChange::ChildrenChanged => {
            TxnOp::Set { path: path.clone(), data: data(), version: None }
        }
    });
    Ok(client.txn(&Txn { operations: operations.collect() }).await?.zxid)
}
