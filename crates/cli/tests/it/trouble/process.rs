//! Faults in the client's own process: frozen, stepped clocks, a runtime that shuts down, two guards of one lock.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_client::Transport;
use nix::sys::signal::{Signal, kill};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::children::{Child, Role};
use super::parties::{
    TRANSPORTS, bystander, client, crowd, leaves_no_orphan, lock_name, queued_token, session, until_crowd_is,
};
use crate::support::proxy::eventually_async;
use crate::support::{Dev, eventually, shifted_clock};

const LONG: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

/// Stops a process and waits until it has stopped.
fn freeze(child: &Child) -> Instant {
    let pid = child.process.pid();
    kill(pid, Signal::SIGSTOP).unwrap();
    eventually("it stands still", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    });
    Instant::now()
}

#[test]
fn a_client_that_was_frozen_for_longer_than_its_session_lives() {
    let dev = Dev::start(3, &[]);
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for transport in TRANSPORTS {
            let file = directory.path().join(format!("{transport:?}"));
            let dev = &dev;
            scope.spawn(move || frozen_while_holding(dev, transport, &file));
            scope.spawn(move || frozen_while_waiting(dev, transport));
        }
    });
}

fn frozen_while_holding(dev: &Dev, transport: Transport, file: &Path) {
    let lock = lock_name("frozen holder", transport);
    let runtime = Runtime::new().unwrap();
    let rival = runtime.block_on(bystander(dev));
    let mut child = Child::start(dev, Role::Writer, transport, TTL, &lock, file);
    let said = child.says("holds");
    let (token, session_id): (u64, u64) = (said[0].parse().unwrap(), said[1].parse().unwrap());
    let before = length(file);
    eventually("it writes", || length(file) > before);
    let frozen = freeze(&child);
    let guard = runtime.block_on(async { timeout(LONG, rival.lock(&lock).lock()).await }).expect("it expires").unwrap();
    assert!(guard.token() > token);
    runtime.block_on(leaves_no_orphan(rival.client(), &lock, session_id, frozen, TTL));

    let written = length(file);
    kill(child.process.pid(), Signal::SIGCONT).unwrap();
    child.says("ended the session is lost");
    assert_eq!(child.process.code(), Some(0));
    assert_eq!(length(file), written, "it knew before it wrote");
    assert!(runtime.block_on(rival.client().verify(&lock, guard.token())).unwrap().held);
    runtime.block_on(guard.release()).unwrap();
}

/// Over HTTP a waiting request keeps the session alive, even that of a frozen process, but only until its wait ends.
fn frozen_while_waiting(dev: &Dev, transport: Transport) {
    let (wait, longest) = match transport {
        Transport::Stream => (LONG, TTL),
        Transport::Http => (2 * TTL, 2 * TTL),
    };
    let lock = lock_name("frozen waiter", transport);
    let runtime = Runtime::new().unwrap();
    let rival = runtime.block_on(bystander(dev));
    let guard = runtime.block_on(rival.lock(&lock).lock()).unwrap();
    let wait = wait.as_millis().to_string();
    let mut child = Child::start(dev, Role::Waiter, transport, TTL, &lock, Path::new(&wait));
    let session_id: u64 = child.says("waits")[0].parse().unwrap();
    runtime.block_on(until_crowd_is(rival.client(), &lock, (1, 1)));
    let frozen = freeze(&child);
    runtime.block_on(leaves_no_orphan(rival.client(), &lock, session_id, frozen, longest));
    runtime.block_on(async {
        eventually_async("it expires", || async { rival.client().session(session_id).await.is_err() }).await
    });
    kill(child.process.pid(), Signal::SIGCONT).unwrap();
    child.says("ended the session is lost");
    assert_eq!(child.process.code(), Some(0));
    runtime.block_on(guard.release()).unwrap();
    assert_eq!(runtime.block_on(crowd(rival.client(), &lock)), (0, 0));
}

/// A preloaded library steps the clocks of one process only. The control shows that it reaches the client: the same
/// step of the client's monotonic clock costs it the lock at once.
#[test]
fn steps_of_the_wall_clock_cost_nothing() {
    let dev = Dev::start(1, &[]);
    let directory = tempfile::tempdir().unwrap();
    let shim = shifted_clock(directory.path());
    std::thread::scope(|scope| {
        for transport in TRANSPORTS {
            let (dev, shim, directory) = (&dev, &shim, directory.path());
            scope.spawn(move || {
                the_wall_clock_steps(dev, transport, shim, &directory.join(format!("wall{transport:?}")))
            });
        }
        let (dev, shim, directory) = (&dev, &shim, directory.path());
        scope.spawn(move || the_clock_that_counts_steps(dev, shim, &directory.join("boot")));
    });
}

fn watcher(dev: &Dev, transport: Transport, lock: &str, shim: &Path, clock: &str, step: &Path) -> Child {
    let mut command = Child::command(dev, Role::Watcher, transport, TTL, lock, step);
    command.env("LD_PRELOAD", shim).env("LOCKKEEPER_TEST_CLOCK", clock).env("LOCKKEEPER_TEST_STEP", step);
    Child::spawn(&mut command)
}

/// The child's wall clock, its session's expiry, and whether its lock is lost.
fn sees(child: &mut Child) -> (u64, u64, bool) {
    let said = child.says("sees");
    (said[0].parse().unwrap(), said[1].parse().unwrap(), said[2].parse().unwrap())
}

fn the_wall_clock_steps(dev: &Dev, transport: Transport, shim: &Path, step: &Path) {
    let lock = lock_name("wall clock", transport);
    let mut child = watcher(dev, transport, &lock, shim, "wall", step);
    let token: u64 = child.says("holds")[0].parse().unwrap();
    let (mut wall, mut until, _) = sees(&mut child);
    for (seconds, seen) in [("7200", 3_600), ("-7200", -3_600), ("0", 3_600)] {
        std::fs::write(step, seconds).unwrap();
        let stepped = |now: u64| (now as i64 - wall as i64) / seen >= 1;
        let mut now = wall;
        // Wait until the step is seen, then until a keepalive sent after it is acknowledged: twice, because the first
        // may have been sent before.
        let mut renewals = 0;
        while !stepped(now) || renewals < 2 {
            let (then, expires, lost) = sees(&mut child);
            assert!(!lost, "a step of {seconds} s cost the lock");
            renewals = if stepped(then) { renewals + u32::from(expires > until) } else { 0 };
            (now, until) = (then, expires);
        }
        wall = now;
    }
    let witness = client(&dev.endpoints);
    let held = Runtime::new().unwrap().block_on(witness.verify(&lock, token)).unwrap().held;
    assert!(held);
    std::fs::write(step.with_extension("stop"), "").unwrap();
    assert_eq!(child.says("released"), ["true"]);
    assert_eq!(child.process.code(), Some(0));
}

fn the_clock_that_counts_steps(dev: &Dev, shim: &Path, step: &Path) {
    let lock = "boot clock";
    let mut child = watcher(dev, Transport::Http, lock, shim, "boot", step);
    let session_id: u64 = child.says("holds")[1].parse().unwrap();
    assert!(!sees(&mut child).2);
    std::fs::write(step, "7200").unwrap();
    let stepped = Instant::now();
    while !sees(&mut child).2 {}
    let runtime = Runtime::new().unwrap();
    runtime.block_on(leaves_no_orphan(&client(&dev.endpoints), lock, session_id, stepped, TTL));
}

#[test]
fn guards_that_are_dropped_in_runtimes_that_end() {
    let dev = Dev::start(1, &[]);
    std::thread::scope(|scope| {
        for transport in TRANSPORTS {
            let dev = &dev;
            scope.spawn(move || guards_are_left(dev, transport));
        }
    });
}

fn guards_are_left(dev: &Dev, transport: Transport) {
    let lock = lock_name("left", transport);
    let mut command = Child::command(dev, Role::Leaver, transport, TTL, &lock, Path::new("/dev/null"));
    let mut child = Child::spawn(command.stderr(Stdio::piped()));
    let cases = ["in-a-task", "outside", "in-another", "at-the-end"];
    let sessions = cases.map(|case| child.says(case)[0].parse::<u64>().unwrap());
    child.says("left");
    let left = Instant::now();
    let mut complaints = String::new();
    std::io::Read::read_to_string(&mut child.process.0.stderr.take().unwrap(), &mut complaints).unwrap();
    assert_eq!(child.process.code(), Some(0));
    assert!(!complaints.contains("panicked"), "{complaints}");
    let witness = client(&dev.endpoints);
    Runtime::new().unwrap().block_on(async {
        for (case, session_id) in cases.into_iter().zip(sessions) {
            leaves_no_orphan(&witness, &format!("{lock}/{case}"), session_id, left, TTL).await;
            until_crowd_is(&witness, &format!("{lock}/{case}"), (0, 0)).await;
        }
    });
    assert!(left.elapsed() < TTL + Duration::from_secs(5), "{:?}", left.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_guards_in_one_process() {
    let dev = Dev::start(1, &[]);
    for transport in TRANSPORTS {
        let lock = lock_name("two guards", transport);
        let one = session(&client(&dev.endpoints), LONG, transport).await;
        let other = session(&client(&dev.endpoints), LONG, transport).await;
        // In one session and in two: a lock is not reentrant.
        for second in [one.clone(), other] {
            let first = one.lock(&lock).lock().await.unwrap();
            assert!(second.lock(&lock).try_lock().await.unwrap().is_none());
            let handle = second.lock(&lock);
            let waits = tokio::spawn(async move { handle.lock().await });
            until_crowd_is(one.client(), &lock, (1, 1)).await;
            assert!(!waits.is_finished());
            let (token, lost) = (first.token(), first.lost());
            drop(first);
            let next = timeout(LONG, waits).await.expect("dropping a guard gives the lock back").unwrap().unwrap();
            assert!(next.token() > token);
            assert_eq!(queued_token(one.client(), &lock, second.id()).await, Some(next.token()));
            // The dropped guard releases nothing else and reports no loss.
            assert!(timeout(Duration::ZERO, lost).await.is_err());
            assert!(one.client().verify(&lock, next.token()).await.unwrap().held && !next.is_lost());
            next.release().await.unwrap();
            assert_eq!(crowd(one.client(), &lock).await, (0, 0));
        }
    }
}

/// After a forced release of one of several locks held together, the session, which stays alive, holds none of the
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_broken_in_one_place_is_given_back_in_the_others() {
    let dev = Dev::start(1, &[]);
    for transport in TRANSPORTS {
        let names = ["a", "b", "c"].map(|name| lock_name(name, transport));
        let session = session(&client(&dev.endpoints), LONG, transport).await;
        for dropped in [false, true] {
            let guard = session.multi_lock(&names).lock().await.unwrap();
            session.client().force_release(&names[1], guard.token()).await.unwrap();
            if dropped {
                drop(guard);
            } else {
                assert!(guard.release().await.is_err(), "it is told");
            }
            for name in &names {
                until_crowd_is(session.client(), name, (0, 0)).await;
            }
        }
        assert!(!session.left().is_zero());
    }
}
