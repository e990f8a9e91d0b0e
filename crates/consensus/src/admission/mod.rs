//! Who a peer is and whether it may take part: the identities of both ends of a call, the claims of data directories,
//! what is remembered of them, and the feature levels that members announce. Nothing here sends a message:
//! [`crate::claim_exchange`] does.

pub(crate) mod auth;
pub(crate) mod claim;
pub(crate) mod guard;
pub(crate) mod levels;
