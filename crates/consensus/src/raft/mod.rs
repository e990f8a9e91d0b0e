//! openraft as this crate runs it: its types, its runtime, its log and its state machine over ours, and the handle that
//! the parts of consensus share. Nothing here knows of a peer.

pub(crate) mod log;
pub(crate) mod node;
#[cfg(test)]
mod openraft_suite_tests;
pub(crate) mod runtime;
pub(crate) mod state_machine;
pub(crate) mod types;
