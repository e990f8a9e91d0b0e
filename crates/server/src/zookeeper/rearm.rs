//! Watches as clients set them: with a read, by themselves, and all of them again after a connection was lost.

use bytes::BytesMut;
use lockkeeper_core::{NodePath, State, Zxid};
use lockkeeper_zookeeper::request::{SetWatches2Request, SetWatchesRequest};
use lockkeeper_zookeeper::{AddWatchMode, ErrorCode, EventType, Reply, Request, WatcherEvent, WatcherType};

use super::door::Door;
use super::line::Line;
use super::values::{path_seen, zxid};
use super::watches::{Again, Kind, missed};

/// A read was answered: what it asked to be told from here on. exists watches a node that is not there too.
pub(super) fn note(door: &Door, line: &Line, state: &State, request: &Request, found: bool) {
    let (ask, kind) = match request {
        Request::Exists(ask) if ask.watch && (found || is_absent(state, &ask.path)) => (ask, Kind::Data),
        Request::GetData(ask) if ask.watch && found => (ask, Kind::Data),
        Request::GetChildren(ask) | Request::GetChildren2(ask) if ask.watch && found => (ask, Kind::Children),
        _ => return,
    };
    if let Ok(path) = path_seen(&ask.path) {
        door.watches.lock().add(line.id, path, kind);
    }
}

fn is_absent(state: &State, text: &str) -> bool {
    path_seen(text).is_ok_and(|path| state.get(&path).is_none())
}

/// Appends the answer to a request about watches.
///
/// # Errors
/// Why it is refused; `Unimplemented` for a request that is none.
pub(super) fn answer(
    door: &Door,
    line: &Line,
    state: &State,
    request: &Request,
    xid: i32,
    out: &mut BytesMut,
) -> Result<(), ErrorCode> {
    let at = zxid(state.zxid());
    match request {
        Request::SetWatches(again) => set_again(door, line, state, &whole(again)),
        Request::SetWatches2(again) => set_again(door, line, state, again),
        Request::AddWatch(add) => {
            let kind = match AddWatchMode::from_number(add.mode).ok_or(ErrorCode::MarshallingError)? {
                AddWatchMode::Persistent => Kind::Persistent,
                AddWatchMode::PersistentRecursive => Kind::Recursive,
            };
            // Whatever cannot be there will never have anything to tell.
            if let Ok(path) = path_seen(&add.path) {
                door.watches.lock().add(line.id, path, kind);
            }
            Reply::Error(0).encode(xid, at, out);
            return Ok(());
        }
        Request::CheckWatches(ask) => {
            let (path, wanted) = meant(&ask.path, ask.watcher_type)?;
            if !door.watches.lock().has(line.id, &path, wanted) {
                return Err(ErrorCode::NoWatcher);
            }
        }
        Request::RemoveWatches(ask) => {
            let (path, wanted) = meant(&ask.path, ask.watcher_type)?;
            if !door.watches.lock().take(line.id, &path, wanted) {
                return Err(ErrorCode::NoWatcher);
            }
        }
        _ => return Err(ErrorCode::Unimplemented),
    }
    Reply::Empty.encode(xid, at, out);
    Ok(())
}

fn meant(text: &str, number: i32) -> Result<(NodePath, WatcherType), ErrorCode> {
    let wanted = WatcherType::from_number(number).ok_or(ErrorCode::MarshallingError)?;
    Ok((path_seen(text).map_err(|_| ErrorCode::NoWatcher)?, wanted))
}

fn whole(again: &SetWatchesRequest) -> SetWatches2Request {
    SetWatches2Request {
        relative_zxid: again.relative_zxid,
        data_watches: again.data_watches.clone(),
        exist_watches: again.exist_watches.clone(),
        child_watches: again.child_watches.clone(),
        persistent_watches: Vec::new(),
        persistent_recursive_watches: Vec::new(),
    }
}

/// Tells what was missed, and watches the rest. Persistent ones are set without looking back, as in ZooKeeper.
fn set_again(door: &Door, line: &Line, state: &State, again: &SetWatches2Request) {
    let seen = Zxid(again.relative_zxid.max(0).cast_unsigned());
    let lists = [
        (Again::Data, Kind::Data, &again.data_watches),
        (Again::Exists, Kind::Data, &again.exist_watches),
        (Again::Children, Kind::Children, &again.child_watches),
    ];
    let mut watches = door.watches.lock();
    let tell = |event: EventType, path: &str| {
        let event = WatcherEvent::of_node(event, path.to_owned());
        line.outbox.say(|out| event.encode(WatcherEvent::NO_ZXID, out));
    };
    for (again, kind, paths) in lists {
        for text in paths {
            let path = path_seen(text).ok();
            let stat = path.as_ref().and_then(|path| state.get(path)).map(|node| node.stat);
            match (missed(again, stat.as_ref(), seen), path) {
                (Some(event), _) => tell(event, text),
                (None, Some(path)) => watches.add(line.id, path, kind),
                (None, None) => {}
            }
        }
    }
    let persistent =
        [(Kind::Persistent, &again.persistent_watches), (Kind::Recursive, &again.persistent_recursive_watches)];
    for (kind, paths) in persistent {
        for path in paths.iter().filter_map(|text| path_seen(text).ok()) {
            watches.add(line.id, path, kind);
        }
    }
}
