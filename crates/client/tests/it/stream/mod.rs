//! The session stream against scripted nodes: what is sent again and how, what ends a request, and when the session
//! counts as lost. The real node's part is tested in its own crate.

mod breaks;
mod endings;
mod leader;
mod lease;
pub(crate) mod node;
mod requests;
mod watches;
