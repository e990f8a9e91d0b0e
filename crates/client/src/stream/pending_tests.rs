use std::time::Duration;

use lockkeeper_api::Call;
use lockkeeper_api::locks::Acquire;
use tokio::sync::oneshot;

use super::pending::*;
use crate::clock::Moment;
use crate::request_spec::RequestSpec;

fn ask() -> RequestSpec {
    RequestSpec::new(Call::KeepSessionAlive { id: 7 })
}

fn waiting() -> RequestSpec {
    let body = Acquire { wait_ms: 1_000, ..Acquire::default() };
    RequestSpec::new(Call::AcquireLock { name: "a".into(), body })
}

fn caller() -> ReplyTo {
    ReplyTo::Caller(oneshot::channel().0)
}

fn all_out(pending: &mut PendingRequests) -> Vec<Outgoing> {
    std::iter::from_fn(|| pending.next_out()).collect()
}

#[test]
fn requests_are_written_in_the_order_of_asking_and_after_control() {
    let mut pending = PendingRequests::default();
    let first = pending.submit(ask(), None, caller()).unwrap();
    let second = pending.submit(ask(), None, ReplyTo::Detached).unwrap();
    drop(pending.keepalive(Moment::now()));
    let out = all_out(&mut pending);
    assert!(matches!(out[0], Outgoing::Keepalive(_)), "{out:?}");
    assert_eq!(out[1..], [Outgoing::Request(first), Outgoing::Request(second)]);
    assert_eq!(pending.sent(), 2);
}

#[test]
fn what_was_not_written_is_removed_and_what_was_is_cancelled() {
    let mut pending = PendingRequests::default();
    let first = pending.submit(ask(), None, caller()).unwrap();
    assert!(!pending.cancel(first));
    assert_eq!(pending.next_out(), None);
    let second = pending.submit(ask(), None, caller()).unwrap();
    assert_eq!(pending.next_out(), Some(Outgoing::Request(second)));
    assert!(pending.cancel(second));
    assert_eq!(all_out(&mut pending), [Outgoing::Cancel(second)]);
    assert_eq!(pending.sent(), 1, "the node has it open until it answers");
    assert!(matches!(pending.remove(second).unwrap().reply_to, ReplyTo::Cancelled));
    assert!(pending.is_empty() && pending.sent() == 0);
    // On a broken connection there is nobody to tell.
    let third = pending.submit(ask(), None, caller()).unwrap();
    assert_eq!(pending.next_out(), Some(Outgoing::Request(third)));
    pending.connection_lost();
    assert!(!pending.cancel(third));
    assert_eq!(pending.next_out(), None);
    // And what nobody waits for is not asked again.
    let fourth = pending.submit(waiting(), None, caller()).unwrap();
    assert_eq!(pending.next_out(), Some(Outgoing::Request(fourth)));
    assert!(pending.cancel(fourth));
    pending.connection_lost();
    assert!(pending.is_empty() && pending.next_out().is_none());
}

#[test]
fn after_a_break_all_is_sent_again_in_the_same_order() {
    let mut pending = PendingRequests::default();
    let ids: Vec<u64> = (0..5).map(|_| pending.submit(ask(), None, caller()).unwrap()).collect();
    assert_eq!(all_out(&mut pending).len(), 5);
    pending.remove(ids[1]).unwrap();
    let late = pending.submit(ask(), None, caller()).unwrap();
    let mut kept = pending.keepalive(Moment::now());
    pending.connection_lost();
    assert!(kept.try_recv().is_err(), "a keepalive is not sent again: its time would count from too early a moment");
    assert_eq!(all_out(&mut pending), [ids[0], ids[2], ids[3], ids[4], late].map(Outgoing::Request));
    assert!(pending.get(ids[0]).unwrap().ever_sent);
    assert!(
        pending.get(ids[0]).unwrap().outcome_unknown && !pending.get(late).unwrap().outcome_unknown,
        "only what went over the lost connection"
    );
}

#[test]
fn everything_is_bounded_and_control_gets_through() {
    let mut pending = PendingRequests::default();
    for _ in 0..MAX_WAITING {
        pending.submit(waiting(), None, caller()).unwrap();
    }
    assert_eq!(pending.submit(waiting(), None, caller()), Err(SubmitError::TooManyWaits));
    for _ in 0..MAX_REQUESTS - MAX_WAITING {
        pending.submit(ask(), None, caller()).unwrap();
    }
    assert_eq!(pending.submit(ask(), None, caller()), Err(SubmitError::TooManyRequests));
    assert_eq!(all_out(&mut pending).len(), MAX_SENT);
    drop(pending.keepalive(Moment::now()));
    assert_eq!(all_out(&mut pending).len(), 1);
    pending.remove(1).unwrap();
    assert_eq!(all_out(&mut pending), [Outgoing::Request(MAX_SENT as u64 + 1)], "an answer makes room");
    assert!(pending.submit(waiting(), None, caller()).is_ok(), "and so does a wait that is over");
}

#[test]
fn no_more_is_open_than_the_cluster_remembers_answers() {
    let mut pending = PendingRequests::default();
    for _ in 0..300 {
        pending.submit(ask(), Some(uuid::Uuid::new_v4()), caller()).unwrap();
    }
    assert_eq!(all_out(&mut pending).len(), MAX_REMEMBERED);
    pending.remove(1).unwrap();
    assert_eq!(all_out(&mut pending), [Outgoing::Request(MAX_REMEMBERED as u64 + 1)]);
    pending.connection_lost();
    assert_eq!(all_out(&mut pending).len(), MAX_REMEMBERED, "and the oldest first: {pending:?}");
    assert!(pending.get(2).unwrap().sent && !pending.get(300).unwrap().sent);
}

#[test]
fn a_keepalive_counts_from_when_it_was_put_here() {
    let mut pending = PendingRequests::default();
    let (early, late) = (Moment::from_millis(10), Moment::from_millis(20));
    let (first, second) = (pending.keepalive(early), pending.keepalive(late));
    let numbers: Vec<u64> = all_out(&mut pending)
        .into_iter()
        .map(|out| match out {
            Outgoing::Keepalive(number) => number,
            other => panic!("{other:?}"),
        })
        .collect();
    drop(first);
    assert_eq!(pending.kept_alive(numbers[1], Ok(Duration::from_secs(1))), Some(late), "in any order");
    assert_eq!(pending.kept_alive(numbers[0], Ok(Duration::from_secs(1))), Some(early), "though its round is over");
    assert_eq!(pending.kept_alive(numbers[0], Ok(Duration::from_secs(1))), None, "once");
    assert_eq!(second.blocking_recv().unwrap(), Ok(Duration::from_secs(1)));
}

#[test]
fn draining_leaves_the_count_right() {
    let mut pending = PendingRequests::default();
    pending.submit(ask(), None, caller()).unwrap();
    pending.submit(ask(), None, ReplyTo::Detached).unwrap();
    pending.submit(waiting(), None, caller()).unwrap();
    pending.next_out();
    assert_eq!(pending.drain_sent_callers().len(), 1);
    assert_eq!(pending.drain_callers().len(), 1);
    assert_eq!(pending.sent(), 0);
    assert_eq!(pending.drain().len(), 1, "what was posted is left to the last");
    assert!(pending.is_empty() && pending.next_out().is_none());
}
