//! Starts of data directories: what a node claims of its own, what its peers remember of it, and when the two
//! contradict each other.
//!
//! A directory restored from an older copy has forgotten votes and entries that it acknowledged, and its own files
//! cannot show it: they are all equally old. Only other machines know. So each start has a rising number and a random
//! boot id, a directory keeps the list of its starts with what it held at each, and every peer keeps the latest start
//! it has seen and the most that was acknowledged to it. On an intact directory all of these only ever rise, so an old
//! memory of a peer may miss a loss, and never reports one where there is none.

use std::io;

use lockkeeper_mutants::mutant;
use serde::{Deserialize, Serialize};

use crate::raft::types::MAX_INDEX;
use crate::status::MemberRole;

/// The peer's directory id is not the one it was first seen with.
pub const CODE_DIRECTORY_CHANGED: &str = "directory_changed";
/// The data directory was put back from an older copy.
pub const CODE_ROLLED_BACK: &str = "directory_rolled_back";
/// Two processes have been started on copies of one data directory.
pub const CODE_CLONED: &str = "directory_cloned";

/// Starts that a directory remembers, and claims.
pub(crate) const STARTS_KEPT: usize = 64;
/// The most starts that a directory can have had since a peer last saw one: a thousand a day for forty years.
const MAX_START_STEP: u64 = 1 << 24;
/// The highest start number: a remembered start can never be lowered again.
const MAX_START: u64 = 1 << 40;
/// The highest term of a directory: well above what a node without a vote takes from one message (see
/// [`crate::calls::validation`]).
const MAX_TERM: u64 = 1 << 63;

const REMEDY: &str = "stop the process; put the newest directory back if there is one, else keep this one for \
                      examination, remove the node from the membership, and let the machine join again under a new \
                      node id with an empty directory";

/// One start of a data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartId {
    /// Counts the starts of the directory.
    pub number: u64,
    /// Drawn at random by the process, so that two processes with one number differ.
    pub boot: u64,
}

/// A start of a data directory, and what the directory held then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Its id.
    pub id: StartId,
    /// Term of the vote.
    pub term: u64,
    /// Last log index, the snapshot included.
    pub last: u64,
}

/// The most a node has acknowledged: a log index to the leader of a term, or, with index 0, its vote in that term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The term. A later one may have replaced what was acknowledged in an earlier one.
    pub term: u64,
    /// The log index.
    pub index: u64,
}

/// What a node remembers of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// Its data directory when it was first seen.
    pub directory: u128,
    /// The latest start of it.
    pub start: Option<StartId>,
    /// The most it has acknowledged to this node, in that start or before.
    pub acknowledged: Acknowledged,
}

/// The durable memory of a node's own starts and of its peers; it lies in the data directory.
pub trait PeerMemory: Send + Sync + 'static {
    /// The starts of this directory before the present one, oldest first.
    fn starts(&self) -> Vec<Start>;

    /// Adds the present start; durable on return.
    fn add_start(&self, start: Start) -> io::Result<()>;

    /// What is remembered of a peer.
    fn peer(&self, node: u64) -> Option<KnownPeer>;

    /// Changes what is remembered of a peer, exclusively; durable on return.
    fn update(&self, node: u64, change: &mut dyn FnMut(&mut Option<KnownPeer>)) -> io::Result<()>;
}

/// Why a peer's call or claim was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct PeerRejection {
    /// Stable code of the reason.
    pub code: &'static str,
    /// The reason for people.
    pub detail: String,
}

/// What a node claims of its data directory to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryClaim {
    pub(crate) directory: u128,
    /// The latest starts of the directory, oldest first; the last is the present one.
    pub(crate) starts: Vec<Start>,
}

/// The answer to a claim that is in order.
#[derive(Serialize, Deserialize)]
pub(crate) struct ClaimReply {
    /// The answering node's own.
    pub(crate) claim: DirectoryClaim,
    /// True when it is part of a formed cluster.
    pub(crate) formed: bool,
    /// Its role by its own configuration: a cluster is not formed with a front node among its founders.
    pub(crate) role: MemberRole,
    /// The voters that it knows of, and the log index of that membership.
    pub(crate) voters: Option<(u64, Vec<u64>)>,
}

fn no(node: u64, code: &'static str, why: &str) -> Result<(), PeerRejection> {
    Err(PeerRejection { code, detail: format!("node {node} is turned away: {why}; {REMEDY}") })
}

impl DirectoryClaim {
    /// The present start.
    pub(crate) fn start(&self) -> StartId {
        self.starts.last().map(|start| start.id).unwrap_or_default()
    }

    /// Whether the starts are in order, not too many, and within bounds.
    pub(crate) fn is_well_formed(&self) -> bool {
        !self.starts.is_empty()
            && self.starts.len() <= STARTS_KEPT
            && self.starts.windows(2).all(|pair| pair[0].id.number < pair[1].id.number)
            && self
                .starts
                .iter()
                .all(|start| start.id.number <= MAX_START && start.term <= MAX_TERM && start.last <= MAX_INDEX)
    }

    /// Whether the directory can have had this start.
    pub(crate) fn agrees_with_start(&self, node: u64, known: StartId) -> Result<(), PeerRejection> {
        if mutant!(AcceptRolledBackDirectory) {
            return Ok(());
        }
        let (known_number, own) = (known.number, self.start().number);
        if own < known_number {
            let why = format!(
                "start {known_number} of its data directory was seen already, and this is start {own}: the directory \
                 was put back from an older copy, or another process runs on a copy of it"
            );
            return no(node, CODE_ROLLED_BACK, &why);
        }
        let same_number = self.starts.iter().find(|start| start.id.number == known_number);
        if same_number.is_some_and(|start| start.id.boot != known.boot) {
            let why = format!(
                "start {known_number} of its data directory was seen in another process: two processes have been \
                 started on copies of one data directory, or it was put back from an older copy"
            );
            return no(node, CODE_CLONED, &why);
        }
        Ok(())
    }

    /// Whether the directory still has everything that a peer remembers of it.
    pub(crate) fn agrees_with(&self, node: u64, known: &KnownPeer) -> Result<(), PeerRejection> {
        if known.directory != self.directory {
            let why = format!(
                "it was known by data directory {:032x}, and now has {:032x}: the directory was wiped or swapped",
                known.directory, self.directory
            );
            return no(node, CODE_DIRECTORY_CHANGED, &why);
        }
        if let Some(start) = known.start {
            self.agrees_with_start(node, start)?;
            let (own, most) = (self.start().number, start.number.saturating_add(MAX_START_STEP));
            if own > most {
                let detail = format!(
                    "node {node} is turned away: it claims start {own} of its data directory, and {most} is the most \
                     that can be"
                );
                return Err(PeerRejection { code: "implausible", detail });
            }
        }
        if mutant!(AcceptRolledBackDirectory) {
            return Ok(());
        }
        // Entries acknowledged up to a start must have been there at the next one; later starts may have another
        // history.
        let seen = known.start.map_or(0, |start| start.number);
        let Some(next) = self.starts.iter().find(|start| start.id.number > seen) else { return Ok(()) };
        let Acknowledged { term, index } = known.acknowledged;
        if next.term < term || (next.term == term && next.last < index) {
            let why = format!(
                "it has acknowledged index {index} in term {term}, and at start {} its data directory held index {} \
                 and the vote of term {}: the directory was put back from an older copy, or its disk has lost what \
                 was synced",
                next.id.number, next.last, next.term
            );
            return no(node, CODE_ROLLED_BACK, &why);
        }
        Ok(())
    }

    /// Whether the replicated state has seen no later start of this directory than the present one.
    pub(crate) fn agrees_with_replicated(&self, node: u64, number: u64) -> Result<(), PeerRejection> {
        let own = self.start().number;
        if own >= number || mutant!(AcceptRolledBackDirectory) {
            return Ok(());
        }
        let why = format!(
            "the log names start {number} of its data directory, and this is start {own}: the directory was put back \
             from an older copy, or another process runs on a copy of it"
        );
        no(node, CODE_ROLLED_BACK, &why)
    }
}

/// Whether a rejection with this code means that the caller's data directory must not be used.
pub(crate) fn condemns(code: &str) -> bool {
    [CODE_DIRECTORY_CHANGED, CODE_ROLLED_BACK, CODE_CLONED].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(number: u64, boot: u64, term: u64, last: u64) -> Start {
        Start { id: StartId { number, boot }, term, last }
    }

    fn claim(starts: &[Start]) -> DirectoryClaim {
        DirectoryClaim { directory: 7, starts: starts.to_vec() }
    }

    fn known(number: u64, boot: u64, term: u64, index: u64) -> KnownPeer {
        let start = Some(StartId { number, boot });
        KnownPeer { directory: 7, start, acknowledged: Acknowledged { term, index } }
    }

    fn code(claim: &DirectoryClaim, known: &KnownPeer) -> Option<&'static str> {
        claim.agrees_with(3, known).err().map(|no| no.code)
    }

    #[test]
    fn an_intact_directory_agrees_with_every_memory_of_it() {
        let history = [start(1, 11, 0, 0), start(2, 12, 3, 100), start(4, 14, 5, 90)];
        let claimed = claim(&history);
        // In the second start it acknowledged up to 120 of term 3, of which term 5 replaced some; start 3 ended before
        // it was noted.
        for memory in [
            KnownPeer { directory: 7, start: None, acknowledged: Acknowledged::default() },
            known(1, 11, 3, 100),
            known(2, 12, 3, 120),
            known(2, 12, 5, 90),
            known(3, 13, 5, 90),
            known(4, 14, 5, 400),
        ] {
            assert_eq!(code(&claimed, &memory), None, "{memory:?}");
        }
    }

    #[test]
    fn an_older_start_is_refused() {
        let claimed = claim(&[start(1, 11, 0, 0), start(2, 22, 3, 100)]);
        assert_eq!(code(&claimed, &known(3, 13, 0, 0)), Some(CODE_ROLLED_BACK));
        assert!(claimed.agrees_with_replicated(3, 2).is_ok() && claimed.agrees_with_replicated(3, 3).is_err());
    }

    #[test]
    fn a_start_of_the_same_number_in_another_process_is_refused_however_often_the_copy_starts() {
        let mut starts = vec![start(1, 11, 0, 0), start(2, 22, 3, 100)];
        assert_eq!(code(&claim(&starts), &known(2, 12, 0, 0)), Some(CODE_CLONED));
        starts.push(start(3, 23, 3, 100));
        assert_eq!(code(&claim(&starts), &known(2, 12, 0, 0)), Some(CODE_CLONED));
    }

    #[test]
    fn a_new_start_that_lacks_what_was_acknowledged_is_refused_whatever_it_has_grown_to() {
        let mut starts = vec![start(1, 11, 0, 0), start(2, 12, 3, 100)];
        for (memory, refused) in
            [(known(1, 11, 3, 101), true), (known(1, 11, 4, 0), true), (known(1, 11, 3, 100), false)]
        {
            assert_eq!(code(&claim(&starts), &memory).is_some(), refused, "{memory:?}");
        }
        starts.push(start(3, 13, 9, 4_000));
        assert_eq!(code(&claim(&starts), &known(1, 11, 3, 101)), Some(CODE_ROLLED_BACK));
    }

    #[test]
    fn another_directory_is_refused() {
        let mut claimed = claim(&[start(9, 9, 9, 9)]);
        claimed.directory = 8;
        assert_eq!(code(&claimed, &known(1, 11, 0, 0)), Some(CODE_DIRECTORY_CHANGED));
        assert!(condemns(CODE_CLONED) && condemns(CODE_ROLLED_BACK) && !condemns("unknown_node"));
    }

    #[test]
    fn starts_are_told_in_order_and_not_without_end() {
        assert!(claim(&[start(1, 1, 0, 0), start(3, 1, 0, 0)]).is_well_formed());
        assert!(!claim(&[]).is_well_formed());
        assert!(!claim(&[start(2, 1, 0, 0), start(2, 1, 0, 0)]).is_well_formed());
        let many: Vec<Start> = (0..65).map(|number| start(number, 1, 0, 0)).collect();
        assert!(!claim(&many).is_well_formed());
    }

    #[test]
    fn starts_that_no_directory_can_have_are_refused() {
        for beyond in [start(MAX_START + 1, 1, 0, 0), start(1, 1, MAX_TERM + 1, 0), start(1, 1, 0, MAX_INDEX + 1)] {
            assert!(!claim(&[beyond]).is_well_formed(), "{beyond:?}");
        }
        assert!(claim(&[start(MAX_START, 1, MAX_TERM, MAX_INDEX)]).is_well_formed());
        let memory = known(5, 11, 0, 0);
        assert_eq!(code(&claim(&[start(5 + MAX_START_STEP, 1, 1, 0)]), &memory), None);
        let beyond = code(&claim(&[start(6 + MAX_START_STEP, 1, 1, 0)]), &memory);
        assert!(beyond.is_some_and(|code| !condemns(code)), "refused, and nobody has to end for it");
    }
}
