//! One connection, from its acceptance to its end: it serves requests one after another, is cut off when it is silent,
//! and finishes when the node shuts down. When a client disconnects, hyper drops the handler's future, which cancels
//! the request.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::UPGRADE;
use axum::http::{Request, Response, StatusCode};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lockkeeper_service::caller::ClientAddress;
use lockkeeper_service::socket::{ClientCertificate, Socket, bound_unsent, is_local};
use lockkeeper_service::tls::{TLS_HANDSHAKE_TIMEOUT, TlsHandshake, TlsListener};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::https_hint::hint_at_https;
use super::phase::{Phase, PhaseClock, PhasedSocket};
use super::upgrade::Handover;

/// The bounds of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionBounds {
    /// Size of the read buffer; a header that does not fit gets a bare 431.
    pub(crate) buffer_bytes: usize,
    pub(crate) header_read_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) write_timeout: Duration,
    /// Whether it serves one request only.
    pub(crate) once: bool,
}

/// Longest time for an idle connection that makes way to end.
const MAKE_WAY_WITHIN: Duration = Duration::from_secs(1);
/// Longest time for a client to read nothing of a reply once its connection is to make way; the slowest lines carry
/// [`UNSENT_BYTES`](lockkeeper_service::socket::UNSENT_BYTES) in it. The time for a write holds in any case.
const TAKES_NOTHING: Duration = Duration::from_secs(5);

/// The service behind a listener.
pub(crate) trait Front: Clone + Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// Socket options: no delay for small replies, and timeouts for peers that vanished or read nothing.
pub(crate) fn prepare(stream: &TcpStream, bounds: &ConnectionBounds) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(bounds.write_timeout))?;
    bound_unsent(stream)
}

/// Signals that end a connection from this side.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// End once the request at work is answered.
    pub(crate) finish: CancellationToken,
    /// End if it has no request: another connection needs its room.
    pub(crate) make_way: CancellationToken,
}

/// Serves one connection until its end. Of a connection that leaves HTTP, what HTTP needs is freed before.
pub(crate) async fn serve(
    accepted: (TcpStream, SocketAddr),
    tls: Option<TlsListener>,
    phase_clock: Arc<PhaseClock>,
    front: impl Front,
    bounds: Arc<ConnectionBounds>,
    ends: Ends,
) {
    if let Some(next) = Box::pin(serve_http(accepted, tls, phase_clock, front, bounds, ends)).await {
        next.await;
    }
}

/// Serves a connection while it speaks HTTP. The future, if there is one, takes it over.
async fn serve_http(
    (stream, address): (TcpStream, SocketAddr),
    tls: Option<TlsListener>,
    phase_clock: Arc<PhaseClock>,
    front: impl Front,
    bounds: Arc<ConnectionBounds>,
    ends: Ends,
) -> Option<BoxFuture<'static, ()>> {
    if let Err(error) = prepare(&stream, &bounds) {
        tracing::debug!(%error, "a connection ended before it began");
        return None;
    }
    let secured = secure((stream, address), tls, &phase_clock, &bounds, &ends).await;
    let (socket, certificate) = secured?;
    let from = ClientAddress { address, is_local: is_local(socket.tcp(), address) };
    let socket = TokioIo::new(PhasedSocket::new(socket, phase_clock.clone()));
    let handover = Handover::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if request.headers().contains_key(UPGRADE) {
            request.extensions_mut().insert(handover.clone());
        }
        let (front, phase_clock) = (front.clone(), phase_clock.clone());
        async move {
            phase_clock.enter(Phase::Busy);
            let response = front.answer(request).await;
            // A stream of events ends by itself, when its client or this node goes.
            let goes_on = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if !goes_on && response.extensions().get::<Endless>().is_none() {
                phase_clock.enter(Phase::Idle);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    // hyper's own header timer also runs while a connection is idle; the phase clock tells the two apart.
    builder.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(bounds.buffer_bytes);
    builder.keep_alive(!bounds.once);
    let mut connection = pin!(builder.serve_connection(socket, service).with_upgrades());
    let tick = bounds.header_read_timeout.min(bounds.idle_timeout);
    let mut finishing = false;
    let mut making_way = None;
    loop {
        let longest = making_way.map_or(tick, |_| tick.min(MAKE_WAY_WITHIN));
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    if phase_clock.begins_as_tls() {
                        tracing::info!(%address, "a client speaks TLS to a port without TLS: it must use http");
                    }
                    tracing::debug!(%error, "a connection broke");
                    return None;
                }
                return handover.take();
            }
            () = ends.finish.cancelled(), if !finishing => {
                finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            () = ends.make_way.cancelled(), if making_way.is_none() => {
                making_way = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(wait(&phase_clock, &bounds, longest)) => {
                let late = making_way.is_some_and(|since| is_late(&phase_clock, &bounds, since.elapsed()));
                if let Some(why) = overdue(&phase_clock, &bounds).or(late.then_some("made way")) {
                    tracing::debug!(why, "a connection was cut off");
                    metrics::counter!("lockkeeper_http_connections_cut_total", "why" => why).increment(1);
                    return None;
                }
            }
        }
    }
}

/// Marks a reply whose body goes on until the client or the node ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endless;

/// Performs the handshake of a connection to a listener with TLS. A client that speaks HTTP without TLS is told so.
async fn secure(
    (stream, address): (TcpStream, SocketAddr),
    tls: Option<TlsListener>,
    phase_clock: &PhaseClock,
    bounds: &ConnectionBounds,
    ends: &Ends,
) -> Option<(Socket, Option<ClientCertificate>)> {
    let Some(tls) = tls else { return Some((Socket::Plain(stream), None)) };
    let within = TLS_HANDSHAKE_TIMEOUT.min(bounds.header_read_timeout);
    let handshake = async {
        match tls.accept(stream, address, within, || phase_clock.enter(Phase::Header)).await {
            TlsHandshake::Done(socket, certificate) => {
                phase_clock.enter(Phase::Idle);
                Some((socket, certificate))
            }
            TlsHandshake::PlainText(stream) => {
                hint_at_https(stream).await;
                None
            }
            TlsHandshake::Failed => None,
        }
    };
    tokio::select! {
        // Boxed, because it is large, and connections without TLS need no room for it.
        secured = Box::pin(handshake) => secured,
        () = ends.finish.cancelled() => None,
        () = ends.make_way.cancelled() => None,
    }
}

/// When to check again: a header that begins now may take its timeout, with this tick twice that at worst.
fn wait(phase_clock: &PhaseClock, bounds: &ConnectionBounds, tick: Duration) -> Duration {
    let (phase, lasted) = phase_clock.now();
    let left = match phase {
        Phase::Idle => bounds.idle_timeout.saturating_sub(lasted),
        Phase::Header => bounds.header_read_timeout.saturating_sub(lasted),
        Phase::Busy => tick,
    };
    left.min(tick).max(Duration::from_millis(1))
}

/// Whether a connection that has been making way for so long is to be cut off.
fn is_late(phase_clock: &PhaseClock, bounds: &ConnectionBounds, making_way: Duration) -> bool {
    match phase_clock.now() {
        (Phase::Busy, _) => false,
        (Phase::Header, _) => making_way >= MAKE_WAY_WITHIN,
        // A connection without a reply to send has ended by itself.
        (Phase::Idle, lasted) => lasted.min(making_way) >= TAKES_NOTHING || making_way >= bounds.write_timeout,
    }
}

fn overdue(phase_clock: &PhaseClock, bounds: &ConnectionBounds) -> Option<&'static str> {
    match phase_clock.now() {
        (Phase::Idle, lasted) if lasted >= bounds.idle_timeout => Some("idle"),
        (Phase::Header, lasted) if lasted >= bounds.header_read_timeout => Some("slow header"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A client that takes little at a time, and its connection here.
    async fn connected() -> (TcpStream, (TcpStream, SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(4096).unwrap();
        let (client, accepted) = tokio::join!(client.connect(listener.local_addr().unwrap()), listener.accept());
        (client.unwrap(), accepted.unwrap())
    }

    /// Answers everything with the same bytes.
    #[derive(Clone)]
    struct Large(usize);

    impl Front for Large {
        async fn answer(&self, _: Request<Incoming>) -> Response<Body> {
            Response::new(Body::from(vec![b'x'; self.0]))
        }
    }

    /// Asks for a large reply, has the connection make way, and pauses so often while it reads. Gives the bytes that
    /// came.
    async fn read_while_it_makes_way(bytes: usize, mut pauses: usize, pause: Duration) -> usize {
        let second = Duration::from_secs(1);
        let bounds = ConnectionBounds {
            buffer_bytes: 16 * 1024,
            header_read_timeout: 10 * second,
            idle_timeout: 60 * second,
            write_timeout: 30 * second,
            once: false,
        };
        let (mut client, accepted) = connected().await;
        let ends = Ends { finish: CancellationToken::new(), make_way: CancellationToken::new() };
        tokio::spawn(serve(accepted, None, PhaseClock::new(), Large(bytes), Arc::new(bounds), ends.clone()));
        client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
        let (mut some, mut came) = (vec![0; 16 * 1024], 0);
        loop {
            match client.read(&mut some).await {
                Ok(0) | Err(_) => return came,
                Ok(bytes) => came += bytes,
            }
            ends.make_way.cancel();
            if pauses > 0 {
                pauses -= 1;
                tokio::time::sleep(pause).await;
            }
        }
    }

    #[tokio::test]
    async fn who_makes_way_is_sent_its_reply_while_it_reads_it() {
        const BYTES: usize = 1_000_000;
        let began = Instant::now();
        let came = read_while_it_makes_way(BYTES, 4, MAKE_WAY_WITHIN / 2).await;
        assert!(came > BYTES, "{came} of {BYTES} bytes and a header, within {:?}", began.elapsed());
        assert!(began.elapsed() > MAKE_WAY_WITHIN);
        let came = read_while_it_makes_way(BYTES, 1, TAKES_NOTHING + 2 * MAKE_WAY_WITHIN).await;
        assert!(came < BYTES, "all of it came to one that did not read on");
    }
}
