//! `lock-delay`: holders asked for a delay, and some die while they hold (their session is not renewed any more; under `client-kill`
//! whole processes do). Nobody may be granted the lock before the delay has passed by the replicated clock. A release has none.
//!
//! The replicated clock is read where it shows: the end of a kept place in the lock's view, and the time of a node that the next holder
//! makes.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::api::locks::{Acquire, Mode};
use lockkeeper_client::api::nodes::{Create, Kind};
use lockkeeper_client::{Error, Session};
use rand::Rng as _;
use serde_json::Value;

use super::client_kit::ClientKit;
use super::lock_client::{self, LockClient, asks, end_failed, under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};
use crate::history::ops::{self, AcquireRequest, ClockReading, Granted, KeptPlace, TokenRef};

/// More than there are clients that die early, so that one at least goes on.
const LOCKS: [&str; 5] = ["jepsen/quiet-a", "jepsen/quiet-b", "jepsen/quiet-c", "jepsen/quiet-d", "jepsen/quiet-e"];
const MARKS: &str = "/jepsen-marks";
const DELAY_MS: u32 = 1_000;
const LONGEST_WAIT_MS: u64 = 3_000;
const EMPTY_WITHIN: Duration = Duration::from_secs(20);
const DIE_PERCENT: u32 = 4;
/// One client in so many dies when it holds for the first time, so that in every run some do, and do so early.
const DOOMED_OF: u32 = 3;
/// One client in so many looks at the locks beside what it does. Not those that die.
const LOOKS_OUT_OF: u32 = 3;

pub(super) struct LockDelayWorkload;

#[async_trait]
impl Workload for LockDelayWorkload {
    fn name(&self) -> &'static str {
        "lock-delay"
    }

    fn about(&self) -> &'static str {
        "holders with a lock delay that die while they hold; nobody before the delay has passed by the replicated clock"
    }

    fn promises(&self) -> &'static str {
        locks::PROMISES
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut lock_client = LockClient::new(context.clone())?;
        if !lock_client.kit.prepare(&[MARKS]).await {
            return Ok(());
        }
        let looking = (context.client % LOOKS_OUT_OF == 1).then(|| tokio::spawn(look_out(context)));
        let client = lock_client.kit.context.client;
        let mut doomed = client.is_multiple_of(DOOMED_OF);
        while let Some(session) = lock_client.session().await {
            // Each of them at another lock, as nobody gets on there for some seconds.
            let at =
                if doomed { (client / DOOMED_OF) as usize } else { lock_client.kit.rng.random_range(0..LOCKS.len()) };
            let after = turn(&mut lock_client, &session, LOCKS[at % LOCKS.len()], doomed).await;
            doomed &= !matches!(after, After::Die);
            drop(session);
            match after {
                After::GoOn => {}
                After::Close => drop(lock_client.close().await),
                After::Die => lock_client.abandon(),
            }
            lock_client.kit.think(0..25).await;
        }
        lock_client.close().await;
        match looking {
            Some(looking) => looking.await.map_err(|error| error.to_string())?,
            None => Ok(()),
        }
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        lock_client::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::delayed(run, &LOCKS)
    }
}

enum After {
    GoOn,
    Close,
    Die,
}

/// Everything here by plain calls: a guard would give the lock back when it is dropped.
async fn turn(lock_client: &mut LockClient, session: &Session, name: &str, doomed: bool) -> After {
    let wait_ms = lock_client.kit.rng.random_range(200..LONGEST_WAIT_MS);
    let asks = AcquireRequest { delay_ms: DELAY_MS, ..asks(name, Mode::Exclusive, wait_ms, session) };
    let acquire = Acquire { wait_ms, delay_ms: DELAY_MS, ..Acquire::default() };
    let begun = lock_client.recorder().begin(ops::ACQUIRE, &asks);
    let acquired = match session.client().acquire(name, &acquire).await {
        Ok(acquired) => acquired,
        Err(error) => {
            end_failed(begun, &error);
            lock_client.rest().await;
            return if matches!(error, Error::Refused(_)) { After::GoOn } else { After::Close };
        }
    };
    begun.ok(&Granted { token: acquired.token }, Some(acquired.zxid));
    let under = under(&asks, acquired.token);
    mark(lock_client, session, &under).await;
    let stay_ms = lock_client.kit.rng.random_range(0..30);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.looked(&under, || session.left().is_zero());
    if doomed || lock_client.kit.chance(DIE_PERCENT) {
        return After::Die;
    }
    let begun = lock_client.recorder().begin(ops::RELEASE, &under);
    match session.client().release(name, acquired.token).await {
        Ok(released) => begun.ok(&Value::Null, Some(released.zxid)),
        Err(error) => {
            end_failed(begun, &error);
            return After::Close;
        }
    }
    After::GoOn
}

/// Reads the replicated clock while holding: it stands in what one makes.
async fn mark(lock_client: &LockClient, session: &Session, under: &TokenRef) {
    let begun = lock_client.recorder().begin(ops::MARK, under);
    let node = Create { kind: Kind::Ephemeral, ..Create::default() };
    let path = format!("{MARKS}/t{}", under.token);
    match session.client().create(&path, &node).await {
        Ok(made) => {
            begun.ok(&ClockReading { clock_ms: made.stat.ctime_ms }, Some(made.zxid));
            // That it goes with the session will do.
            let _ = session.client().delete(&path, None).await;
        }
        Err(error) => end_failed(begun, &error),
    }
}

/// Looks at all the locks over and over, and tells of each place that is kept for a dead holder, until when. Those who die are not there to
/// see it, nor are those who were killed: one in each process looks.
async fn look_out(context: ClientContext) -> Result<(), String> {
    let mut kit = ClientKit::new(context)?;
    let mut told = BTreeSet::new();
    while kit.think(150..250).await {
        for lock in LOCKS {
            let Ok(view) = kit.client.lock(lock).await else { continue };
            for place in view.holders.iter().chain(&view.queue) {
                let name = place.path.rsplit('/').next().and_then(lockkeeper_checkers::name::parse);
                let (Some(until_ms), Some(dead)) = (place.delayed_until_ms, name.and_then(|name| name.keeps_place_of))
                else {
                    continue;
                };
                if told.insert(dead) {
                    let kept = KeptPlace { lock: lock.to_owned(), dead, since_ms: place.since_ms, until_ms };
                    kit.context.recorder.note(ops::KEPT, &kept, Some(view.zxid));
                }
            }
        }
    }
    Ok(())
}
