//! `lock`: clients that take one of a few exclusive locks, hold it, and give it back, in every way there is: waiting with a bound, trying,
//! and breaking a wait off; through guards (even clients) and through plain calls (odd ones). Some try to give back what is another's,
//! which is refused, and some take it by force, which is not.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::api::locks::{Acquire, Mode};
use lockkeeper_client::{Guard, Session};
use rand::Rng as _;
use serde_json::Value;

use super::client_kit::ClientKit;
use super::lock_client::{self, EMPTY_WITHIN, LEAVE_PERCENT, LockClient, asks, end_failed, under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};
use crate::history::ops::{self, AcquireRequest, Granted, TokenRef};

/// The last is wanted so seldom that it is made anew, with its directory, now and then.
const LOCKS: [&str; 4] = ["jepsen/lock-a", "jepsen/lock-b", "jepsen/lock-c", "jepsen/lock-seldom"];
const LONGEST_WAIT_MS: u64 = 1_500;

pub(super) struct LockWorkload;

#[async_trait]
impl Workload for LockWorkload {
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
        lock_client::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::exclusive(run, &LOCKS)
    }
}

/// Takes one of these locks after the other, of which the last is wanted seldom, until it is to end.
pub(super) async fn contend(context: ClientContext, locks: &[&str; 4], plain: bool) -> Result<(), String> {
    let mut lock_client = LockClient::new(context)?;
    while let Some(session) = lock_client.session().await {
        let lock = one_of(&mut lock_client.kit, locks);
        if lock_client.kit.chance(4) {
            lock_client.steal(&session, lock).await;
        }
        if lock_client.kit.chance(1) {
            lock_client.force(&session, lock).await;
        }
        let settled = if plain {
            plain_turn(&mut lock_client, &session, lock).await
        } else {
            guarded_turn(&mut lock_client, &session, lock).await;
            true
        };
        if !settled || lock_client.kit.chance(1) {
            lock_client.close().await;
        }
        lock_client.kit.think(0..25).await;
    }
    lock_client.close().await;
    Ok(())
}

/// One of the locks by chance, seldom the last.
pub(super) fn one_of<'a>(kit: &mut ClientKit, locks: &[&'a str; 4]) -> &'a str {
    let often = kit.rng.random_range(0..locks.len() - 1);
    if kit.chance(2) { locks[locks.len() - 1] } else { locks[often] }
}

/// How long to wait: now and then only a try, and now and then for so long that a lost wake-up would be felt.
pub(super) fn patience_ms(kit: &mut ClientKit) -> u64 {
    match kit.rng.random_range(0..100) {
        0..15 => 0,
        15..30 => LONGEST_WAIT_MS * 4,
        _ => kit.rng.random_range(50..LONGEST_WAIT_MS),
    }
}

async fn guarded_turn(lock_client: &mut LockClient, session: &Session, name: &str) {
    let lock = session.lock(name);
    let wait_ms = patience_ms(&mut lock_client.kit);
    let asks = asks(name, Mode::Exclusive, wait_ms, session);
    if wait_ms > 0 && lock_client.kit.chance(5) {
        return broken_off(lock_client, &asks, &lock).await;
    }
    let wait = async {
        match wait_ms {
            0 => lock.try_lock().await,
            _ => lock.lock_timeout(Duration::from_millis(wait_ms)).await,
        }
    };
    let Some(guard) = lock_client.acquire(&asks, wait).await else { return };
    let under = under(&asks, guard.token());
    hold(lock_client, &under, || guard.is_lost()).await;
    if lock_client.kit.chance(10) {
        return let_fall(lock_client, &under, guard);
    }
    if lock_client.kit.chance(LEAVE_PERCENT) {
        return lock_client.leave(&under, guard).await;
    }
    lock_client.release(&under, guard).await;
    if lock_client.kit.chance(10) {
        lock_client.verify(&under).await;
    }
}

/// Waits, and goes away while it waits: the library takes the request back.
async fn broken_off(lock_client: &LockClient, asks: &AcquireRequest, lock: &lockkeeper_client::Lock) {
    let begun = lock_client.recorder().begin(ops::ACQUIRE, asks);
    match tokio::time::timeout(Duration::from_millis(asks.wait_ms / 20 + 1), lock.lock()).await {
        Ok(Ok(guard)) => {
            let under = under(asks, guard.token());
            begun.ok(&Granted { token: guard.token() }, Some(guard.zxid()));
            lock_client.release(&under, guard).await;
        }
        Ok(Err(error)) => end_failed(begun, &error),
        Err(_) => begun.info("broken off"),
    }
}

/// Drops the guard: it is given back in the background, and nobody says when.
fn let_fall(lock_client: &LockClient, under: &TokenRef, guard: Guard) {
    let begun = lock_client.recorder().begin(ops::RELEASE, under);
    drop(guard);
    begun.info("dropped");
}

/// False if something of it may still be open in the session.
async fn plain_turn(lock_client: &mut LockClient, session: &Session, name: &str) -> bool {
    let asks = asks(name, Mode::Exclusive, patience_ms(&mut lock_client.kit), session);
    let acquire = Acquire { wait_ms: asks.wait_ms, ..Acquire::default() };
    let begun = lock_client.recorder().begin(ops::ACQUIRE, &asks);
    let acquired = match session.client().acquire(name, &acquire).await {
        Ok(acquired) => acquired,
        Err(error) => {
            end_failed(begun, &error);
            lock_client.rest().await;
            return matches!(error, lockkeeper_client::Error::Refused(_));
        }
    };
    begun.ok(&Granted { token: acquired.token }, Some(acquired.zxid));
    let under = under(&asks, acquired.token);
    hold(lock_client, &under, || session.left().is_zero()).await;
    let begun = lock_client.recorder().begin(ops::RELEASE, &under);
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
async fn hold(lock_client: &mut LockClient, under: &TokenRef, is_lost: impl Fn() -> bool) {
    lock_client.looked(under, &is_lost);
    if lock_client.kit.chance(15) {
        lock_client.verify(under).await;
    }
    let longest_ms = if lock_client.kit.chance(5) { 300 } else { 20 };
    let stay_ms = lock_client.kit.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.looked(under, &is_lost);
}
