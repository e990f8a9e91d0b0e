//! etcd's lock recipe, that of `client/v3/concurrency` since etcd 3.5: a lease, a key below the lock's prefix written
//! by a transaction, a watch on the key before the own one until it is deleted, and after a wait a look whether the own
//! key is still there.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_bench::LockClient;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoRequest, IntoStreamingRequest, Status};
use tonic_prost::ProstCodec;

use crate::etcd_messages::{
    ASCEND, BY_CREATE_REVISION, CREATE_REVISION, Compare, DELETE_RANGE, DELETED, DESCEND, DeleteRangeRequest,
    DeleteRangeResponse, Empty, LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LeaseGrantRequest, LeaseGrantResponse,
    LeaseId, Operation, PutRequest, RANGE, RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse, WATCH,
    WatchAction, WatchCancel, WatchCreate, WatchRequest, WatchResponse,
};

/// The default of `concurrency.NewSession`.
const LEASE_SECONDS: i64 = 60;
/// A third of it, as etcd's client does.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);

/// See the module's text.
pub(crate) struct Etcd {
    channel: Channel,
    lease: i64,
    keep_alive: JoinHandle<()>,
    /// All keys of the lock begin with it.
    prefix: String,
    own_key: Vec<u8>,
    /// One stream for all watches, like etcd's client.
    watches: Duplex<WatchRequest, WatchResponse>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.keep_alive.abort();
    }
}

impl Etcd {
    pub(crate) async fn open(address: &str, lock: &str) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
        let channel = endpoint.tcp_nodelay(true).connect().await.map_err(|error| format!("{error:?}"))?;
        let granted: LeaseGrantResponse = call(&channel, LEASE_GRANT, LeaseGrantRequest { ttl: LEASE_SECONDS }).await?;
        if !granted.error.is_empty() {
            return Err(granted.error);
        }
        let lease = granted.id;
        let keep_alive = tokio::spawn(keep_alive(channel.clone(), lease));
        let prefix = format!("{lock}/");
        let own_key = format!("{prefix}{lease:x}").into_bytes();
        let watches = Duplex::new(channel.clone(), WATCH);
        Ok(Self { channel, lease, keep_alive, prefix, own_key, watches })
    }

    /// Puts the own key into the queue. Gives its create revision and that of the first key.
    async fn enqueue(&self) -> Result<(i64, Option<i64>), String> {
        let key = self.own_key.clone();
        let is_new = Compare { target: CREATE_REVISION, key: key.clone(), create_revision: Some(0) };
        let put = Operation::Put(PutRequest { key: key.clone(), value: Vec::new(), lease: self.lease });
        let get = Operation::Range(RangeRequest { key, ..RangeRequest::default() });
        let first = || Operation::Range(RangeRequest { sort_order: ASCEND, ..self.oldest_or_newest() });
        let both = |one| [one, first()].map(|operation| RequestOp { operation: Some(operation) }).to_vec();
        let request = TxnRequest { compare: vec![is_new], success: both(put), failure: both(get) };
        let answer: TxnResponse = call(&self.channel, TXN, request).await?;
        let revision_of = |at: usize| Some(answer.responses.get(at)?.range.as_ref()?.kvs.first()?.create_revision);
        let own = if answer.succeeded { answer.header.map(|header| header.revision) } else { revision_of(0) };
        Ok((own.ok_or("the transaction's answer has no revision")?, revision_of(1)))
    }

    /// One key of the queue, by its create revision.
    fn oldest_or_newest(&self) -> RangeRequest {
        let key = self.prefix.clone().into_bytes();
        let mut range_end = key.clone();
        // The prefix ends with a slash, whose successor is the end of the range.
        if let Some(last) = range_end.last_mut() {
            *last += 1;
        }
        RangeRequest { key, range_end, limit: 1, sort_target: BY_CREATE_REVISION, ..RangeRequest::default() }
    }

    /// Waits until no key of the queue is older than the own one.
    async fn wait_for_older(&mut self, own: i64) -> Result<(), String> {
        loop {
            let newest_before =
                RangeRequest { sort_order: DESCEND, max_create_revision: own - 1, ..self.oldest_or_newest() };
            let answer: RangeResponse = call(&self.channel, RANGE, newest_before).await?;
            let Some(before) = answer.kvs.into_iter().next() else { return Ok(()) };
            let start_revision = answer.header.map_or(0, |header| header.revision);
            self.wait_deleted(before.key, start_revision).await?;
        }
    }

    fn watch(&self, action: WatchAction) -> Result<(), String> {
        self.watches.send(WatchRequest { action: Some(action) })
    }

    async fn wait_deleted(&mut self, key: Vec<u8>, start_revision: i64) -> Result<(), String> {
        self.watch(WatchAction::Create(WatchCreate { key, start_revision }))?;
        let mut own_watch = None;
        loop {
            let message = self.watches.next().await?;
            if message.created {
                own_watch = Some(message.watch_id);
            }
            if own_watch != Some(message.watch_id) {
                // Of a watch that was cancelled.
                continue;
            }
            if message.canceled {
                return Err(format!("the watch was cancelled: {}", message.cancel_reason));
            }
            if message.events.iter().any(|event| event.kind == DELETED) {
                return self.watch(WatchAction::Cancel(WatchCancel { watch_id: message.watch_id }));
            }
        }
    }
}

#[async_trait]
impl LockClient for Etcd {
    async fn acquire(&mut self) -> Result<Option<u64>, String> {
        let (own, first) = self.enqueue().await?;
        if first.is_some_and(|first| first != own) {
            self.wait_for_older(own).await?;
            let own_key = RangeRequest { key: self.own_key.clone(), ..RangeRequest::default() };
            let answer: RangeResponse = call(&self.channel, RANGE, own_key).await?;
            if answer.kvs.is_empty() {
                return Err("the lease has expired".into());
            }
        }
        Ok(u64::try_from(own).ok())
    }

    async fn release(&mut self) -> Result<(), String> {
        let request = DeleteRangeRequest { key: self.own_key.clone() };
        let answer: DeleteRangeResponse = call(&self.channel, DELETE_RANGE, request).await?;
        if answer.deleted == 1 { Ok(()) } else { Err("the own key was gone".into()) }
    }

    async fn close(&mut self) {
        // The lease ends by itself if it cannot be revoked.
        let _ = call::<_, Empty>(&self.channel, LEASE_REVOKE, LeaseId { id: self.lease }).await;
    }
}

async fn keep_alive(channel: Channel, lease: i64) {
    let mut stream = Duplex::<_, Empty>::new(channel, LEASE_KEEP_ALIVE);
    loop {
        tokio::time::sleep(KEEP_ALIVE_EVERY).await;
        if stream.send(LeaseId { id: lease }).is_err() || stream.next().await.is_err() {
            return;
        }
    }
}

/// A call with a stream of requests and one of answers. It begins with the first answer that is awaited, since a server
/// answers the call itself with its first message.
struct Duplex<Q, A> {
    channel: Channel,
    path: &'static str,
    send: mpsc::UnboundedSender<Q>,
    /// Until the call begins.
    unsent: Option<mpsc::UnboundedReceiver<Q>>,
    answers: Option<Streaming<A>>,
}

impl<Q, A> Duplex<Q, A>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    fn new(channel: Channel, path: &'static str) -> Self {
        let (send, unsent) = mpsc::unbounded_channel();
        Self { channel, path, send, unsent: Some(unsent), answers: None }
    }

    fn send(&self, request: Q) -> Result<(), String> {
        self.send.send(request).map_err(|_| self.ended())
    }

    async fn next(&mut self) -> Result<A, String> {
        if let Some(requests) = self.unsent.take() {
            let requests = UnboundedReceiverStream::new(requests).into_streaming_request();
            let mut grpc = ready(&self.channel).await?;
            let path = PathAndQuery::from_static(self.path);
            let answers = grpc.streaming(requests, path, ProstCodec::<Q, A>::default()).await.map_err(failed)?;
            self.answers = Some(answers.into_inner());
        }
        let answer = match &mut self.answers {
            Some(answers) => answers.message().await.map_err(failed)?,
            None => None,
        };
        answer.ok_or_else(|| self.ended())
    }

    fn ended(&self) -> String {
        format!("the stream {} has ended", self.path)
    }
}

/// A client of the channel, as soon as the channel can send.
async fn ready(channel: &Channel) -> Result<Grpc<Channel>, String> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| error.to_string())?;
    Ok(grpc)
}

async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> Result<A, String>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = ready(channel).await?;
    let answer = grpc.unary(request.into_request(), PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
    answer.await.map(tonic::Response::into_inner).map_err(failed)
}

fn failed(status: Status) -> String {
    format!("etcd: {}", status.message())
}
