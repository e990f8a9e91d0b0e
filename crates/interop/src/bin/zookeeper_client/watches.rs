//! One-shot, persistent and recursive watches.

use std::sync::Arc;

use zookeeper_client::{AddWatchMode, EventType, PersistentWatcher};

use crate::harness::{Checked, Cluster, PLAIN, same, soon};

pub(crate) async fn once(cluster: Arc<Cluster>) -> Checked {
    let (zk, other) = (cluster.client().await?, cluster.client().await?);
    let root = cluster.fresh_node(&zk).await?;
    let child = format!("{root}/a");
    let (stat, created) = zk.check_and_watch_stat(&child).await?;
    same!(stat, None);
    let (_, _, children) = zk.get_and_watch_children(&root).await?;
    let (made, _) = other.create(&child, b"", PLAIN).await?;
    let event = soon("created", created.changed()).await?;
    same!((event.event_type, &event.path, event.zxid), (EventType::NodeCreated, &child, made.czxid));
    let event = soon("children", children.changed()).await?;
    same!((event.event_type, &event.path, event.zxid), (EventType::NodeChildrenChanged, &root, made.czxid));
    let (_, _, data) = zk.get_and_watch_data(&child).await?;
    let changed = other.set_data(&child, b"1", None).await?;
    let event = soon("changed", data.changed()).await?;
    same!((event.event_type, &event.path, event.zxid), (EventType::NodeDataChanged, &child, changed.mzxid));
    let (_, _, data) = zk.get_and_watch_data(&child).await?;
    let (_, _, children) = zk.get_and_watch_children(&child).await?;
    other.delete(&child, None).await?;
    for watcher in [data, children] {
        let event = soon("deleted", watcher.changed()).await?;
        same!((event.event_type, &event.path), (EventType::NodeDeleted, &child));
    }
    Ok(())
}

async fn next(watcher: &mut PersistentWatcher) -> Checked<(EventType, String, i64)> {
    let event = soon("an event", watcher.changed()).await?;
    Ok((event.event_type, event.path, event.zxid))
}

pub(crate) async fn persistent(cluster: Arc<Cluster>) -> Checked {
    let (zk, other) = (cluster.client().await?, cluster.client().await?);
    let root = cluster.fresh();
    let child = format!("{root}/a");
    // On a node that does not exist yet.
    let mut watcher = zk.watch(&root, AddWatchMode::Persistent).await?;
    let (made, _) = other.create(&root, b"", PLAIN).await?;
    same!(next(&mut watcher).await?, (EventType::NodeCreated, root.clone(), made.czxid));
    for _ in 0..3 {
        let changed = other.set_data(&root, b"x", None).await?;
        same!(next(&mut watcher).await?, (EventType::NodeDataChanged, root.clone(), changed.mzxid));
        let (made, _) = other.create(&child, b"", PLAIN).await?;
        same!(next(&mut watcher).await?, (EventType::NodeChildrenChanged, root.clone(), made.czxid));
        // A change of a child is not an event of the node.
        other.set_data(&child, b"x", None).await?;
        other.delete(&child, None).await?;
        same!(next(&mut watcher).await?.0, EventType::NodeChildrenChanged);
    }
    other.delete(&root, None).await?;
    same!(next(&mut watcher).await?.0, EventType::NodeDeleted);
    // A one-shot watch beside it fires too, once; a dropped one does not.
    let (_, once) = zk.check_and_watch_stat(&root).await?;
    other.create(&root, b"", PLAIN).await?;
    same!(soon("the one-time watch", once.changed()).await?.event_type, EventType::NodeCreated);
    same!(next(&mut watcher).await?.0, EventType::NodeCreated);
    Ok(())
}

pub(crate) async fn recursive(cluster: Arc<Cluster>) -> Checked {
    let (zk, other) = (cluster.client().await?, cluster.client().await?);
    let root = cluster.fresh_node(&other).await?;
    zk.sync(&root).await?;
    let mut watcher = zk.watch(&root, AddWatchMode::PersistentRecursive).await?;
    let (mut expected, deep) = (Vec::new(), format!("{root}/a/b/c"));
    for path in [format!("{root}/a"), format!("{root}/a/b"), deep.clone()] {
        let (made, _) = other.create(&path, b"", PLAIN).await?;
        expected.push((EventType::NodeCreated, path, made.czxid));
    }
    for _ in 0..20 {
        let changed = other.set_data(&deep, b"x", None).await?;
        expected.push((EventType::NodeDataChanged, deep.clone(), changed.mzxid));
    }
    let changed = other.set_data(&root, b"x", None).await?;
    expected.push((EventType::NodeDataChanged, root.clone(), changed.mzxid));
    // Outside the watched subtree.
    other.create(&format!("{root}x"), b"", PLAIN).await?;
    let mut writer = other.new_multi_writer();
    writer.add_delete(&deep, None)?;
    writer.add_create(&deep, b"", PLAIN)?;
    writer.commit().await?;
    let made = other.check_stat(&deep).await?.ok_or("it was made")?;
    expected.push((EventType::NodeDeleted, deep.clone(), made.czxid));
    expected.push((EventType::NodeCreated, deep.clone(), made.czxid));
    for one in expected {
        same!(next(&mut watcher).await?, one);
    }
    Ok(())
}
