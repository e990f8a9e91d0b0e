//! Shared by the tests: small options, recognisable records, and waiting for callbacks.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use futures::executor::block_on;
use lockkeeper_store::{Done, FatalError, Identity, LogPosition, Opened, Options, Record, Store, StoreError};

/// Ends the test when the store fails.
pub(crate) fn options() -> Options {
    let fatal = Arc::new(|error: FatalError| panic!("the store failed: {error}"));
    Options { free_floor_bytes: 0, cache_bytes: 4 * 1024 * 1024, ..Options::new(fatal) }
}

/// Options whose failures are handed to the test.
pub(crate) fn options_with_failures() -> (Options, Receiver<FatalError>) {
    let (send, failures) = channel();
    let fatal = Arc::new(move |error| send.send(error).unwrap());
    (Options { fatal, ..options() }, failures)
}

pub(crate) fn identity() -> Identity {
    Identity { cluster: "test".into(), node: 1, directory: 0xD1 }
}

pub(crate) fn open(dir: &Path) -> (Store, Opened) {
    Store::open(dir, &identity(), options()).unwrap_or_else(|error| panic!("{error}"))
}

/// A payload that depends on its position, of 200 bytes unless said otherwise.
pub(crate) fn record(term: u64, index: u64) -> Record {
    sized_record(term, index, 200)
}

pub(crate) fn sized_record(term: u64, index: u64, payload_bytes: usize) -> Record {
    let mut state = term.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD134_2543_DE82_EF95) | 1;
    let next = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state as u8
    };
    let payload: Vec<u8> = (0..payload_bytes).map(|_| next(&mut state)).collect();
    Record { position: LogPosition { term, index }, payload: payload.into() }
}

pub(crate) fn records(term: u64, indexes: std::ops::Range<u64>) -> Vec<Record> {
    indexes.map(|index| record(term, index)).collect()
}

/// Calls and waits for the callback.
pub(crate) fn wait<F: Future<Output = ()>>(call: impl FnOnce(Done) -> F) -> Result<(), StoreError> {
    let (send, done) = channel();
    block_on(call(Box::new(move |result| send.send(result).unwrap())));
    done.recv().expect("the callback was dropped")
}

pub(crate) fn append(store: &Store, records: Vec<Record>) {
    wait(|done| store.append(records, done)).unwrap();
}

pub(crate) fn vote(store: &Store, number: u64) {
    wait(|done| store.save_vote(number.to_be_bytes().to_vec().into(), done)).unwrap();
}

pub(crate) fn all(store: &Store) -> Vec<Record> {
    store.read(0..u64::MAX, usize::MAX).unwrap()
}
