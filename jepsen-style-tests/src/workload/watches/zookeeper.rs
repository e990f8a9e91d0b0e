//! `zk-watches`: the same tree watched through ZooKeeper's protocol, with clients of both protocols changing it. A
//! recursive watch must give all that happens while its connection lasts (ZooKeeper promises no more), by the checks of
//! `watches`; one-shot watches must fire over every reconnection, before any read of that client shows their change
//! (`once`).

use futures::FutureExt as _;
use tokio::time::Instant;
use zookeeper_client::{AddWatchMode, Client, Error, EventType, MultiWriteError, PersistentWatcher, WatchedEvent};

use super::{BEGUN, Begins, CHANGE, ENDED, Ends, NodeChange, ROOT, SEEN, Sees, WatchedChange, check, once, some_part};
use crate::workload::client_kit::end;
use crate::workload::prelude::*;
use crate::workload::zookeeper::visit::{PERSISTENT, Visit, set_at, sure_multi, zxid};

/// How long a watch may take to come to the end of the log once nobody writes and all is healed.
const CATCH_UP: Duration = Duration::from_secs(20);

/// The workload.
#[derive(Debug)]
pub(in crate::workload) struct ZooKeeperWatchesWorkload;

#[async_trait]
impl Workload for ZooKeeperWatchesWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "zk-watches",
            about: "watches of ZooKeeper's clients on a tree that clients of both protocols change: told before it \
                shows, and none missed",
            promises: "P8 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let native = context.client % 4 == 3;
        let Some(mut kit) = super::prepared(context).await? else { return Ok(()) };
        if native {
            return super::change_and_follow(kit).await;
        }
        let written = CancellationToken::new();
        let (context, told) = (kit.context.clone(), written.clone());
        let recursive = tokio::spawn(watch_all(context.clone(), told.clone()));
        let single = tokio::spawn(once::follow(context, told));
        let mut visit = None;
        while kit.think(60..240).await {
            visit = change(&mut kit, visit.take()).await;
        }
        written.cancel();
        if let Some(visit) = visit {
            visit.close().await;
        }
        for following in [recursive, single] {
            following.await.map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        let mut checks = check::all(run);
        checks.extend(once::all(run));
        checks
    }
}

/// Makes a node that is this client's alone, for writes that say at which zxid they were.
async fn own(kit: &mut ClientKit, client: &Client, path: &str) -> Option<()> {
    loop {
        match client.create(path, b"", &PERSISTENT).await {
            Ok(_) | Err(Error::NodeExists) => return Some(()),
            Err(_) if client.state().is_terminated() || !kit.think(20..50).await => return None,
            Err(_) => {}
        }
    }
}

/// Changes one or several nodes, and one of its own with them, which tells the zxid.
async fn change(kit: &mut ClientKit, visit: Option<Visit>) -> Option<Visit> {
    let visit = once::renewed(kit, visit).await?;
    let mark = format!("{ROOT}/c{}", kit.context.client);
    own(kit, &visit.client, &mark).await?;
    let mut effects = super::some_effects(kit);
    effects.push(NodeChange { kind: WatchedChange::DataChanged, path: mark });
    let begun = kit.context.recorder.begin(CHANGE, &effects);
    let came = carry_out(&visit.client, &effects).await;
    end(begun, came.map(|zxid| ((), Some(zxid))), sure_multi);
    Some(visit)
}

async fn carry_out(client: &Client, effects: &[NodeChange]) -> Result<u64, MultiWriteError> {
    let mut all = client.new_multi_writer();
    for NodeChange { kind, path } in effects {
        let data = uuid::Uuid::new_v4();
        match kind {
            WatchedChange::Created => all.add_create(path, data.as_bytes(), &PERSISTENT)?,
            WatchedChange::Deleted => all.add_delete(path, None)?,
            WatchedChange::DataChanged | WatchedChange::ChildrenChanged => {
                all.add_set_data(path, data.as_bytes(), None)?
            }
        }
    }
    set_at(all.commit().await?)
}

/// Follows the tree, or a part of it, by one recursive watch after the other.
async fn watch_all(context: ClientContext, written: CancellationToken) -> Result<(), String> {
    let mut kit = ClientKit::new(context)?;
    // The last watch is followed to the end, although the client is to end.
    let mut lasting = ClientKit::new(ClientContext { stop: CancellationToken::new(), ..kit.context.clone() })?;
    let (mut visit, mut number) = (None, 0);
    let mut until: Option<Instant> = None;
    loop {
        let deadline = written.is_cancelled().then(|| *until.get_or_insert_with(|| Instant::now() + CATCH_UP));
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            break;
        }
        let begun = tokio::time::timeout(CATCH_UP, once::renewed(&mut lasting, visit.take())).await;
        let Ok(Some(here)) = begun else { continue };
        number += 1;
        let path = some_part(&mut kit);
        let arrived = one(&mut kit, &here.client, number, &path, &written).await;
        visit = Some(here);
        if arrived == Left::AtTheEnd {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Some(visit) = visit {
        visit.close().await;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Its client had enough, or the connection ended.
    Early,
    /// It has come to the end of the log.
    AtTheEnd,
}

/// One recursive watch.
async fn one(kit: &mut ClientKit, client: &Client, watch: u32, path: &str, written: &CancellationToken) -> Left {
    let Ok(mut watcher) = client.watch(path, AddWatchMode::PersistentRecursive).await else { return Left::Early };
    let mark = format!("{path}/f{}", kit.context.client);
    // It begins at a write: everything from there on must be given, and that too, before the write is answered.
    let first = loop {
        match client.set_data(&mark, b"", None).await {
            Ok(stat) => break zxid(stat.mzxid),
            Err(Error::NoNode) if client.create(&mark, b"", &PERSISTENT).await.is_ok() => {}
            Err(_) => return Left::Early,
        }
    };
    let mut telling = Telling { recorder: kit.context.recorder.clone(), watch, from: first, last: 0 };
    let begins = Begins { watch, path: path.to_owned(), from: first - 1 };
    telling.recorder.note(BEGUN, &begins, None);
    if !telling.has_told(&mut watcher, first) {
        return Left::Early;
    }
    let leave_at = Instant::now() + Duration::from_millis(kit.rng.random_range(3_000..12_000));
    loop {
        let pause = Duration::from_millis(kit.rng.random_range(100..1_000));
        let heard = tokio::select! {
            event = watcher.changed() => Some(event),
            () = tokio::time::sleep(pause) => None,
            () = written.cancelled() => None,
        };
        match heard {
            Some(event) if !telling.tell(&event) => return Left::Early,
            Some(_) => continue,
            None => {}
        }
        let ends = written.is_cancelled();
        let Ok(stat) = client.set_data(&mark, b"", None).await else { return Left::Early };
        let goal = zxid(stat.mzxid);
        if !telling.has_told(&mut watcher, goal) {
            return Left::Early;
        }
        if ends {
            let ends = Ends { watch, caught_up: telling.last >= goal, goal };
            telling.recorder.note(ENDED, &ends, None);
            return Left::AtTheEnd;
        }
        if Instant::now() > leave_at {
            return Left::Early;
        }
    }
}

/// Tells what a watch gives.
struct Telling {
    recorder: Recorder,
    watch: u32,
    /// What comes before this may be given in part.
    from: u64,
    last: u64,
}

impl Telling {
    /// Tells an event; false if the connection, and with it what the watch promises, has ended.
    fn tell(&mut self, event: &WatchedEvent) -> bool {
        let kind = match event.event_type {
            EventType::NodeCreated => WatchedChange::Created,
            EventType::NodeDeleted => WatchedChange::Deleted,
            EventType::NodeDataChanged => WatchedChange::DataChanged,
            EventType::NodeChildrenChanged => WatchedChange::ChildrenChanged,
            EventType::Session => return false,
        };
        let at = zxid(event.zxid);
        if at >= self.from {
            let effect = NodeChange { kind, path: event.path.clone() };
            self.recorder.note(SEEN, &Sees { watch: self.watch, effect }, Some(at));
            self.last = self.last.max(at);
        }
        true
    }

    /// Tells all that has been given by now, which must include what was written at `zxid` over the same connection:
    /// the answer is there. False if the connection has ended.
    fn has_told(&mut self, watcher: &mut PersistentWatcher, zxid: u64) -> bool {
        while let Some(event) = watcher.changed().now_or_never() {
            if !self.tell(&event) {
                return false;
            }
        }
        let revealed = once::Revealed { watch: self.watch, zxid, heard: self.last >= zxid };
        self.recorder.note(once::REVEALED, &revealed, None);
        true
    }
}
