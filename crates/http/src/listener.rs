//! Accepting connections, up to a cap. Over the cap an idle connection makes way. Where none is idle, the new one is
//! refused with 503, except requests for health and metrics and those that keep or give back something. Accepting never
//! stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use futures::StreamExt;
use hyper::body::Incoming;
use lockkeeper_api::Code;
use lockkeeper_service::failure::Failure;
use lockkeeper_service::tls::TlsListener;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{ConnectionBounds, Ends, Front, serve};
use super::connections::{Connections, Full, Most};
use super::phase::PhaseClock;
use crate::lanes::{is_health, keeps_or_gives_back};
use crate::response::failure_response;

/// Most connections over the cap, of one request each: see [`Urgent`].
const RESERVE: usize = 64;
/// Longest time for their request header.
const RESERVE_WAITS: Duration = Duration::from_secs(2);
/// Longest time until they end.
const RESERVE_LASTS: Duration = Duration::from_secs(5);

/// How a listener treats its connections.
#[derive(Clone)]
pub(crate) struct Policy {
    /// Its name in the log and the metrics.
    pub(crate) name: &'static str,
    /// Most connections at a time, and the configuration keys of the bounds.
    pub(crate) most: Most,
    pub(crate) keys: Keys,
    pub(crate) tls: Option<TlsListener>,
    /// Bounds of each.
    pub(crate) bounds: Arc<ConnectionBounds>,
    /// Cancelled to stop accepting and let the requests at work finish.
    pub(crate) finish: CancellationToken,
}

/// The keys of the configuration that bound connections.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) all: &'static str,
    pub(crate) of_address: &'static str,
}

/// Accepts until `finish` is cancelled, then returns the open connections. Dropping them cuts them off.
pub(crate) async fn accept(listener: TcpListener, front: impl Front, policy: Policy) -> JoinSet<()> {
    let open = Connections::new(policy.most);
    let young = Duration::ZERO;
    let reserve = Connections::new(Most { all: RESERVE, of_address: RESERVE / 8, young, young_of_own: young });
    let reserve_bounds = Arc::new(ConnectionBounds {
        header_read_timeout: policy.bounds.header_read_timeout.min(RESERVE_WAITS),
        idle_timeout: policy.bounds.idle_timeout.min(RESERVE_WAITS),
        once: true,
        ..(*policy.bounds).clone()
    });
    let gauge = metrics::gauge!("lockkeeper_http_connections", "listener" => policy.name);
    let made_way = metrics::counter!("lockkeeper_http_connections_made_way_total", "listener" => policy.name);
    let refused = metrics::counter!("lockkeeper_http_connections_refused_total", "listener" => policy.name);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = policy.finish.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error, policy.name).await;
                continue;
            }
        };
        let phase_clock = PhaseClock::new();
        let finish = policy.finish.clone();
        match open.enter(address.ip(), phase_clock.clone()) {
            Ok(entered) => {
                if entered.displaced {
                    made_way.increment(1);
                }
                let ends = Ends { finish, make_way: entered.make_way.clone() };
                let (front, bounds, counted) = (front.clone(), policy.bounds.clone(), Gauged::new(&gauge));
                let tls = policy.tls.clone();
                connections.spawn(async move {
                    serve((stream, address), tls, phase_clock, front, bounds, ends).await;
                    drop((entered, counted));
                });
            }
            Err(full) => {
                refused.increment(1);
                let Ok(entered) = reserve.enter(address.ip(), phase_clock.clone()) else { continue };
                let ends = Ends { finish, make_way: entered.make_way.clone() };
                let front = Urgent { front: front.clone(), full: Arc::new(policy.refusal(full)) };
                let (tls, bounds) = (policy.tls.clone(), reserve_bounds.clone());
                let serving = serve((stream, address), tls, phase_clock, front, bounds, ends);
                connections.spawn(async move {
                    // Whatever it does, its place is needed.
                    let _ = tokio::time::timeout(RESERVE_LASTS, serving).await;
                    drop(entered);
                });
            }
        }
    }
}

impl Policy {
    fn refusal(&self, full: Full) -> Failure {
        let Most { all, of_address, .. } = self.most;
        let detail = match full {
            Full::All => format!(
                "this node has {all} connections, as many as it takes ({}), and none of them is idle",
                self.keys.all
            ),
            Full::Address => format!(
                "this address has its share of this node's {all} connections, {of_address} ({}) or as many as are \
                 free, and none of them is idle",
                self.keys.of_address
            ),
        };
        let remedy = "come back later, ask another node, or keep fewer connections open";
        Failure::new(Code::Overloaded, format!("{detail}; {remedy}"))
            .retry_after(1_000)
            .with(|problem| problem.status = 503)
    }
}

/// The service of connections over the cap: requests for health and metrics, and those that keep or give back
/// something.
#[derive(Clone)]
struct Urgent<F> {
    front: F,
    full: Arc<Failure>,
}

impl<F: Front> Front for Urgent<F> {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if is_health(path) || keeps_or_gives_back(request.method(), path) {
            return self.front.answer(request).await;
        }
        // Closing with the body unread would reset the connection before the client reads the reply.
        let _ = tokio::time::timeout(RESERVE_WAITS, discard(request)).await;
        failure_response((*self.full).clone())
    }
}

async fn discard(request: Request<Incoming>) {
    let mut body = Body::new(request.into_body()).into_data_stream();
    while let Some(Ok(_)) = body.next().await {}
}

/// Counts a connection until it is dropped.
struct Gauged(metrics::Gauge);

impl Gauged {
    fn new(gauge: &metrics::Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

async fn pause_after(error: &io::Error, listener: &str) {
    let of_one_client = matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset);
    if !of_one_client {
        // Out of file descriptors or memory: wait until connections close.
        tracing::warn!(%error, listener, "cannot accept connections; raise the limit on open files if this goes on");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
