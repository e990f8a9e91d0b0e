//! Commands on their way into the log: queued, sent as batches, answered in the order of the log; and reads that wait for it.

pub(crate) mod in_order;
pub(crate) mod inflight;
pub(crate) mod proposer;
pub(crate) mod queue;
pub(crate) mod read_barrier;
