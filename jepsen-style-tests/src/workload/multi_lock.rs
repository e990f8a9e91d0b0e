//! `multi-lock`: each client takes three of seven locks together, drawn at random, over and over; some take one of them alone.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Session;
use lockkeeper_client::api::locks::Mode;
use rand::Rng as _;
use rand::seq::IndexedRandom as _;

use super::lock_client::{self, EMPTY_WITHIN, LEAVE_PERCENT, LockClient, asks, under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};
use crate::history::ops::AcquireRequest;

const LOCKS: [&str; 7] = [
    "jepsen/many-1",
    "jepsen/many-2",
    "jepsen/many-3",
    "jepsen/many-4",
    "jepsen/many-5",
    "jepsen/many-6",
    "jepsen/many-7",
];
const TOGETHER: usize = 3;
const LONGEST_WAIT_MS: u64 = 2_500;

pub(super) struct MultiLockWorkload;

#[async_trait]
impl Workload for MultiLockWorkload {
    fn name(&self) -> &'static str {
        "multi-lock"
    }

    fn about(&self) -> &'static str {
        "three of seven locks together, in random order: no standstill, nothing in part"
    }

    fn promises(&self) -> &'static str {
        locks::PROMISES
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut lock_client = LockClient::new(context)?;
        while let Some(session) = lock_client.session().await {
            turn(&mut lock_client, &session).await;
            lock_client.kit.think(0..20).await;
        }
        lock_client.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        lock_client::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::together(run, &LOCKS)
    }
}

async fn turn(lock_client: &mut LockClient, session: &Session) {
    let count = if lock_client.kit.chance(15) { 1 } else { TOGETHER };
    // In the order in which they were drawn: it is the library that brings them into one order.
    let names: Vec<String> =
        LOCKS.choose_multiple(&mut lock_client.kit.rng, count).map(|name| (*name).to_owned()).collect();
    let wait_ms = if lock_client.kit.chance(10) { 0 } else { lock_client.kit.rng.random_range(100..LONGEST_WAIT_MS) };
    let asks = AcquireRequest { locks: names.clone(), ..asks("", Mode::Exclusive, wait_ms, session) };
    let several = session.multi_lock(names);
    let asked = async {
        match wait_ms {
            0 => several.try_lock().await,
            _ => several.lock_timeout(Duration::from_millis(wait_ms)).await,
        }
    };
    let Some(guard) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    let stay_ms = lock_client.kit.rng.random_range(0..15);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    if lock_client.kit.chance(10) {
        lock_client.verify(&under).await;
    }
    lock_client.look(&under, &guard);
    if lock_client.kit.chance(LEAVE_PERCENT) {
        return lock_client.leave(&under, guard).await;
    }
    lock_client.release(&under, guard).await;
}
