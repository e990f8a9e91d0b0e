//! A great many watches, ephemeral nodes, and names of locks.

use std::net::SocketAddr;

use futures::future::try_join_all;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::net::{Endpoint, Listener};
use crate::proofs::greedy::clients::{read_frame, zookeeper_exists, zookeeper_hello};
use crate::proofs::prelude::*;

const WATCHES: i32 = 1_000_000;
/// Of ZooKeeper's clients; one may have a hundred thousand.
const WATCHERS: i32 = 12;
/// Requests that are written at a time.
const WRITTEN: i32 = 1_000;
/// What the server says of a node that is not there.
const NO_NODE: i32 = -101;

const SESSIONS: usize = 50;
const OWNED: usize = 10_000;
/// Nodes made in one transaction.
const AT_ONCE: usize = 1_000;
const SESSION_MS: u32 = 600_000;

const NAMES: usize = 1_000_000;
/// Locks taken in one request, and requests of one session: fewer than the ephemeral nodes that it may own.
const TOGETHER: usize = 250;
const REQUESTS: usize = 40;
const WITHIN: Duration = Duration::from_secs(10);

/// Sets a million watches over ZooKeeper's protocol, at all nodes. Dropping the connections drops them.
pub(super) async fn watch(cluster: &Cluster) -> Result<Vec<TcpStream>, Failed> {
    let ids = cluster.ids();
    let watchers = (0..WATCHERS).zip(ids.iter().cycle()).map(|(number, id)| {
        let address = cluster.net().address(Endpoint::Clients, *id, Listener::ZooKeeper);
        let count = WATCHES / WATCHERS + i32::from(number < WATCHES % WATCHERS);
        set_watches(address, number, count)
    });
    try_join_all(watchers).await
}

async fn set_watches(address: SocketAddr, watcher: i32, count: i32) -> Result<TcpStream, Failed> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&zookeeper_hello()).await?;
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    read_frame(&mut reading).await?;
    let write = async {
        for from in (0..count).step_by(WRITTEN as usize) {
            let asked = (from..count.min(from + WRITTEN))
                .flat_map(|xid| zookeeper_exists(xid, &format!("/watched-{watcher}-{xid}"), true));
            writing.write_all(&asked.collect::<Vec<u8>>()).await?;
        }
        Ok::<_, Failed>(())
    };
    let answered = async {
        for xid in 0..count {
            let reply = read_frame(&mut reading).await?;
            let code = reply.get(12..16).and_then(|code| Some(i32::from_be_bytes(code.try_into().ok()?)));
            if code != Some(NO_NODE) {
                return broken(format!("watch {xid} of {count} is answered with {code:?}"));
            }
        }
        Ok(())
    };
    tokio::try_join!(write, answered)?;
    reading.into_inner().reunite(writing).map_err(|error| Failed::CannotRun(error.to_string()))
}

/// Opens sessions and has each own as many nodes as one may; gives their credentials.
pub(super) async fn own(cluster: &Cluster) -> Result<Vec<String>, Failed> {
    let apis = cluster.apis();
    let mut credentials = Vec::new();
    // Some at a time: each transaction is some 70 KB of log.
    for group in (0..SESSIONS).collect::<Vec<_>>().chunks(apis.len()) {
        let made = group.iter().zip(&apis).map(|(number, (_, api))| own_nodes(api, *number));
        credentials.extend(try_join_all(made).await?);
    }
    Ok(credentials)
}

async fn own_nodes(api: &Api, number: usize) -> Result<String, Failed> {
    let session = api.open_session(SESSION_MS, "owner").await.map_err(without_fault)?.value;
    for from in (0..OWNED).step_by(AT_ONCE) {
        let create = |node: usize| serde_json::json!({ "op": "create", "path": format!("/owned-{number}-{node}"), "kind": "ephemeral" });
        let operations: Vec<_> = (from..from + AT_ONCE).map(create).collect();
        api.transact(&session.credential, &serde_json::json!({ "operations": operations }))
            .await
            .map_err(without_fault)?;
    }
    Ok(session.credential)
}

/// Takes a million locks, each under a name of its own, and gives them back by closing the sessions.
pub(super) async fn take_names(cluster: &Cluster) -> Result<(), Failed> {
    let apis = cluster.apis();
    let sessions: Vec<_> = (0..NAMES / (TOGETHER * REQUESTS)).collect();
    for group in sessions.chunks(apis.len()) {
        try_join_all(group.iter().zip(&apis).map(|(number, (_, api))| take_locks(api, *number))).await?;
    }
    Ok(())
}

async fn take_locks(api: &Api, number: usize) -> Result<(), Failed> {
    let session = api.open_session(SESSION_MS, "taker").await.map_err(without_fault)?.value;
    for request in 0..REQUESTS {
        let mut names = (0..TOGETHER).map(|lock| format!("once-{number}-{request}-{lock}"));
        let first = names.next().unwrap_or_default();
        let together = Acquire { also: names.collect(), ..Acquire::default() };
        api.acquire(&session.credential, &first, &together, WITHIN).await.map_err(without_fault)?;
    }
    api.close_session(&session.credential).await.map_err(without_fault)?;
    Ok(())
}

/// Ends sessions, one after the other.
pub(super) async fn end(cluster: &Cluster, credentials: Vec<String>) -> Result<(), Failed> {
    let apis = cluster.apis();
    for (credential, (_, api)) in credentials.iter().zip(apis.iter().cycle()) {
        api.close_session(credential).await.map_err(without_fault)?;
    }
    Ok(())
}
