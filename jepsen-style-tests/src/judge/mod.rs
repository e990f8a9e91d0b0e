//! Judges: pure functions from a history to a verdict. The tests of each feed it histories that it must reject.
//!
//! There are two kinds of history: what the log did to nodes ([`lockkeeper_checkers::lives`], from watches) and what
//! clients were told ([`grants`], [`gates`], [`pauses`], [`streaks`]). A judge reads no clock and no network, and
//! trusts the client library on trial only for what the library told its caller.

pub mod counts;
pub mod gates;
pub mod grants;
pub mod pauses;
pub mod streaks;
pub mod timing;
