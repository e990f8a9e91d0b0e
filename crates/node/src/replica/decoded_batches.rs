//! Batches that were decoded when they were checked, before they entered the log, for when they are applied: so that a
//! node decodes each once.
//!
//! Looked up by all bytes, so a batch that is found here is what decoding would give. A batch may never be applied, and
//! one that is not here is decoded again; so little is kept.

use std::collections::VecDeque;

use lockkeeper_core::Batch;
use parking_lot::Mutex;

/// Encoded bytes of the batches that are kept. Decoded, small commands take up to a hundred times that: a few MB.
const MAX_BYTES: usize = 64 * 1024;
const MAX_BATCHES: usize = 64;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct DecodedBatches(Mutex<Kept>);

/// In the order in which they were checked, which is that of the log with few exceptions.
#[derive(Debug, Default)]
struct Kept(VecDeque<(Box<[u8]>, Batch)>);

impl Kept {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(bytes, _)| bytes.len()).sum()
    }

    fn has_room_for(&self, payload: &[u8]) -> bool {
        self.0.len() < MAX_BATCHES && self.bytes() + payload.len() <= MAX_BYTES
    }
}

impl DecodedBatches {
    /// Keeps a batch, if there is room. Those that are kept already are applied earlier.
    pub(crate) fn keep(&self, payload: &[u8], batch: Batch) {
        let mut kept = self.0.lock();
        if kept.has_room_for(payload) {
            kept.0.push_back((payload.into(), batch));
        }
    }

    /// The batch with these bytes, if it is kept. Those that were checked before it are not kept any longer: most of
    /// them have not entered the log.
    pub(crate) fn take(&self, payload: &[u8]) -> Option<Batch> {
        let mut kept = self.0.lock();
        match kept.0.iter().position(|(bytes, _)| **bytes == *payload) {
            Some(index) => kept.0.drain(..=index).next_back().map(|(_, batch)| batch),
            None => {
                // What fills it may never be applied.
                if !kept.has_room_for(payload) {
                    kept.0.clear();
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Command, NodeId, Origin, SessionId};

    use super::*;

    fn batch(sequence: u64) -> (Vec<u8>, Batch) {
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence };
        let batch = Batch::consecutive(origin, 0, vec![Command::CloseSession { session: SessionId(sequence) }]);
        (batch.encode(), batch)
    }

    fn keep(decoded: &DecodedBatches, sequence: u64) {
        let (payload, batch) = batch(sequence);
        decoded.keep(&payload, batch);
    }

    fn take(decoded: &DecodedBatches, sequence: u64) -> bool {
        let (payload, expected) = batch(sequence);
        let taken = decoded.take(&payload);
        assert!(taken.as_ref().is_none_or(|taken| *taken == expected), "found by other bytes");
        taken.is_some()
    }

    #[test]
    fn a_batch_is_found_once_by_its_bytes_and_those_before_it_are_forgotten() {
        let decoded = DecodedBatches::default();
        (1..=5).for_each(|sequence| keep(&decoded, sequence));
        assert!(!take(&decoded, 6));
        assert!(take(&decoded, 3));
        assert_eq!([1, 2, 3, 4, 5].map(|sequence| take(&decoded, sequence)), [false, false, false, true, true]);
        assert_eq!(decoded.0.lock().bytes(), 0);
    }

    #[test]
    fn little_is_kept_and_what_is_never_applied_does_not_stay_in_the_way() {
        let decoded = DecodedBatches::default();
        decoded.keep(&vec![0; MAX_BYTES + 1], batch(1).1);
        assert_eq!(decoded.0.lock().0.len(), 0, "too large");
        (0..1_000).for_each(|sequence| keep(&decoded, sequence));
        let bytes = (0..64).map(|sequence| batch(sequence).0.len()).sum();
        let kept = |kept: &Kept| (kept.0.len(), kept.bytes());
        assert_eq!(kept(&decoded.0.lock()), (MAX_BATCHES, bytes));
        assert!(!take(&decoded, 500), "there was no room");
        keep(&decoded, 501);
        assert!(take(&decoded, 501));
    }
}
