//! The targets: what each reads, and what must hold.

mod batch;
mod jute;
mod log_open;
mod snapshot_open;
mod stream_message;

/// Something that reads bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// As it is chosen on the command line.
    pub name: &'static str,
    /// What it tries, in a line.
    pub about: &'static str,
    /// Panics where something does not hold for the bytes.
    pub examine: fn(&[u8]),
    /// Inputs as they are meant to be.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub fn all() -> [Target; 6] {
    [
        Target {
            name: "peer-message",
            about: "any message of a peer: taken or refused, never a panic, and what is taken keeps to its bounds",
            examine: lockkeeper_consensus::fuzzing::decode_any,
            seeds: lockkeeper_consensus::fuzzing::seeds,
        },
        Target {
            name: "stream-message",
            about: "a message on a session stream: read as the published types read it, and what it asks for is taken or refused",
            examine: stream_message::examine,
            seeds: stream_message::seeds,
        },
        Target {
            name: "batch",
            about: "a log entry's payload: what is read comes back as it was, and applying it leaves a sound state",
            examine: batch::examine,
            seeds: batch::seeds,
        },
        Target {
            name: "log-open",
            about: "a log directory with one file changed: refused, or opened with every acknowledged record",
            examine: log_open::examine,
            seeds: log_open::seeds,
        },
        Target {
            name: "snapshot-open",
            about: "a snapshot, as the state reads it and as a file: refused, or a sound state that is written as it was read",
            examine: snapshot_open::examine,
            seeds: snapshot_open::seeds,
        },
        Target {
            name: "jute",
            about: "ZooKeeper's protocol: what is taken encodes to itself, however its bytes arrive",
            examine: jute::examine,
            seeds: jute::seeds,
        },
    ]
}
