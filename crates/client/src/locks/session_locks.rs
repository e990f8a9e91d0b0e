//! What the handles of one session have in common, whichever handle and clone they were made through.

use super::grant::Grant;
use super::owners::Owners;
use super::shared_queue::SharedQueues;
use crate::recipes::Participants;

/// One for each session.
#[derive(Debug, Default)]
pub(crate) struct SessionLocks {
    pub(super) owners: Owners<Grant>,
    pub(super) queues: SharedQueues,
    /// Those that meet at double barriers.
    pub(crate) parties: Participants,
}
