//! Several engines as one, and the switch between them while work goes on.
//!
//! `state` says which engines grant, and `member` what this process may do by that; both are pure and tested against
//! each other (`model_tests`). `agreement` keeps the state, `group_task` follows it and takes the steps of a switch,
//! `taking` acquires from the engines of the moment. Any member takes any step: a switch goes on when the process that
//! began it has died.
//!
//! A switch must never leave two holders unseen. A process that cannot reach the agreed state stops to grant and to
//! renew before the others stop to wait for it.

mod agreement;
mod engines;
mod event;
mod group_task;
mod health;
mod inner;
mod member;
#[cfg(test)]
mod model_tests;
mod options;
mod promises;
mod state;
mod taking;
#[cfg(test)]
mod tests;
mod token;

pub use agreement::Agreement;
pub use engines::{Engines, FencedEngines};
pub use event::SwitchEvent;
pub use health::Degrading;
pub use inner::SwitchStatus;
pub use options::{EnginesOptions, IfUnreachable};
pub use state::{MAX_MEMBERS, SwitchError, SwitchMode, SwitchPhase};
