//! The watches of one client, one after the other, each recorded item by item.

use lockkeeper_client::{Reading, Watch, WatchItem, WatchOptions};
use tokio::time::Instant;

use super::{BEGUN, BOOKMARK, Begins, COMPACTED, ENDED, Ends, Marks, RESUMED, ROOT, Resumes, SEEN, Sees, some_part};
use crate::workload::prelude::*;

/// How long a watch may take to come to the end of the log once nobody writes and all is healed.
const CATCH_UP: Duration = Duration::from_secs(20);
/// Longer than any run.
const FOR_GOOD: Duration = Duration::from_secs(100_000);

/// Follows the tree until the client has written all it writes, and then to what was the end of the log.
pub(super) async fn follow(context: ClientContext, written: CancellationToken) -> Result<(), String> {
    let mut kit = ClientKit::new(context)?;
    let over_stream = kit.context.client.is_multiple_of(2);
    let mut session: Option<Session> = None;
    let mut number = 0;
    while !written.is_cancelled() {
        if over_stream && session.as_ref().is_none_or(|session| session.left().is_zero()) {
            session = kit.session().await;
        }
        let client = session.as_ref().map_or(&kit.client, Session::client).clone();
        number += 1;
        let path = some_part(&mut kit);
        one(&mut kit, &client, number, path, &written).await;
    }
    match session {
        Some(session) => session.close().await.map_err(|error| error.to_string()).or(Ok(())),
        None => Ok(()),
    }
}

/// One watch and those that take it up, until its client leaves it, it has come to the end, or history was compacted
/// away.
async fn one(kit: &mut ClientKit, client: &Client, watch: u32, path: String, written: &CancellationToken) {
    // A watch begins where something was read.
    let Ok(node) = kit.client.node(&path, &Reading::default()).await else {
        kit.think(50..100).await;
        return;
    };
    let recorder = kit.context.recorder.clone();
    recorder.note(BEGUN, &Begins { watch, path: path.clone(), from: node.zxid }, None);
    // Some are never taken up anew by their client: over broken connections and changed leaders the library alone
    // carries them.
    let steadfast = kit.chance(40);
    let leave_at = match steadfast {
        true => Instant::now() + FOR_GOOD,
        false => Instant::now() + Duration::from_millis(kit.rng.random_range(4_000..12_000)),
    };
    let mut position = node.zxid;
    loop {
        let mut options = WatchOptions::new(path.clone());
        (options.recursive, options.from) = (true, Some(position));
        // Some lose patience with a quiet connection sooner than it gives a sign of life: one more way to be taken up
        // again. But not before its next bookmark (every 5 s): it would never hear that nothing more had happened.
        options.silence = Duration::from_millis(if steadfast || kit.chance(50) { 40_000 } else { 7_000 });
        let mut following = client.watch(options);
        let pause_at = Instant::now() + Duration::from_millis(kit.rng.random_range(300..3_000));
        let until = if steadfast { leave_at } else { pause_at.min(leave_at) };
        match hear(&recorder, watch, &mut following, until, written).await {
            Heard::Compacted => return recorder.note(COMPACTED, &Marks { watch }, None),
            Heard::Broken => {}
            Heard::Paused if Instant::now() >= leave_at => return,
            Heard::Paused => {}
            Heard::Written => {
                return catch_up(kit, &recorder, watch, following).await;
            }
        }
        position = following.position().unwrap_or(position);
        drop(following);
        kit.think(1..200).await;
        recorder.note(RESUMED, &Resumes { watch, from: position }, None);
    }
}

enum Heard {
    Compacted,
    /// It ended in another error.
    Broken,
    Paused,
    /// The client writes no more.
    Written,
}

async fn hear(
    recorder: &Recorder,
    watch: u32,
    following: &mut Watch,
    until: Instant,
    written: &CancellationToken,
) -> Heard {
    loop {
        let item = tokio::select! {
            biased;
            () = written.cancelled() => return Heard::Written,
            () = tokio::time::sleep_until(until) => return Heard::Paused,
            item = following.next() => item,
        };
        match item {
            Some(Ok(item)) => {
                tell(recorder, watch, &item);
            }
            Some(Err(error)) if error.code() == Some(Code::Compacted) => return Heard::Compacted,
            Some(Err(_)) | None => return Heard::Broken,
        }
    }
}

/// Tells an item, and gives its zxid.
fn tell(recorder: &Recorder, watch: u32, item: &WatchItem) -> u64 {
    match item {
        WatchItem::Change(change) => {
            let effect = super::NodeChange { kind: change.kind.into(), path: change.path.clone() };
            recorder.note(SEEN, &Sees { watch, effect }, Some(change.zxid));
            change.zxid
        }
        WatchItem::Bookmark(zxid) => {
            recorder.note(BOOKMARK, &Marks { watch }, Some(*zxid));
            *zxid
        }
    }
}

/// Goes on to what is now the end of the log.
async fn catch_up(kit: &mut ClientKit, recorder: &Recorder, watch: u32, mut following: Watch) {
    let until = Instant::now() + CATCH_UP;
    let goal = loop {
        match kit.client.node(ROOT, &Reading::default()).await {
            Ok(node) => break Some(node.zxid),
            Err(_) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(_) => break None,
        }
    };
    // Where even a read does not come through, nothing can be said of watches.
    let Some(goal) = goal else { return };
    let mut caught_up = following.position().is_some_and(|position| position >= goal);
    while !caught_up {
        match tokio::time::timeout_at(until, following.next()).await {
            Ok(Some(Ok(item))) => caught_up = tell(recorder, watch, &item) >= goal,
            Ok(Some(Err(error))) if error.code() == Some(Code::Compacted) => {
                return recorder.note(COMPACTED, &Marks { watch }, None);
            }
            Ok(Some(Err(_)) | None) | Err(_) => break,
        }
    }
    recorder.note(ENDED, &Ends { watch, caught_up, goal }, None);
}
