//! One entry for fuzzing what a node hears from others: the messages of consensus, the batches in them, and groups of keepalives. Not part
//! of the interface.

use lockkeeper_core::Batch;

use crate::keepalive::{GroupAnswer, Message};

/// Reads bytes as a message of another node: the first byte chooses the layer, the rest is the message. It is taken or refused; it must
/// never panic.
pub fn decode_any(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    match choice {
        0 => {
            // What a leader takes, every node can read.
            if let Ok(batch) = Batch::decode(rest) {
                assert!(Batch::decode(&batch.encode()).is_ok(), "a batch that was read cannot be read again");
            }
        }
        1 => drop(postcard::from_bytes::<Message>(rest).map(|message| message.check())),
        2 => drop(postcard::from_bytes::<GroupAnswer>(rest)),
        _ => lockkeeper_consensus::fuzzing::decode_any(rest),
    }
}
