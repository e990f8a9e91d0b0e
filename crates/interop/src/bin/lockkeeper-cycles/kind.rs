//! The kinds of systems that are compared, and their names.

use std::fmt;

use clap::ValueEnum;

/// A system, and how its clients reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Lockkeeper over HTTP, one request at a time
    LockkeeperHttp,
    /// Lockkeeper over the session stream, each release awaited
    LockkeeperStream,
    /// Lockkeeper over HTTP with TLS and access control
    LockkeeperSecureHttp,
    /// The same over the session stream
    LockkeeperSecureStream,
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
    // The engines of lockkeeper-engines.
    EngineLockkeeper,
    EngineZookeeper,
    EngineRedis,
    EngineRedlock,
    EngineMysql,
    EngineMysqlGetLock,
    EnginePostgres,
    EnginePostgresAdvisory,
}

impl Kind {
    /// Whether it uses TLS and shows a token.
    pub(crate) fn is_secure(self) -> bool {
        matches!(self, Self::LockkeeperSecureHttp | Self::LockkeeperSecureStream)
    }

    /// Whether it is Lockkeeper.
    pub(crate) fn is_ours(self) -> bool {
        use Kind::{EngineLockkeeper, LockkeeperHttp, LockkeeperStream, LockkeeperZookeeper};
        self.is_secure() || matches!(self, LockkeeperHttp | LockkeeperStream | LockkeeperZookeeper | EngineLockkeeper)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LockkeeperHttp => "Lockkeeper, HTTP",
            Self::LockkeeperStream => "Lockkeeper, stream",
            Self::LockkeeperSecureHttp => "Lockkeeper, HTTP, TLS",
            Self::LockkeeperSecureStream => "Lockkeeper, stream, TLS",
            Self::LockkeeperZookeeper => "Lockkeeper, ZooKeeper listener",
            Self::Zookeeper => "ZooKeeper",
            Self::Etcd => "etcd",
            Self::Redis => "Redis",
            Self::Redlock => "Redlock",
            engine => return f.write_str(name_of(engine).trim_start_matches("engine-")),
        })
    }
}

/// The name of a value on the command line and in JSON.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
