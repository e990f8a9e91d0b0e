//! What the handles of one session have in common, whichever handle and clone they were made through.

use super::grant::Grant;
use super::reentry::Owners;
use super::shared::Lines;
use crate::recipes::Parties;

/// One for each session.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(super) owners: Owners<Grant>,
    pub(super) lines: Lines,
    /// Those that meet at double barriers.
    pub(crate) parties: Parties,
}
