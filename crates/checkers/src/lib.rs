//! Lock queues, independent of the product: the grammar of request names, who holds, and the replay of a queue from
//! the nodes that are created and deleted; and [`gate`], how an idempotency gate stands. The model of `core`'s tests,
//! the simulation and the fault suite use it. [`sync_trace`] checks a system-call trace of a log: was all that it
//! acknowledged synced before? For all test suites, [`skip`](skip::skip) ends a test that needs what a machine has not.
//!
//! This crate must never depend on the product: it states the documented rules a second time, so that a defect in the
//! product's own reader or queue shows as a difference. It has no dependencies at all.

pub mod gate;
pub mod lives;
pub mod name;
pub mod places;
pub mod queue;
pub mod replay;
pub mod skip;
pub mod sync_trace;
