//! Promise P8 at the watch table.

use futures::{FutureExt, StreamExt};

use super::*;

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("valid")
}

fn table(history_events: usize, queue_items: usize) -> Arc<Watches> {
    Watches::new(History::new(history_events, 1 << 20), queue_items, 3)
}

fn publish(table: &Arc<Watches>, zxid: u64, kind: NodeEventKind, at: &str) {
    table.0.lock().deliver(&[WatchEvent { zxid: Zxid(zxid), kind, path: path(at), acl: Arc::default() }]);
}

fn watch(
    table: &Arc<Watches>,
    at: &str,
    recursive: bool,
    from: Option<u64>,
    now: u64,
) -> Result<WatchStream, WatchRefused> {
    table.add(WatchSpec { path: path(at), recursive, from: from.map(Zxid) }, Zxid(now))
}

fn received(stream: &mut WatchStream) -> Vec<String> {
    let mut items = Vec::new();
    while let Some(Some(item)) = stream.next().now_or_never() {
        items.push(match item {
            WatchItem::Changes(events) => {
                let each = events.iter().map(|event| format!("{} {:?} {}", event.zxid, event.kind, event.path));
                each.collect::<Vec<_>>().join(" + ")
            }
            WatchItem::Bookmark(zxid) => format!("{zxid} bookmark"),
            WatchItem::Lost { oldest } => format!("lost {oldest}"),
        });
    }
    items
}

#[test]
fn exact_and_recursive_hear_their_own() {
    use NodeEventKind::*;
    let table = table(100, 100);
    let mut exact = watch(&table, "/a", false, None, 0).expect("taken");
    let mut below = watch(&table, "/a", true, None, 0).expect("taken");
    let mut all = watch(&table, "/", true, None, 0).expect("taken");
    for (zxid, kind, at) in [
        (1, Created, "/a"),
        (1, ChildrenChanged, "/"),
        (2, Created, "/a/b"),
        (2, ChildrenChanged, "/a"),
        (3, Created, "/ab"),
        (4, DataChanged, "/a"),
    ] {
        publish(&table, zxid, kind, at);
    }
    assert_eq!(received(&mut exact), ["1 Created /a", "2 ChildrenChanged /a", "4 DataChanged /a"]);
    assert_eq!(received(&mut below), ["1 Created /a", "2 Created /a/b", "4 DataChanged /a"]);
    assert_eq!(received(&mut all), ["1 Created /a", "2 Created /a/b", "3 Created /ab", "4 DataChanged /a"]);
}

#[test]
fn resumes_without_a_gap_or_a_repetition() {
    let table = table(100, 100);
    (1..=5).for_each(|zxid| publish(&table, zxid, NodeEventKind::DataChanged, "/a"));
    let mut stream = watch(&table, "/a", false, Some(3), 5).expect("taken");
    publish(&table, 6, NodeEventKind::DataChanged, "/a");
    assert_eq!(received(&mut stream), ["4 DataChanged /a", "5 DataChanged /a", "6 DataChanged /a"]);
}

#[test]
fn a_listener_ahead_of_this_replica_hears_nothing_twice() {
    let table = table(100, 100);
    let mut stream = watch(&table, "/a", false, Some(7), 5).expect("taken");
    (6..=8).for_each(|zxid| publish(&table, zxid, NodeEventKind::DataChanged, "/a"));
    assert_eq!(received(&mut stream), ["8 DataChanged /a"]);
}

#[test]
fn what_is_gone_from_the_history_is_refused() {
    let table = table(2, 100);
    (1..=5).for_each(|zxid| publish(&table, zxid, NodeEventKind::DataChanged, "/a"));
    assert_eq!(watch(&table, "/a", false, Some(2), 5).err(), Some(WatchRefused::Compacted(Zxid(3))));
    assert_eq!(received(&mut watch(&table, "/a", false, Some(3), 5).expect("taken")).len(), 2);
}

#[test]
fn a_slow_listener_is_told_and_cut_off() {
    let table = table(100, 2);
    let mut stream = watch(&table, "/a", false, None, 0).expect("taken");
    (1..=4).for_each(|zxid| publish(&table, zxid, NodeEventKind::DataChanged, "/a"));
    assert_eq!(received(&mut stream), ["1 DataChanged /a", "2 DataChanged /a", "lost 0"]);
    assert_eq!(table.len(), 0);
    assert!(stream.next().now_or_never().is_some_and(|item| item.is_none()), "the end stays the end");
}

#[test]
fn a_watch_that_begins_behind_the_state_is_told_when_it_has_heard_everything() {
    let table = table(100, 100);
    publish(&table, 4, NodeEventKind::Created, "/elsewhere");
    let mut behind = watch(&table, "/a", false, Some(1), 4).expect("taken");
    let mut ahead = watch(&table, "/a", false, Some(6), 4).expect("taken");
    assert!(received(&mut behind).is_empty());
    table.0.lock().bookmark(Zxid(4));
    table.0.lock().bookmark(Zxid(4));
    assert_eq!(received(&mut behind), ["4 bookmark"]);
    assert!(received(&mut ahead).is_empty(), "it knows more than this replica");
    // Events that it received elsewhere are not sent again, nor those before a bookmark.
    publish(&table, 5, NodeEventKind::Created, "/a");
    assert_eq!(received(&mut behind), ["5 Created /a"]);
    assert!(received(&mut ahead).is_empty());
}

#[test]
fn bookmarks_move_a_quiet_watch_forward() {
    let table = table(100, 2);
    let mut stream = watch(&table, "/quiet", true, None, 3).expect("taken");
    publish(&table, 4, NodeEventKind::Created, "/busy");
    table.0.lock().bookmark(Zxid(4));
    table.0.lock().bookmark(Zxid(4));
    assert_eq!(received(&mut stream), ["4 bookmark"]);
}

#[test]
fn a_snapshot_that_skips_events_says_so() {
    let table = table(100, 10);
    let mut behind = watch(&table, "/a", false, None, 3).expect("taken");
    let mut ahead = watch(&table, "/a", false, Some(20), 3).expect("taken");
    table.0.lock().start_over(Zxid(20));
    assert_eq!(received(&mut behind), ["lost 20"]);
    publish(&table, 21, NodeEventKind::DataChanged, "/a");
    assert_eq!(received(&mut ahead), ["21 DataChanged /a"]);
    assert_eq!(watch(&table, "/a", false, Some(19), 21).err(), Some(WatchRefused::Compacted(Zxid(20))));
}

#[test]
fn bounded_and_clean() {
    let table = table(100, 10);
    let streams: Vec<_> = (0..3).map(|_| watch(&table, "/a", true, None, 0).expect("taken")).collect();
    assert_eq!(watch(&table, "/a", true, None, 0).err(), Some(WatchRefused::TooMany));
    drop(streams);
    let table = table.0.lock();
    assert!(table.watches.is_empty() && table.exact.is_empty() && table.recursive.is_empty());
}

#[test]
fn a_transaction_is_heard_whole_or_not_at_all() {
    use NodeEventKind::*;
    let table = table(100, 1);
    let mut live = watch(&table, "/", true, None, 0).expect("taken");
    let events = [(Created, "/a"), (ChildrenChanged, "/"), (Created, "/b"), (DataChanged, "/a")];
    let transaction = events.map(|(kind, at)| WatchEvent { zxid: Zxid(1), kind, path: path(at), acl: Arc::default() });
    table.0.lock().deliver(&transaction);
    assert_eq!(
        received(&mut live),
        ["1 Created /a + 1 Created /b + 1 DataChanged /a"],
        "one place in the queue is enough"
    );
    let mut resumed = watch(&table, "/", true, Some(0), 1).expect("taken");
    assert_eq!(received(&mut resumed), ["1 Created /a + 1 Created /b + 1 DataChanged /a"]);
}
