//! Clients of one semaphore. A client that was granted a permit creates an ephemeral node in a directory of its own
//! before it does anything, and deletes it before it gives the permit back. So the log records who is inside
//! independently of the semaphore's queue, also for a process that is killed inside.

use std::time::Duration;

use clap::Args;
use lockkeeper_client::api::nodes::{Create, Kind};
use lockkeeper_client::{Error, Session};
use rand::Rng as _;

use super::turn::{TurnOutcome, ask, is_lost, let_go};
use super::{Common, failed, join};
use crate::record::boot_us;

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct PermitsWork {
    /// The semaphore.
    #[arg(long)]
    lock: String,
    /// How many may be inside.
    #[arg(long)]
    permits: u16,
    /// Where those inside leave their nodes.
    #[arg(long)]
    inside: String,
    /// How many clients.
    #[arg(long)]
    clients: u32,
    /// For how long new turns are begun.
    #[arg(long)]
    seconds: u64,
    /// How long each stays inside at most, in milliseconds.
    #[arg(long, default_value_t = 20)]
    hold_ms: u64,
}

pub(super) async fn run(common: &Common, work: PermitsWork) -> Result<Vec<Session>, String> {
    let until_us = boot_us() + work.seconds * 1_000_000;
    let clients = (0..work.clients).map(|client| tokio::spawn(one(common.clone(), work.clone(), client, until_us)));
    join(clients.collect()).await
}

async fn one(common: Common, work: PermitsWork, client: u32, until_us: u64) -> Result<Session, String> {
    let mut session = common.open(client).await?;
    loop {
        let left = Duration::from_micros(until_us.saturating_sub(boot_us()));
        if left.is_zero() {
            return Ok(session);
        }
        session = common.renew(client, session).await?;
        let semaphore = session.semaphore(&work.lock, work.permits);
        let guard = match ask(client, "acquire", left, vec![work.lock.clone()], semaphore.acquire()).await {
            TurnOutcome::Granted(guard) => guard,
            TurnOutcome::Failed => continue,
            TurnOutcome::Over => return Ok(session),
        };
        let token = guard.token();
        if let Err(error) = stay(&session, &work, token, client).await {
            failed(client, "stay inside", &error).await;
        }
        if is_lost(client, &guard).await {
            continue;
        }
        let_go(client, guard).await;
    }
}

async fn stay(session: &Session, work: &PermitsWork, token: u64, client: u32) -> Result<(), Error> {
    let path = format!("{}/t{token}-{}-{client}", work.inside, std::process::id());
    let node = Create { kind: Kind::Ephemeral, ..Create::default() };
    let entered = session.client().create(&path, &node).await;
    if entered.is_ok() {
        let stay_ms = rand::rng().random_range(0..=work.hold_ms);
        tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    }
    // Also if it is not known whether it was made: it must not stand there when the permit is given back.
    match session.client().delete(&path, None).await {
        Err(error) if error.code() != Some(lockkeeper_client::api::Code::NoNode) => Err(error),
        _ => entered.map(drop),
    }
}
