//! Schedules: a job that is done once for each tick of a cron expression, by one of any number of workers.
//!
//! What is agreed, and how:
//!
//! - **When** a tick is due, the replicated clock says (`cluster_time`). Workers measure it by their monotonic clocks;
//!   wall clocks play no part, so a worker whose calendar is wrong by minutes is neither early nor late.
//! - **What becomes** of a tick is decided once, by compare-and-set of the schedule's node (`record`): it is to be
//!   done, or skipped because it was missed or overlaps with an earlier one. Ticks to be done have an order.
//! - **Who** does the first of them, its gate decides: `<namespace>/<job>/<tick>`. The gate belongs to the worker's
//!   session: if the worker dies, the gate opens when the session ends, and the next worker begins the tick again. Only
//!   the first open tick is ever begun, so two ticks of a job are never done at the same time.
//! - **That it is done** the node records, before the gate gets the result. A worker that has the gate looks at the
//!   node again before it works: a tick that the node knows as ended is not done a second time, however late the worker
//!   is. The end counts only under the token of the tick's latest worker.
//!
//! A worker that dies in the middle leaves its work to the next one, so that a tick may be *worked at* more than once;
//! it ends once. Resources should check the token, which is larger for each worker of each tick.
//!
//! This module must never begin a tick before the replicated clock shows its time, never begin one that the node does
//! not have as the first open one, and never report an end under an older token.

mod cluster_time;
mod expression;
mod job;
mod own_turns;
mod record;
mod run;
mod worker;

pub use expression::Tick;
pub use job::Schedule;
pub use record::{
    EndedTick, Missed, OpenTick, Overlap, ScheduleDefinition, ScheduleSpec, ScheduleState, TickOutcome, TickWorker,
};
pub use run::{TickRun, TickTurn};
