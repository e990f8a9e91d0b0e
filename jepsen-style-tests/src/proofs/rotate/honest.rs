//! The honest clients: some take and give back locks over HTTP, over lasting connections and over a new one for each
//! request, and one holds a lock and works over one session stream that it never opens again.

use serde_json::json;

use super::authorities::{Authorities, TlsState};
use crate::http::client_builder;
use crate::net::Listener;
use crate::proofs::lock_cycles::{CycleWork, LockCycles};
use crate::proofs::prelude::*;
use crate::proofs::stream_client::{StreamClient, StreamFailure};

/// The lock of each client that works over HTTP.
const LOCKS: [&str; 4] = ["rotate-1", "rotate-2", "rotate-3", "rotate-4"];
const HELD: &str = "rotate-held";
const NODE_OF_STREAM: u64 = 1;
const PATH: &str = "/rotate";
const SESSION_TIMEOUT_MS: u32 = 30_000;
const EVERY: Duration = Duration::from_millis(10);
const WITHIN: Duration = Duration::from_secs(5);

/// What the client of the stream saw.
#[derive(Debug, Default)]
pub(super) struct StreamCalls {
    pub(super) calls: u64,
    pub(super) failures: Vec<String>,
}

/// What all of them saw.
#[derive(Debug)]
pub(super) struct HonestWork {
    pub(super) cycles: Vec<CycleWork>,
    pub(super) stream: StreamCalls,
    /// Sessions that are not open at the end, and the lock where it is not held any more.
    pub(super) lost: Vec<String>,
}

/// See the module's text.
pub(super) struct HonestClients {
    cycles: Vec<LockCycles>,
    sessions: Vec<u64>,
    /// The token of the lock that is held.
    token: u64,
    stream: Tasks<StreamCalls>,
}

const CANNOT: &str = "an honest client cannot begin";

/// Every other client has a new connection for each request.
fn keeps_connections(client: usize) -> bool {
    client.is_multiple_of(2)
}

/// The nodes, for a client that was just started.
fn apis(cluster: &Cluster, authorities: &Authorities, state: TlsState, client: usize) -> Result<Vec<Api>, Failed> {
    let mut builder = client_builder().use_preconfigured_tls(authorities.client(state)?);
    if !keeps_connections(client) {
        builder = builder.pool_max_idle_per_host(0);
    }
    let client = builder.build().or_cannot_run("no client")?;
    Ok(cluster.apis().into_iter().map(|(_, api)| Api::at(client.clone(), api.base())).collect())
}

impl HonestClients {
    /// Opens their sessions and begins to work.
    pub(super) async fn start(cluster: &Cluster, authorities: &Authorities, state: TlsState) -> Result<Self, Failed> {
        let (mut cycles, mut sessions) = (Vec::new(), Vec::new());
        let first = cluster.api(NODE_OF_STREAM);
        for (client, lock) in LOCKS.into_iter().enumerate() {
            let opened = first.open_session(SESSION_TIMEOUT_MS, "honest").await.or_broken(CANNOT)?.value;
            sessions.push(opened.session_id);
            let apis = apis(cluster, authorities, state, client)?;
            cycles.push(LockCycles::start(apis, opened.credential, lock));
        }
        let opened = first.open_session(SESSION_TIMEOUT_MS, "honest").await.or_broken(CANNOT)?.value;
        sessions.push(opened.session_id);
        first.create(PATH, &Create::default(), None).await.or_broken(CANNOT)?;
        let held = first.acquire(&opened.credential, HELD, &Acquire::default(), WITHIN).await.or_broken(CANNOT)?;
        let tls = Arc::new(authorities.client(state)?);
        let address = cluster.net().listens(NODE_OF_STREAM, Listener::Client);
        let shown = (opened.credential.as_str(), None);
        let client = StreamClient::open(address, Some(&tls), opened.session_id, shown).await;
        let client = client.or_broken("an honest client gets no stream")?;
        let mut stream = Tasks::default();
        stream.start(|stop| work(client, stop));
        Ok(Self { cycles, sessions, token: held.value.token, stream })
    }

    /// Restarts those over HTTP with other files, in their sessions. The stream goes on.
    pub(super) async fn restart(
        &self,
        cluster: &Cluster,
        authorities: &Authorities,
        state: TlsState,
    ) -> Result<(), Failed> {
        for (client, cycles) in self.cycles.iter().enumerate() {
            cycles.use_nodes(apis(cluster, authorities, state, client)?).await;
        }
        Ok(())
    }

    /// Ends their work, and looks at what they must have kept.
    pub(super) async fn end(self, api: &Api) -> HonestWork {
        let cycles = futures::future::join_all(self.cycles.into_iter().map(LockCycles::end)).await;
        let broke_off = || StreamCalls { failures: vec!["it broke off".into()], ..StreamCalls::default() };
        let stream = self.stream.end().await.ok().and_then(|mut ended| ended.pop()).unwrap_or_else(broke_off);
        let mut lost = Vec::new();
        for id in self.sessions {
            if let Err(failure) = api.session(id).await {
                lost.push(format!("session {id}: {failure}"));
            }
        }
        match api.verify(HELD, self.token, WITHIN).await {
            Ok(verified) if verified.value.held => {}
            other => lost.push(format!("lock {HELD}: {other:?}")),
        }
        HonestWork { cycles, stream, lost }
    }
}

/// One call after the other, until told to stop or until the stream has ended.
async fn work(mut stream: StreamClient, stop: CancellationToken) -> StreamCalls {
    let set = json!({ "set_node": { "path": PATH, "body": { "data": { "text": "worked" } } } });
    let mut work = StreamCalls::default();
    while !stop.is_cancelled() {
        match stream.call(&set).await {
            Ok(()) => work.calls += 1,
            Err(StreamFailure::Refused(code)) => work.failures.push(format!("a call was refused: {code}")),
            Err(StreamFailure::Ended(why)) => {
                work.failures.push(format!("it ended: {why}"));
                break;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
    work
}
