use std::time::Duration;

use reqwest::Method;
use tokio::sync::oneshot;

use super::table::*;
use crate::clock::Moment;
use crate::transport::{Ask, Repeat};

fn ask() -> Ask {
    Ask::new(Method::GET, "/v1/nodes/a".into(), Repeat::Freely)
}

fn waiting() -> Ask {
    ask().waiting(Duration::from_secs(1))
}

fn caller() -> Listener {
    Listener::Caller(oneshot::channel().0)
}

fn all_out(table: &mut Table) -> Vec<Out> {
    std::iter::from_fn(|| table.next_out()).collect()
}

#[test]
fn requests_are_written_in_the_order_of_asking_and_after_control() {
    let mut table = Table::default();
    let first = table.submit(ask(), None, caller()).unwrap();
    let second = table.submit(ask(), None, Listener::Nobody).unwrap();
    drop(table.keepalive(Moment::now()));
    let out = all_out(&mut table);
    assert!(matches!(out[0], Out::Keepalive(_)), "{out:?}");
    assert_eq!(out[1..], [Out::Request(first), Out::Request(second)]);
    assert_eq!(table.sent(), 2);
}

#[test]
fn what_was_not_written_is_removed_and_what_was_is_cancelled() {
    let mut table = Table::default();
    let first = table.submit(ask(), None, caller()).unwrap();
    assert!(!table.give_up(first));
    assert_eq!(table.next_out(), None);
    let second = table.submit(ask(), None, caller()).unwrap();
    assert_eq!(table.next_out(), Some(Out::Request(second)));
    assert!(table.give_up(second));
    assert_eq!(all_out(&mut table), [Out::Cancel(second)]);
    assert_eq!(table.sent(), 1, "the node has it open until it answers");
    assert!(matches!(table.remove(second).unwrap().listener, Listener::Gone));
    assert!(table.is_empty() && table.sent() == 0);
    // On a broken connection there is nobody to tell.
    let third = table.submit(ask(), None, caller()).unwrap();
    assert_eq!(table.next_out(), Some(Out::Request(third)));
    table.broken();
    assert!(!table.give_up(third));
    assert_eq!(table.next_out(), None);
    // And what nobody waits for is not asked again.
    let fourth = table.submit(waiting(), None, caller()).unwrap();
    assert_eq!(table.next_out(), Some(Out::Request(fourth)));
    assert!(table.give_up(fourth));
    table.broken();
    assert!(table.is_empty() && table.next_out().is_none());
}

#[test]
fn after_a_break_all_is_sent_again_in_the_same_order() {
    let mut table = Table::default();
    let ids: Vec<u64> = (0..5).map(|_| table.submit(ask(), None, caller()).unwrap()).collect();
    assert_eq!(all_out(&mut table).len(), 5);
    table.remove(ids[1]).unwrap();
    let late = table.submit(ask(), None, caller()).unwrap();
    let mut kept = table.keepalive(Moment::now());
    table.broken();
    assert!(kept.try_recv().is_err(), "a keepalive is not sent again: its time would count from too early a moment");
    assert_eq!(all_out(&mut table), [ids[0], ids[2], ids[3], ids[4], late].map(Out::Request));
    assert!(table.get(ids[0]).unwrap().ever_sent);
    assert!(
        table.get(ids[0]).unwrap().open && !table.get(late).unwrap().open,
        "only what went over the lost connection"
    );
}

#[test]
fn everything_is_bounded_and_control_gets_through() {
    let mut table = Table::default();
    for _ in 0..MAX_WAITING {
        table.submit(waiting(), None, caller()).unwrap();
    }
    assert_eq!(table.submit(waiting(), None, caller()), Err(Full::Waits));
    for _ in 0..MAX_REQUESTS - MAX_WAITING {
        table.submit(ask(), None, caller()).unwrap();
    }
    assert_eq!(table.submit(ask(), None, caller()), Err(Full::Requests));
    assert_eq!(all_out(&mut table).len(), MAX_SENT);
    drop(table.keepalive(Moment::now()));
    assert_eq!(all_out(&mut table).len(), 1);
    table.remove(1).unwrap();
    assert_eq!(all_out(&mut table), [Out::Request(MAX_SENT as u64 + 1)], "an answer makes room");
    assert!(table.submit(waiting(), None, caller()).is_ok(), "and so does a wait that is over");
}

#[test]
fn no_more_is_open_than_the_cluster_remembers_answers() {
    let mut table = Table::default();
    for _ in 0..300 {
        table.submit(ask(), Some(uuid::Uuid::new_v4()), caller()).unwrap();
    }
    assert_eq!(all_out(&mut table).len(), MAX_REMEMBERED);
    table.remove(1).unwrap();
    assert_eq!(all_out(&mut table), [Out::Request(MAX_REMEMBERED as u64 + 1)]);
    table.broken();
    assert_eq!(all_out(&mut table).len(), MAX_REMEMBERED, "and the oldest first: {table:?}");
    assert!(table.get(2).unwrap().sent && !table.get(300).unwrap().sent);
}

#[test]
fn a_keepalive_counts_from_when_it_was_put_here() {
    let mut table = Table::default();
    let (early, late) = (Moment::from_millis(10), Moment::from_millis(20));
    let (first, second) = (table.keepalive(early), table.keepalive(late));
    let numbers: Vec<u64> = all_out(&mut table)
        .into_iter()
        .map(|out| match out {
            Out::Keepalive(number) => number,
            other => panic!("{other:?}"),
        })
        .collect();
    drop(first);
    assert_eq!(table.kept_alive(numbers[1], Ok(Duration::from_secs(1))), Some(late), "in any order");
    assert_eq!(table.kept_alive(numbers[0], Ok(Duration::from_secs(1))), Some(early), "though its round is over");
    assert_eq!(table.kept_alive(numbers[0], Ok(Duration::from_secs(1))), None, "once");
    assert_eq!(second.blocking_recv().unwrap(), Ok(Duration::from_secs(1)));
}

#[test]
fn draining_leaves_the_count_right() {
    let mut table = Table::default();
    table.submit(ask(), None, caller()).unwrap();
    table.submit(ask(), None, Listener::Nobody).unwrap();
    table.submit(waiting(), None, caller()).unwrap();
    table.next_out();
    assert_eq!(table.drain_sent_callers().len(), 1);
    assert_eq!(table.drain_callers().len(), 1);
    assert_eq!(table.sent(), 0);
    assert_eq!(table.drain().len(), 1, "what was posted is left to the last");
    assert!(table.is_empty() && table.next_out().is_none());
}
