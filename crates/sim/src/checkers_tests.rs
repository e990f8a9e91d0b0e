use bytes::Bytes;
use lockkeeper_core::{Actor, Command, Event, NodeId, NodeOp, Op, Origin, Reply, RequestId, RequestKey, SessionId};

use super::*;
use crate::checks::test_history::{Log, data, made, path, record};

fn refused(checkers: &Checkers, check: Check, by: &str) {
    let violation = checkers.violation().expect("a violation");
    assert!(violation.check == check && violation.what.contains(by), "{violation}");
}

fn followed(log: &Log) -> Checkers {
    let mut checkers = Checkers::new(1.0);
    checkers.log(1, &log.records);
    checkers.applied(1, &log.records, 5);
    assert_eq!(checkers.violation(), None);
    checkers
}

#[test]
fn a_log_and_the_state_that_it_gives_are_right() {
    let mut log = Log::default();
    log.make("/a");
    log.make("/b");
    let mut checkers = followed(&log);
    checkers.applied(2, &log.records, 6);
    checkers.judge(Check::AppliedAgreement, |it| it.agreement.shown(2, &log.state));
    checkers.look_through(2, &log.state);
    checkers.answered("a write", checkers.reads.began(), 2);
    checkers.looked("the number of nodes", 2, &log.state.node_count(), State::node_count);
    assert_eq!(checkers.violation(), None);
    let seen = checkers.seen();
    let figures = ["log entries followed", "transactions followed", "states of replicas compared"];
    assert_eq!(figures.map(|figure| seen[figure]), [2, 2, 1]);
}

#[test]
fn another_entry_in_a_log_and_one_that_cannot_be_read_are_refused() {
    let (mut log, mut other) = (Log::default(), Log::default());
    log.make("/a");
    other.make("/b");
    let mut checkers = followed(&log);
    checkers.log(2, &other.records);
    refused(&checkers, Check::LogMatching, "another in the log of node 2");
    let mut checkers = followed(&log);
    checkers.applied(2, &other.records, 6);
    refused(&checkers, Check::LogMatching, "node 2 applied");
    let mut checkers = Checkers::new(1.0);
    log.records[0] = record(1, Bytes::from_static(&[99]));
    checkers.applied(1, &log.records, 5);
    refused(&checkers, Check::LogMatching, "cannot be read");
}

#[test]
fn a_replica_that_differs_is_refused() {
    let (mut log, mut other) = (Log::default(), Log::default());
    log.make("/a");
    other.make("/b");
    let mut checkers = followed(&log);
    checkers.judge(Check::AppliedAgreement, |it| it.agreement.shown(2, &other.state));
    refused(&checkers, Check::AppliedAgreement, "node 2");
    let mut checkers = followed(&log);
    checkers.look_through(2, &other.state);
    refused(&checkers, Check::AppliedAgreement, "checksum");
}

#[test]
fn an_answer_or_a_list_of_what_no_log_has_is_refused() {
    let mut log = Log::default();
    log.entry(1, vec![made("/a"), made("/b")]);
    let mut checkers = followed(&log);
    checkers.answered("a write", 0, 3);
    refused(&checkers, Check::Durable, "a write");
    let mut checkers = followed(&log);
    checkers.looked("a list", 2, &7, State::node_count);
    refused(&checkers, Check::AppliedAgreement, "a list at 2");
    // Between two transactions of one entry.
    let mut checkers = followed(&log);
    checkers.looked("a list", 1, &2, State::node_count);
    refused(&checkers, Check::AppliedAgreement, "at no end of an entry");
}

#[test]
fn a_batch_that_comes_twice_changes_nothing_and_zxids_leave_nothing_out() {
    let mut log = Log::default();
    log.entry(1, vec![made("/a")]);
    log.entry(1, vec![made("/a")]);
    let checkers = followed(&log);
    assert_eq!(checkers.state().zxid().0, 1);
    let mut checkers = followed(&log);
    let (command, mut outcome) = (made("/c"), checkers.state.apply(Term(1), &batch_of(made("/c"))).remove(0));
    for event in &mut outcome.events {
        if let Event::Node { zxid, .. } = event {
            zxid.0 += 1;
        }
    }
    let change = Change { index: 3, term: 1, clock_ms: 3, at_us: 3, command: &command, outcome: &outcome };
    checkers.in_order(&change, 1);
    refused(&checkers, Check::AppliedAgreement, "follows 1");
}

fn batch_of(command: Command) -> Batch {
    let origin = Origin { node: NodeId(2), incarnation: 1, sequence: 1 };
    Batch::consecutive(origin, 9, vec![command])
}

/// What the state would let through if it forgot which batches it has applied.
#[test]
fn a_batch_that_is_applied_again_is_refused() {
    let mut log = Log::default();
    log.entry(1, vec![made("/a")]);
    log.entry(2, vec![made("/b")]);
    let mut checkers = followed(&log);
    // The checkers have noted a batch that their state knows nothing of.
    checkers.batches.insert(2, (1, 1));
    checkers.follow_batch(3, 1, batch_of(made("/c")), 5);
    refused(&checkers, Check::Retries, "applied before");
}

#[test]
fn clients_that_get_nothing_done_and_nodes_that_give_up_are_named_and_the_first_thing_stays() {
    let mut checkers = Checkers::new(1.0);
    checkers.broken(Check::Progress, "client 1 got nothing done".into());
    checkers.broken(Check::Fatal, "host 2".into());
    refused(&checkers, Check::Progress, "client 1");
}

#[test]
fn whoever_is_left_is_named() {
    let mut log = Log::default();
    let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 2_000, label: "".into() };
    log.entry(1, vec![open]);
    assert!(followed(&log).deserted().is_err_and(|why| why.contains("session 1 lives")));
    log.entry(2, vec![Command::CloseSession { session: SessionId(1) }]);
    followed(&log).deserted().unwrap();
}

#[test]
fn an_answer_to_a_request_is_held_against_the_log() {
    let mut log = Log::default();
    let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 2_000, label: "".into() };
    let op = Op::from(NodeOp::SetData { path: path("/a"), data: data("two").into(), version: None });
    let request = Some(RequestKey { id: RequestId(7), acknowledged: Vec::new() });
    let set = Command::Do { actor: Actor::of(SessionId(1)).asking(request), op: op.clone() };
    log.entry(1, vec![open, made("/a"), set]);
    let stat = |log: &Log| Ok(Reply::DataSet(log.state.get(&path("/a")).unwrap().stat));
    let mut checkers = followed(&log);
    checkers.judge(Check::Durable, |it| it.requests.answered(1, 7, &op, &stat(&log), 3));
    assert_eq!(checkers.violation(), None);
    checkers.judge(Check::Durable, |it| it.requests.answered(1, 8, &op, &stat(&log), 3));
    refused(&checkers, Check::Durable, "no log has it");
}
