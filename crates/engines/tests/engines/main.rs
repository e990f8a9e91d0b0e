//! Engines that need nothing but this process: the contract, and what is special to each.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of which clippy takes them to be")]

#[path = "../../examples/engine.rs"]
mod example;
mod lockkeeper;
mod memory;

use lockkeeper_engines_contract::{Subject, run};

/// The contract; a failure names the parts.
pub(crate) async fn keeps_the_contract(subject: &dyn Subject) {
    match run(subject).await {
        Ok(parts) => assert!(parts.len() > 10),
        Err(broken) => panic!("{broken:#?}"),
    }
}
