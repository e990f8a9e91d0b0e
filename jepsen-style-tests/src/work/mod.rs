//! The worker processes: clients of the library on trial, which report what the library tells them ([`crate::record`]).
//!
//! A worker uses `lockkeeper_client` as a program would, and judges nothing. It does its work, reports that it is idle,
//! keeps its sessions until SIGTERM, closes them and exits. The proofs kill and stop it from outside at any moment.
//! Only `hold` stops itself, because the place between two instructions matters there.

mod clients;
mod engines;
mod gate;
mod hold;
mod share;
mod turns;

pub use gate::result_of;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lockkeeper_client::{Client, Error, Options, PreferredNode, Session, SessionOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::record::{WorkerEvent, tell};

/// A process of clients for the proofs; not for anything else.
#[derive(Parser)]
#[command(version, about)]
pub struct WorkerArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    work: Work,
}

/// What every workload takes.
#[derive(Args, Clone)]
struct Common {
    /// Where the cluster is reached.
    #[arg(long, value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    /// The timeout of each session, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    ttl_ms: u64,
    /// Who this is.
    #[arg(long, default_value = "worker")]
    label: String,
}

#[derive(Subcommand)]
enum Work {
    /// Clients of a workload of the fault suite.
    Clients(clients::Clients),
    /// Clients that increment a counter under a lock of several engines, which are switched meanwhile.
    Engines(engines::EnginesWork),
    /// One client that takes a lock and then does as it is told: for pauses, deaths and delays.
    Hold(hold::HoldWork),
    /// Tasks on one lock, in turn with and without sharing it in the process.
    Share(share::Share),
    /// Callers of operations behind idempotency gates.
    Gate(gate::GateWork),
    /// Clients that take turns with one lock, several together, or permits.
    Turns(turns::TurnsWork),
}

/// Runs a worker to its end.
pub async fn run(arguments: WorkerArguments) -> Result<(), String> {
    let WorkerArguments { common, work } = arguments;
    let sessions = match work {
        Work::Clients(work) => return clients::run(&common, work).await,
        Work::Engines(work) => return engines::run(&common, work).await,
        Work::Hold(work) => hold::run(&common, work).await?,
        Work::Share(work) => share::run(&common, work).await?,
        Work::Gate(work) => gate::run(&common, work).await?,
        Work::Turns(work) => turns::run(&common, work).await?,
    };
    let mut told_to_end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    tell(0, WorkerEvent::Idle);
    told_to_end.recv().await;
    for closing in futures::future::join_all(sessions.iter().map(Session::close)).await {
        closing.map_err(|error| format!("closing a session: {error}"))?;
    }
    tell(0, WorkerEvent::End);
    Ok(())
}

/// The endpoints with another one first for each client, so that all nodes serve some.
fn rotated(endpoints: &[String], client: u32) -> Vec<String> {
    let mut endpoints = endpoints.to_vec();
    let count = endpoints.len().max(1);
    endpoints.rotate_left(client as usize % count);
    endpoints
}

/// A client with connections of its own, which stays at the endpoint with which it begins: another one for each client.
pub(crate) fn client_at(endpoints: &[String], client: u32) -> Result<Client, String> {
    let options = Options { prefer: PreferredNode::First, ..Options::default() };
    Client::new(rotated(endpoints, client), options).map_err(|error| error.to_string())
}

impl Common {
    /// See [`client_at`].
    fn client(&self, client: u32) -> Result<Client, String> {
        client_at(&self.endpoints, client)
    }

    async fn open(&self, client: u32) -> Result<Session, String> {
        let options = SessionOptions {
            timeout: Duration::from_millis(self.ttl_ms),
            label: format!("{} {client}", self.label),
            ..SessionOptions::default()
        };
        let session = Session::open(&self.client(client)?, &options).await.map_err(|error| error.to_string())?;
        tell(client, WorkerEvent::Opened { session: session.id() });
        Ok(session)
    }

    /// The session, or another if it is over.
    async fn renew(&self, client: u32, session: Session) -> Result<Session, String> {
        if session.left().is_zero() { self.open(client).await } else { Ok(session) }
    }
}

/// Records with each acknowledged keepalive how long the session is certain to live, before anything relies on it.
fn tell_how_sure(session: &Session) {
    let session = session.clone();
    let mut renewals = session.renewals();
    tell(0, WorkerEvent::Sure { until_ms: session.expires_at().as_millis() });
    tokio::spawn(async move {
        while renewals.changed().await.is_ok() {
            tell(0, WorkerEvent::Sure { until_ms: session.expires_at().as_millis() });
        }
    });
}

/// Tells of a failed call, and keeps the next from following at once.
async fn failed(client: u32, doing: &str, error: &Error) {
    tell(client, WorkerEvent::Failed { doing: doing.to_owned(), why: error.to_string() });
    tokio::time::sleep(Duration::from_millis(20)).await;
}

async fn join<T>(tasks: Vec<tokio::task::JoinHandle<Result<T, String>>>) -> Result<Vec<T>, String> {
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.map_err(|error| error.to_string())??);
    }
    Ok(all)
}
