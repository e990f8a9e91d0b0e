//! Trials of real `lockkeeper serve` processes on loopback: faults are put on them, and what their clients saw is
//! checked.
//!
//! The harness ([`cluster`], [`process`], [`net`]) knows nothing of promises; each module of [`proofs`] tries to
//! falsify one. Clients here ([`http`]) never retry and never guess: an answer is acknowledged, refused, certainly not
//! carried out, or unknown. Where the client library is on trial, it runs in processes of its own ([`workers`],
//! [`work`]) that record what the library tells them ([`record`]); [`ledger`] gathers what the log did, and the
//! functions of [`judge`] and [`check`] compare the two. Nothing in this crate sleeps for a while and assumes that
//! something has happened by then: it waits for a condition, with a bound.

pub mod check;
pub mod cluster;
pub mod disk;
pub mod disk_latency;
pub mod history;
pub mod http;
pub mod judge;
pub mod ledger;
pub mod log;
pub mod mutants;
pub mod nemesis;
pub mod net;
pub mod polling;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod proofs;
pub mod record;
pub mod report;
pub mod run;
pub mod sampler;
pub mod servers;
pub mod small_disk;
pub mod sse;
pub mod stats;
pub mod store;
pub mod tokens;
pub mod verdict;
pub mod work;
pub mod workers;
pub mod workload;
