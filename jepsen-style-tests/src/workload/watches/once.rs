//! Checks one-shot watches, which ZooKeeper's clients set when they read a node.
//!
//! A client that has read a node and watches it hears of a change before any answer to a later read shows it, over
//! however many reconnections; and what it hears is true.

use futures::FutureExt as _;
use futures::future::join_all;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use zookeeper_client::{Client, Error, EventType, OneshotWatcher};

use super::{NODES, PARTS, part};
use crate::workload::prelude::*;
use crate::workload::zookeeper::visit::{Leave, Visit, zxid};

/// Told: [`Revealed`].
pub(super) const REVEALED: &str = "revealed";
/// Told: [`Looks`].
pub(super) const LOOKED: &str = "looked";
/// Told: [`Fires`].
pub(super) const FIRED: &str = "fired";

/// An answer shows that a recursive watch of the same connection has been given everything up to a zxid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Revealed {
    pub(super) watch: u32,
    pub(super) zxid: u64,
    /// Whether it had.
    pub(super) heard: bool,
}

/// What is watched, as the look at it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Watched {
    path: String,
    of: Of,
    /// When it last changed; none where there was nothing.
    at: Option<u64>,
}

/// Which kind of watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Of {
    /// The node itself, by its data.
    Data,
    /// The node itself, whether it is there or not.
    Existence,
    /// Its children.
    Children,
}

/// It was looked at again, while it was watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Looks {
    watched: Watched,
    /// When it had last changed by now.
    now: Option<u64>,
    /// Whether the watch had fired before the answer.
    heard: bool,
}

/// The watch fired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fires {
    watched: Watched,
    /// What it said.
    said: WatchEventType,
    /// Of which zxid; none where it was found out after a reconnection.
    zxid: Option<u64>,
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WatchEventType {
    Created,
    Deleted,
    Changed,
    ChildrenChanged,
}

/// So many watches at a time, on one connection: some are there whenever it breaks.
const AT_A_TIME: u64 = 8;

/// A session to begin with, or the same while it lives.
pub(super) async fn renewed(kit: &mut ClientKit, visit: Option<Visit>) -> Option<Visit> {
    match visit.filter(|visit| !visit.is_over()) {
        Some(visit) => Some(visit),
        None => {
            let nodes = kit.context.zookeepers.clone();
            Visit::begin(kit, &nodes, Leave::Closes).await
        }
    }
}

/// Watches one node after the other until nobody writes any more, and looks once more.
pub(super) async fn follow(context: ClientContext, written: CancellationToken) -> Result<(), String> {
    let mut kit = ClientKit::new(context)?;
    let mut visit = None;
    while !written.is_cancelled() {
        let Some(here) = renewed(&mut kit, visit.take()).await else { break };
        let recorder = &kit.context.recorder;
        let watching = (0..AT_A_TIME).map(|_| StdRng::seed_from_u64(kit.rng.random())).collect::<Vec<_>>();
        let watching = watching.into_iter().map(|mut rng| {
            let (here, written) = (&here, &written);
            async move {
                while !written.is_cancelled() && !here.is_over() {
                    one(recorder, &mut rng, &here.client, written).await;
                }
            }
        });
        join_all(watching).await;
        visit = Some(here);
    }
    if let Some(visit) = visit {
        visit.close().await;
    }
    Ok(())
}

async fn one(recorder: &Recorder, rng: &mut StdRng, client: &Client, written: &CancellationToken) {
    let (of, in_part) = (rng.random_range(0..3), part(rng.random_range(0..PARTS)));
    let node = format!("{in_part}/n{}", rng.random_range(0..NODES));
    let set = match of {
        0 => set(client, Of::Data, node).await,
        1 => set(client, Of::Existence, node).await,
        _ => set(client, Of::Children, in_part).await,
    };
    let Some((watched, watcher)) = set else {
        return tokio::time::sleep(Duration::from_millis(rng.random_range(5..50))).await;
    };
    let mut changed = Box::pin(watcher.changed());
    // Some only look: what a look shows they must have been told of by then.
    let listens = rng.random_bool(0.5);
    for _ in 0..rng.random_range(1..8) {
        let pause = Duration::from_millis(rng.random_range(20..800));
        let heard = tokio::select! {
            event = &mut changed, if listens => Some(event),
            () = tokio::time::sleep(pause) => None,
            () = written.cancelled() => None,
        };
        if let Some(event) = heard {
            return fired(recorder, watched, event.event_type, event.zxid);
        }
        let Some(now) = look(client, &watched).await else { continue };
        // The answer is there, so what came before it is as well.
        let heard = changed.as_mut().now_or_never();
        let looks = Looks { watched: watched.clone(), now, heard: heard.is_some() };
        recorder.note(LOOKED, &looks, None);
        if let Some(event) = heard {
            return fired(recorder, watched, event.event_type, event.zxid);
        }
        if written.is_cancelled() {
            return;
        }
    }
}

fn fired(recorder: &Recorder, watched: Watched, event: EventType, at: i64) {
    let said = match event {
        EventType::NodeCreated => WatchEventType::Created,
        EventType::NodeDeleted => WatchEventType::Deleted,
        EventType::NodeDataChanged => WatchEventType::Changed,
        EventType::NodeChildrenChanged => WatchEventType::ChildrenChanged,
        // The session is over, and the watch with it.
        EventType::Session => return,
    };
    recorder.note(FIRED, &Fires { watched, said, zxid: u64::try_from(at).ok() }, None);
}

async fn set(client: &Client, of: Of, path: String) -> Option<(Watched, OneshotWatcher)> {
    let (at, watcher) = match of {
        Of::Data => client.get_and_watch_data(&path).await.ok().map(|(_, stat, watcher)| (Some(stat.mzxid), watcher)),
        Of::Existence => {
            let looked = client.check_and_watch_stat(&path).await.ok();
            looked.map(|(stat, watcher)| (stat.map(|stat| stat.mzxid), watcher))
        }
        Of::Children => {
            let looked = client.get_and_watch_children(&path).await.ok();
            looked.map(|(_, stat, watcher)| (Some(stat.pzxid), watcher))
        }
    }?;
    Some((Watched { path, of, at: at.map(zxid) }, watcher))
}

/// When it last changed, where that is known.
async fn look(client: &Client, watched: &Watched) -> Option<Option<u64>> {
    let path = &watched.path;
    let looked = match watched.of {
        Of::Data => client.get_data(path).await.map(|(_, stat)| Some(stat.mzxid)),
        Of::Existence => client.check_stat(path).await.map(|stat| stat.map(|stat| stat.mzxid)),
        Of::Children => client.get_children(path).await.map(|(_, stat)| Some(stat.pzxid)),
    };
    match looked {
        Ok(at) => Some(at.map(zxid)),
        Err(Error::NoNode) => Some(None),
        Err(_) => None,
    }
}

/// What there is to say of them.
pub(super) fn all(run: &Recorded) -> Vec<Check> {
    vec![told_first(run), told_truly(run)]
}

/// No answer shows a change of which a watch has not told.
fn told_first(run: &Recorded) -> Check {
    const NAME: &str = "a watch tells before a read shows it";
    const PROMISES: &str = "P8";
    let (mut looks, mut changed, mut writes) = (0, 0, 0);
    for event in run.history.notes() {
        let broken = match event.what.as_str() {
            LOOKED => {
                let Ok(Looks { watched, now, heard }) = event.told() else {
                    return Check::unknown(NAME, PROMISES, "what was told cannot be read");
                };
                looks += 1;
                changed += usize::from(now != watched.at);
                (now != watched.at && !heard)
                    .then(|| format!("{:?} of {} was {:?} and is {now:?}", watched.of, watched.path, watched.at))
            }
            REVEALED => {
                let Ok(Revealed { watch, zxid, heard }) = event.told() else {
                    return Check::unknown(NAME, PROMISES, "what was told cannot be read");
                };
                writes += 1;
                (!heard).then(|| format!("watch {watch} had not given zxid {zxid} when its own write was answered"))
            }
            _ => continue,
        };
        if let Some(what) = broken {
            let detail = format!("client {} saw a change of which its watch had not told", event.client);
            return Check { at_us: Some(event.at_us), ..Check::invalid(NAME, PROMISES, detail, vec![what]) };
        }
    }
    let detail = format!(
        "{looks} looks at what is watched, {changed} of which showed a change that had been told; {writes} answers to \
            writes, each after its event"
    );
    if looks == 0 || writes == 0 {
        Check::unknown(NAME, PROMISES, detail)
    } else {
        Check::valid(NAME, PROMISES, detail)
    }
}

/// What happened at one path, by zxid.
type Changes<'a> = BTreeMap<&'a str, Vec<(u64, WatchEventType)>>;

fn changes(run: &Recorded) -> Changes<'_> {
    let mut changes = Changes::new();
    for event in &run.log {
        let said = if event.created { WatchEventType::Created } else { WatchEventType::Deleted };
        changes.entry(&event.path).or_default().push((event.zxid, said));
        if let Some((parent, _)) = event.path.rsplit_once('/') {
            changes.entry(parent).or_default().push((event.zxid, WatchEventType::ChildrenChanged));
        }
    }
    for set in &run.data {
        changes.entry(&set.path).or_default().push((set.zxid, WatchEventType::Changed));
    }
    for of_path in changes.values_mut() {
        of_path.sort_by_key(|(zxid, _)| *zxid);
    }
    changes
}

impl Of {
    fn hears(self, said: WatchEventType) -> bool {
        match self {
            Self::Data | Self::Existence => said != WatchEventType::ChildrenChanged,
            Self::Children => matches!(said, WatchEventType::ChildrenChanged | WatchEventType::Deleted),
        }
    }
}

/// What a watch says has happened, and where it names a zxid, it is the first that it was there for.
fn told_truly(run: &Recorded) -> Check {
    const NAME: &str = "a watch that fires once tells the first change, and none that was not";
    const PROMISES: &str = "P8";
    let changes = changes(run);
    let (mut live, mut caught_up) = (0, 0);
    for event in run.history.notes().filter(|event| event.what == FIRED) {
        let Ok(Fires { watched, said, zxid }) = event.told() else {
            return Check::unknown(NAME, PROMISES, "what was told cannot be read");
        };
        let from = watched.at.unwrap_or(0);
        let here = changes.get(watched.path.as_str()).map(Vec::as_slice).unwrap_or_default();
        let mut after = here.iter().filter(|(at, what)| *at > from && watched.of.hears(*what));
        let is_so = match (zxid, watched.at) {
            (Some(zxid), Some(_)) => {
                let first = after.clone().next().map(|(at, _)| *at);
                first == Some(zxid) && after.any(|(at, what)| *at == zxid && *what == said)
            }
            // From when on there was nothing is not known.
            (Some(zxid), None) => after.any(|(at, what)| *at == zxid && *what == said),
            // What went and came again meanwhile reads as changed.
            (None, _) => after
                .any(|(_, what)| *what == said || said == WatchEventType::Changed && *what == WatchEventType::Created),
        };
        if !is_so {
            let lines = vec![
                format!(
                    "{:?} of {} was at {:?}; the watch said {said:?}, at {zxid:?}",
                    watched.of, watched.path, watched.at
                ),
                format!("the log has {:?}", here.iter().filter(|(at, _)| *at > from).take(4).collect::<Vec<_>>()),
            ];
            let detail = format!("client {}'s watch told what was not so, or not first", event.client);
            return Check { at_us: Some(event.at_us), ..Check::invalid(NAME, PROMISES, detail, lines) };
        }
        live += usize::from(zxid.is_some());
        caught_up += usize::from(zxid.is_none());
    }
    let detail =
        format!("{live} fired as it happened, {caught_up} after a reconnection for what had happened meanwhile");
    if live == 0 { Check::unknown(NAME, PROMISES, detail) } else { Check::valid(NAME, PROMISES, detail) }
}

#[cfg(test)]
#[path = "once_tests.rs"]
mod tests;
