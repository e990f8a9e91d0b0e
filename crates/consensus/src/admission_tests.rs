//! Admission against a real book of peers in a temporary directory.

use super::*;
use crate::gate::{PeerBook, PeerIdentity};
use crate::starts::Start;

fn claim(number: u64) -> Claim {
    Claim { directory: 7, starts: vec![Start { id: StartId { number, boot: number }, term: 9, last: 9 }] }
}

type Lines = Arc<Mutex<Vec<String>>>;

/// Node 1 of three, admitted, and the lines it would end with.
fn admission(directory: &std::path::Path) -> (Arc<Admission>, Arc<PeerBook>, Lines) {
    let identity = PeerIdentity { cluster: "test".into(), node: 1, directory: 7, start: claim(3).start() };
    let book = PeerBook::open(directory, identity, &BTreeMap::new()).unwrap();
    let lines = Lines::default();
    let fatal: FatalHook = {
        let lines = lines.clone();
        Arc::new(move |line| lines.lock().push(line))
    };
    let (admission, _) = Admission::new((1, claim(3)), book.clone(), fatal, (1..=3).collect(), true);
    (admission, book, lines)
}

fn reply(claim: Claim) -> AdmissionReply {
    AdmissionReply { claim, formed: true, voters: None }
}

#[test]
fn writing_acknowledgements_down_never_puts_an_older_start_back() {
    let directory = tempfile::tempdir().unwrap();
    let (admission, book, _) = admission(directory.path());
    admission.judge(2, &claim(1), None).unwrap();
    let writer = {
        let admission = admission.clone();
        std::thread::spawn(move || {
            (1..=200).for_each(|index| admission.write(2, Acknowledged { term: 1, index }).unwrap())
        })
    };
    for number in 2..=200 {
        admission.judge(2, &claim(number), None).unwrap();
        assert!(book.peer(2).unwrap().start.unwrap().number >= number);
    }
    writer.join().unwrap();
    let known = book.peer(2).unwrap();
    assert_eq!((known.start, known.acknowledged), (Some(claim(200).start()), Acknowledged { term: 1, index: 200 }));
}

#[test]
fn what_a_caller_expects_counts_once_the_caller_is_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (admission, _, lines) = admission(directory.path());
    let caller = PeerCaller { node: 2, start: claim(5).start(), expects: Some(claim(4).start()) };
    let code = |caller| admission.check_caller(caller).map_err(|no| no.code);
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    admission.judge(2, &claim(4), None).unwrap();
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    assert!(lines.lock().is_empty(), "its present start was not compared");
    admission.judge(2, &claim(5), None).unwrap();
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    assert_eq!(code(caller), Err(CODE_NOT_ADMITTED.to_owned()));
    assert_eq!(lines.lock().len(), 1);
}

#[test]
fn a_peer_that_is_turned_away_neither_blocks_admission_nor_is_asked_without_pause() {
    for bad in [claim(1), claim(1 << 41), Claim { directory: 8, ..claim(9) }] {
        let directory = tempfile::tempdir().unwrap();
        let (admission, book, _) = admission(directory.path());
        book.update(3, &mut |known| {
            *known =
                Some(KnownPeer { directory: 7, start: Some(claim(6).start()), acknowledged: Acknowledged::default() });
        })
        .unwrap();
        admission.table.lock().admitted = false;
        assert!(admission.answered(2, Ok(reply(claim(1)))));
        assert!(admission.waits_because().is_some(), "node 3 has not answered");
        assert!(!admission.answered(3, Ok(reply(bad))));
        assert!(admission.turned_away().contains_key(&3));
        assert_eq!(admission.waits_because(), None);
    }
}

#[test]
fn a_peer_that_is_forgotten_and_mentioned_again_has_one_task() {
    let directory = tempfile::tempdir().unwrap();
    let (admission, ..) = admission(directory.path());
    let before = admission.table.lock().peers[&2].claim_now.clone();
    assert!(admission.to_ask(2, &before).is_some());
    admission.forget(2);
    admission.renew(2);
    assert!(admission.to_ask(2, &before).is_none());
    assert!(!admission.may_call(2));
    assert!(admission.to_ask(2, &before).is_none(), "the task of the one that was forgotten ends");
    let now = admission.table.lock().peers[&2].claim_now.clone();
    assert!(admission.to_ask(2, &now).is_some());
}
