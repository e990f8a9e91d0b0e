//! The API between clients and servers: the table of calls, and the JSON types of their bodies and answers.
//!
//! The server and the client share these types, so that neither can drift from the other. They must not depend on how
//! the cluster works inside. Unknown fields in a request are an error; in a reply they are ignored.

pub mod access;
pub mod backup;
pub mod call;
mod calls;
pub mod cluster;
pub mod credential;
pub mod data;
pub mod gates;
mod level;
pub mod locks;
pub mod nodes;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod problem;
pub mod rates;
pub mod row;
pub mod sessions;
pub mod stream;
pub mod text;
pub mod watch;

pub use call::{Answer, Call, CallKind};
pub use cluster::ClusterIdentity;
pub use credential::Credential;
pub use data::Data;
pub use level::Level;
pub use problem::{Code, Problem};

/// Header of a reply: the zxid at which it is true.
pub const ZXID_HEADER: &str = "lockkeeper-zxid";
/// Header of a reply: the [`ClusterIdentity`] of its node. Header of a request: a node of another cluster refuses it.
pub const CLUSTER_HEADER: &str = "lockkeeper-cluster";
/// Header of a request on behalf of a session: `<id>.<secret>`, see [`Credential`].
pub const SESSION_HEADER: &str = "lockkeeper-session";
/// Header of a mutation: a UUID that makes a retry safe; the same id with another payload is refused.
pub const REQUEST_ID_HEADER: &str = "lockkeeper-request-id";
/// Header of a mutation: request ids whose answers the client has received, separated by commas; the session forgets
/// them.
pub const ACKNOWLEDGE_HEADER: &str = "lockkeeper-acknowledge";
/// Header of a request: the longest time, in milliseconds, for which the node waits for the leader before it answers.
pub const TIMEOUT_HEADER: &str = "lockkeeper-timeout-ms";
/// The longest time that [`TIMEOUT_HEADER`] may name.
pub const MAX_TIMEOUT_MS: u64 = 600_000;
/// In the answer to the handshake of a session stream: the node records traces, and takes those of requests.
pub const TRACES_HEADER: &str = "lockkeeper-traces";
