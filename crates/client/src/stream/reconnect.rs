//! The task that keeps a stream going: looks for a node, has it served, and looks for another when that ends.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use super::connect::{OpenedStream, SearchResult, connect_any};
use super::connection::{CloseReason, StreamConnection};
use super::handle::{Phase, Reply, StreamHandle};
use crate::error::Tried;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Between two looks for a stream at endpoints that have none.
const PAUSE_WITHOUT_STREAM: Duration = Duration::from_secs(5);
/// Sessions that a dead node leaves behind do not all come to the next in the same moment.
const LARGEST_SCATTER: Duration = Duration::from_millis(20);

/// Leaves nobody waiting, however the driver ends.
struct FailPendingOnDrop(Arc<StreamHandle>);

impl Drop for FailPendingOnDrop {
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

/// Serves the stream until it is stopped or its session is over.
pub(super) async fn reconnect(stream: Arc<StreamHandle>) {
    let _last_word = FailPendingOnDrop(stream.clone());
    let (mut generation, mut pause) = (0, FIRST_PAUSE);
    loop {
        let Some(opened) = search(&stream, &mut pause).await else { return };
        generation += 1;
        let index = opened.index;
        let mut connection = StreamConnection::begin(&stream, opened, generation);
        let ending = connection.run().await;
        let served = connection.served;
        connection.close(&ending).await;
        tracing::debug!(?ending, endpoint = %stream.client.endpoints.at(index), "stream ended");
        if !prepare_reconnect(&stream, index, ending) {
            return;
        }
        // A node that takes the stream and then does nothing with it is not asked again and again.
        let rest = if served { LARGEST_SCATTER } else { pause };
        pause = if served { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        sleep(scattered(rest)).await;
    }
}

/// Prepares for the next connection; false if there is to be none.
fn prepare_reconnect(stream: &Arc<StreamHandle>, index: usize, ending: CloseReason) -> bool {
    let (fails, why) = match ending {
        CloseReason::Stopped => return false,
        CloseReason::Over(why) => {
            stream.enter(Phase::Over(why));
            return false;
        }
        CloseReason::NotLockkeeper(why) => (true, why),
        CloseReason::Broken(why) | CloseReason::Abandoned(why) => (false, why),
    };
    stream.client.endpoints.move_on_from(index);
    let failed = {
        let mut inner = stream.inner.lock();
        stream.enter(Phase::Connecting);
        let failed = if fails { inner.pending.drain_sent_callers() } else { Vec::new() };
        inner.pending.connection_lost();
        inner.tried = vec![Tried { endpoint: stream.client.endpoints.at(index).to_string(), why: why.clone() }];
        failed
    };
    for request in failed {
        stream.complete(request, Reply::NotLockkeeper { index, why: why.clone() });
    }
    true
}

/// Looks for a node that serves the stream, for as long as somebody wants one.
async fn search(stream: &Arc<StreamHandle>, pause: &mut Duration) -> Option<OpenedStream> {
    loop {
        let mut phase = stream.phase.subscribe();
        let found = tokio::select! {
            found = connect_any(stream) => found,
            // What was posted goes over HTTP then.
            _ = phase.wait_for(Phase::is_final) => return None,
        };
        let rest = match found {
            SearchResult::Stream(opened) => {
                stream.client.endpoints.prefer(opened.index);
                return Some(opened);
            }
            SearchResult::Over(why) => {
                stream.enter(Phase::Over(why));
                return None;
            }
            SearchResult::Nothing { tried, some_answer_without } => {
                tracing::debug!(?tried, "no endpoint serves the stream");
                let others = {
                    let mut inner = stream.inner.lock();
                    inner.tried = tried;
                    match some_answer_without {
                        true => {
                            stream.enter(Phase::None);
                            inner.watches.clear();
                            inner.pending.drain()
                        }
                        false => Vec::new(),
                    }
                };
                others.into_iter().for_each(|request| stream.complete(request, Reply::UseHttp));
                if some_answer_without { PAUSE_WITHOUT_STREAM } else { *pause }
            }
        };
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            () = sleep(scattered(rest)) => {}
            _ = phase.wait_for(Phase::is_final) => return None,
        }
    }
}

/// Many clients that lost the same node should not all come to the next in the same moment.
fn scattered(longest: Duration) -> Duration {
    longest.mul_f64(rand::rng().random_range(0.0..1.0))
}
