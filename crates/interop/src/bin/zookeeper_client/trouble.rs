//! Sessions that move and end, and killed nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, Error, EventType, LockOptions, LockPrefix, SessionState};

use crate::harness::{Checked, Cluster, EPHEMERAL, PLAIN, same, soon, until};

pub(crate) async fn re_establish(cluster: Arc<Cluster>) -> Checked {
    let other = cluster.client().await?;
    let root = cluster.fresh_node(&other).await?;
    let path = format!("{root}/e");
    // Dropping the last clone closes the connection but not the session.
    let first = Client::connector()
        .with_detached()
        .with_session_timeout(Duration::from_secs(15))
        .connect(&cluster.hosts[0])
        .await?;
    same!(first.session_timeout(), Duration::from_secs(15));
    first.sync(&root).await?;
    first.create(&path, b"", EPHEMERAL).await?;
    let session = first.into_session();
    let heir = Client::connector().with_session(session.clone()).with_session_timeout(Duration::from_secs(15));
    let heir = heir.connect(&cluster.hosts[1]).await?;
    same!(heir.session_id(), session.id());
    heir.sync(&path).await?;
    same!(heir.check_stat(&path).await?.map(|stat| stat.ephemeral_owner), Some(session.id().0));
    same!(heir.list_ephemerals(&root).await?, [path.as_str()]);
    other.sync(&path).await?;
    let (_, gone) = other.check_and_watch_stat(&path).await?;
    // The last clone closes the session.
    drop(heir);
    same!(soon("it goes with the session", gone.changed()).await?.event_type, EventType::NodeDeleted);
    let late = Client::connector().with_session(session).connect(&cluster.hosts[2]).await;
    same!(late.map(|_| ()), Err(Error::SessionExpired));
    Ok(())
}

pub(crate) async fn expires(cluster: Arc<Cluster>) -> Checked {
    let other = cluster.client().await?;
    let root = cluster.fresh_node(&other).await?;
    let path = format!("{root}/e");
    let timeout = Duration::from_secs(4);
    let detached =
        Client::connector().with_detached().with_session_timeout(timeout).connect(&cluster.hosts.join(",")).await?;
    detached.sync(&root).await?;
    detached.create(&path, b"", EPHEMERAL).await?;
    other.sync(&path).await?;
    let (_, gone) = other.check_and_watch_stat(&path).await?;
    let session = detached.into_session();
    let silent_since = Instant::now();
    same!(soon("it expires", gone.changed()).await?.event_type, EventType::NodeDeleted);
    // Its latest keepalive was just before.
    same!(silent_since.elapsed() > timeout.mul_f64(0.75), true);
    let late = Client::connector().with_session(session).connect(&cluster.hosts.join(",")).await;
    same!(late.map(|_| ()), Err(Error::SessionExpired));
    Ok(())
}

pub(crate) async fn node_dies(cluster: Arc<Cluster>) -> Checked {
    let victim = 1;
    let outcome = lives_through(&cluster, victim).await;
    // In any case: later checks need all nodes.
    cluster.cluster("restart", victim)?;
    outcome
}

async fn lives_through(cluster: &Cluster, victim: usize) -> Checked {
    // The client knows only one node, so it is disconnected while this node is dead.
    let zk = cluster.client_at(&cluster.hosts[victim - 1], Duration::from_secs(30)).await?;
    let other = cluster.client_at(&cluster.hosts[victim..].join(","), Duration::from_secs(20)).await?;
    let root = cluster.fresh_node(&zk).await?;
    let [data, gone, made, mine] = ["data", "gone", "made", "mine"].map(|name| format!("{root}/{name}"));
    zk.create(&data, b"", PLAIN).await?;
    zk.create(&gone, b"", PLAIN).await?;
    zk.create(&mine, b"", EPHEMERAL).await?;
    let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(PLAIN.clone())?;
    let lock = zk.lock(LockPrefix::new_curator(&format!("{root}/lock"), "lock-")?, b"", options).await?;
    let (_, _, on_data) = zk.get_and_watch_data(&data).await?;
    let (_, on_gone) = zk.check_and_watch_stat(&gone).await?;
    let (_, on_made) = zk.check_and_watch_stat(&made).await?;
    let (_, _, on_children) = zk.get_and_watch_children(&root).await?;
    let mut states = zk.state_watcher();
    let session = zk.session_id();
    cluster.cluster("kill", victim)?;
    same!(soon("its connection is lost", states.changed()).await?, SessionState::Disconnected);
    // The leader may have died; requests succeed once the others have a new one.
    until("the rest serves", || async { other.set_data(&data, b"new", None).await.is_ok() }).await?;
    other.delete(&gone, None).await?;
    other.create(&made, b"", PLAIN).await?;
    cluster.cluster("restart", victim)?;
    for (watcher, expected) in [
        (on_data, (EventType::NodeDataChanged, &data)),
        (on_gone, (EventType::NodeDeleted, &gone)),
        (on_made, (EventType::NodeCreated, &made)),
        (on_children, (EventType::NodeChildrenChanged, &root)),
    ] {
        let event = soon("what was missed is told", watcher.changed()).await?;
        same!((event.event_type, &event.path), expected);
    }
    same!((zk.session_id(), zk.state()), (session, SessionState::SyncConnected));
    same!(zk.check_stat(&mine).await?.map(|stat| stat.ephemeral_owner), Some(session.0));
    same!(lock.set_data(&data, b"still held", None).await.map(|_| ()), Ok(()));
    Ok(())
}
