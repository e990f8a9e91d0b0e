//! Clients that take turns: each asks, is granted or gives up, does something while it holds, and gives back.
//!
//! With a counter they increment a number in a plain file: two holders at once would lose an increment. Each holder
//! appends its token to a second file before it writes. That file is the resource's own record of the order in which
//! holders came; no client vouches for it. Otherwise they create an ephemeral node in a directory before they do
//! anything, and delete it before they give back. So the log records who is inside independently of the queues, also
//! for a process that is killed inside.

use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockkeeper_client::api::Code;
use lockkeeper_client::api::nodes::{Create, Kind};
use lockkeeper_client::{Error, Guard, Session};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{sleep, timeout};

use super::{Common, failed, join};
use crate::record::{WorkerEvent, boot_us, tell};

/// How many of several locks a client takes together.
const TOGETHER: usize = 3;

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct TurnsWork {
    /// The lock.
    #[arg(long)]
    lock: String,
    /// Take three of so many locks together, drawn at random: `<LOCK>-0`, `<LOCK>-1`, …
    #[arg(long)]
    among: Option<u32>,
    /// Take one of so many permits.
    #[arg(long)]
    permits: Option<u16>,
    /// Increment the number in the file `counter` of this directory, and append tokens to its file `tokens`.
    #[arg(long)]
    counter_in: Option<PathBuf>,
    /// Where those inside leave their nodes.
    #[arg(long, default_value = "/inside")]
    inside: String,
    /// How many clients.
    #[arg(long)]
    clients: u32,
    /// For how long new turns are begun.
    #[arg(long)]
    seconds: u64,
    /// How long each holds at least, in microseconds.
    #[arg(long, default_value_t = 500)]
    hold_us: u64,
    /// By how much longer some hold, in microseconds.
    #[arg(long, default_value_t = 0)]
    longer_us: u64,
    /// How long each stays away after its turn, in milliseconds.
    #[arg(long, default_value_t = 0)]
    think_ms: u64,
    /// Where the choice of locks and times comes from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(super) async fn run(common: &Common, work: TurnsWork) -> Result<Vec<Session>, String> {
    let until_us = boot_us() + work.seconds * 1_000_000;
    let clients = (0..work.clients).map(|client| tokio::spawn(one(common.clone(), work.clone(), client, until_us)));
    join(clients.collect()).await
}

async fn one(common: Common, work: TurnsWork, client: u32, until_us: u64) -> Result<Session, String> {
    let mut random = StdRng::seed_from_u64(work.seed.wrapping_add(u64::from(client)));
    let several: Vec<String> = (0..work.among.unwrap_or(0)).map(|number| format!("{}-{number}", work.lock)).collect();
    let mut session = common.open(client).await?;
    loop {
        let left = Duration::from_micros(until_us.saturating_sub(boot_us()));
        if left.is_zero() {
            return Ok(session);
        }
        session = common.renew(client, session).await?;
        let hold = Duration::from_micros(work.hold_us + random.random_range(0..=work.longer_us));
        let turn = Turn { session: &session, work: &work, client, left, hold };
        let one_lock = vec![work.lock.clone()];
        let is_over = if let Some(permits) = work.permits {
            turn.take(one_lock, session.semaphore(&work.lock, permits).acquire()).await?
        } else if several.is_empty() {
            turn.take(one_lock, session.lock(&work.lock).lock()).await?
        } else {
            // In the order in which they were drawn: it is the library that brings them into one order.
            let names: Vec<String> = several.choose_multiple(&mut random, TOGETHER).cloned().collect();
            turn.take(names.clone(), session.multi_lock(names).lock()).await?
        };
        if is_over {
            return Ok(session);
        }
    }
}

struct Turn<'a> {
    session: &'a Session,
    work: &'a TurnsWork,
    client: u32,
    left: Duration,
    hold: Duration,
}

impl Turn<'_> {
    /// Asks for these locks by waiting for `wait`. When the time that is left is over the wait is dropped, which takes
    /// the request out of the queue. Gives whether it is over.
    async fn take<K>(
        &self,
        locks: Vec<String>,
        wait: impl Future<Output = Result<Guard<K>, Error>>,
    ) -> Result<bool, String> {
        let client = self.client;
        tell(client, WorkerEvent::Asking);
        let guard = match timeout(self.left, wait).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => {
                failed(client, "lock", &error).await;
                return Ok(false);
            }
            Err(_) => {
                tell(client, WorkerEvent::GaveUp);
                return Ok(true);
            }
        };
        let token = guard.token();
        tell(client, WorkerEvent::Granted { locks, token });
        let read = self.stay(token).await?;
        if guard.is_lost() {
            tell(client, WorkerEvent::Lost { token, why: guard.lost().await });
            return Ok(false);
        }
        if let (Some(dir), Some(value)) = (&self.work.counter_in, read) {
            append(&dir.join("tokens"), token)?;
            write(&dir.join("counter"), value + 1)?;
            tell(client, WorkerEvent::Wrote { token, value: value + 1, accepted: true });
        }
        tell(client, WorkerEvent::Letting { token });
        if let Err(error) = guard.release().await {
            failed(client, "release", &error).await;
        }
        if self.work.think_ms > 0 {
            sleep(Duration::from_millis(self.work.think_ms)).await;
        }
        Ok(false)
    }

    /// What is done while it holds; gives the number that it read.
    async fn stay(&self, token: u64) -> Result<Option<i64>, String> {
        let Some(dir) = &self.work.counter_in else {
            if let Err(error) = self.stay_inside(token).await {
                failed(self.client, "stay inside", &error).await;
            }
            return Ok(None);
        };
        let value = read(&dir.join("counter"))?;
        sleep(self.hold).await;
        Ok(Some(value))
    }

    async fn stay_inside(&self, token: u64) -> Result<(), Error> {
        let path = format!("{}/t{token}-{}-{}", self.work.inside, std::process::id(), self.client);
        let node = Create { kind: Kind::Ephemeral, ..Create::default() };
        let entered = self.session.client().create(&path, &node).await;
        if entered.is_ok() {
            sleep(self.hold).await;
        }
        // Also if it is not known whether it was made: it must not stand there when the turn is over.
        match self.session.client().delete(&path, None).await {
            Err(error) if error.code() != Some(Code::NoNode) => Err(error),
            _ => entered.map(drop),
        }
    }
}

fn read(file: &Path) -> Result<i64, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    text.trim().parse().map_err(|_| format!("{} does not hold a number: {text:?}", file.display()))
}

/// In one call of the system, but not as one step with the reading.
fn write(file: &Path, value: i64) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut open = std::fs::File::options().write(true).open(file).map_err(told)?;
    // Always as long: there is no moment at which the file is empty.
    open.write_all(format!("{value:020}\n").as_bytes()).map_err(told)
}

fn append(file: &Path, token: u64) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut open = std::fs::File::options().append(true).open(file).map_err(told)?;
    open.write_all(format!("{token}\n").as_bytes()).map_err(told)
}
