//! The calls between two nodes: their bodies and bytes, the checks of them, and how this node calls its peers.
//! [`crate::rpc_handler`] answers those of others.

pub(crate) mod append_pipeline;
pub(crate) mod commit_notices;
pub(crate) mod network;
pub(crate) mod peers;
pub(crate) mod snapshot_receive;
pub(crate) mod validation;
pub(crate) mod wire;
