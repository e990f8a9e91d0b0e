//! Commands on their way into the log: queued and sent as batches; and reads that wait for it.

pub(crate) mod batch_sender;
mod large_pace;
pub(crate) mod proposer;
pub(crate) mod queue;
pub(crate) mod read_barrier;
