//! The systems that are compared.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use clap::ValueEnum;

/// A system, and how its clients reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Lockkeeper over HTTP, one request at a time
    LockkeeperHttp,
    /// Lockkeeper over the session stream, each release awaited
    LockkeeperStream,
    /// Lockkeeper's ZooKeeper listener, with ZooKeeper's recipe
    LockkeeperZookeeper,
    /// ZooKeeper, with its recipe
    Zookeeper,
    /// etcd, with its client's recipe
    Etcd,
    /// One Redis server
    Redis,
    /// Redlock over several Redis servers
    Redlock,
    /// The engine `lockkeeper` of lockkeeper-engines
    EngineLockkeeper,
    /// The engine `zookeeper`
    EngineZookeeper,
    /// The engine `redis`
    EngineRedis,
    /// The engine `redlock`
    EngineRedlock,
    /// The engine `mysql`: a lock table
    EngineMysql,
    /// The engine `mysql-get-lock`
    EngineMysqlGetLock,
    /// The engine `postgres`: a lock table
    EnginePostgres,
    /// The engine `postgres-advisory`
    EnginePostgresAdvisory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LockkeeperHttp => "Lockkeeper, HTTP",
            Self::LockkeeperStream => "Lockkeeper, stream",
            Self::LockkeeperZookeeper => "Lockkeeper, ZooKeeper listener",
            Self::Zookeeper => "ZooKeeper",
            Self::Etcd => "etcd",
            Self::Redis => "Redis",
            Self::Redlock => "Redlock",
            Self::EngineLockkeeper => "lockkeeper",
            Self::EngineZookeeper => "zookeeper",
            Self::EngineRedis => "redis",
            Self::EngineRedlock => "redlock",
            Self::EngineMysql => "mysql",
            Self::EngineMysqlGetLock => "mysql-get-lock",
            Self::EnginePostgres => "postgres",
            Self::EnginePostgresAdvisory => "postgres-advisory",
        })
    }
}

/// The name of a value on the command line and in JSON.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The servers of a system: `KIND=ADDRESS,…`, and `@PID,…` for their processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct System {
    pub(crate) kind: Kind,
    pub(crate) addresses: Vec<String>,
    pub(crate) pids: Vec<u32>,
}

impl FromStr for System {
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
        Ok(Self { kind, addresses: addresses.collect::<Result<_, _>>()?, pids: pids.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_a_kind_addresses_and_processes() {
        let system: System = "lockkeeper-http=127.0.0.1:1,127.0.0.1:2@7,8".parse().unwrap();
        assert_eq!((system.kind, system.pids), (Kind::LockkeeperHttp, vec![7, 8]));
        assert_eq!(system.addresses, ["127.0.0.1:1", "127.0.0.1:2"]);
        assert!("redis=127.0.0.1:1".parse::<System>().unwrap().pids.is_empty());
        for (text, why) in [
            ("etcd", "expected KIND"),
            ("consul=127.0.0.1:1", "there are lockkeeper-http, "),
            ("etcd=localhost", "`localhost`"),
            ("etcd=127.0.0.1:1@x", "`x` is no process id"),
        ] {
            assert!(text.parse::<System>().unwrap_err().contains(why), "{text}");
        }
    }
}
