//! Requests that set, check or remove watches: with a read, by addWatch, and by setWatches after a connection was lost.

use bytes::BytesMut;
use lockkeeper_core::{NodePath, State, Zxid};
use lockkeeper_zookeeper::request::{SetWatches2Request, SetWatchesRequest, WatchRequest};
use lockkeeper_zookeeper::{AddWatchMode, ErrorCode, Reply, WatcherEvent, WatcherType};

use super::connection_handle::ConnectionHandle;
use super::frontend::Frontend;
use super::outbox::Close;
use super::reads::ReadWatch;
use super::values::{code, path_to_read, zxid};
use super::watches::{Rewatch, WatchKind, WatchLimitReached, missed};

/// Sets the watch that an answered read asked for.
///
/// # Errors
/// There are too many watches. The read must be refused, so that its client does not rely on a watch that is not set.
pub(super) fn watch_read(
    frontend: &Frontend,
    handle: &ConnectionHandle,
    state: &State,
    wanted: ReadWatch<'_>,
    found: bool,
) -> Result<(), ErrorCode> {
    let (ask, kind) = match wanted {
        ReadWatch::Data(ask) | ReadWatch::DataOrCreation(ask) => (ask, WatchKind::Data),
        ReadWatch::Children(ask) => (ask, WatchKind::Children),
    };
    let waits_for_creation = || matches!(wanted, ReadWatch::DataOrCreation(_)) && is_absent(handle, state, &ask.path);
    if !ask.watch || !(found || waits_for_creation()) {
        return Ok(());
    }
    path_to_read(&ask.path).map_or(Ok(()), |path| watch(frontend, handle, path, kind))
}

/// Sets a watch. One over the limit is refused with `OperationTimeout`, which every client knows and may retry: kazoo
/// ends its connection thread for good at an unknown code, such as the newer ones for this (`QuotaExceeded`,
/// `ThrottledOp`).
fn watch(frontend: &Frontend, handle: &ConnectionHandle, path: NodePath, kind: WatchKind) -> Result<(), ErrorCode> {
    frontend.watches.lock().add(handle.id, path, kind).map_err(|limit| {
        record_refusal(handle, limit);
        ErrorCode::OperationTimeout
    })
}

fn record_refusal(handle: &ConnectionHandle, limit: WatchLimitReached) {
    handle.note_refused_watch();
    tracing::debug!(address = %handle.address, %limit, "refused a watch of a ZooKeeper client");
    let share = limit.share();
    metrics::counter!("lockkeeper_budget_refusals_total", "budget" => "zookeeper_watches", "share" => share)
        .increment(1);
}

/// Closes the connection of a client with more watches than allowed: no client looks at the reply to setWatches, and it
/// must not rely on a watch that is not set.
fn disconnect(handle: &ConnectionHandle, limit: WatchLimitReached) {
    record_refusal(handle, limit);
    let address = handle.address;
    tracing::warn!(%address, %limit, "closed a ZooKeeper connection: setWatches has too many watches");
    metrics::counter!("lockkeeper_zookeeper_overruns_total").increment(1);
    handle.outbox.close(Close::Immediately);
}

/// Whether there is no such node, and the client may know that.
fn is_absent(handle: &ConnectionHandle, state: &State, text: &str) -> bool {
    path_to_read(text).is_ok_and(|path| state.get(&path).is_none() && handle.check_right(state, &path).is_ok())
}

/// Appends the reply to addWatch, checkWatches or removeWatches.
///
/// # Errors
/// Why the request is refused.
pub(super) fn answer(
    frontend: &Frontend,
    handle: &ConnectionHandle,
    state: &State,
    request: WatchRequest<'_>,
    xid: i32,
    out: &mut BytesMut,
) -> Result<(), ErrorCode> {
    let at = zxid(state.zxid());
    match request {
        WatchRequest::AddWatch(add) => {
            let kind = match AddWatchMode::from_number(add.mode).ok_or(ErrorCode::MarshallingError)? {
                AddWatchMode::Persistent => WatchKind::Persistent,
                AddWatchMode::PersistentRecursive => WatchKind::Recursive,
            };
            // An invalid path never has events.
            if let Ok(path) = path_to_read(&add.path) {
                handle.check_right(state, &path).map_err(|refusal| code(&refusal))?;
                watch(frontend, handle, path, kind)?;
            }
            Reply::Error(0).encode(xid, at, out);
            return Ok(());
        }
        WatchRequest::CheckWatches(ask) => {
            let (path, wanted) = watch_of(&ask.path, ask.watcher_type)?;
            if !frontend.watches.lock().has(handle.id, &path, wanted) {
                return Err(ErrorCode::NoWatcher);
            }
        }
        WatchRequest::RemoveWatches(ask) => {
            let (path, wanted) = watch_of(&ask.path, ask.watcher_type)?;
            if !frontend.watches.lock().remove_matching(handle.id, &path, wanted) {
                return Err(ErrorCode::NoWatcher);
            }
        }
    }
    Reply::Empty.encode(xid, at, out);
    Ok(())
}

fn watch_of(text: &str, number: i32) -> Result<(NodePath, WatcherType), ErrorCode> {
    let wanted = WatcherType::from_number(number).ok_or(ErrorCode::MarshallingError)?;
    Ok((path_to_read(text).map_err(|_| ErrorCode::NoWatcher)?, wanted))
}

/// A watch to set again. Persistent watches do not report missed events, as in ZooKeeper.
#[derive(Clone, Copy)]
pub(super) struct RewatchRequest<'a> {
    path: &'a str,
    kind: WatchKind,
    again: Option<Rewatch>,
}

/// All watches of setWatches.
pub(super) fn rewatch_requests(asked: &SetWatchesRequest) -> Vec<RewatchRequest<'_>> {
    of_lists([
        (WatchKind::Data, Some(Rewatch::Data), &asked.data_watches),
        (WatchKind::Data, Some(Rewatch::Exists), &asked.exist_watches),
        (WatchKind::Children, Some(Rewatch::Children), &asked.child_watches),
    ])
}

/// All watches of setWatches2, which adds persistent ones.
pub(super) fn rewatch_requests_with_persistent(asked: &SetWatches2Request) -> Vec<RewatchRequest<'_>> {
    of_lists([
        (WatchKind::Data, Some(Rewatch::Data), &asked.data_watches),
        (WatchKind::Data, Some(Rewatch::Exists), &asked.exist_watches),
        (WatchKind::Children, Some(Rewatch::Children), &asked.child_watches),
        (WatchKind::Persistent, None, &asked.persistent_watches),
        (WatchKind::Recursive, None, &asked.persistent_recursive_watches),
    ])
}

fn of_lists<const LISTS: usize>(lists: [(WatchKind, Option<Rewatch>, &Vec<String>); LISTS]) -> Vec<RewatchRequest<'_>> {
    lists
        .into_iter()
        .flat_map(|(kind, again, paths)| paths.iter().map(move |path| RewatchRequest { path, kind, again }))
        .collect()
}

/// Sends the events missed since `seen` and sets the watches that missed none.
pub(super) fn set_again(
    frontend: &Frontend,
    handle: &ConnectionHandle,
    state: &State,
    seen: i64,
    requests: &[RewatchRequest<'_>],
) {
    let seen = Zxid(seen.max(0).cast_unsigned());
    let mut watches = frontend.watches.lock();
    for RewatchRequest { path: text, kind, again } in requests {
        let path = path_to_read(text).ok();
        if path.as_ref().is_some_and(|path| handle.check_right(state, path).is_err()) {
            // Without the right to a node a client is told nothing of it.
            continue;
        }
        let stat = path.as_ref().and_then(|path| state.get(path)).map(|node| node.stat);
        match (again.and_then(|again| missed(again, stat.as_ref(), seen)), path) {
            (Some(event), _) => {
                let event = WatcherEvent::of_node(event, (*text).to_owned());
                handle.outbox.push(|out| event.encode(WatcherEvent::NO_ZXID, out));
            }
            (None, Some(path)) => {
                if let Err(limit) = watches.add(handle.id, path, *kind) {
                    return disconnect(handle, limit);
                }
            }
            (None, None) => {}
        }
    }
}
