//! Proofs by trial: real `lockkeeper serve` processes on loopback, put under faults, and what their clients saw, checked.
//!
//! The harness ([`cluster`], [`process`], [`proxy`]) knows nothing of promises; each module of [`proofs`] tries to falsify one. Clients
//! here ([`http`]) never retry and never guess: an answer is acknowledged, refused, certainly not carried out, or unknown. Nothing in
//! this crate decides by sleeping that something must have happened by now: it waits for a condition, with a bound.

pub mod cluster;
pub mod http;
pub mod ports;
pub mod process;
pub mod proofs;
pub mod proxy;
pub mod sse;
pub mod stats;
pub mod story;
pub mod tokens;
pub mod verdict;
