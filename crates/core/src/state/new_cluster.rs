//! The state with which a new cluster begins from a copy of another cluster's: after a restore from a backup, and after
//! the loss of a majority.
//!
//! The old cluster may have gone on after the copy was taken. So the new one leaves a gap behind everything that it
//! counts: it never issues a zxid, fencing token or session id that the old one may have issued. The number of a
//! sequential node comes again only if the old cluster made more than [`SEQUENCE_GAP`] in one directory after the copy.
//! Two new clusters from the same history must not share numbers either: each has another *attempt*, and as many gaps.
//! The sessions of the old cluster are over; their clients learn that from the same answer as for any session that has
//! expired.

use std::num::NonZeroU32;

use imbl::OrdMap;
use lockkeeper_mutants::mutant;
use thiserror::Error;

use super::State;
use crate::ids::Zxid;
use crate::path::NodePath;

/// How far zxids move, and with them fencing tokens and session ids: as much as an old cluster counts in 500 days at
/// 100,000 changes a second.
pub const ZXID_GAP: u64 = 1 << 42;
/// How far the counter of sequential nodes moves in each directory that has ever had a child.
pub const SEQUENCE_GAP: u64 = 1 << 20;
/// The highest zxid from which a new cluster begins: fencing tokens must fit a BIGINT, and it needs room to go on.
const MAX_FIRST_ZXID: u64 = i64::MAX as u64 - ZXID_GAP;

/// A copy from which no new cluster can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "its zxid is {0}; a new cluster begins {ZXID_GAP} further on for each attempt, and no more than {MAX_FIRST_ZXID} \
     leaves room for fencing tokens, which are at most {max}",
    max = i64::MAX
)]
pub struct ZxidsUsedUp(pub u64);

impl State {
    /// The state with which a new cluster begins. All sessions end at one zxid, as if they had expired: lock delays
    /// begin, and everything ephemeral goes. Persistent nodes, finished gates, access control, namespaces and the
    /// clock stay.
    ///
    /// The same state and attempt give the same result on every founding member. Attempts count from 1, one for each
    /// cluster that was ever begun from this history.
    ///
    /// # Errors
    /// The zxid is too high to leave the gap.
    pub fn into_new_cluster(mut self, attempt: NonZeroU32) -> Result<Self, ZxidsUsedUp> {
        let attempt = u64::from(attempt.get());
        let gap = ZXID_GAP.checked_mul(attempt);
        let first = gap.and_then(|gap| self.zxid.0.checked_add(gap)).filter(|first| *first <= MAX_FIRST_ZXID);
        let first = first.ok_or(ZxidsUsedUp(self.zxid.0))?;
        if !mutant!(NoGapInNewCluster) {
            // A transaction takes the zxid after this one.
            self.zxid = Zxid(first - 1);
        }
        self.end_all_sessions();
        if !mutant!(NoGapInNewCluster) {
            self.zxid = Zxid(first);
        }
        // The leader draws another one. What all founders can compute, those of another restore can compute as well.
        self.cluster_uid = None;
        // New members count their starts and batches from the beginning.
        self.origins = OrdMap::new();
        let directories = self.tree.nodes.iter().filter(|(_, node)| node.children_made() > 0);
        let directories: Vec<NodePath> = directories.map(|(path, _)| path.clone()).collect();
        for directory in &directories {
            self.tree.update(directory, |node| {
                let made = &mut node.directory_mut().children_made;
                *made = made.saturating_add(SEQUENCE_GAP.saturating_mul(attempt));
            });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::*;

    fn applied(state: &mut State, sequence: u64, commands: Vec<Command>) {
        let origin = Origin { node: NodeId(1), incarnation: 9, sequence };
        for outcome in state.apply(Term(1), &Batch::consecutive(origin, 5, commands)) {
            outcome.reply.unwrap();
        }
    }

    fn acquire(session: u64, lock: &str, delay_ms: u32) -> Command {
        let (locks, uuid) = (vec![LockName::parse(lock).unwrap()], RequestId(session.into()));
        let op = LockOp::Acquire { locks, mode: LockMode::Exclusive, delay_ms, uuid, label: "".into() };
        Command::Do { actor: Actor::of(SessionId(session)), op: op.into() }
    }

    fn open() -> Command {
        Command::OpenSession { secret_hash: [0; 32], timeout_ms: 1000, label: "s".into() }
    }

    fn at(zxid: u64) -> State {
        State { zxid: Zxid(zxid), ..State::new() }
    }

    #[test]
    fn nothing_that_the_old_cluster_may_issue_is_issued_again() {
        let mut old = State::new();
        applied(&mut old, 1, vec![open(), open(), acquire(1, "l", 0), acquire(2, "l", 0)]);
        let before = old.zxid().0;
        let mut new = old.clone().into_new_cluster(NonZeroU32::MIN).unwrap();
        new.validate().unwrap();
        assert_eq!((new.zxid().0, new.clock_ms()), (before + ZXID_GAP, old.clock_ms()));
        assert_eq!((new.session_count(), new.ephemeral_count()), (0, 0));
        assert_eq!(new.last_batch(NodeId(1)), None, "a member begins with start 1");
        // A member of the new cluster, whose starts count from 1.
        applied(&mut new, 1, vec![open()]);
        let session = new.sessions().next().unwrap().0;
        assert_eq!(session.0, before + ZXID_GAP + 1);
        applied(&mut new, 2, vec![acquire(session.0, "l", 0)]);
        let request = new.held_by(session).next().unwrap();
        assert!(request.token.0 > before + ZXID_GAP);
        assert!(request.path.as_str().ends_with("-lock-0001048578"), "{}", request.path);
    }

    #[test]
    fn only_a_holder_leaves_a_lock_delay_behind() {
        let mut old = State::new();
        applied(&mut old, 1, vec![open(), open(), acquire(2, "l", 500), acquire(1, "l", 500)]);
        let new = old.into_new_cluster(NonZeroU32::MIN).unwrap();
        new.validate().unwrap();
        let queue: Vec<_> = new.lock(&LockName::parse("l").unwrap()).unwrap().requests().collect();
        assert_eq!(queue.len(), 1, "{queue:?}");
        assert_eq!(new.next_delay_end_ms(), Some(505));
    }

    #[test]
    fn the_gap_never_overflows() {
        assert_eq!(at(MAX_FIRST_ZXID - ZXID_GAP).into_new_cluster(NonZeroU32::MIN).unwrap().zxid().0, MAX_FIRST_ZXID);
        for zxid in [MAX_FIRST_ZXID - ZXID_GAP + 1, MAX_FIRST_ZXID, i64::MAX as u64, u64::MAX] {
            assert_eq!(at(zxid).into_new_cluster(NonZeroU32::MIN), Err(ZxidsUsedUp(zxid)));
        }
    }

    #[test]
    fn sequences_that_are_used_up_stay_used_up() {
        let mut old = State::new();
        old.tree.update(&NodePath::root(), |root| {
            let root = root.directory_mut();
            (root.children_made, root.empty_since_ms) = (u64::MAX - 1, Some(0));
        });
        let new = old.into_new_cluster(NonZeroU32::MIN).unwrap();
        new.validate().unwrap();
        assert_eq!(new.tree.get(&NodePath::root()).unwrap().children_made(), u64::MAX);
    }

    #[test]
    fn a_second_restore_moves_on_from_the_first() {
        let once = State::new().into_new_cluster(NonZeroU32::MIN).unwrap();
        assert_eq!(once.into_new_cluster(NonZeroU32::MIN).unwrap().zxid().0, 2 * ZXID_GAP);
    }

    #[test]
    fn two_attempts_from_one_copy_share_no_number() {
        let mut old = State::new();
        applied(&mut old, 1, vec![open(), acquire(1, "l", 0)]);
        let two = NonZeroU32::new(2).unwrap();
        let (one, mut other) =
            (old.clone().into_new_cluster(NonZeroU32::MIN).unwrap(), old.into_new_cluster(two).unwrap());
        assert_eq!(other.zxid().0, one.zxid().0 + ZXID_GAP);
        applied(&mut other, 1, vec![open()]);
        let session = other.sessions().next().unwrap().0;
        applied(&mut other, 2, vec![acquire(session.0, "l", 0)]);
        let request = other.held_by(session).next().unwrap();
        assert!(request.path.as_str().ends_with("-lock-0002097153"), "{}", request.path);
    }

    #[test]
    fn a_cluster_keeps_its_uid_and_a_new_one_gets_another() {
        let set = |uid| Command::SetClusterUid { uid: ClusterUid(NonZeroU64::new(uid).unwrap()) };
        let mut old = State::new();
        applied(&mut old, 1, vec![set(7), set(8)]);
        assert_eq!(old.cluster_uid().map(|uid| uid.to_string()), Some("0000000000000007".into()));
        let mut bytes = Vec::new();
        old.write_snapshot(&mut bytes).unwrap();
        assert_eq!(State::read_snapshot(&bytes[..]).unwrap(), old);
        let mut new = old.into_new_cluster(NonZeroU32::MIN).unwrap();
        assert_eq!(new.cluster_uid(), None, "its leader draws it");
        applied(&mut new, 1, vec![set(9)]);
        assert_eq!(new.cluster_uid().map(|uid| uid.to_string()), Some("0000000000000009".into()));
    }
}
