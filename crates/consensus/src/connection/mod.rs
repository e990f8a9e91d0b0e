//! Connections between two nodes: the frames of calls and answers, both ends, and the order of calls. Nothing here
//! reads a body.

pub(crate) mod frame;
pub(crate) mod framed_transport;
pub(crate) mod order;
pub(crate) mod peer_connection;
pub(crate) mod server;
