//! `gate`: operations behind idempotency gates. Several clients ask for each at about the same time, and some of them
//! die, fail or leave in the middle. The body runs once for each key unless its worker died or reported a failure; the
//! result, once there, is the same for everybody; and a gate whose worker died is free again (P5, P6, P9).

mod black_box;
mod check;

use std::io::Write as _;
use std::path::PathBuf;

use lockkeeper_client::Error;
use lockkeeper_client::recipes::{Begun as How, Gate, GateTicket, OnceError};

use super::client_kit::Certainty;
use super::lock_client::end_failed;
use crate::workload::prelude::*;

/// How long a key is in use, in microseconds.
const WINDOW_US: u64 = 400_000;
/// Longer than any run: only death and failure free a gate.
const PENDING: Duration = Duration::from_secs(3_600);
const KEEP: Duration = Duration::from_secs(3_600);
/// How long after the end a gate whose worker died may take to be free.
const FREE_WITHIN: Duration = Duration::from_secs(15);
const MOST_LOOKED_AT: usize = 40;
/// One client in so many first dies at a gate of its own, so that in every run some gates are left shut.
const DOOMED_OF: u32 = 3;

// Operations.
const BEGIN: &str = "begin";
const FINISH: &str = "finish";
const FAIL: &str = "fail";
const ONCE: &str = "once";
/// Told: the body runs.
const BODY: &str = "body";
/// Told at the end: whether a gate whose worker died could be begun again.
const FREED: &str = "freed";

/// Argument of `begin` and `once`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    key: String,
    session: u64,
}

/// Argument of `finish` and `fail`, and told as `body`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GateRun {
    key: String,
    token: u64,
    session: u64,
}

/// Answer of `begin` and `once`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum GateReply {
    Proceed { token: u64 },
    InProgress { token: u64 },
    Done { token: u64, result: String },
}

/// Told as `freed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Freed {
    key: String,
    free: bool,
}

#[derive(Debug)]
pub(super) struct GateWorkload;

#[async_trait]
impl Workload for GateWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "gate",
            about: "idempotency gates: one body for each key, one result, freed when the worker dies",
            promises: "P4 P5 P6 P7 P9 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut lock_client = LockClient::new(context)?;
        let client = lock_client.kit.context.client;
        let mut doomed = client.is_multiple_of(DOOMED_OF);
        while let Some(session) = lock_client.session().await {
            let key = if doomed { format!("jepsen-of-{client}") } else { format!("jepsen-{}", boot_us() / WINDOW_US) };
            let gate = session.gate(&key).pending(PENDING).label("jepsen");
            let key = Key { key, session: session.id() };
            drop(session);
            if doomed {
                doomed = !turn(&mut lock_client, gate, key, true).await;
            } else if lock_client.kit.chance(50) {
                once(&mut lock_client, gate, key).await;
            } else {
                turn(&mut lock_client, gate, key, false).await;
            }
            if lock_client.kit.chance(2) {
                lock_client.close().await;
            }
            lock_client.kit.think(20..120).await;
        }
        lock_client.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let left = std::fs::read_to_string(left_behind(&context)).unwrap_or_default();
        let mut lock_client = LockClient::new(context)?;
        let Some(session) = lock_client.session().await else { return Ok(()) };
        let until_us = boot_us() + u64::try_from(FREE_WITHIN.as_micros()).unwrap_or(u64::MAX);
        let lines: BTreeSet<&str> = left.lines().rev().take(MOST_LOOKED_AT).collect();
        for key in lines {
            let free = free_again(&lock_client, &session, key, until_us).await;
            lock_client.recorder().note(FREED, &Freed { key: key.to_owned(), free }, None);
        }
        drop(session);
        lock_client.close().await;
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

fn result_of(token: u64) -> String {
    format!("result of {token}")
}

/// Where clients that are about to die write down which gate they leave shut.
fn left_behind(context: &ClientContext) -> PathBuf {
    context.shared.join("gates-left-shut")
}

fn stands(how: &How) -> GateReply {
    match how {
        How::Proceed(ticket) => GateReply::Proceed { token: ticket.token() },
        How::InProgress(other) => GateReply::InProgress { token: other.token },
        How::Done(done) => {
            GateReply::Done { token: done.token, result: String::from_utf8_lossy(&done.result).into_owned() }
        }
    }
}

/// The point in the order that an answer tells: the token of a run is the zxid of its beginning.
fn zxid(how: &How) -> Option<u64> {
    if let How::Proceed(ticket) = how { Some(ticket.token()) } else { None }
}

/// Begins, and where it is told to proceed does the work: to its end, to a failure, or to its death in the middle.
/// Whether it died.
async fn turn(lock_client: &mut LockClient, gate: Gate, key: Key, doomed: bool) -> bool {
    let begun = lock_client.recorder().begin(BEGIN, &key);
    let how = match gate.begin(&key.key).await {
        Ok(how) => how,
        Err(error) => {
            failed(lock_client, begun, &error).await;
            // Where it was let in without hearing of it, only the end of its session lets it in again.
            if doomed {
                drop(gate);
                lock_client.close().await;
            }
            return false;
        }
    };
    begun.ok(&stands(&how), zxid(&how));
    let How::Proceed(ticket) = how else { return false };
    let run = GateRun { key: key.key, token: ticket.token(), session: key.session };
    lock_client.recorder().note(BODY, &run, None);
    lock_client.kit.think(1..60).await;
    match lock_client.kit.rng.random_range(0..100) {
        0..70 if !doomed => finish(lock_client, &run, ticket).await,
        70..85 if !doomed => {
            let begun = lock_client.recorder().begin(FAIL, &run);
            match ticket.fail().await {
                Ok(()) => begun.ok(&Value::Null, None),
                Err(error) => failed(lock_client, begun, &error).await,
            }
        }
        _ => {
            leave_shut(lock_client, &run.key);
            drop((ticket, gate));
            // Either of the ways in which a session ends.
            if lock_client.kit.chance(50) {
                lock_client.abandon();
            } else {
                lock_client.close().await;
            }
            return true;
        }
    }
    false
}

fn leave_shut(lock_client: &LockClient, key: &str) {
    let file = std::fs::File::options().append(true).create(true).open(left_behind(&lock_client.kit.context));
    // One that is not written down is not looked at in the end; there are others.
    let _ = file.and_then(|mut file| file.write_all(format!("{key}\n").as_bytes()));
}

async fn finish(lock_client: &LockClient, run: &GateRun, ticket: GateTicket) {
    let begun = lock_client.recorder().begin(FINISH, run);
    match ticket.finish(result_of(run.token), KEEP).await {
        Ok(()) => begun.ok(&Value::Null, None),
        Err(error) => failed(lock_client, begun, &error).await,
    }
}

async fn failed(lock_client: &LockClient, begun: OpenOp, error: &Error) {
    end_failed(begun, error);
    lock_client.rest().await;
}

/// The recipe that does it all, waiting for others included. Broken off where another takes long.
async fn once(lock_client: &mut LockClient, gate: Gate, key: Key) {
    let fails = lock_client.kit.chance(15);
    let body_ms = lock_client.kit.rng.random_range(1..60);
    let recorder = lock_client.recorder().clone();
    let work = async |token: u64| {
        let run = GateRun { key: key.key.clone(), token, session: key.session };
        recorder.note(BODY, &run, None);
        tokio::time::sleep(Duration::from_millis(body_ms)).await;
        if fails {
            // What follows in the recipe frees the gate; nobody says when.
            recorder.begin(FAIL, &run).info("in the recipe");
            return Err("it was to fail");
        }
        recorder.begin(FINISH, &run).info("in the recipe");
        Ok(result_of(token).into_bytes())
    };
    let begun = lock_client.recorder().begin(ONCE, &key);
    let patience = lock_client.kit.context.ttl * 2;
    match tokio::time::timeout(patience, gate.run_once(&key.key, KEEP, work)).await {
        Ok(Ok(done)) => {
            let result = String::from_utf8_lossy(&done.result).into_owned();
            begun.ok(&GateReply::Done { token: done.token, result }, None);
        }
        Ok(Err(OnceError::Work(why))) => begun.fail(why),
        Ok(Err(OnceError::Gate(error))) => match sure(&error) {
            // The body may have run, and its end be what failed.
            Certainty::Refused(_) | Certainty::NotDone | Certainty::Unknown => begun.info(&error.to_string()),
        },
        // Its body may have been broken off: then the gate stays shut until the session ends.
        Err(_) => {
            begun.info("broken off");
            lock_client.abandon();
        }
    }
}

/// Whether a gate is begun, or found done, in time.
async fn free_again(lock_client: &LockClient, session: &Session, key: &str, until_us: u64) -> bool {
    let gate = session.gate(key).pending(PENDING);
    let asked = Key { key: key.to_owned(), session: session.id() };
    loop {
        let begun = lock_client.recorder().begin(BEGIN, &asked);
        match gate.begin(key).await {
            Ok(how) => {
                begun.ok(&stands(&how), zxid(&how));
                match how {
                    How::Proceed(ticket) => {
                        let run = GateRun { key: key.to_owned(), token: ticket.token(), session: session.id() };
                        lock_client.recorder().note(BODY, &run, None);
                        finish(lock_client, &run, ticket).await;
                        return true;
                    }
                    How::Done(_) => return true,
                    How::InProgress(_) => {}
                }
            }
            Err(error) => end_failed(begun, &error),
        }
        if boot_us() > until_us {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
