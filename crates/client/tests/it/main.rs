//! The client library in use: against scripted endpoints, against real clusters inside this process, and against a real
//! database.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[allow(dead_code, reason = "no crate uses all of it")]
#[path = "../../../tls/tests/it/authority.rs"]
mod authority;
mod calls;
mod fencing_file;
mod fencing_http;
mod fencing_redis;
mod fencing_sql;
mod gate;
mod locks;
mod one_cluster;
mod operations_sql;
mod recipes;
mod stream;
mod test_cluster;
mod tls;
mod txn;
mod wire;
