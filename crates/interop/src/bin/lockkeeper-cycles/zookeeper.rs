//! A session of the crate `zookeeper-client` with ZooKeeper's lock recipe, for ZooKeeper and for Lockkeeper's ZooKeeper
//! listener.
//!
//! The recipe is the documented one: a woken client lists the queue again, since the preceding client may have given up
//! without holding the lock. So a client that waits lists the queue twice, which is part of the measurement.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_bench::LockClient;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

/// Session timeout and connection timeout.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

const DIRECTORY: &CreateOptions<'static> = &CreateMode::Persistent.with_acls(Acls::anyone_all());
const IN_QUEUE: &CreateOptions<'static> = &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
const PREFIX: &str = "lock-";

/// See the module's text.
pub(crate) struct ZooKeeper {
    /// Dropping it closes the session.
    client: Option<Client>,
    directory: String,
    held: String,
}

impl ZooKeeper {
    /// Opens a session at a server and creates the lock's directory.
    pub(crate) async fn open(address: &str, lock: &str) -> Result<Self, String> {
        let connector =
            Client::connector().with_session_timeout(SESSION_TIMEOUT).with_connection_timeout(SESSION_TIMEOUT);
        let client = connector.connect(address).await.map_err(|error| error.to_string())?;
        let directory = format!("/{lock}");
        client.mkdir(&directory, DIRECTORY).await.map_err(|error| error.to_string())?;
        Ok(Self { client: Some(client), directory, held: String::new() })
    }

    fn client(&self) -> Result<&Client, String> {
        self.client.as_ref().ok_or_else(|| "the session is closed".to_owned())
    }
}

#[async_trait]
impl LockClient for ZooKeeper {
    /// Waits until the own node is the first, and gives its sequence number.
    async fn acquire(&mut self) -> Result<Option<u64>, String> {
        let (client, directory) = (self.client()?, &self.directory);
        let created = client.create(&format!("{directory}/{PREFIX}"), b"", IN_QUEUE).await;
        let (_, sequence) = created.map_err(|error| format!("create: {error}"))?;
        let own = format!("{PREFIX}{sequence}");
        loop {
            let queue = client.list_children(directory).await.map_err(|error| format!("list: {error}"))?;
            if !queue.contains(&own) {
                return Err(format!("{own} is not listed in its directory"));
            }
            let Some(before) = before(&queue, &own) else { break };
            let watched = client.check_and_watch_stat(&format!("{directory}/{before}")).await;
            let (stat, watcher) = watched.map_err(|error| format!("exists: {error}"))?;
            if stat.is_some() {
                watcher.changed().await;
            }
        }
        self.held = format!("{directory}/{own}");
        Ok(u64::try_from(sequence.into_i64()).ok())
    }

    async fn release(&mut self) -> Result<(), String> {
        self.client()?.delete(&self.held, None).await.map_err(|error| format!("delete: {error}"))
    }

    async fn close(&mut self) {
        self.client = None;
    }
}

/// The node to wait for: the last before the own one. All names have the same length.
fn before<'a>(queue: &'a [String], own: &str) -> Option<&'a str> {
    queue.iter().map(String::as_str).filter(|name| *name < own).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_waits_for_its_predecessor() {
        let queue = ["lock-0000000010", "lock-0000000009", "lock-0000000012"].map(ToOwned::to_owned);
        assert_eq!(before(&queue, "lock-0000000012"), Some("lock-0000000010"));
        assert_eq!(before(&queue, "lock-0000000009"), None);
    }
}
