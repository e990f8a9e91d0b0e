//! The task that keeps a stream connected: it looks for a node, serves the connection, and looks for another node when
//! the connection ends.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use super::connect::{OpenedStream, SearchResult, connect_any};
use super::connection::{CloseReason, StreamConnection};
use super::handle::{Phase, RetryDetached, StreamHandle};
use super::leader_move::LeaderMove;
use super::pending::Reply;
use crate::context::Context;
use crate::error::Tried;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Pause between two searches while no endpoint serves a stream.
const PAUSE_WITHOUT_STREAM: Duration = Duration::from_secs(5);
/// The sessions of a dead node spread their reconnects over this time.
const LARGEST_SCATTER: Duration = Duration::from_millis(20);

impl StreamHandle {
    /// Starts a stream whose task runs on the current runtime until [`stop`](Self::stop) is called or the session is
    /// over. It begins at the endpoint with index `first`, or at the preferred one.
    pub(crate) fn start(
        context: &Context,
        timeout: Duration,
        first: Option<usize>,
        retry_detached: RetryDetached,
    ) -> Arc<Self> {
        let stream = Arc::new(Self::new(context, timeout, retry_detached));
        context.tasks.spawn(reconnect(stream.clone(), first));
        stream
    }
}

/// Completes all pending requests, however the task ends.
struct CompleteOnDrop(Arc<StreamHandle>);

impl Drop for CompleteOnDrop {
    fn drop(&mut self) {
        self.0.enter(Phase::Stopped);
        let over = match &*self.0.phase.borrow() {
            Phase::Over(why) => Some(why.clone()),
            _ => None,
        };
        let left = {
            let mut inner = self.0.inner.lock();
            inner.watches.clear();
            inner.pending.drain()
        };
        for request in left {
            let reply = over.clone().map_or(Reply::UseHttp, Reply::SessionOver);
            self.0.complete(request, reply);
        }
    }
}

async fn reconnect(stream: Arc<StreamHandle>, mut first: Option<usize>) {
    let _complete = CompleteOnDrop(stream.clone());
    let (mut generation, mut pause) = (0, FIRST_PAUSE);
    let mut leader_move = LeaderMove::default();
    loop {
        let Some(opened) = search(&stream, first.take(), &mut pause).await else { return };
        generation += 1;
        let index = opened.index;
        let mut connection = StreamConnection::begin(&stream, opened, generation, &mut leader_move);
        let reason = connection.run().await;
        let served = connection.served;
        connection.close(&reason).await;
        tracing::debug!(?reason, endpoint = %stream.context.endpoints.at(index), "stream ended");
        leader_move.cancel();
        let rest = rest_after(&reason, served, pause);
        if let CloseReason::MovesToLeader(leader) = reason {
            first = Some(leader);
        }
        if !prepare_reconnect(&stream, index, reason) {
            return;
        }
        pause = if served { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        sleep(scattered(rest)).await;
    }
}

/// How long to rest before the next connection. A node that accepts the stream and then does not serve it is retried
/// with growing pauses, and one that speaks another version as rarely as one without streams.
fn rest_after(reason: &CloseReason, served: bool, pause: Duration) -> Duration {
    match reason {
        CloseReason::OtherVersion(_) => PAUSE_WITHOUT_STREAM,
        CloseReason::MovesToLeader(_) => Duration::ZERO,
        _ if served => LARGEST_SCATTER,
        _ => pause,
    }
}

/// Prepares for the next connection; false if there is to be none.
fn prepare_reconnect(stream: &Arc<StreamHandle>, index: usize, reason: CloseReason) -> bool {
    let endpoints = &stream.context.endpoints;
    let moves = matches!(reason, CloseReason::MovesToLeader(_));
    let (fails, why) = match reason {
        CloseReason::Stopped => return false,
        CloseReason::Over(why) => {
            stream.enter(Phase::Over(why));
            return false;
        }
        CloseReason::OtherVersion(why) => {
            endpoints.move_on_from(index);
            let tried = Tried { endpoint: endpoints.at(index).to_string(), why, code: None };
            use_http(stream, vec![tried]);
            return true;
        }
        CloseReason::NotLockkeeper(why) => (true, why),
        CloseReason::Broken(why) | CloseReason::ReconnectRequested(why) => (false, why),
        CloseReason::MovesToLeader(_) => (false, "the stream moves to the leader".into()),
    };
    if !moves {
        endpoints.move_on_from(index);
    }
    let failed = {
        let mut inner = stream.inner.lock();
        stream.enter(Phase::Connecting);
        let failed = if fails { inner.pending.drain_sent_callers() } else { Vec::new() };
        inner.pending.connection_lost();
        inner.tried = vec![Tried { endpoint: endpoints.at(index).to_string(), why: why.clone(), code: None }];
        failed
    };
    for request in failed {
        stream.complete(request, Reply::NotLockkeeper { index, why: why.clone() });
    }
    true
}

/// Leaves all requests to HTTP until a node serves the stream.
fn use_http(stream: &Arc<StreamHandle>, tried: Vec<Tried>) {
    let requests = {
        let mut inner = stream.inner.lock();
        inner.tried = tried;
        stream.enter(Phase::None);
        inner.watches.clear();
        inner.pending.drain()
    };
    requests.into_iter().for_each(|request| stream.complete(request, Reply::UseHttp));
}

/// Looks for a node that serves the stream; `None` when the stream is stopped or the session is over.
async fn search(stream: &Arc<StreamHandle>, mut first: Option<usize>, pause: &mut Duration) -> Option<OpenedStream> {
    loop {
        let mut phase = stream.phase.subscribe();
        let found = tokio::select! {
            found = connect_any(stream, first.take()) => found,
            // Detached requests then go over HTTP.
            _ = phase.wait_for(Phase::is_final) => return None,
        };
        let rest = match found {
            SearchResult::Stream(opened) => {
                stream.context.endpoints.prefer(opened.index);
                return Some(opened);
            }
            SearchResult::Over(why) => {
                stream.enter(Phase::Over(why));
                return None;
            }
            SearchResult::Nothing { tried, leave_to_http } => {
                tracing::debug!(?tried, "no endpoint serves the stream");
                if leave_to_http {
                    use_http(stream, tried);
                    PAUSE_WITHOUT_STREAM
                } else {
                    stream.inner.lock().tried = tried;
                    *pause
                }
            }
        };
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            () = sleep(scattered(rest)) => {}
            _ = phase.wait_for(Phase::is_final) => return None,
        }
    }
}

/// A random part of a pause: many clients that lost the same node must not all reconnect at the same moment.
fn scattered(longest: Duration) -> Duration {
    longest.mul_f64(rand::rng().random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_served_is_tried_again_at_once() {
        let rest = |reason, served| rest_after(&reason, served, FIRST_PAUSE);
        assert_eq!(rest(CloseReason::OtherVersion("1".into()), false), PAUSE_WITHOUT_STREAM);
        assert_eq!(rest(CloseReason::Broken("reset".into()), true), LARGEST_SCATTER);
        assert_eq!(rest(CloseReason::Broken("reset".into()), false), FIRST_PAUSE);
    }
}
