//! Mutations of true messages, the same at every run: nothing panics, and nothing that is taken is beyond its bounds.

use super::inputs::{append_body, id};
use super::*;

const MUTATIONS: usize = 4_000;

/// A small generator of its own: the run must be the same everywhere.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

fn mutate(rng: &mut TestRng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, rng.below(256) as u8),
        3 => bytes.splice(at..at, [0xff; 9].into_iter().chain([1])).for_each(drop),
        4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
        _ => bytes[0] = bytes[0].wrapping_add(1 << (5 + rng.below(3))),
    }
    if bytes.is_empty() {
        bytes.push(0);
    }
}

#[test]
fn any_bytes_are_taken_or_refused() {
    let mut rng = TestRng(12);
    for seed in seeds() {
        decode_any(&seed);
        for _ in 0..MUTATIONS {
            let mut bytes = seed.clone();
            for _ in 0..=rng.below(4) {
                mutate(&mut rng, &mut bytes);
            }
            decode_any(&bytes);
        }
    }
    decode_any(&[]);
}

/// The seeds above are true messages: were they refused, their mutations would try nothing.
#[test]
fn true_messages_are_taken() {
    let known = Validator { node: 1, term: 3, fresh: false };
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
    let step = crate::calls::validation::MAX_TERM_STEP;
    let check =
        |known: Validator, term| known.check_leader(&Vote::from_leader_id(RaftLeaderId::new(term, 2), true)).is_ok();
    let known = Validator { node: 1, term: 7, fresh: false };
    assert!(check(known, 7 + step) && !check(known, 8 + step));
    let late = Validator { node: 1, term: 0, fresh: true };
    assert!(check(late, 1 << 62) && !check(late, (1 << 62) + 1));
    let last = Validator { node: 1, term: u64::MAX - 5, fresh: false };
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
