//! `clients`: runs some clients of a [`Workload`](crate::workload::Workload) until SIGTERM, or performs its final
//! reads.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use futures::future::join_all;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Common, rotated};
use crate::workload::{self, ClientContext, Recorder};

#[derive(Args, Clone)]
pub(super) struct Clients {
    /// Which workload.
    #[arg(long)]
    workload: String,
    /// The number of the first client here.
    #[arg(long)]
    first: u32,
    /// How many clients run here.
    #[arg(long)]
    here: u32,
    /// How many there are in all processes.
    #[arg(long)]
    clients: u32,
    /// Where their chance comes from.
    #[arg(long)]
    seed: u64,
    /// Where ZooKeeper's clients reach the cluster.
    #[arg(long, value_delimiter = ',')]
    zookeepers: Vec<String>,
    /// The directory that all of them share.
    #[arg(long)]
    shared: PathBuf,
    /// Read what is there at the end instead, once.
    #[arg(long)]
    conclude: bool,
}

pub(super) async fn run(common: &Common, work: Clients) -> Result<(), String> {
    let all = workload::all();
    let found = all.iter().find(|one| one.name() == work.workload);
    let workload = found.ok_or_else(|| format!("there is no workload {:?}", work.workload))?;
    let mut told_to_end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let stop = CancellationToken::new();
    let context = |client: u32| {
        ClientContext {
            // Half of the clients move to the leader.
            endpoints: rotated(&common.endpoints, client),
            zookeepers: rotated(&work.zookeepers, client),
            client,
            clients: work.clients,
            seed: work.seed.wrapping_add(u64::from(client)),
            ttl: Duration::from_millis(common.ttl_ms),
            shared: work.shared.clone(),
            stop: stop.clone(),
            recorder: Recorder::new(client),
        }
    };
    if work.conclude {
        return workload.conclude(context(work.first)).await;
    }
    let clients =
        join_all((work.first..work.first.saturating_add(work.here)).map(|client| workload.client(context(client))));
    let mut clients = std::pin::pin!(clients);
    let ended = tokio::select! {
        ended = &mut clients => ended,
        _ = told_to_end.recv() => {
            stop.cancel();
            clients.await
        }
    };
    ended.into_iter().collect()
}
