//! `lock-delay`: holders asked for a delay, and some die while they hold (their session is not renewed any more; under `client-kill`
//! whole processes do). Nobody may be granted the lock before the delay has passed by the replicated clock. A release has none.
//!
//! The replicated clock is read where it shows: the end of a kept place in the lock's view, and the time of a node that the next holder
//! makes.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockkeeper_client::api::locks::{Acquire, Mode};
use lockkeeper_client::api::nodes::{Create, Kind};
use lockkeeper_client::{Error, Session};
use rand::Rng as _;
use serde_json::Value;

use super::seat::{self, Seat, asks, end_failed, under};
use super::tells::{self, Asks, Granted, Kept, Marked, Under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};

const LOCKS: [&str; 3] = ["jepsen/quiet-a", "jepsen/quiet-b", "jepsen/quiet-c"];
const MARKS: &str = "/jepsen-marks";
const DELAY_MS: u32 = 1_000;
const LONGEST_WAIT_MS: u64 = 3_000;
const EMPTY_WITHIN: Duration = Duration::from_secs(20);
const DIE_PERCENT: u32 = 6;
/// One client in so many dies when it holds for the first time, so that in every run some do, and do so early.
const DOOMED_OF: u32 = 3;
/// How long a client looks out for the place that it left behind, beyond the time that it takes where no fault is on. Sessions do not end
/// while there is no leader.
const LOOK_OUT_LONGER: Duration = Duration::from_secs(15);

pub(super) struct Delay;

#[async_trait]
impl Workload for Delay {
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
        let mut seat = Seat::new(context)?;
        if !seat.hand.prepare(&[MARKS]).await {
            return Ok(());
        }
        let client = seat.hand.context.client;
        let mut doomed = client.is_multiple_of(DOOMED_OF);
        while let Some(session) = seat.session().await {
            // Each of them at another lock, as nobody gets on there for some seconds.
            let at = if doomed { (client / DOOMED_OF) as usize } else { seat.hand.rng.random_range(0..LOCKS.len()) };
            let after = turn(&mut seat, &session, LOCKS[at % LOCKS.len()], doomed).await;
            doomed &= !matches!(after, After::Die(_));
            drop(session);
            match after {
                After::GoOn => {}
                After::Close => drop(seat.close().await),
                After::Die(dead) => {
                    seat.abandon();
                    watch_place(&seat, &dead).await;
                }
            }
            seat.hand.think(0..25).await;
        }
        seat.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        seat::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::delayed(run, &LOCKS)
    }
}

enum After {
    GoOn,
    Close,
    Die(Under),
}

/// Everything here by plain calls: a guard would give the lock back when it is dropped.
async fn turn(seat: &mut Seat, session: &Session, name: &str, doomed: bool) -> After {
    let wait_ms = seat.hand.rng.random_range(200..LONGEST_WAIT_MS);
    let asks = Asks { delay_ms: DELAY_MS, ..asks(name, Mode::Exclusive, wait_ms, session) };
    let acquire = Acquire { wait_ms, delay_ms: DELAY_MS, ..Acquire::default() };
    let begun = seat.teller().begin(tells::ACQUIRE, &asks);
    let acquired = match session.client().acquire(name, &acquire).await {
        Ok(acquired) => acquired,
        Err(error) => {
            end_failed(begun, &error);
            seat.rest().await;
            return if matches!(error, Error::Refused(_)) { After::GoOn } else { After::Close };
        }
    };
    begun.ok(&Granted { token: acquired.token }, Some(acquired.zxid));
    let under = under(&asks, acquired.token);
    mark(seat, session, &under).await;
    let stay_ms = seat.hand.rng.random_range(0..30);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    seat.looked(&under, || session.left().is_zero());
    if doomed || seat.hand.chance(DIE_PERCENT) {
        return After::Die(under);
    }
    let begun = seat.teller().begin(tells::RELEASE, &under);
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
async fn mark(seat: &Seat, session: &Session, under: &Under) {
    let begun = seat.teller().begin(tells::MARK, under);
    let node = Create { kind: Kind::Ephemeral, ..Create::default() };
    let path = format!("{MARKS}/t{}", under.token);
    match session.client().create(&path, &node).await {
        Ok(made) => {
            begun.ok(&Marked { clock_ms: made.stat.ctime_ms }, Some(made.zxid));
            // That it goes with the session will do.
            let _ = session.client().delete(&path, None).await;
        }
        Err(error) => end_failed(begun, &error),
    }
}

/// Looks until the dead holder's place is seen to be kept, and tells until when; or until it cannot be any more.
async fn watch_place(seat: &Seat, dead: &Under) {
    let (Some(lock), begun) = (dead.locks.first(), Instant::now()) else { return };
    let within = seat.hand.context.ttl * 2 + Duration::from_millis(DELAY_MS.into()) + LOOK_OUT_LONGER;
    while begun.elapsed() < within && !seat.hand.context.stop.is_cancelled() {
        if let Ok(view) = seat.hand.client.lock(lock).await
            && let Some(place) = view
                .holders
                .iter()
                .chain(&view.queue)
                .find(|place| place.delayed_until_ms.is_some() && place.path.contains(&format!("-{}-", dead.token)))
        {
            let until_ms = place.delayed_until_ms.unwrap_or_default();
            let kept = Kept { lock: lock.clone(), dead: dead.token, since_ms: place.since_ms, until_ms };
            return seat.teller().told(tells::KEPT, &kept, Some(view.zxid));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
