//! Where a group's state lies: in the replicated state of Lockkeeper, or in this process alone.
//!
//! In Lockkeeper it is the data of the node `/engines/<group>`, and each member has an ephemeral child there. One read
//! returns both as of one zxid. A member may act only while it is sure of its session: [`Seat::is_sure`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::api::nodes::{Create, Kind, SetData};
use lockkeeper_client::api::{Code, Data};
use lockkeeper_client::{Client, Error, Reading, Session, SessionOptions, Watch, WatchItem, WatchOptions};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

use super::state::GroupState;

/// The directory of all groups.
const DIRECTORY: &str = "/engines";
const PAUSE_AFTER_CUT: Duration = Duration::from_millis(20);

/// Lets all processes of a group switch together, by the replicated state of a Lockkeeper cluster.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// The cluster.
    pub client: Client,
    /// The name of the group, the same in all its processes.
    pub group: String,
    /// A process that cannot reach the cluster stops to grant and to renew within this time.
    pub session_timeout: Duration,
}

impl Agreement {
    /// An agreement with a session timeout of 10 s.
    pub fn new(client: Client, group: impl Into<String>) -> Self {
        Self { client, group: group.into(), session_timeout: Duration::from_secs(10) }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.group.is_empty() || self.group.len() > 200 || self.group.contains('/') {
            return Err("the name of a group has 1 to 200 bytes and no '/'".into());
        }
        Ok(())
    }
}

/// The state as read.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) state: GroupState,
    /// What a write replaces.
    pub(super) version: i32,
    /// The members whose sessions live.
    pub(super) alive: BTreeSet<Uuid>,
    /// A change after this one is reported by [`Seat::changed`].
    pub(super) as_of: u64,
}

/// A place in a group: one membership, from a session's begin to its end.
#[async_trait]
pub(super) trait Seat: fmt::Debug + Send + Sync {
    fn id(&self) -> Uuid;

    /// Whether the other members certainly count this one as present.
    fn is_sure(&self) -> bool;

    async fn read(&self) -> Result<Seen, String>;

    /// Replaces the state of that version; false if it has changed. After an error it may have been replaced or not.
    async fn write(&self, state: &GroupState, version: i32) -> Result<bool, String>;

    /// Completes after a change, and perhaps without one.
    async fn changed(&self, as_of: u64);

    /// Completes, with the reason, when the membership is over.
    async fn lost(&self) -> String;

    /// Leaves, so that nobody waits for this member.
    async fn close(&self);
}

/// A place in the replicated group, and its ephemeral node.
pub(super) async fn open(
    agreement: &Agreement,
    engines: &[String],
    first_generation: u16,
) -> Result<Arc<dyn Seat>, String> {
    let default = SessionOptions::default();
    let label = format!("{}, engines/{}", default.label, agreement.group);
    let options = SessionOptions { timeout: agreement.session_timeout, label, ..default };
    let session = Session::open(&agreement.client, &options).await.map_err(|error| error.to_string())?;
    let path = format!("{DIRECTORY}/{}", agreement.group);
    let first = GroupState::new(engines.to_vec(), first_generation);
    let first = serde_json::to_string(&first).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4();
    let own = format!("{path}/{id}");
    let nodes = [
        (DIRECTORY, String::new(), Kind::Persistent),
        (&path, first, Kind::Persistent),
        (&own, String::new(), Kind::Ephemeral),
    ];
    for (path, text, kind) in nodes {
        let create = Create { data: Data::Text(text), kind, ..Create::default() };
        match session.client().create(path, &create).await {
            Ok(_) => {}
            Err(error) if error.code() == Some(Code::NodeExists) => {}
            Err(error) => {
                let _ = session.close().await;
                return Err(error.to_string());
            }
        }
    }
    Ok(Arc::new(ReplicatedSeat { id, session, path, watch: tokio::sync::Mutex::new(None) }))
}

struct ReplicatedSeat {
    id: Uuid,
    session: Session,
    path: String,
    watch: tokio::sync::Mutex<Option<Watch>>,
}

impl fmt::Debug for ReplicatedSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedSeat").field("id", &self.id).field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Seat for ReplicatedSeat {
    fn id(&self) -> Uuid {
        self.id
    }

    fn is_sure(&self) -> bool {
        !self.session.left().is_zero()
    }

    async fn read(&self) -> Result<Seen, String> {
        let reading = Reading { children: true, ..Reading::default() };
        let node = self.session.client().node(&self.path, &reading).await.map_err(|error| error.to_string())?;
        let foreign = |why: String| format!("{} is not the state of a group: {why}", self.path);
        let bytes = node.data.to_bytes().map_err(foreign)?;
        let state = serde_json::from_slice(&bytes).map_err(|error| foreign(error.to_string()))?;
        if node.next_children.is_some() {
            return Err(foreign("it has too many children".into()));
        }
        let alive = node.children.unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect();
        Ok(Seen { state, version: node.stat.version, alive, as_of: node.zxid })
    }

    async fn write(&self, state: &GroupState, version: i32) -> Result<bool, String> {
        let text = serde_json::to_string(state).map_err(|error| error.to_string())?;
        let set = SetData { data: Data::Text(text) };
        match self.session.client().set(&self.path, &set, Some(version)).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::BadVersion) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn changed(&self, as_of: u64) {
        let mut kept = self.watch.lock().await;
        let options = || WatchOptions { recursive: true, from: Some(as_of), ..WatchOptions::new(self.path.clone()) };
        let watch = kept.get_or_insert_with(|| self.session.client().watch(options()));
        loop {
            match watch.next().await {
                Some(Ok(WatchItem::Change(change))) if change.zxid > as_of => return,
                Some(Ok(_)) => {}
                // Compacted, or refused: the caller reads again.
                Some(Err(_)) | None => {
                    *kept = None;
                    return sleep(PAUSE_AFTER_CUT).await;
                }
            }
        }
    }

    async fn lost(&self) -> String {
        self.session.lost().await
    }

    async fn close(&self) {
        match self.session.close().await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => tracing::debug!(%error, "the session of a group is left to expire"),
        }
    }
}

/// The only place in a group of one process.
#[derive(Debug)]
pub(super) struct LocalSeat {
    id: Uuid,
    state: Mutex<(GroupState, i32)>,
    changed: Notify,
}

impl LocalSeat {
    pub(super) fn new(engines: &[String], first_generation: u16) -> Self {
        let state = Mutex::new((GroupState::new(engines.to_vec(), first_generation), 0));
        Self { id: Uuid::new_v4(), state, changed: Notify::new() }
    }
}

#[async_trait]
impl Seat for LocalSeat {
    fn id(&self) -> Uuid {
        self.id
    }

    fn is_sure(&self) -> bool {
        true
    }

    async fn read(&self) -> Result<Seen, String> {
        let (state, version) = self.state.lock().clone();
        let as_of = u64::try_from(version).unwrap_or_default();
        Ok(Seen { state, version, alive: BTreeSet::from([self.id]), as_of })
    }

    async fn write(&self, state: &GroupState, version: i32) -> Result<bool, String> {
        let mut current = self.state.lock();
        if current.1 != version {
            return Ok(false);
        }
        *current = (state.clone(), version.wrapping_add(1));
        drop(current);
        self.changed.notify_waiters();
        Ok(true)
    }

    async fn changed(&self, as_of: u64) {
        let changed = self.changed.notified();
        if u64::try_from(self.state.lock().1).unwrap_or_default() == as_of {
            changed.await;
        }
    }

    async fn lost(&self) -> String {
        std::future::pending().await
    }

    async fn close(&self) {}
}
