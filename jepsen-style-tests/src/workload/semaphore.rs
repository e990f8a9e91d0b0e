//! `semaphore`: more clients than permits.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Session;
use lockkeeper_client::api::locks::Mode;
use rand::Rng as _;

use super::lock_client::{self, EMPTY_WITHIN, LEAVE_PERCENT, LockClient, asks, under};
use super::{ClientContext, Recorded, Workload};
use crate::check::{Check, locks};
use crate::history::ops::AcquireRequest;

const SEMAPHORES: [(&str, u16); 2] = [("jepsen/berths-2", 2), ("jepsen/berths-3", 3)];
const LONGEST_WAIT_MS: u64 = 1_500;

pub(super) struct SemaphoreWorkload;

#[async_trait]
impl Workload for SemaphoreWorkload {
    fn name(&self) -> &'static str {
        "semaphore"
    }

    fn about(&self) -> &'static str {
        "semaphores of two and three permits, wanted by more"
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
        lock_client::conclude(context, &SEMAPHORES.map(|(name, _)| name), EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        locks::semaphores(run, &SEMAPHORES)
    }
}

async fn turn(lock_client: &mut LockClient, session: &Session) {
    let (name, permits) = SEMAPHORES[lock_client.kit.rng.random_range(0..SEMAPHORES.len())];
    let wait_ms = if lock_client.kit.chance(10) { 0 } else { lock_client.kit.rng.random_range(100..LONGEST_WAIT_MS) };
    let asks = AcquireRequest { permits: Some(permits), ..asks(name, Mode::Permit, wait_ms, session) };
    let semaphore = session.semaphore(name, permits);
    let asked = async {
        match wait_ms {
            0 => semaphore.try_acquire().await,
            _ => semaphore.acquire_timeout(Duration::from_millis(wait_ms)).await,
        }
    };
    let Some(permit) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, permit.token());
    if lock_client.kit.chance(10) {
        lock_client.verify(&under).await;
    }
    let longest_ms = if lock_client.kit.chance(5) { 300 } else { 25 };
    let stay_ms = lock_client.kit.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.look(&under, &permit);
    if lock_client.kit.chance(LEAVE_PERCENT) {
        return lock_client.leave(&under, permit).await;
    }
    lock_client.release(&under, permit).await;
}
