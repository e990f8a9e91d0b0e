//! Gates against a real cluster: one run however many ask, and a gate that opens again whatever became of the worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_client::api::{Code, gates};
use lockkeeper_client::recipes::{
    Begun, Done, GateTicket, IfUnreachable, InProgress, Keep, LONGEST_KEEP, OnceError, UNPROTECTED,
};
use lockkeeper_client::{Client, Error, Options, Session, SessionOptions, Transport};
use lockkeeper_server::local::Cluster;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::test_cluster::{SOON, TestCluster, soon};
use crate::wire::Wire;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[track_caller]
fn proceed(begun: Begun) -> GateTicket {
    match begun {
        Begun::Proceed(ticket) => ticket,
        other => panic!("not to proceed: {other:?}"),
    }
}

#[track_caller]
fn in_progress(begun: Begun) -> InProgress {
    match begun {
        Begun::InProgress(underway) => underway,
        other => panic!("not in progress: {other:?}"),
    }
}

#[track_caller]
fn done(begun: Begun) -> Done {
    match begun {
        Begun::Done(done) => done,
        other => panic!("not done: {other:?}"),
    }
}

/// Begins until it may proceed.
async fn until_proceed(session: &Session, key: &str) -> GateTicket {
    let give_up_at = Instant::now() + SOON;
    loop {
        match session.gate(key).begin("f").await.unwrap() {
            Begun::Proceed(ticket) => return ticket,
            other => assert!(Instant::now() < give_up_at, "{other:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// It was begun and nobody heard of it, and the session lives on.
#[tokio::test]
async fn a_beginning_whose_answer_was_lost_opens_the_gate_again() {
    let setting = TestCluster::new().await;
    let other = setting.session().await;
    for (transport, key) in [(Transport::Stream, "stream"), (Transport::Http, "http")] {
        let wire = Wire::to(&setting.cluster.endpoints()[0]).await;
        let own = wire.session(transport).await;
        own.lock("warm").lock().await.unwrap().release().await.unwrap();
        wire.mute();
        let answer = own.gate(key).begin("f").await;
        assert!(matches!(answer, Err(Error::UnknownOutcome(_))), "{transport:?}: {answer:?}");
        let pending = setting.client.gate(key).await.unwrap();
        assert!(matches!(pending.gate, gates::Gate::InProgress { .. }), "{pending:?}");
        wire.mend();
        wire.disconnect();
        let ticket = until_proceed(&other, key).await;
        ticket.finish("done", DAY).await.unwrap();
        assert!(!own.left().is_zero(), "its end would have opened the gate");
    }
}

#[tokio::test]
async fn a_dropped_ticket_says_nothing_and_the_end_of_the_session_does() {
    let setting = TestCluster::new().await;
    let (worker, next) = (setting.session().await, setting.session().await);
    let ticket = proceed(worker.gate("k").begin("f").await.unwrap());
    let token = ticket.token();
    drop(ticket);
    let underway = in_progress(next.gate("k").begin("f").await.unwrap());
    assert_eq!((underway.token, underway.session_id), (token, Some(worker.id())));
    worker.close().await.unwrap();
    assert!(proceed(next.gate("k").begin("f").await.unwrap()).token() > token);
}

#[tokio::test]
async fn work_that_takes_too_long_is_told_before_another_may_begin() {
    let setting = TestCluster::new().await;
    let (slow, next) = (setting.session().await, setting.session().await);
    let ticket = proceed(slow.gate("k").pending(Duration::from_secs(4)).begin("f").await.unwrap());
    let opens = UNIX_EPOCH + Duration::from_millis(in_progress(next.gate("k").begin("f").await.unwrap()).until_ms);
    let opens = Instant::now() + opens.duration_since(SystemTime::now()).unwrap();
    // Timers of one thread: however late it is, what was to come first is seen first.
    let never = tokio::select! {
        biased;
        ended = ticket.run(std::future::pending::<()>()) => ended.unwrap_err(),
        () = sleep_until(opens) => panic!("another may begin, and it is not told"),
    };
    assert!(matches!(&never, Error::Lost(because) if because.contains("pending time")), "{never}");
    assert_eq!(ticket.remaining(), Duration::ZERO);
    let second = until_proceed(&next, "k").await;
    let late = ticket.finish("late", DAY).await.unwrap_err();
    assert_eq!(late.code(), Some(Code::GateNotPending));
    second.finish("in time", DAY).await.unwrap();
    assert_eq!(done(slow.gate("k").begin("f").await.unwrap()).result, b"in time");
}

#[tokio::test]
async fn run_once_runs_once_and_gives_everybody_the_result() {
    let setting = TestCluster::new().await;
    let sessions = [setting.session().await, setting.session().await];
    let runs = Arc::new(AtomicU32::new(0));
    let mut asking = JoinSet::new();
    for number in 0..40 {
        let (gate, runs) = (sessions[number % 2].gate("once/a b"), runs.clone());
        asking.spawn(async move {
            let work = async |token: u64| {
                runs.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(50)).await;
                Ok::<_, String>(token.to_string().into_bytes())
            };
            gate.run_once("f", DAY, work).await.unwrap()
        });
    }
    let all = timeout(SOON, asking.join_all()).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(all.iter().filter(|once| once.ran_here).count(), 1);
    assert!(all.iter().all(|once| once.result == once.token.to_string().into_bytes() && once.token == all[0].token));
}

#[tokio::test]
async fn run_once_that_fails_lets_one_who_waits_try() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let gate = session.gate("k");
    let (started, has_started) = tokio::sync::oneshot::channel();
    let failing = gate.run_once("f", DAY, async |_| {
        started.send(()).unwrap();
        sleep(Duration::from_millis(50)).await;
        Err::<Vec<u8>, _>("no money")
    });
    let waiting = async {
        has_started.await.unwrap();
        gate.run_once("f", DAY, async |_| Ok::<_, &str>(b"paid".to_vec())).await
    };
    let (failed, then) = timeout(SOON, async { tokio::join!(failing, waiting) }).await.unwrap();
    let failed = failed.unwrap_err();
    assert!(matches!(failed, OnceError::Work("no money")), "{failed:?}");
    let then = then.unwrap();
    assert!(then.ran_here && then.result == b"paid");
}

#[tokio::test]
async fn run_once_takes_over_when_nobody_changes_the_gate_but_its_time_is_over() {
    let setting = TestCluster::new().await;
    let (hangs, next) = (setting.session().await, setting.session().await);
    let ticket = proceed(hangs.gate("k").pending(Duration::from_millis(300)).begin("f").await.unwrap());
    let gate = next.gate("k");
    let once = gate.run_once("f", DAY, async |_| Ok::<_, &str>(Vec::new()));
    let once = timeout(SOON, once).await.unwrap().unwrap();
    assert!(once.ran_here && once.token > ticket.token());
}

#[tokio::test]
async fn a_begin_that_is_given_up_leaves_no_gate_shut() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    for patience in 0..40 {
        let key = format!("k{patience}");
        let gate = session.gate(&key);
        tokio::select! {
            biased;
            begun = gate.begin("f") => drop(begun.unwrap()),
            () = async { for _ in 0..patience { yield_now().await } } => {
                // Longest within an answer: were it left to the pending time, that would be a minute.
                let _ticket = until_proceed(&session, &key).await;
            }
        }
    }
}

/// The work of a gate whose cluster is gone: refused, or run without the gate, as its caller has declared.
#[tokio::test]
async fn in_an_outage_the_caller_decides() {
    let mut setting = TestCluster::new().await;
    let patient = Options { patience: Duration::from_millis(300), ..Options::default() };
    let client = Client::new(setting.cluster.endpoints(), patient).unwrap();
    let session = Session::open(&client, &SessionOptions::default()).await.unwrap();
    let (refuses, runs) = (session.gate("k"), session.gate("k").if_unreachable(IfUnreachable::RunAnyway));
    let work = async |token: u64| Ok::<_, &str>(token.to_string().into_bytes());
    // While there is a cluster, nothing runs without the gate.
    let first = soon(runs.run_once("f", DAY, work)).await.unwrap();
    assert!(first.ran_here && first.is_protected && first.token > UNPROTECTED);
    let refused = soon(runs.run_once("another", DAY, work)).await.unwrap_err();
    assert!(matches!(&refused, OnceError::Gate(error) if error.code() == Some(Code::GateMismatch)), "{refused}");

    setting.cluster.stop(1).await.unwrap();
    let refused = soon(refuses.run_once("f", DAY, work)).await.unwrap_err();
    assert!(matches!(&refused, OnceError::Gate(Error::Unreachable { .. })), "{refused}");
    let anyway = soon(runs.run_once("f", DAY, work)).await.unwrap();
    assert!(anyway.ran_here && !anyway.is_protected, "{anyway:?}");
    assert_eq!((anyway.token, anyway.result.as_slice()), (UNPROTECTED, &b"0"[..]));
    let failed = soon(runs.run_once("f", DAY, async |_| Err::<Vec<u8>, _>("no money"))).await.unwrap_err();
    assert!(matches!(failed, OnceError::Work("no money")), "{failed}");

    setting.cluster.restart(1).await.unwrap();
    let next = setting.session().await;
    assert_eq!(done(next.gate("k").begin("f").await.unwrap()).token, first.token, "the stored result is untouched");
}

/// The session is lost, but not to an outage: nobody runs the work without the gate.
#[tokio::test]
async fn a_session_that_is_closed_is_no_outage() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let gate = session.gate("k").if_unreachable(IfUnreachable::RunAnyway);
    session.close().await.unwrap();
    let refused = soon(gate.run_once("f", DAY, async |_| Ok::<_, &str>(Vec::new()))).await.unwrap_err();
    assert!(matches!(&refused, OnceError::Gate(_)), "{refused}");
}

#[tokio::test]
async fn a_result_that_is_kept_for_ever_goes_by_a_reset_alone() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let gate = session.gate("migrations/0042");
    let once = gate.run_once("f", Keep::Forever, async |_| Ok::<_, &str>(b"migrated".to_vec())).await.unwrap();
    session.close().await.unwrap();
    let other = setting.session().await;
    let kept = done(other.gate("migrations/0042").begin("f").await.unwrap());
    assert_eq!((kept.token, kept.until_ms, kept.result.as_slice()), (once.token, None, &b"migrated"[..]));
    let wrong = setting.client.gate_reset("migrations/0042", Some(once.token + 1)).await.unwrap_err();
    assert_eq!(wrong.code(), Some(Code::BadVersion), "{wrong}");
    let reset = setting.client.gate_reset("migrations/0042", Some(once.token)).await.unwrap();
    assert_eq!((reset.token, reset.was), (once.token, gates::GateState::Done));
    assert_eq!(setting.client.gate_reset("migrations/0042", None).await.unwrap_err().code(), Some(Code::NotFound));
    let ticket = proceed(other.gate("migrations/0042").begin("another").await.unwrap());
    // A worker learns of the reset while it works, and at the latest when it finishes.
    setting.client.gate_reset("migrations/0042", None).await.unwrap();
    let stopped = soon(ticket.run(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(&stopped, Error::Lost(why) if why.contains("was reset")), "{stopped}");
    assert!(!other.left().is_zero(), "the session lives");
    let late = ticket.finish("late", Keep::Forever).await.unwrap_err();
    assert_eq!(late.code(), Some(Code::GateNotPending));
}

/// What `finish` would refuse after the work is refused before it.
#[tokio::test]
async fn work_whose_result_cannot_be_kept_is_not_run() {
    let cluster = Cluster::start(1).await.unwrap();
    let client = Client::new(cluster.endpoints(), Options::default()).unwrap();
    let session = Session::open(&client, &SessionOptions::default()).await.unwrap();
    let gate = session.gate("pay/42");
    let too_long = LONGEST_KEEP + Duration::from_millis(1);
    for keep in [Keep::For(too_long), Keep::For(Duration::ZERO)] {
        let refused = gate.run_once("f", keep, async |_| -> Result<Vec<u8>, Error> { panic!("it ran") }).await;
        let is_bad = |error: &Error| error.code() == Some(Code::BadRequest);
        assert!(matches!(&refused, Err(OnceError::Gate(error)) if is_bad(error)), "{keep:?}: {refused:?}");
    }
    let done = gate.run_once("f", LONGEST_KEEP, async |_| Ok::<_, Error>(b"paid".to_vec())).await.unwrap();
    assert!(done.ran_here);
}
