//! Watches as clients set them: with a read, by themselves, and all of them again after a connection was lost.

use bytes::BytesMut;
use lockkeeper_core::{NodePath, State, Zxid};
use lockkeeper_zookeeper::request::{SetWatches2Request, SetWatchesRequest};
use lockkeeper_zookeeper::{AddWatchMode, ErrorCode, Reply, Request, WatcherEvent, WatcherType};

use super::door::Door;
use super::line::Line;
use super::outbox::End;
use super::values::{path_seen, zxid};
use super::watches::{Again, Kind, TooMany, missed};

/// A read was answered: what it asked to be told from here on. exists watches a node that is not there too.
///
/// # Errors
/// There are too many watches: the read is to be refused, so that its client believes in no watch that is not set.
pub(super) fn note(door: &Door, line: &Line, state: &State, request: &Request, found: bool) -> Result<(), ErrorCode> {
    let (ask, kind) = match request {
        Request::Exists(ask) if ask.watch && (found || is_absent(state, &ask.path)) => (ask, Kind::Data),
        Request::GetData(ask) if ask.watch && found => (ask, Kind::Data),
        Request::GetChildren(ask) | Request::GetChildren2(ask) if ask.watch && found => (ask, Kind::Children),
        _ => return Ok(()),
    };
    path_seen(&ask.path).map_or(Ok(()), |path| watch(door, line, path, kind))
}

/// Sets a watch. One too many is refused as an operation that timed out, which every client knows and may try again: kazoo ends its
/// connection's thread for good at a code that it does not know, and the newer ones for this (`QuotaExceeded`, `ThrottledOp`) are such.
fn watch(door: &Door, line: &Line, path: NodePath, kind: Kind) -> Result<(), ErrorCode> {
    door.watches.lock().add(line.id, path, kind).map_err(|too_many| {
        refused(line, too_many);
        ErrorCode::OperationTimeout
    })
}

fn refused(line: &Line, too_many: TooMany) {
    tracing::debug!(address = %line.address, %too_many, "a watch of a ZooKeeper client is refused");
    let share = too_many.share();
    metrics::counter!("lockkeeper_budget_refusals_total", "budget" => "zookeeper_watches", "share" => share)
        .increment(1);
}

/// A watch that is not set must not be believed in. No client looks at the answer to a request that sets all of its watches anew: it finds
/// out by losing the connection.
fn cut_off(line: &Line, too_many: TooMany) {
    refused(line, too_many);
    tracing::warn!(address = %line.address, %too_many, "a ZooKeeper client sets more watches anew than are allowed; its connection is closed");
    metrics::counter!("lockkeeper_zookeeper_overruns_total").increment(1);
    line.outbox.end(End::AtOnce);
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
        Request::AddWatch(add) => {
            let kind = match AddWatchMode::from_number(add.mode).ok_or(ErrorCode::MarshallingError)? {
                AddWatchMode::Persistent => Kind::Persistent,
                AddWatchMode::PersistentRecursive => Kind::Recursive,
            };
            // Whatever cannot be there will never have anything to tell.
            if let Ok(path) = path_seen(&add.path) {
                watch(door, line, path, kind)?;
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

/// The older request is the newer one without persistent watches.
pub(super) fn whole(again: SetWatchesRequest) -> SetWatches2Request {
    SetWatches2Request {
        relative_zxid: again.relative_zxid,
        data_watches: again.data_watches,
        exist_watches: again.exist_watches,
        child_watches: again.child_watches,
        persistent_watches: Vec::new(),
        persistent_recursive_watches: Vec::new(),
    }
}

/// A watch to be set anew. Persistent ones are set without looking back, as in ZooKeeper.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    path: &'a str,
    kind: Kind,
    again: Option<Again>,
}

/// All that are asked for.
pub(super) fn wishes(asked: &SetWatches2Request) -> Vec<Wish<'_>> {
    let lists = [
        (Kind::Data, Some(Again::Data), &asked.data_watches),
        (Kind::Data, Some(Again::Exists), &asked.exist_watches),
        (Kind::Children, Some(Again::Children), &asked.child_watches),
        (Kind::Persistent, None, &asked.persistent_watches),
        (Kind::Recursive, None, &asked.persistent_recursive_watches),
    ];
    let mut wishes = Vec::new();
    for (kind, again, paths) in lists {
        wishes.extend(paths.iter().map(|path| Wish { path, kind, again }));
    }
    wishes
}

/// Tells what was missed since `seen`, and watches the rest.
pub(super) fn set_again(door: &Door, line: &Line, state: &State, seen: i64, wishes: &[Wish<'_>]) {
    let seen = Zxid(seen.max(0).cast_unsigned());
    let mut watches = door.watches.lock();
    for Wish { path: text, kind, again } in wishes {
        let path = path_seen(text).ok();
        let stat = path.as_ref().and_then(|path| state.get(path)).map(|node| node.stat);
        match (again.and_then(|again| missed(again, stat.as_ref(), seen)), path) {
            (Some(event), _) => {
                let event = WatcherEvent::of_node(event, (*text).to_owned());
                line.outbox.say(|out| event.encode(WatcherEvent::NO_ZXID, out));
            }
            (None, Some(path)) => {
                if let Err(too_many) = watches.add(line.id, path, *kind) {
                    return cut_off(line, too_many);
                }
            }
            (None, None) => {}
        }
    }
}
