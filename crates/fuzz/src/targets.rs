//! The targets: what each reads, and the properties that it checks.

use std::path::Path;

use tempfile::TempDir;

mod batch;
#[path = "../../zookeeper/tests/golden/mod.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod golden;
mod log_open;
mod snapshot_open;

/// Code that reads untrusted bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Panics if a property does not hold for these bytes.
    pub examine: fn(&[u8]),
    /// Valid inputs, which are mutated.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub fn all() -> [Target; 9] {
    [
        Target {
            name: "peer-message",
            about: "any peer message: accepted or refused without a panic; an accepted one is within its limits",
            examine: lockkeeper_consensus::fuzzing::decode_any,
            seeds: lockkeeper_consensus::fuzzing::seeds,
        },
        Target {
            name: "stream-message",
            about: "a session stream's message: decodes as the published types do; its request is accepted or refused",
            examine: lockkeeper_http::fuzzing::stream_message,
            seeds: stream_messages,
        },
        Target {
            name: "http-path",
            about: "the method and path of a request: refused, or folded into a path of single parameters",
            examine: lockkeeper_http::fuzzing::http_path,
            seeds: http_paths,
        },
        Target {
            name: "batch",
            about: "a log entry's payload: encodes to the same bytes, and applying it leaves a valid state",
            examine: batch::examine,
            seeds: batch::seeds,
        },
        Target {
            name: "log-open",
            about: "a log directory with one changed file: refused, or opened with every acknowledged record",
            examine: log_open::examine,
            seeds: log_open::seeds,
        },
        Target {
            name: "journal",
            about: "the segments of a journal: refused, or frames without a gap, each of which encodes to itself",
            examine: lockkeeper_store::fuzzing::journal,
            seeds: lockkeeper_store::fuzzing::journals,
        },
        Target {
            name: "block",
            about: "a value of sled's log: refused, or records that encode to the same bytes",
            examine: lockkeeper_store::fuzzing::block,
            seeds: lockkeeper_store::fuzzing::blocks,
        },
        Target {
            name: "snapshot-open",
            about: "a snapshot, as a stream and as a file: refused, or a valid state that is written as it was read",
            examine: snapshot_open::examine,
            seeds: snapshot_open::seeds,
        },
        Target {
            name: "jute",
            about: "ZooKeeper's protocol: an accepted message encodes to itself, however its bytes arrive",
            examine: golden::properties::examine,
            seeds: || golden::seeds().into_values().collect(),
        },
    ]
}

/// Messages on a session stream.
/// The first byte chooses the method.
fn http_paths() -> Vec<Vec<u8>> {
    [
        "\x01/v1/locks/orders/42/acquire",
        "\x01/v1/locks/orders%2F42/release?pretty=1",
        "\x03/v1/locks/a/b/holders/17",
        "\x00/v1/locks/a/acquire",
        "\x01/v1/gates/pay/42/begin",
        "\x00/v1/nodes/a/b/children",
        "\x02/v1/nodes/",
        "\x00/v1/nodes/%C3%A9",
        "\x00/v1/cluster",
    ]
    .map(|seed| seed.as_bytes().to_vec())
    .to_vec()
}

fn stream_messages() -> Vec<Vec<u8>> {
    let uuid = "0a0b0c0d-0000-4000-8000-000000000001";
    [
        r#"{"request":{"id":1,"request_id":"UUID","acknowledge":["UUID"],"call":{"acquire_lock":{"name":"orders/42","body":{"mode":"shared","wait_ms":1000,"label":"a\"\u00e4","also":["b"],"delay_ms":5}}}}}"#,
        r#"{"request":{"id":2,"request_id":"UUID","call":{"release_lock":{"name":"a/b","body":{"token":7,"also":["x","y"]}}}}}"#,
        r#"{"request":{"id":3,"call":{"downgrade_lock":{"name":"a","body":{"token":18446744073709551615}}}}}"#,
        r#"{"request":{"id":4,"call":{"set_node":{"path":"/a/b","query":{"version":3},"body":{"data":{"hex":"ff"}}}}}}"#,
        r#"{"request":{"id":5,"call":{"get_node":{"path":"/a/b","query":{"children":true,"consistency":"stale"}}}}}"#,
        r#"{"request":{"id":6,"call":{"begin_gate":{"key":"k","body":{"fingerprint":"f","pending_ms":1000}}}}}"#,
        r#"{"request":{"id":7,"call":{"break_lock":{"name":"a","token":7}}}}"#,
        r#"{"request":{"id":8,"call":{"run_transaction":{"body":{"operations":[{"op":"create","path":"/a"},{"op":"lock_held","lock":"l","token":1}]}}}}}"#,
        r#"{"cancel":1}"#,
        r#"{"keepalive":18446744073709551615}"#,
        r#"{"watch":{"id":1,"path":"/a","recursive":true,"from":9}}"#,
        r#"{"unwatch":1}"#,
    ]
    .iter()
    .map(|text| text.replace("UUID", uuid).into_bytes())
    .collect()
}

/// A directory in memory if the system has such a place: the disk itself is not under test.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.unwrap_or_else(|error| panic!("cannot create a scratch directory: {error}"))
}
