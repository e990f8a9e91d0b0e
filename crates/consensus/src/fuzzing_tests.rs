//! Mutations of true messages, the same at every run: nothing panics, and nothing that is taken is beyond its bounds.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_store::LogPosition;
use openraft::raft::AppendEntriesResponse;
use openraft::{BasicNode, EntryPayload};

use super::*;
use crate::time::ClockReport;
use crate::types::{Entry, Membership, Stamped, StoredMembership, log_id_of};
use crate::wire::PieceHead;

const MUTATIONS: usize = 4_000;

/// A small generator of its own: the run must be the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

fn id(term: u64, index: u64) -> LogId {
    log_id_of(LogPosition { term, index })
}

fn append_body() -> Bytes {
    let nodes = BTreeMap::from([(1, BasicNode::new("a:1")), (2, BasicNode::new("b:1"))]);
    let membership = Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap();
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Stamped { clock_ms: 77, payload: Bytes::from_static(b"payload") }),
        EntryPayload::Membership(membership),
    ];
    let entries = payloads.into_iter().zip(5..).map(|(payload, index)| Entry { log_id: id(3, index), payload });
    let vote = Vote::from_leader_id(RaftLeaderId::new(3, 2), true);
    let (prev_log_id, leader_commit) = (Some(id(2, 4)), Some(id(3, 6)));
    wire::encode_append(&AppendEntriesRequest { vote, prev_log_id, entries: entries.collect(), leader_commit }, 7)
        .unwrap()
}

fn append_reply() -> AppendReply {
    let clocks = ClockReport { wall_ms: 1_000, clock_ms: Some(900) };
    AppendReply { clocks, answer: AppendEntriesResponse::PartialSuccess(Some(id(3, 9))) }
}

/// A true message of each kind, with its choice in front.
fn seeds() -> Vec<Vec<u8>> {
    let candidate = Vote::from_leader_id(RaftLeaderId::new(4, 2), false);
    let leader = Vote::from_leader_id(RaftLeaderId::new(4, 2), true);
    let meta = crate::types::SnapshotMeta { last_log_id: Some(id(3, 9)), last_membership: StoredMembership::default() };
    let head = PieceHead { vote: leader, meta: crate::replica::encode_meta(&meta).unwrap(), offset: 0, last: true };
    let bodies = [
        append_body(),
        wire::encode(&VoteRequest::<TypeConfig>::new(candidate, Some(id(3, 9)))).unwrap(),
        wire::encode_piece(&head, b"content").unwrap(),
        wire::encode(&TransferLeaderRequest::<TypeConfig>::new(leader, 1, Some(id(3, 9)))).unwrap(),
        wire::encode(&Lifeline::Hold { term: 4 }).unwrap(),
        wire::encode(&Command::AddLearner { node: 4, address: "d:1".into() }).unwrap(),
        wire::encode(&append_reply()).unwrap(),
        wire::encode(&VoteResponse::<TypeConfig>::new(candidate, Some(id(3, 9)), true)).unwrap(),
        wire::encode(&PieceReply::HigherVote { vote: candidate }).unwrap(),
        wire::encode::<ProposeReply>(&Ok((3, 9))).unwrap(),
        wire::encode::<MembersReply>(&Ok(crate::status::Members::default())).unwrap(),
        wire::encode::<TransferReply>(&Ok(2)).unwrap(),
        wire::encode::<ReadIndexReply>(&Ok((3, 9))).unwrap(),
        wire::encode(&LifelineReply { formed: true }).unwrap(),
        crate::codec::encode_vote(&candidate),
        crate::codec::encode_committed(Some(&id(3, 9))),
    ];
    bodies.iter().zip(0_u8..).map(|(body, choice)| [&[choice], &body[..]].concat()).collect()
}

fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let at = dice.below(bytes.len());
    match dice.below(6) {
        0 => bytes[at] ^= 1 << dice.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, dice.below(256) as u8),
        3 => bytes.splice(at..at, [0xff; 9].into_iter().chain([1])).for_each(drop),
        4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.below(5)],
        _ => bytes[0] = bytes[0].wrapping_add(1 << (5 + dice.below(3))),
    }
    if bytes.is_empty() {
        bytes.push(0);
    }
}

#[test]
fn any_bytes_are_taken_or_refused() {
    let mut dice = Dice(12);
    for seed in seeds() {
        decode_any(&seed);
        for _ in 0..MUTATIONS {
            let mut bytes = seed.clone();
            for _ in 0..=dice.below(4) {
                mutate(&mut dice, &mut bytes);
            }
            decode_any(&bytes);
        }
    }
    decode_any(&[]);
}

/// The seeds above are true messages: were they refused, their mutations would try nothing.
#[test]
fn true_messages_are_taken() {
    let known = Known { node: 1, term: 3, fresh: false };
    let mut append = wire::decode_append(append_body()).unwrap().request;
    known.check_append(&mut append).unwrap();
    assert_eq!(append.leader_commit, Some(id(3, 6)));
    append.leader_commit = Some(id(3, 60));
    known.check_append(&mut append).unwrap();
    assert_eq!(append.leader_commit, Some(id(3, 7)), "no more than the request shows");
    append.leader_commit = Some(id(2, 60));
    assert!(known.check_append(&mut append).is_err(), "a later entry of an earlier term");
    let vote = VoteRequest::new(Vote::from_leader_id(RaftLeaderId::new(4, 2), false), Some(id(3, 9)));
    known.check_vote_request(&vote).unwrap();
}

#[test]
fn terms_rise_by_a_step_and_a_node_that_knows_nothing_takes_more() {
    let step = crate::bounds::MAX_TERM_STEP;
    let check =
        |known: Known, term| known.check_leader(&Vote::from_leader_id(RaftLeaderId::new(term, 2), true)).is_ok();
    let known = Known { node: 1, term: 7, fresh: false };
    assert!(check(known, 7 + step) && !check(known, 8 + step));
    let late = Known { node: 1, term: 0, fresh: true };
    assert!(check(late, 1 << 62) && !check(late, (1 << 62) + 1));
    let last = Known { node: 1, term: u64::MAX - 5, fresh: false };
    assert!(check(last, u64::MAX - 1) && !check(last, u64::MAX));
    // An answer from far ahead is followed a step at a time, and never as a leader.
    let own = Vote::from_leader_id(RaftLeaderId::new(7, 1), true);
    let far = Vote::from_leader_id(RaftLeaderId::new(u64::MAX, 2), true);
    let followed = known.check_higher_vote(2, &own, &far).unwrap();
    assert_eq!(followed, Vote::from_leader_id(RaftLeaderId::new(7 + step, 2), false));
    let own_later = Vote::from_leader_id(RaftLeaderId::new(8, 1), true);
    let followed = known.check_higher_vote(2, &own, &own_later).unwrap();
    assert_eq!(
        followed,
        Vote::from_leader_id(RaftLeaderId::new(8, 2), false),
        "a term of its own that it does not know"
    );
    assert!(known.check_higher_vote(2, &own, &own).is_err());
}
