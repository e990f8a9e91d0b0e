//! What the lock handles of one session have in common, whichever handle and clone they were made through.

/// One for each session.
#[derive(Debug, Default)]
pub(crate) struct Registry {}
