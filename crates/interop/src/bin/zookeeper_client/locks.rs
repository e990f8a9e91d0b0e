//! The crate's lock client, with Curator's node names.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use zookeeper_client::{Acls, Client, Error, LockPrefix};

use crate::harness::{Checked, Cluster, PLAIN, Wrong, same, soon, until};

async fn queued(zk: &Client, root: &str, count: usize) -> Checked {
    until("its node is in the queue", || async { zk.list_children(root).await.is_ok_and(|names| names.len() == count) })
        .await
}

pub(crate) async fn in_order(cluster: Arc<Cluster>) -> Checked {
    let holder = cluster.client().await?;
    let root = cluster.fresh_node(&holder).await?;
    let held = holder.lock(LockPrefix::new_curator(&root, "lock-")?, b"holder", Acls::anyone_all()).await?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..6_usize {
        let (zk, own_root, order) = (cluster.client().await?, root.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let lock = zk.lock(LockPrefix::new_curator(&own_root, "lock-")?, b"", Acls::anyone_all()).await?;
            // Only the lock's holder runs this.
            let mut order = order.try_lock().map_err(|_| "two holders")?;
            zk.sync(&own_root).await?;
            order.push(number);
            let path = lock.lock_path().to_owned();
            drop(order);
            zk.delete(&path, None).await?;
            std::mem::forget(lock);
            Ok::<(), Wrong>(())
        }));
        queued(&holder, &root, number + 2).await?;
    }
    same!(order.lock().await.len(), 0);
    drop(held);
    for one in waiting {
        soon("a contender's turn", one).await???;
    }
    same!(*order.lock().await, [0, 1, 2, 3, 4, 5]);
    Ok(())
}

pub(crate) async fn guards(cluster: Arc<Cluster>) -> Checked {
    let (zk, other) = (cluster.client().await?, cluster.client().await?);
    let root = cluster.fresh_node(&zk).await?;
    let data = cluster.fresh_node(&zk).await?;
    let lock = zk.lock(LockPrefix::new_curator(&root, "lock-")?, b"", Acls::anyone_all()).await?;
    same!(lock.set_data(&data, b"held", None).await?.version, 1);
    same!(lock.create(&format!("{data}/a"), b"", PLAIN).await.map(|_| ()), Ok(()));
    other.delete(lock.lock_path(), None).await?;
    same!(lock.set_data(&data, b"late", None).await, Err(Error::RuntimeInconsistent));
    same!(lock.delete(&format!("{data}/a"), None).await, Err(Error::RuntimeInconsistent));
    zk.sync(&data).await?;
    same!(zk.get_data(&data).await?.0, b"held");
    Ok(())
}

pub(crate) async fn gives_up(cluster: Arc<Cluster>) -> Checked {
    let (one, other) = (cluster.client().await?, cluster.client().await?);
    let root = cluster.fresh_node(&one).await?;
    let held = one.lock(LockPrefix::new_curator(&root, "lock-")?, b"", Acls::anyone_all()).await?;
    let waiting = other.lock(LockPrefix::new_curator(&root, "lock-")?, b"", Acls::anyone_all());
    same!(tokio::time::timeout(Duration::from_millis(500), waiting).await.is_err(), true);
    queued(&one, &root, 1).await?;
    drop(held);
    let again = other.lock(LockPrefix::new_curator(&root, "lock-")?, b"", Acls::anyone_all());
    soon("the lock is free", again).await??;
    Ok(())
}
