//! `rw-lock`: readers and writers of two locks; writers now and then become readers without letting go.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Session;
use lockkeeper_client::api::locks::Mode;
use lockkeeper_client::locks::{Guard, WriteGuard};
use rand::Rng as _;
use serde_json::Value;

use super::lock_client::{self, EMPTY_WITHIN, LEAVE_PERCENT, LockClient, asks, end_failed, under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};
use crate::history::ops::{self, TokenRef};

const LOCKS: [&str; 2] = ["jepsen/shelf-a", "jepsen/shelf-b"];
const LONGEST_WAIT_MS: u64 = 1_500;
const READERS_PERCENT: u32 = 65;

pub(super) struct RwLockWorkload;

#[async_trait]
impl Workload for RwLockWorkload {
    fn name(&self) -> &'static str {
        "rw-lock"
    }

    fn about(&self) -> &'static str {
        "readers and writers; writers that become readers"
    }

    fn promises(&self) -> &'static str {
        locks::PROMISES
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut lock_client = LockClient::new(context)?;
        while let Some(session) = lock_client.session().await {
            let name = LOCKS[lock_client.kit.rng.random_range(0..LOCKS.len())];
            if lock_client.kit.chance(READERS_PERCENT) {
                read(&mut lock_client, &session, name).await;
            } else {
                write(&mut lock_client, &session, name).await;
            }
            lock_client.kit.think(0..25).await;
        }
        lock_client.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        lock_client::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::readers_and_writers(run, &LOCKS)
    }
}

fn patience(lock_client: &mut LockClient) -> (u64, Duration) {
    let wait_ms = if lock_client.kit.chance(10) { 0 } else { lock_client.kit.rng.random_range(100..LONGEST_WAIT_MS) };
    (wait_ms, Duration::from_millis(wait_ms))
}

async fn read(lock_client: &mut LockClient, session: &Session, name: &str) {
    let (wait_ms, wait) = patience(lock_client);
    let asks = asks(name, Mode::Shared, wait_ms, session);
    let lock = session.rw_lock(name);
    let asked = async { if wait_ms == 0 { lock.try_read().await } else { lock.read_timeout(wait).await } };
    let Some(guard) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(lock_client, &under, &guard).await;
    if lock_client.kit.chance(LEAVE_PERCENT) {
        return lock_client.leave(&under, guard).await;
    }
    lock_client.release(&under, guard).await;
}

async fn write(lock_client: &mut LockClient, session: &Session, name: &str) {
    let (wait_ms, wait) = patience(lock_client);
    let asks = asks(name, Mode::Write, wait_ms, session);
    let lock = session.rw_lock(name);
    let asked = async { if wait_ms == 0 { lock.try_write().await } else { lock.write_timeout(wait).await } };
    let Some(guard) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(lock_client, &under, &guard).await;
    if lock_client.kit.chance(30) {
        downgrade(lock_client, &under, guard).await;
    } else if lock_client.kit.chance(LEAVE_PERCENT) {
        lock_client.leave(&under, guard).await;
    } else {
        lock_client.release(&under, guard).await;
    }
}

async fn downgrade(lock_client: &mut LockClient, under: &TokenRef, guard: WriteGuard) {
    let begun = lock_client.recorder().begin(ops::DOWNGRADE, under);
    match guard.downgrade().await {
        Ok(guard) => {
            begun.ok(&Value::Null, None);
            stay(lock_client, under, &guard).await;
            lock_client.release(under, guard).await;
        }
        Err(error) => {
            // Given back by now, or on the way there.
            let letting = lock_client.recorder().begin(ops::RELEASE, under);
            end_failed(begun, &error);
            letting.info("after a downgrade that failed");
        }
    }
}

async fn stay<K>(lock_client: &mut LockClient, under: &TokenRef, guard: &Guard<K>) {
    if lock_client.kit.chance(10) {
        lock_client.verify(under).await;
    }
    let stay_ms = lock_client.kit.rng.random_range(0..20);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.look(under, guard);
}
