//! Messages that a lock was released, for waiters: one connection of the engine subscribes to the channels that its
//! waiters need.
//!
//! A message only makes a waiter ask again. It may be lost with the connection, so waiters ask from time to time
//! anyway, and nothing here may delay them when Redis has no room for a connection.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use parking_lot::Mutex;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::server::Server;

/// See the module's text.
#[derive(Clone)]
pub(super) struct Subscriptions(Arc<Shared>);

struct Shared {
    server: Arc<Server>,
    /// Waiters by channel.
    waiters: Arc<Mutex<Waiters>>,
    connection: tokio::sync::Mutex<Option<Subscriber>>,
}

type Waiters = HashMap<String, Vec<Arc<ChannelWaiter>>>;

/// What a message wakes.
#[derive(Debug, Default)]
struct ChannelWaiter {
    released: Notify,
}

/// A connection in subscriber mode.
struct Subscriber {
    sink: PubSubSink,
    channels: HashSet<String>,
    alive: Arc<AtomicBool>,
    reader: AbortHandle,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
        self.reader.abort();
    }
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriptions").field("channels", &self.0.waiters.lock().len()).finish_non_exhaustive()
    }
}

impl Subscriptions {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self(Arc::new(Shared { server, waiters: Arc::default(), connection: tokio::sync::Mutex::default() }))
    }

    /// Listens on these channels. When it returns, no later release is missed while the connection lives. `None` if
    /// there is no connection for this.
    pub(super) async fn listen(&self, channels: &[String]) -> Option<WakeupSubscription> {
        let waiter = Arc::new(ChannelWaiter::default());
        {
            let mut waiters = self.0.waiters.lock();
            for channel in channels {
                waiters.entry(channel.clone()).or_default().push(waiter.clone());
            }
        }
        // From here on its drop takes the waiter away.
        let mut listener =
            WakeupSubscription { wakeups: self.clone(), channels: channels.to_vec(), waiter, alive: Arc::default() };
        match self.subscribe(channels).await {
            Ok(alive) => {
                listener.alive = alive;
                Some(listener)
            }
            Err(why) => {
                tracing::debug!(why, "waiting without messages of releases");
                None
            }
        }
    }

    async fn subscribe(&self, channels: &[String]) -> Result<Arc<AtomicBool>, String> {
        let mut connection = self.0.connection.lock().await;
        if connection.as_ref().is_none_or(|subscriber| !subscriber.alive.load(Ordering::Relaxed)) {
            *connection = Some(self.connect().await?);
        }
        let Some(subscriber) = connection.as_mut() else { return Err("no connection".into()) };
        let new: Vec<&String> = channels.iter().filter(|channel| !subscriber.channels.contains(*channel)).collect();
        if !new.is_empty() {
            let subscribed = timeout(self.0.server.connect_timeout(), subscriber.sink.subscribe(&new)).await;
            if let Err(why) = subscribed.map_err(|_| "no answer".to_owned()).and_then(|done| done.map_err(text)) {
                *connection = None;
                return Err(why);
            }
            subscriber.channels.extend(new.into_iter().cloned());
        }
        Ok(subscriber.alive.clone())
    }

    async fn connect(&self) -> Result<Subscriber, String> {
        let Some(client) = self.0.server.client() else { return Err("no address is known".into()) };
        let connected = timeout(self.0.server.connect_timeout(), client.get_async_pubsub()).await;
        let (sink, stream) = connected.map_err(|_| "no answer".to_owned())?.map_err(text)?.split();
        let alive = Arc::new(AtomicBool::new(true));
        let reader = tokio::spawn(read(stream, self.0.waiters.clone(), alive.clone())).abort_handle();
        Ok(Subscriber { sink, channels: HashSet::new(), alive, reader })
    }

    /// Unsubscribes from those of the channels that nobody listens on.
    async fn unsubscribe(&self, channels: Vec<String>) {
        let mut connection = self.0.connection.lock().await;
        let Some(subscriber) = connection.as_mut() else { return };
        for channel in channels {
            // Somebody may have begun to listen meanwhile. Who begins after this subscribes after it, too.
            let unused = !self.0.waiters.lock().contains_key(&channel);
            if unused && subscriber.channels.remove(&channel) {
                let done = timeout(self.0.server.connect_timeout(), subscriber.sink.unsubscribe(&channel)).await;
                if !matches!(done, Ok(Ok(()))) {
                    *connection = None;
                    return;
                }
            }
        }
    }
}

fn text(error: redis::RedisError) -> String {
    error.to_string()
}

/// Wakes the waiters of each message, until the connection ends; then all, so that they listen again.
async fn read(mut stream: PubSubStream, waiters: Arc<Mutex<Waiters>>, alive: Arc<AtomicBool>) {
    while let Some(message) = stream.next().await {
        if let Some(waiters) = waiters.lock().get(message.get_channel_name()) {
            waiters.iter().for_each(|waiter| waiter.released.notify_one());
        }
    }
    alive.store(false, Ordering::Relaxed);
    waiters.lock().values().flatten().for_each(|waiter| waiter.released.notify_one());
}

/// One waiter; dropping it ends its subscriptions.
pub(super) struct WakeupSubscription {
    wakeups: Subscriptions,
    channels: Vec<String>,
    waiter: Arc<ChannelWaiter>,
    alive: Arc<AtomicBool>,
}

impl WakeupSubscription {
    /// Whether its connection lives.
    pub(super) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Completes at the next message, or at once if one came since the last call.
    pub(super) async fn released(&self) {
        self.waiter.released.notified().await;
    }
}

impl Drop for WakeupSubscription {
    fn drop(&mut self) {
        let mut unused = Vec::new();
        let mut waiters = self.wakeups.0.waiters.lock();
        for channel in &self.channels {
            let Some(of_channel) = waiters.get_mut(channel) else { continue };
            of_channel.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            if of_channel.is_empty() {
                waiters.remove(channel);
                unused.push(channel.clone());
            }
        }
        drop(waiters);
        if let (false, Ok(runtime)) = (unused.is_empty(), tokio::runtime::Handle::try_current()) {
            let wakeups = self.wakeups.clone();
            runtime.spawn(async move { wakeups.unsubscribe(unused).await });
        }
    }
}
