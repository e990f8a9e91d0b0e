//! Snapshots: the stream that the state reads, and the file around it.
//!
//! A checksum would stop nearly every mutation. The first byte of an input therefore also selects whether checksums are
//! corrected first, as in a snapshot that a program with a defect wrote.

use std::fs;
use std::io::Read as _;
use std::sync::{Arc, OnceLock};

use super::scratch;
use lockkeeper_core::{Batch, State, Term};
use lockkeeper_store::{Bounds, LogPosition, Options, SnapshotStore};

/// Length and checksum of a file's payload, then eight bytes that end it.
const TRAILER_BYTES: usize = 20;

pub(super) fn examine(input: &[u8]) {
    let Some((&choice, body)) = input.split_first() else { return };
    let (is_file, fix_checksums) = (choice & 1 == 1, choice & 2 == 2);
    let mut body = body.to_vec();
    match (is_file, fix_checksums) {
        (false, true) => fix_stream_checksum(&mut body),
        (true, true) => fix_file_checksum(&mut body),
        _ => {}
    }
    if is_file { file(&body) } else { stream(&body) }
}

fn stream(bytes: &[u8]) {
    let Ok(state) = State::read_snapshot(bytes) else { return };
    assert_eq!(state.validate(), Ok(()), "a snapshot gives an invalid state");
    let mut again = Vec::new();
    state.write_snapshot(&mut again).unwrap_or_else(|error| panic!("a decoded snapshot cannot be written: {error}"));
    let back =
        State::read_snapshot(&again[..]).unwrap_or_else(|error| panic!("a written snapshot is refused: {error}"));
    assert!(back == state, "a state does not decode to itself");
}

fn fix_stream_checksum(bytes: &mut [u8]) {
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c::crc32c(body).to_le_bytes();
    }
}

fn fix_file_checksum(bytes: &mut [u8]) {
    let Some(end) = bytes.len().checked_sub(TRAILER_BYTES).filter(|end| *end >= 28) else { return };
    let meta_bytes = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]) as usize;
    let payload_bytes = (end.saturating_sub(28).saturating_sub(meta_bytes)) as u64;
    bytes[end..end + 8].copy_from_slice(&payload_bytes.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..end + 8]);
    bytes[end + 8..end + 12].copy_from_slice(&crc.to_le_bytes());
}

/// The file of the newest snapshot, which the log needs, under its expected name.
fn file(bytes: &[u8]) {
    let dir = scratch();
    let position = LogPosition { term: 3, index: 7 };
    let snapshots = dir.path().join("snapshots");
    let name = format!("{:020}-{:020}.snap", position.index, position.term);
    fs::create_dir_all(&snapshots).unwrap_or_else(|error| panic!("{error}"));
    fs::write(snapshots.join(name), bytes).unwrap_or_else(|error| panic!("{error}"));
    let bounds = Bounds { purged: Some(position), last: Some(position) };
    let Ok(store) = SnapshotStore::open(dir.path(), bounds, &options()) else { return };
    let found = store.latest().unwrap_or_else(|| panic!("opened without the snapshot that the log needs"));
    assert_eq!(found.position, position);
    let mut payload = Vec::new();
    let read = found.reader().map(|mut reader| reader.read_to_end(&mut payload));
    assert!(matches!(read, Ok(Ok(_))), "an opened snapshot cannot be read: {read:?}");
    assert_eq!(payload.len() as u64, found.bytes);
    stream(&payload);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    static SEEDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SEEDS.get_or_init(make_seeds).clone()
}

fn make_seeds() -> Vec<Vec<u8>> {
    let mut state = State::new();
    let mut seeds = Vec::new();
    for batch in super::batch::seeds() {
        if let Ok(batch) = Batch::decode(&batch) {
            state.apply(Term(1), &batch);
        }
        let mut stream = Vec::new();
        state.write_snapshot(&mut stream).unwrap_or_else(|error| panic!("{error}"));
        let file = file_of(&stream);
        seeds.extend(
            [(0, &stream), (2, &stream), (1, &file), (3, &file)].map(|(choice, body)| [&[choice], &body[..]].concat()),
        );
    }
    seeds
}

fn file_of(stream: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let dir = scratch();
    let write = || {
        let store = SnapshotStore::open(dir.path(), Bounds::default(), &options())?;
        let mut writer = store.create(LogPosition { term: 3, index: 7 }, b"meta")?;
        writer.write_all(stream).unwrap_or_else(|error| panic!("{error}"));
        writer.finish().map(|_| store.latest())
    };
    let latest = write().unwrap_or_else(|error| panic!("{error}"));
    latest.and_then(|snapshot| fs::read(snapshot.path).ok()).unwrap_or_default()
}

fn options() -> Options {
    Options { free_floor_bytes: 0, ..Options::new(Arc::new(|error| panic!("{error}"))) }
}
