//! Reserved xids, which a client may not choose for other requests.

/// A watch event.
pub const NOTIFICATION: i32 = -1;
/// A ping and its reply.
pub const PING: i32 = -2;
/// Authentication and its reply.
pub const AUTH: i32 = -4;
/// Setting watches again, and its reply.
pub const SET_WATCHES: i32 = -8;
