//! Locks in MySQL and MariaDB: in a table ([`MySqlEngine`]), or by `GET_LOCK` ([`MySqlGetLockEngine`]).
//!
//! TLS: take the crate `mysql_async` with one of its TLS features, and give [`mysql_async::Opts`] that have
//! `ssl_opts`.

mod connections;
mod get_lock;
mod table;

pub use get_lock::MySqlGetLockEngine;
pub use mysql_async;
pub use table::MySqlEngine;
