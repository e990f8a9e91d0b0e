//! A session over HTTP, and one over the session stream: one request at a time, each release awaited. Both are at the
//! leader, where the client library keeps its sessions.

use async_trait::async_trait;
use lockkeeper_bench::{BenchError, Connection, Routes, Stream};

use super::LockClient;
use crate::system::System;

async fn connection(system: &System, address: &str) -> Result<Connection, BenchError> {
    let mut connection = Connection::open(&format!("http://{address}"), "cycles").await?;
    connection.move_to_leader(&system.addresses).await?;
    Ok(connection)
}

/// One request at a time on an open HTTP connection.
pub(super) struct HttpClient {
    connection: Connection,
    routes: Routes,
    token: u64,
}

impl HttpClient {
    pub(super) async fn open(system: &System, address: &str, lock: &str) -> Result<Self, String> {
        let connection = connection(system, address).await.map_err(|e| e.to_string())?;
        Ok(Self { connection, routes: Routes::of(lock.to_owned()), token: 0 })
    }
}

#[async_trait]
impl LockClient for HttpClient {
    async fn acquire(&mut self) -> Result<Option<i64>, String> {
        self.token = self.connection.acquire(&self.routes.acquire).await?;
        Ok(i64::try_from(self.token).ok())
    }

    async fn release(&mut self) -> Result<(), String> {
        self.connection.release(&self.routes.release, self.token).await
    }

    async fn close(&mut self) {
        // The session expires if it cannot be closed.
        let _ = self.connection.close().await;
    }
}

/// The session stream.
pub(super) struct StreamClient {
    stream: Stream,
    lock: String,
    token: u64,
}

impl StreamClient {
    pub(super) async fn open(system: &System, address: &str, lock: &str) -> Result<Self, String> {
        let connection = connection(system, address).await.map_err(|e| e.to_string())?;
        let stream = Stream::of(connection).await.map_err(|e| e.to_string())?;
        Ok(Self { stream, lock: lock.to_owned(), token: 0 })
    }

    async fn answer(&mut self) -> Result<u64, String> {
        self.stream.flush().await?;
        self.stream.next_answer().await?.1
    }
}

#[async_trait]
impl LockClient for StreamClient {
    async fn acquire(&mut self) -> Result<Option<i64>, String> {
        self.stream.send_acquire(&self.lock).await?;
        self.token = self.answer().await?;
        Ok(i64::try_from(self.token).ok())
    }

    async fn release(&mut self) -> Result<(), String> {
        self.stream.send_release(&self.lock, self.token).await?;
        self.answer().await.map(|_| ())
    }

    async fn close(&mut self) {
        // The session expires if it cannot be closed.
        let _ = self.stream.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lockkeeper_bench::Locks;
    use lockkeeper_server::local::Cluster;

    use crate::point::{Plan, Point, measure};
    use crate::system::{Kind, System};

    #[tokio::test]
    async fn cycles_succeed_over_both_transports_and_leave_no_lock_behind() {
        let cluster = Cluster::start(1).await.unwrap();
        let addresses: Vec<String> =
            cluster.endpoints().iter().map(|endpoint| endpoint.trim_start_matches("http://").to_owned()).collect();
        let plan = Plan { warm_up: Duration::from_millis(100), measure: Duration::from_millis(300) };
        for kind in [Kind::LockkeeperHttp, Kind::LockkeeperStream] {
            let system = Arc::new(System { kind, addresses: addresses.clone(), pids: Vec::new() });
            for locks in [Locks::Own, Locks::One] {
                let measured = measure(&system, Point { locks, clients: 4 }, &plan).await.unwrap();
                let cycles = measured.result.cycles;
                assert_eq!(cycles.errors, 0, "{:?}", cycles.first_error);
                assert!(!cycles.cycle.is_empty());
            }
        }
        let client = lockkeeper_client::Client::connect(cluster.endpoints()).await.unwrap();
        let left = client.locks(None, &lockkeeper_client::Paging::default()).await.unwrap();
        assert!(left.locks.is_empty(), "sessions were not closed: {left:?}");
    }
}
