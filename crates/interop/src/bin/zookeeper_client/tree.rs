//! Nodes, transactions, access control, and the order of requests.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{
    Acl, Acls, AuthId, AuthUser, CheckWriteError, CreateMode, Error, MultiReadResult, MultiWriteError,
    MultiWriteResult, Permission,
};

use crate::harness::{Checked, Cluster, EPHEMERAL, PLAIN, same};

pub(crate) async fn nodes(cluster: Arc<Cluster>) -> Checked {
    let zk = cluster.client().await?;
    let root = cluster.fresh();
    let child = format!("{root}/a");
    same!(zk.create(&child, b"", PLAIN).await, Err(Error::NoNode));
    let (made, _) = zk.create(&root, b"one", PLAIN).await?;
    same!((made.version, made.cversion, made.aversion, made.data_length, made.ephemeral_owner), (0, 0, 0, 3, 0));
    same!((made.czxid, made.czxid, made.ctime), (made.mzxid, made.pzxid, made.mtime));
    same!(zk.create(&root, b"", PLAIN).await, Err(Error::NodeExists));
    let (data, stat) = zk.get_data(&root).await?;
    same!((data.as_slice(), stat), (b"one".as_slice(), made));
    let changed = zk.set_data(&root, b"three", Some(0)).await?;
    same!((changed.version, changed.data_length, changed.czxid, changed.mzxid > made.mzxid), (1, 5, made.czxid, true));
    same!(zk.set_data(&root, b"", Some(0)).await, Err(Error::BadVersion));
    let (below, _) = zk.create(&child, b"", PLAIN).await?;
    let (children, stat) = zk.get_children(&root).await?;
    same!((children, stat.cversion, stat.num_children, stat.pzxid), (vec!["a".to_owned()], 1, 1, below.czxid));
    same!(zk.delete(&root, None).await, Err(Error::NotEmpty));
    same!(zk.delete(&child, Some(4)).await, Err(Error::BadVersion));
    same!(zk.delete(&child, Some(0)).await, Ok(()));
    same!(zk.delete(&child, None).await, Err(Error::NoNode));
    same!(zk.check_stat(&child).await?, None);
    same!(zk.get_data(&child).await.map(|_| ()), Err(Error::NoNode));
    same!(zk.check_stat(&root).await?.map(|stat| (stat.cversion, stat.num_children)), Some((2, 0)));
    Ok(())
}

pub(crate) async fn modes(cluster: Arc<Cluster>) -> Checked {
    let zk = cluster.client().await?;
    let root = cluster.fresh_node(&zk).await?;
    let sequential = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    let ephemeral_sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let container = CreateMode::Container.with_acls(Acls::anyone_all());
    let lasting = Duration::from_secs(600);
    let (_, first) = zk.create(&format!("{root}/s-"), b"", &sequential).await?;
    let (stat, second) = zk.create(&format!("{root}/e-"), b"", &ephemeral_sequential).await?;
    same!((first.to_string(), second.to_string()), ("0000000000".to_owned(), "0000000001".to_owned()));
    same!(stat.ephemeral_owner, zk.session_id().0);
    let (stat, _) = zk.create(&format!("{root}/c"), b"", &container).await?;
    same!(stat.ephemeral_owner, 0);
    let (stat, _) = zk.create(&format!("{root}/t"), b"", &PLAIN.clone().with_ttl(lasting)).await?;
    same!(stat.ephemeral_owner, 0);
    let (_, fifth) = zk.create(&format!("{root}/ts-"), b"", &sequential.clone().with_ttl(lasting)).await?;
    same!(fifth.into_i64(), 4);
    zk.create(&format!("{root}/c/e"), b"", EPHEMERAL).await?;
    same!(zk.create(&format!("{root}/c/e/x"), b"", PLAIN).await, Err(Error::NoChildrenForEphemerals));
    same!(zk.count_descendants_number(&root).await?, 6);
    let mut own = zk.list_ephemerals(&root).await?;
    own.sort();
    same!(own, [format!("{root}/c/e"), format!("{root}/e-0000000001")]);
    let mut names = zk.list_children(&root).await?;
    names.sort();
    same!(names, ["c", "e-0000000001", "s-0000000000", "t", "ts-0000000004"]);
    Ok(())
}

pub(crate) async fn multi(cluster: Arc<Cluster>) -> Checked {
    let zk = cluster.client().await?;
    let root = cluster.fresh_node(&zk).await?;
    let (a, b) = (format!("{root}/a"), format!("{root}/b"));
    let mut writer = zk.new_multi_writer();
    writer.add_check_version(&root, 0)?;
    writer.add_create(&a, b"1", PLAIN)?;
    writer.add_set_data(&a, b"22", Some(0))?;
    writer.add_create(&b, b"", EPHEMERAL)?;
    writer.add_delete(&b, Some(0))?;
    let results = writer.commit().await?;
    same!(results.len(), 5);
    same!((&results[0], &results[4]), (&MultiWriteResult::Check, &MultiWriteResult::Delete));
    let MultiWriteResult::Create { path, .. } = &results[1] else {
        return Err(format!("no create: {results:?}").into());
    };
    same!(*path, a);
    let MultiWriteResult::SetData { stat } = &results[2] else { return Err(format!("no write: {results:?}").into()) };
    same!((stat.version, stat.data_length, stat.czxid), (1, 2, stat.mzxid));
    let mut writer = zk.new_multi_writer();
    writer.add_set_data(&a, b"3", None)?;
    writer.add_create(&a, b"", PLAIN)?;
    writer.add_delete(&a, None)?;
    same!(writer.commit().await, Err(MultiWriteError::OperationFailed { index: 1, source: Error::NodeExists }));
    same!(zk.get_data(&a).await?.0, b"22");
    let mut guarded = zk.new_check_writer(&a, Some(1))?;
    guarded.add_create(&b, b"", PLAIN)?;
    same!(guarded.commit().await.map(|results| results.len()), Ok(1));
    let mut refused = zk.new_check_writer(&a, Some(9))?;
    refused.add_delete(&b, None)?;
    same!(refused.commit().await, Err(CheckWriteError::CheckFailed { source: Error::BadVersion }));
    same!(zk.check_stat(&b).await?.is_some(), true);
    Ok(())
}

pub(crate) async fn multi_read(cluster: Arc<Cluster>) -> Checked {
    let zk = cluster.client().await?;
    let root = cluster.fresh_node(&zk).await?;
    zk.create(&format!("{root}/a"), b"data", PLAIN).await?;
    let mut reader = zk.new_multi_reader();
    reader.add_get_data(&format!("{root}/a"))?;
    reader.add_get_data(&format!("{root}/nothing"))?;
    reader.add_get_children(&root)?;
    let results = reader.commit().await?;
    match results.as_slice() {
        [
            MultiReadResult::Data { data, stat },
            MultiReadResult::Error { err },
            MultiReadResult::Children { children },
        ] => {
            same!((data.as_slice(), stat.data_length), (b"data".as_slice(), 4));
            same!(*err, Error::NoNode);
            same!(*children, ["a"]);
            Ok(())
        }
        other => Err(format!("other results: {other:?}").into()),
    }
}

pub(crate) async fn access(cluster: Arc<Cluster>) -> Checked {
    let (owner, anybody) = (cluster.client().await?, cluster.client().await?);
    let root = cluster.fresh_node(&owner).await?;
    let secret = format!("{root}/secret");
    let mine = CreateMode::Persistent.with_acls(Acls::creator_all());
    same!(owner.create(&secret, b"", &mine).await, Err(Error::InvalidAcl));
    owner.auth("digest", b"bob:secret").await?;
    let mut users = owner.list_auth_users().await?;
    users.sort_by(|one, other| one.scheme().cmp(other.scheme()));
    same!(users, [AuthUser::new("digest", "bob"), AuthUser::new("ip", "127.0.0.1")]);
    owner.create(&secret, b"x", &mine).await?;
    let (acl, stat) = owner.get_acl(&secret).await?;
    same!(acl, [Acl::new(Permission::ALL, AuthId::new("digest", "bob:fyVmFCwVbTJYrznoSu1koqYEYF0="))]);
    same!(stat.aversion, 0);
    anybody.sync(&secret).await?;
    same!(anybody.get_data(&secret).await.map(|_| ()), Err(Error::NoAuth));
    same!(anybody.set_data(&secret, b"", None).await, Err(Error::NoAuth));
    same!(anybody.delete(&secret, None).await, Ok(()));
    owner.create(&secret, b"x", &mine).await?;
    same!(owner.set_acl(&secret, &Acls::anyone_read(), Some(3)).await, Err(Error::BadVersion));
    same!(owner.set_acl(&secret, &Acls::anyone_read(), Some(0)).await?.aversion, 1);
    anybody.sync(&secret).await?;
    same!(anybody.get_data(&secret).await?.0, b"x");
    same!(owner.set_data(&secret, b"", None).await, Err(Error::NoAuth));
    let stranger = cluster.client().await?;
    same!(stranger.auth("nonsense", b"x").await, Err(Error::AuthFailed));
    Ok(())
}

pub(crate) async fn config(cluster: Arc<Cluster>) -> Checked {
    let zk = cluster.client().await?;
    let text = String::from_utf8(zk.get_config().await?.0)?;
    let clients: Vec<&str> = text.lines().filter_map(|line| line.split_once(';')).map(|(_, client)| client).collect();
    same!(clients, cluster.hosts);
    let root = cluster.fresh_node(&zk).await?;
    let below = zk.clone().chroot(root.clone()).map_err(|_| "no root")?;
    below.create("/x", b"", PLAIN).await?;
    let (_, _, watcher) = below.get_and_watch_data("/x").await?;
    zk.delete(&format!("{root}/x"), None).await?;
    same!(watcher.changed().await.path, "/x");
    same!(below.list_children("/").await?, Vec::<String>::new());
    Ok(())
}

pub(crate) async fn pipeline(cluster: Arc<Cluster>) -> Checked {
    let zk = cluster.client().await?;
    let root = cluster.fresh_node(&zk).await?;
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for number in 1..=500 {
        writes.push((number, zk.set_data(&root, number.to_string().as_bytes(), None)));
        if number % 25 == 0 {
            reads.push((number, zk.get_data(&root)));
        }
    }
    // Awaited in reverse order.
    while let Some((number, read)) = reads.pop() {
        let (data, stat) = read.await?;
        same!((data, stat.version), (number.to_string().into_bytes(), number));
    }
    while let Some((number, write)) = writes.pop() {
        same!(write.await?.version, number);
    }
    Ok(())
}
