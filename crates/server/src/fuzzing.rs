//! Entries for fuzzing (`crates/fuzz`); not part of the interface.

/// Reads bytes as a message of a client on its session stream; panics where something does not hold.
pub fn stream_message(bytes: &[u8]) {
    // A WebSocket's text is checked before it gets there.
    if let Ok(text) = std::str::from_utf8(bytes) {
        crate::stream::fuzzing::examine(text);
    }
}
