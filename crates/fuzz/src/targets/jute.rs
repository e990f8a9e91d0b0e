//! ZooKeeper's protocol, by the oracle that the crate's own tests and its own libFuzzer target have.

use std::fs;
use std::path::Path;

#[path = "../../../zookeeper/fuzz/oracle.rs"]
#[allow(dead_code, reason = "the names of the kinds are for the crate's own tests")]
mod oracle;

pub(super) fn examine(input: &[u8]) {
    oracle::examine(input);
}

/// The golden messages, one a file.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zookeeper/fuzz/corpus");
    let files = fs::read_dir(corpus).into_iter().flatten().flatten();
    let mut seeds: Vec<(_, Vec<u8>)> =
        files.filter_map(|file| Some((file.file_name(), fs::read(file.path()).ok()?))).collect();
    // The same order at every run.
    seeds.sort();
    seeds.into_iter().map(|(_, seed)| seed).collect()
}
