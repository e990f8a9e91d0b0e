//! Callers of operations behind idempotency gates. The body of an operation appends a line to a file that all processes
//! share, so the file tells how often it ran.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper_client::api::Data;
use lockkeeper_client::api::gates::{Begin, Finish, Gate as State};
use lockkeeper_client::recipes::{Begun, GateTicket};
use lockkeeper_client::{Client, Error, Session};

use super::{Common, failed, join, tell_how_sure};
use crate::record::{Standing, WorkerEvent, boot_us, tell};

const KEEP: Duration = Duration::from_secs(600);

/// See the module's text.
#[derive(Args, Clone)]
pub(super) struct GateWork {
    /// What to do.
    #[arg(long, value_enum)]
    role: Role,
    /// The gates are `<PREFIX>-0`, `<PREFIX>-1`, …
    #[arg(long)]
    prefix: String,
    /// How many gates.
    #[arg(long, default_value_t = 1)]
    keys: u32,
    /// How many callers of each in this process.
    #[arg(long, default_value_t = 1)]
    callers: u32,
    /// When all begin with the first, in microseconds of the boot clock.
    #[arg(long, default_value_t = 0)]
    start_us: u64,
    /// How long after one the next is begun with, in milliseconds.
    #[arg(long, default_value_t = 0)]
    every_ms: u64,
    /// Callers come within so long of each other, in milliseconds.
    #[arg(long, default_value_t = 0)]
    spread_ms: u64,
    /// How long the body takes, in milliseconds.
    #[arg(long, default_value_t = 0)]
    body_ms: u64,
    /// How long a run may be pending, in milliseconds.
    #[arg(long, default_value_t = 60_000)]
    pending_ms: u64,
    /// Begin without a session: then only the pending time frees the gate.
    #[arg(long)]
    without_session: bool,
    /// Where bodies leave their lines.
    #[arg(long)]
    bodies: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Every caller begins each once, and does the work if it is told to.
    Callers,
    /// Begins the first one and stays at work for ever.
    Stuck,
    /// Begins the first one over and over until it is let in, and does the work.
    Next,
    /// Begins and finishes each in turn, alone.
    Pairs,
}

pub(super) async fn run(common: &Common, work: GateWork) -> Result<Vec<Session>, String> {
    let session = common.open(0).await?;
    tell_how_sure(&session);
    let gate_caller =
        if work.without_session { GateCaller::Plain(common.client(0)?) } else { GateCaller::Session(session.clone()) };
    match work.role {
        Role::Callers => {
            let callers =
                (0..work.callers).map(|number| tokio::spawn(caller(gate_caller.clone(), work.clone(), number)));
            join(callers.collect()).await?;
        }
        Role::Stuck => {
            begin(&gate_caller, &work, 0, 0).await?;
        }
        Role::Next => {
            while !matches!(begin(&gate_caller, &work, 0, 0).await?, Some(Standing::Proceed { .. })) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Role::Pairs => pairs(&session, &work).await?,
    }
    Ok(vec![session])
}

/// As whom a caller begins.
#[derive(Clone)]
enum GateCaller {
    /// As the library's recipe does it.
    Session(Session),
    /// As a caller without a session does it.
    Plain(Client),
}

/// What a caller who is to do the work holds.
enum Ticket {
    Session(GateTicket),
    Plain(Client, String, u64),
}

impl GateCaller {
    async fn begin(&self, work: &GateWork, key: &str, fingerprint: &str) -> Result<(Standing, Option<Ticket>), Error> {
        match self {
            Self::Session(session) => {
                let gate = session.gate(key).pending(Duration::from_millis(work.pending_ms)).label("worker");
                Ok(match gate.begin(fingerprint).await? {
                    Begun::Proceed(ticket) => {
                        let standing = Standing::Proceed { token: ticket.token(), until_ms: 0 };
                        (standing, Some(Ticket::Session(ticket)))
                    }
                    Begun::InProgress(other) => (Standing::InProgress { token: other.token }, None),
                    Begun::Done(done) => {
                        let result = String::from_utf8_lossy(&done.result).into_owned();
                        (Standing::Done { token: done.token, result }, None)
                    }
                })
            }
            Self::Plain(client) => {
                let begin =
                    Begin { fingerprint: fingerprint.into(), pending_ms: Some(work.pending_ms), ..Begin::default() };
                Ok(match client.gate_begin(key, &begin).await?.gate {
                    State::Proceed { token, until_ms } => {
                        (Standing::Proceed { token, until_ms }, Some(Ticket::Plain(client.clone(), key.into(), token)))
                    }
                    State::InProgress { token, .. } => (Standing::InProgress { token }, None),
                    State::Done { token, result, .. } => {
                        (Standing::Done { token, result: result.as_text().unwrap_or_default().to_owned() }, None)
                    }
                })
            }
        }
    }
}

impl Ticket {
    async fn finish(self, result: String) -> Result<(), Error> {
        match self {
            Self::Session(ticket) => ticket.finish(result, KEEP).await,
            Self::Plain(client, key, token) => {
                let keep_ms = u64::try_from(KEEP.as_millis()).ok();
                let finish = Finish { token, result: Data::from_bytes(result.as_bytes()), keep_ms, keep: None };
                client.gate_finish(&key, &finish).await.map(drop)
            }
        }
    }
}

async fn caller(gate_caller: GateCaller, work: GateWork, number: u32) -> Result<(), String> {
    for key in 0..work.keys {
        let late_us = u64::from(number) * work.spread_ms * 1_000 / u64::from(work.callers.max(1));
        let at_us = work.start_us + u64::from(key) * work.every_ms * 1_000 + late_us;
        tokio::time::sleep(Duration::from_micros(at_us.saturating_sub(boot_us()))).await;
        begin(&gate_caller, &work, key, number).await?;
    }
    Ok(())
}

/// Begins, and where it is told to proceed does the work and finishes.
async fn begin(
    gate_caller: &GateCaller,
    work: &GateWork,
    number: u32,
    caller: u32,
) -> Result<Option<Standing>, String> {
    let key = format!("{}-{number}", work.prefix);
    let (standing, ticket) = match gate_caller.begin(work, &key, &format!("operation {number}")).await {
        Ok(begun) => begun,
        Err(error) => {
            failed(caller, "begin", &error).await;
            return Ok(None);
        }
    };
    tell(caller, WorkerEvent::Gate { key: key.clone(), standing: standing.clone() });
    let (Standing::Proceed { token, .. }, Some(ticket)) = (&standing, ticket) else { return Ok(Some(standing)) };
    let line = format!("{key} {token}\n");
    let told = |error: std::io::Error| format!("{}: {error}", work.bodies.display());
    let mut bodies = std::fs::File::options().append(true).create(true).open(&work.bodies).map_err(told)?;
    bodies.write_all(line.as_bytes()).map_err(told)?;
    tell(caller, WorkerEvent::Body { key: key.clone(), token: *token });
    if work.role == Role::Stuck {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(work.body_ms)).await;
    match ticket.finish(result_of(*token)).await {
        Ok(()) => tell(caller, WorkerEvent::Finished { key, token: *token }),
        Err(error) => failed(caller, "finish", &error).await,
    }
    Ok(Some(standing))
}

/// What a run under that token results in.
pub fn result_of(token: u64) -> String {
    format!("result of {token}")
}

async fn pairs(session: &Session, work: &GateWork) -> Result<(), String> {
    let begun_us = boot_us();
    for number in 0..work.keys {
        let key = format!("{}-{number}", work.prefix);
        let told = |error: Error| format!("{key}: {error}");
        let ticket = match session.gate(&key).begin("pair").await.map_err(told)? {
            Begun::Proceed(ticket) => ticket,
            other => return Err(format!("{key}: {other:?}")),
        };
        ticket.finish("done", KEEP).await.map_err(told)?;
    }
    tell(0, WorkerEvent::Pairs { count: u64::from(work.keys), micros: boot_us() - begun_us });
    Ok(())
}
