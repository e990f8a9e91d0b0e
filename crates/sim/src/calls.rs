//! Calls over the simulated network, from the caller's side: a node to its peers, and a client to a node.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use lockkeeper_consensus::{PeerCaller, PeerKind, PeerMemory, StartId, Transport, TransportError};
use lockkeeper_node::Node;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::disk::Disk;
use crate::net::{CallError, Fail, Net, Serve};
use crate::settings::{CLIENTS, HostId};

/// Where the answer goes; taken by whichever comes first.
type Slot<T> = Arc<Mutex<Option<oneshot::Sender<Result<T, CallError>>>>>;

fn put<T>(slot: &Slot<T>, result: Result<T, CallError>) {
    if let Some(waiting) = slot.lock().take() {
        // Nobody waits any more: then nobody needs it.
        let _ = waiting.send(result);
    }
}

/// A call that is abandoned when this is dropped, unless it has been answered.
struct PendingCall {
    net: Net,
    call: u64,
    open: bool,
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if self.open {
            self.net.abandon(self.call);
        }
    }
}

/// Work to be done on a node, whose result goes back over the network.
fn serve_once<T, F, Fut>(net: &Net, call: u64, from: HostId, to: HostId, slot: &Slot<T>, serve: F) -> Serve
where
    F: FnOnce(Node) -> Fut + Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let (net, slot) = (net.clone(), slot.clone());
    Box::new(move |node| {
        Box::pin(async move {
            let value = serve(node).await;
            net.served(to, call);
            net.with(|state| state.answer(to, from, call, Box::new(move || put(&slot, Ok(value))), false));
        })
    })
}

fn begin<T: Send + 'static>(
    net: &Net,
    from: HostId,
    to: HostId,
) -> (PendingCall, Slot<T>, oneshot::Receiver<Result<T, CallError>>) {
    let (sender, receiver) = oneshot::channel();
    let slot: Slot<T> = Arc::new(Mutex::new(Some(sender)));
    let failing = slot.clone();
    let fail: Fail = Box::new(move |error| put(&failing, Err(error)));
    let call = net.with(|state| state.begin(from, to, fail));
    (PendingCall { net: net.clone(), call, open: true }, slot, receiver)
}

async fn outcome<T>(
    pending: &mut PendingCall,
    deadline: Duration,
    receiver: oneshot::Receiver<Result<T, CallError>>,
) -> Result<T, CallError> {
    let result = match tokio::time::timeout(deadline, receiver).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(CallError::Reset),
        Err(_) => return Err(CallError::TimedOut),
    };
    pending.open = false;
    result
}

/// A node's calls to its peers.
pub(crate) struct PeerLink {
    pub(crate) net: Net,
    pub(crate) from: HostId,
    pub(crate) start: StartId,
    /// For what this node expects of its peers.
    pub(crate) disk: Disk,
}

#[async_trait]
impl Transport for PeerLink {
    async fn call(&self, to: u64, kind: PeerKind, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        let (net, from) = (&self.net, self.from);
        let (mut pending, slot, receiver) = begin(net, from, to);
        let expects = self.disk.peer(to).and_then(|known| known.start);
        let caller = PeerCaller { node: from, start: self.start, expects };
        let serve = |body: Bytes| {
            let (net, call) = (net.clone(), pending.call);
            serve_once(&self.net, call, from, to, &slot, move |node: Node| async move {
                let answer = node.serve_peer(caller, kind, body).await;
                net.with(|state| match &answer {
                    Ok(bytes) => {
                        let crc = crc32c::crc32c(bytes);
                        state.trace_line(to, format_args!("answers #{call} {} bytes {crc:08x}", bytes.len()));
                    }
                    Err(refused) => state.trace_line(to, format_args!("refuses #{call}: {}", refused.code)),
                });
                answer
            })
        };
        let (once, again) = (serve(body.clone()), serve(body.clone()));
        net.with(|state| {
            let crc = crc32c::crc32c(&body);
            let call = pending.call;
            state.trace_line(from, format_args!("asks {to} #{call} {kind} {} bytes {crc:08x}", body.len()));
            state.request(from, to, call, once, Some(again));
        });
        // The peer works on it until the deadline, even if the caller is dropped before.
        let waiting = tokio::spawn(async move { outcome(&mut pending, deadline, receiver).await });
        match waiting.await.unwrap_or(Err(CallError::Reset)) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refused)) => Err(TransportError::Rejected { code: refused.code, detail: refused.detail }),
            Err(CallError::Refused) => Err(TransportError::Refused),
            Err(CallError::Reset) => Err(TransportError::Reset),
            Err(CallError::TimedOut) => Err(TransportError::TimedOut),
        }
    }
}

/// What a client task has of the world: calls to nodes over the network, the true time, a line in the trace.
#[derive(Clone)]
pub struct ClientNet {
    pub(crate) net: Net,
}

impl ClientNet {
    /// Runs `serve` on `node` and returns its answer. If the call is dropped or runs into its deadline, the serving
    /// future is dropped on the node too, a little later, as a server drops a handler when its caller's connection
    /// closes.
    pub async fn call<T, F, Fut>(&self, node: HostId, deadline: Duration, serve: F) -> Result<T, CallError>
    where
        F: FnOnce(Node) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let (mut pending, slot, receiver) = begin(&self.net, CLIENTS, node);
        let serve = serve_once(&self.net, pending.call, CLIENTS, node, &slot, serve);
        self.net.with(|state| {
            state.trace_line(CLIENTS, format_args!("asks {node} #{}", pending.call));
            state.request(CLIENTS, node, pending.call, serve, None);
        });
        outcome(&mut pending, deadline, receiver).await
    }

    /// Like [`call`](Self::call), for a stream: each item of the stream that `open` gives crosses the network, in
    /// order.
    pub async fn listen<T, E, S, F, Fut>(
        &self,
        node: HostId,
        deadline: Duration,
        open: F,
    ) -> Result<Result<Incoming<T>, E>, CallError>
    where
        F: FnOnce(Node) -> Fut + Send + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        S: Stream<Item = T> + Send + Unpin + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (items, queue) = mpsc::unbounded_channel::<Result<T, CallError>>();
        let items = Arc::new(Mutex::new(Some(items)));
        let (sender, receiver) = oneshot::channel();
        let slot: Slot<Result<(), E>> = Arc::new(Mutex::new(Some(sender)));
        let fail: Fail = {
            let (slot, items) = (slot.clone(), items.clone());
            Box::new(move |error| {
                put(&slot, Err(error));
                if let Some(items) = items.lock().take() {
                    // Nobody listens any more.
                    let _ = items.send(Err(error));
                }
            })
        };
        let call = self.net.with(|state| state.begin(CLIENTS, node, fail));
        let mut pending = PendingCall { net: self.net.clone(), call, open: true };
        let serve = serve_stream(&self.net, call, node, slot, items, open);
        self.net.with(|state| {
            state.trace_line(CLIENTS, format_args!("listens to {node} #{call}"));
            state.request(CLIENTS, node, call, serve, None);
        });
        match outcome(&mut pending, deadline, receiver).await? {
            Ok(()) => {
                pending.open = true;
                Ok(Ok(Incoming { queue, _pending: pending }))
            }
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// The true time since the world began, wherever the clocks of its hosts stand.
    pub fn now(&self) -> Duration {
        self.net.now(CLIENTS)
    }

    /// A line in the trace.
    pub fn note(&self, line: &str) {
        self.net.with(|state| state.trace_line(CLIENTS, format_args!("{line}")));
    }
}

type Items<T> = Arc<Mutex<Option<mpsc::UnboundedSender<Result<T, CallError>>>>>;

/// Opens a stream on a node and sends on what it gives, until it ends or nobody listens any more.
fn serve_stream<T, E, S, F, Fut>(
    net: &Net,
    call: u64,
    node: HostId,
    slot: Slot<Result<(), E>>,
    items: Items<T>,
    open: F,
) -> Serve
where
    F: FnOnce(Node) -> Fut + Send + 'static,
    Fut: Future<Output = Result<S, E>> + Send + 'static,
    S: Stream<Item = T> + Send + Unpin + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let net = net.clone();
    Box::new(move |serving| {
        Box::pin(async move {
            let answer = |deliver, more| net.with(|state| state.answer(node, CLIENTS, call, deliver, more));
            match open(serving).await {
                Err(refused) => answer(Box::new(move || put(&slot, Ok(Err(refused)))), false),
                Ok(mut stream) => {
                    answer(Box::new(move || put(&slot, Ok(Ok(())))), true);
                    while let Some(item) = stream.next().await {
                        let items = items.clone();
                        let deliver = move || {
                            if let Some(items) = &*items.lock() {
                                // Nobody listens any more.
                                let _ = items.send(Ok(item));
                            }
                        };
                        answer(Box::new(deliver), true);
                    }
                    answer(Box::new(move || drop(items.lock().take())), false);
                }
            }
            net.served(node, call);
        })
    })
}

/// What a [`ClientNet::listen`] hears. Dropping it ends the stream at the node, a little later.
pub struct Incoming<T> {
    queue: mpsc::UnboundedReceiver<Result<T, CallError>>,
    _pending: PendingCall,
}

impl<T> Incoming<T> {
    /// The next item; `None` when the node ended the stream, an error when the connection broke. Silence may be a
    /// broken connection that this side has not noticed.
    pub async fn next(&mut self) -> Option<Result<T, CallError>> {
        self.queue.recv().await
    }
}

impl<T> Stream for Incoming<T> {
    type Item = Result<T, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.queue.poll_recv(context)
    }
}
