//! The judges: pure functions from histories to a verdict, each with tests that feed it histories which must not pass.
//!
//! Two kinds of history come in: what the cluster's log did to nodes
//! ([`lockkeeper_checkers::lives`], from watches) and what clients told ([`grants`],
//! [`gates`], [`pauses`], [`streaks`]). No judge looks at a clock or a network, and none believes the library that is on trial about more than what it told
//! its caller.

pub mod counts;
pub mod gates;
pub mod grants;
pub mod pauses;
pub mod streaks;
pub mod timing;
