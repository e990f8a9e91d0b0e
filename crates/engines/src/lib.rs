//! One interface over several lock engines: Lockkeeper, Redis, Redlock, MySQL, PostgreSQL, ZooKeeper.
//!
//! A [`LockEngine`] acquires, renews and releases leases; [`Capabilities`] say what it promises. [`lock`] turns a lease
//! into a [`Guard`] that renews it and reports its loss. Code that needs a fencing token takes a [`FencingEngine`], so
//! that an engine without tokens does not compile there, or asks the guard for the token and gets a typed error.
//!
//! No engine here may pass for more than it is: a capability that an engine lacks is an error, never an imitation.

mod capabilities;
mod capability;
mod engine;
mod error;
mod guard;
mod local_leases;
mod lockkeeper;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod renamed;
mod session_pool;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;
mod switch;
mod wait;
#[cfg(feature = "zookeeper")]
mod zookeeper;

#[cfg(feature = "redis")]
pub use self::redis::{RedisEngine, RedisOptions, RedlockEngine};
#[cfg(feature = "zookeeper")]
pub use self::zookeeper::{ZookeeperEngine, ZookeeperOptions};
pub use capabilities::Capabilities;
pub use capability::Capability;
pub use engine::{FencingEngine, Holder, LONGEST_LEASE, Lease, LockEngine, LockRequest, Mode, Protection};
pub use error::EngineError;
pub use guard::{FencedGuard, Guard, lock, lock_fenced};
pub use lockkeeper::LockkeeperEngine;
pub use memory::MemoryEngine;
#[cfg(feature = "mysql")]
pub use mysql::{MySqlEngine, MySqlGetLockEngine, mysql_async};
pub use names::{MAX_LABEL_BYTES, MAX_LOCKS, MAX_NAME_BYTES, check_name};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresAdvisoryEngine, PostgresEngine, tokio_postgres};
pub use renamed::Renamed;
pub use switch::{
    Agreement, Degrading, Engines, EnginesOptions, FencedEngines, IfUnreachable, MAX_MEMBERS, SwitchError, SwitchEvent,
    SwitchMode, SwitchPhase, SwitchStatus,
};
pub use wait::{Deadline, Wait};

/// Compiles the code of this page with the documentation tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/engines.md")]
    struct EnginesPage;
}
