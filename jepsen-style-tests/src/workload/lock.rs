//! `lock`: clients that take one of a few exclusive locks, hold it, and give it back, in every way there is: waiting with a bound, trying,
//! and breaking a wait off; through guards (even clients) and through plain calls (odd ones). Some try to give back what is another's,
//! which is refused, and some take it by force, which is not.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::api::locks::{Acquire, Mode};
use lockkeeper_client::{Guard, Session};
use rand::Rng as _;
use serde_json::Value;

use super::hand::Hand;
use super::seat::{self, EMPTY_WITHIN, LEAVE_PERCENT, Seat, asks, end_failed, under};
use super::tells::{self, Asks, Granted, Under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};

/// The last is wanted so seldom that it is made anew, with its directory, now and then.
const LOCKS: [&str; 4] = ["jepsen/lock-a", "jepsen/lock-b", "jepsen/lock-c", "jepsen/lock-seldom"];
const LONGEST_WAIT_MS: u64 = 1_500;

pub(super) struct Exclusive;

#[async_trait]
impl Workload for Exclusive {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn about(&self) -> &'static str {
        "exclusive locks: waiting, trying, breaking off, giving back one's own and another's, by force too"
    }

    fn promises(&self) -> &'static str {
        locks::PROMISES
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let plain = context.client % 2 == 1;
        contend(context, &LOCKS, plain).await
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        seat::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::exclusive(run, &LOCKS)
    }
}

/// Takes one of these locks after the other, of which the last is wanted seldom, until it is to end.
pub(super) async fn contend(context: ClientContext, locks: &[&str; 4], plain: bool) -> Result<(), String> {
    let mut seat = Seat::new(context)?;
    while let Some(session) = seat.session().await {
        let lock = one_of(&mut seat.hand, locks);
        if seat.hand.chance(4) {
            seat.steal(&session, lock).await;
        }
        if seat.hand.chance(1) {
            seat.force(&session, lock).await;
        }
        let settled = if plain {
            plain_turn(&mut seat, &session, lock).await
        } else {
            guarded_turn(&mut seat, &session, lock).await;
            true
        };
        if !settled || seat.hand.chance(1) {
            seat.close().await;
        }
        seat.hand.think(0..25).await;
    }
    seat.close().await;
    Ok(())
}

/// One of the locks by chance, seldom the last.
pub(super) fn one_of<'a>(hand: &mut Hand, locks: &[&'a str; 4]) -> &'a str {
    let often = hand.rng.random_range(0..locks.len() - 1);
    if hand.chance(2) { locks[locks.len() - 1] } else { locks[often] }
}

/// How long to wait: now and then only a try, and now and then for so long that a lost wake-up would be felt.
pub(super) fn patience_ms(hand: &mut Hand) -> u64 {
    match hand.rng.random_range(0..100) {
        0..15 => 0,
        15..30 => LONGEST_WAIT_MS * 4,
        _ => hand.rng.random_range(50..LONGEST_WAIT_MS),
    }
}

async fn guarded_turn(seat: &mut Seat, session: &Session, name: &str) {
    let lock = session.lock(name);
    let wait_ms = patience_ms(&mut seat.hand);
    let asks = asks(name, Mode::Exclusive, wait_ms, session);
    if wait_ms > 0 && seat.hand.chance(5) {
        return broken_off(seat, &asks, &lock).await;
    }
    let wait = async {
        match wait_ms {
            0 => lock.try_lock().await,
            _ => lock.lock_timeout(Duration::from_millis(wait_ms)).await,
        }
    };
    let Some(guard) = seat.acquire(&asks, wait).await else { return };
    let under = under(&asks, guard.token());
    hold(seat, &under, || guard.is_lost()).await;
    if seat.hand.chance(10) {
        return let_fall(seat, &under, guard);
    }
    if seat.hand.chance(LEAVE_PERCENT) {
        return seat.leave(&under, guard).await;
    }
    seat.release(&under, guard).await;
    if seat.hand.chance(10) {
        seat.verify(&under).await;
    }
}

/// Waits, and goes away while it waits: the library takes the request back.
async fn broken_off(seat: &Seat, asks: &Asks, lock: &lockkeeper_client::Lock) {
    let begun = seat.teller().begin(tells::ACQUIRE, asks);
    match tokio::time::timeout(Duration::from_millis(asks.wait_ms / 20 + 1), lock.lock()).await {
        Ok(Ok(guard)) => {
            let under = under(asks, guard.token());
            begun.ok(&Granted { token: guard.token() }, Some(guard.zxid()));
            seat.release(&under, guard).await;
        }
        Ok(Err(error)) => end_failed(begun, &error),
        Err(_) => begun.info("broken off"),
    }
}

/// Drops the guard: it is given back in the background, and nobody says when.
fn let_fall(seat: &Seat, under: &Under, guard: Guard) {
    let begun = seat.teller().begin(tells::RELEASE, under);
    drop(guard);
    begun.info("dropped");
}

/// False if something of it may still be open in the session.
async fn plain_turn(seat: &mut Seat, session: &Session, name: &str) -> bool {
    let asks = asks(name, Mode::Exclusive, patience_ms(&mut seat.hand), session);
    let acquire = Acquire { wait_ms: asks.wait_ms, ..Acquire::default() };
    let begun = seat.teller().begin(tells::ACQUIRE, &asks);
    let acquired = match session.client().acquire(name, &acquire).await {
        Ok(acquired) => acquired,
        Err(error) => {
            end_failed(begun, &error);
            seat.rest().await;
            return matches!(error, lockkeeper_client::Error::Refused(_));
        }
    };
    begun.ok(&Granted { token: acquired.token }, Some(acquired.zxid));
    let under = under(&asks, acquired.token);
    hold(seat, &under, || session.left().is_zero()).await;
    let begun = seat.teller().begin(tells::RELEASE, &under);
    match session.client().release(name, acquired.token).await {
        Ok(released) => begun.ok(&Value::Null, Some(released.zxid)),
        Err(error) => {
            end_failed(begun, &error);
            return false;
        }
    }
    true
}

/// What a holder does: looks at its guard, stays a while, has its token verified now and then, looks again.
async fn hold(seat: &mut Seat, under: &Under, is_lost: impl Fn() -> bool) {
    seat.looked(under, &is_lost);
    if seat.hand.chance(15) {
        seat.verify(under).await;
    }
    let longest_ms = if seat.hand.chance(5) { 300 } else { 20 };
    let stay_ms = seat.hand.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    seat.looked(under, &is_lost);
}
