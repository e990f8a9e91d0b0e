//! The systems that are compared, and how a client of each is opened.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use clap::ValueEnum;
use lockkeeper_bench::{BenchError, LockClient, LockSystem, Lockkeeper, Security, Transport};
use lockkeeper_engines::LockEngine;
use tokio::sync::OnceCell;

use crate::engine::EngineClient;
use crate::etcd::Etcd;
use crate::kind::{Kind, name_of};
use crate::redis::Redis;
use crate::zookeeper::ZooKeeper;

/// The servers of a system: `KIND=ADDRESS,…`, and `@PID,…` for their processes.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredSystem {
    pub(crate) kind: Kind,
    pub(crate) addresses: Vec<String>,
    pub(crate) pids: Vec<u32>,
    /// Of a secure one.
    pub(crate) security: Security,
    /// The one that all clients share.
    pub(crate) engine: OnceCell<Arc<dyn LockEngine>>,
}

impl fmt::Display for MeasuredSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

#[async_trait]
impl LockSystem for MeasuredSystem {
    async fn open(&self, number: usize, lock: &str) -> Result<Box<dyn LockClient>, BenchError> {
        let address = &self.addresses[number % self.addresses.len()];
        let opened = match self.kind {
            Kind::LockkeeperHttp | Kind::LockkeeperSecureHttp => {
                return self.lockkeeper(Transport::Http).open(number, lock).await;
            }
            Kind::LockkeeperStream | Kind::LockkeeperSecureStream => {
                return self.lockkeeper(Transport::Stream).open(number, lock).await;
            }
            Kind::LockkeeperZookeeper | Kind::Zookeeper => boxed(ZooKeeper::open(address, lock)).await,
            Kind::Etcd => boxed(Etcd::open(address, lock)).await,
            Kind::Redis | Kind::Redlock => boxed(Redis::open(&self.addresses, lock)).await,
            _ => boxed(EngineClient::open(&self.engine, self.kind, &self.addresses, lock)).await,
        };
        opened.map_err(|why| BenchError::endpoint(&format!("{}, {address}", self.kind), why))
    }

    fn server_pids(&self) -> &[u32] {
        &self.pids
    }
}

impl MeasuredSystem {
    fn lockkeeper(&self, transport: Transport) -> Lockkeeper {
        let (scheme, security) = match self.kind.is_secure() {
            true => ("https", self.security.clone()),
            false => ("http", Security::default()),
        };
        let endpoints = self.addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
        Lockkeeper::compared(endpoints, transport, security)
    }
}

/// A client of any system, once it is open.
async fn boxed<C: LockClient + 'static>(
    opening: impl Future<Output = Result<C, String>>,
) -> Result<Box<dyn LockClient>, String> {
    Ok(Box::new(opening.await?))
}

impl FromStr for MeasuredSystem {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, servers) = text.split_once('=').ok_or("expected KIND=ADDRESS,…[@PID,…]")?;
        let kind = Kind::from_str(kind, false).map_err(|_| {
            let names: Vec<String> = Kind::value_variants().iter().map(name_of).collect();
            format!("no kind `{kind}`; there are {}", names.join(", "))
        })?;
        let (addresses, pids) = servers.split_once('@').unwrap_or((servers, ""));
        let addresses = addresses.split(',').map(|address| match address.parse::<SocketAddr>() {
            Ok(address) => Ok(address.to_string()),
            Err(error) => Err(format!("`{address}`: {error}")),
        });
        let pids = pids.split(',').filter(|pid| !pid.is_empty());
        let pids = pids.map(|pid| pid.parse().map_err(|error| format!("`{pid}` is no process id: {error}")));
        let (addresses, pids) = (addresses.collect::<Result<_, _>>()?, pids.collect::<Result<_, _>>()?);
        Ok(Self { kind, addresses, pids, security: Security::default(), engine: OnceCell::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_a_kind_addresses_and_processes() {
        let system: MeasuredSystem = "lockkeeper-http=127.0.0.1:1,127.0.0.1:2@7,8".parse().unwrap();
        assert_eq!((system.kind, system.pids), (Kind::LockkeeperHttp, vec![7, 8]));
        assert_eq!(system.addresses, ["127.0.0.1:1", "127.0.0.1:2"]);
        assert!("redis=127.0.0.1:1".parse::<MeasuredSystem>().unwrap().pids.is_empty());
        for (text, why) in [
            ("etcd", "expected KIND"),
            ("consul=127.0.0.1:1", "there are lockkeeper-http, "),
            ("etcd=localhost", "`localhost`"),
            ("etcd=127.0.0.1:1@x", "`x` is no process id"),
        ] {
            assert!(text.parse::<MeasuredSystem>().unwrap_err().contains(why), "{text}");
        }
    }
}
