//! The guard against a real book of peers in a temporary directory.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::*;
use crate::admission::auth::{PeerBook, PeerIdentity};
use crate::admission::claim::Start;
use crate::admission::levels::AnnouncedLevels;
use crate::calls::peers::Peers;
use crate::status::MemberRole;
use crate::transport::{PeerKind, Transport};

fn claim(number: u64) -> DirectoryClaim {
    DirectoryClaim { directory: 7, starts: vec![Start { id: StartId { number, boot: number }, term: 9, last: 9 }] }
}

type Lines = Arc<Mutex<Vec<String>>>;

/// Node 1 of three, admitted, and the lines it would end with.
fn guard(directory: &std::path::Path) -> (Arc<RollbackGuard>, Arc<PeerBook>, Lines) {
    let identity = PeerIdentity { cluster: "test".into(), node: 1, directory: 7, start: claim(3).start() };
    let book = PeerBook::open(directory, identity, &BTreeMap::new()).unwrap();
    let lines = Lines::default();
    let fatal: FatalHook = {
        let lines = lines.clone();
        Arc::new(move |line| lines.lock().push(line))
    };
    let (guard, _) = RollbackGuard::new(1, claim(3), book.clone(), fatal, (1..=3).collect(), true);
    (guard, book, lines)
}

fn reply(claim: DirectoryClaim) -> ClaimReply {
    ClaimReply { claim, formed: true, role: MemberRole::Member, voters: None }
}

#[test]
fn writing_acknowledgements_down_never_puts_an_older_start_back() {
    let directory = tempfile::tempdir().unwrap();
    let (guard, book, _) = guard(directory.path());
    guard.judge(2, &claim(1), None).unwrap();
    let writer = {
        let guard = guard.clone();
        std::thread::spawn(move || (1..=200).for_each(|index| guard.save(2, Acknowledged { term: 1, index }).unwrap()))
    };
    for number in 2..=200 {
        guard.judge(2, &claim(number), None).unwrap();
        assert!(book.peer(2).unwrap().start.unwrap().number >= number);
    }
    writer.join().unwrap();
    let known = book.peer(2).unwrap();
    assert_eq!((known.start, known.acknowledged), (Some(claim(200).start()), Acknowledged { term: 1, index: 200 }));
}

struct NoTransport;

#[async_trait]
impl Transport for NoTransport {
    async fn call(&self, _: u64, _: PeerKind, _: Bytes, _: Duration) -> Result<Bytes, TransportError> {
        Err(TransportError::Refused)
    }
}

/// Appends and proposals take their tickets so.
#[test]
fn calls_to_a_peer_that_was_restarted_begin_a_sequence() {
    let directory = tempfile::tempdir().unwrap();
    let (guard, ..) = guard(directory.path());
    let peers = Peers::new(1, Arc::new(NoTransport), guard.clone(), AnnouncedLevels::new(1));
    guard.judge(2, &claim(1), None).unwrap();
    let mut tickets = peers.begin_sequence(2);
    let mut next = || peers.next_ticket(2, &mut tickets);
    let (first, second) = (next(), next());
    guard.judge(2, &claim(2), None).unwrap();
    let third = next();
    assert_eq!((first.number, second.number, third.number), (0, 1, 0));
    assert!(first.sequence == second.sequence && second.sequence < third.sequence);
}

#[test]
fn what_a_caller_expects_counts_once_the_caller_is_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (guard, _, lines) = guard(directory.path());
    let caller = PeerCaller { node: 2, start: claim(5).start(), expects: Some(claim(4).start()) };
    let code = |caller| guard.check_caller(caller).map_err(|no| no.code);
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    guard.judge(2, &claim(4), None).unwrap();
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    assert!(lines.lock().is_empty(), "its present start was not compared");
    guard.judge(2, &claim(5), None).unwrap();
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    assert_eq!(lines.lock().len(), 1);
}

#[test]
fn a_peer_that_is_turned_away_neither_blocks_admission_nor_is_asked_without_pause() {
    for bad in [claim(1), claim(1 << 41), DirectoryClaim { directory: 8, ..claim(9) }] {
        let directory = tempfile::tempdir().unwrap();
        let (guard, book, _) = guard(directory.path());
        book.update(3, &mut |known| {
            *known =
                Some(KnownPeer { directory: 7, start: Some(claim(6).start()), acknowledged: Acknowledged::default() });
        })
        .unwrap();
        guard.table.lock().admitted = false;
        assert!(guard.answered(2, Ok(reply(claim(1)))));
        assert!(guard.not_admitted_because().is_some(), "node 3 has not answered");
        assert!(!guard.answered(3, Ok(reply(bad))));
        assert!(guard.turned_away().contains_key(&3));
        assert_eq!(guard.not_admitted_because(), None);
    }
}

#[test]
fn a_peer_that_is_forgotten_and_mentioned_again_has_one_task() {
    let directory = tempfile::tempdir().unwrap();
    let (guard, ..) = guard(directory.path());
    let before = guard.table.lock().peers[&2].claim_now.clone();
    assert!(guard.must_claim(2, &before).is_some());
    guard.forget(2);
    guard.claim_again(2);
    assert!(guard.must_claim(2, &before).is_none());
    assert!(!guard.may_call(2));
    assert!(guard.must_claim(2, &before).is_none(), "the task of the one that was forgotten ends");
    let now = guard.table.lock().peers[&2].claim_now.clone();
    assert!(guard.must_claim(2, &now).is_some());
}

#[test]
fn a_joining_node_with_a_vote_is_admitted_by_a_majority_of_the_voters_that_it_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let identity = PeerIdentity { cluster: "test".into(), node: 4, directory: 7, start: claim(3).start() };
    let book = PeerBook::open(directory.path(), identity, &BTreeMap::new()).unwrap();
    let (guard, _) = RollbackGuard::new(4, claim(3), book, Arc::new(|_| {}), BTreeSet::new(), false);
    guard.admit_if_due();
    assert!(guard.not_admitted_because().is_some(), "no list of peers is no majority");
    guard.learn_voters(Some((0, vec![1, 2, 3])));
    guard.admit_if_due();
    assert!(guard.not_admitted_because().is_some());
    assert!(guard.answered(1, Ok(reply(claim(1)))));
    guard.answered(2, Err(TransportError::Refused));
    guard.answered(3, Err(TransportError::Refused));
    assert!(guard.not_admitted_because().is_some(), "one of three");
    assert!(guard.answered(2, Ok(reply(claim(1)))));
    assert_eq!(guard.not_admitted_because(), None);
}

#[test]
fn a_peer_that_asks_for_a_new_claim_counts_until_it_answers() {
    let directory = tempfile::tempdir().unwrap();
    let (guard, ..) = guard(directory.path());
    let now = guard.table.lock().peers[&2].claim_now.clone();
    assert_eq!(guard.must_claim(2, &now), Some(true));
    assert!(guard.answered(2, Ok(reply(claim(1)))));
    assert_eq!(guard.must_claim(2, &now), Some(false));
    guard.claim_again(2);
    assert_eq!(guard.must_claim(2, &now), Some(true));
    // Its own messages are not rejected meanwhile.
    assert!(guard.may_call(2));
    guard.check_caller(PeerCaller { node: 2, start: claim(1).start(), expects: None }).unwrap();
    assert!(guard.answered(2, Ok(reply(claim(1)))));
    assert_eq!(guard.must_claim(2, &now), Some(false));
}
