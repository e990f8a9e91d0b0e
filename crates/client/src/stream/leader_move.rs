//! Moves a stream to the leader's node. Calmly: all streams of a cluster learn of a new leader at about the same time,
//! and each costs the new leader two handshakes.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rand::Rng;
use tokio::time::{Instant, sleep_until};

use super::connect::connect_at;
use super::handle::StreamHandle;

/// Shortest time between two moves of a stream, and between two attempts to reach a leader that does not answer.
const PAUSE: Duration = Duration::from_secs(30);

/// The move that a stream plans, if any.
#[derive(Default)]
pub(super) struct LeaderMove {
    planned: Option<BoxFuture<'static, usize>>,
    /// When the stream has moved last.
    moved: Option<Instant>,
}

impl LeaderMove {
    /// The node at endpoint `here` has named the leader's address.
    pub(super) fn on_leader(&mut self, stream: &Arc<StreamHandle>, here: usize, address: &str) {
        let context = &stream.context;
        let leader = context.leader_to_prefer(address).filter(|leader| *leader != here);
        self.planned = leader.map(|leader| {
            let delay = (stream.timeout / 3).mul_f64(rand::rng().random());
            let start = begin_at(Instant::now(), self.moved, delay);
            let stream = stream.clone();
            async move {
                let mut at = start;
                loop {
                    sleep_until(at).await;
                    // The stream stays where it is until the leader's node serves it. This one is for the attempt only:
                    // what the old one is granted from now on would be unknown to it.
                    match connect_at(&stream, leader).await {
                        Ok(opened) => {
                            opened.close().await;
                            return leader;
                        }
                        Err(why) => tracing::debug!(leader, why, "stream stays, the leader's node does not serve it"),
                    }
                    at = Instant::now() + PAUSE;
                }
            }
            .boxed()
        });
    }

    /// Completes when the stream is to move, with the index of the endpoint.
    pub(super) async fn due(&mut self) -> usize {
        let Some(planned) = &mut self.planned else { return std::future::pending().await };
        let leader = planned.await;
        (self.planned, self.moved) = (None, Some(Instant::now()));
        leader
    }

    /// The connection is lost; the next node names the leader anew.
    pub(super) fn cancel(&mut self) {
        self.planned = None;
    }
}

fn begin_at(now: Instant, moved: Option<Instant>, delay: Duration) -> Instant {
    moved.map_or(now, |moved| now.max(moved + PAUSE)) + delay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_keep_a_distance() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(begin_at(now, None, second), now + second);
        assert_eq!(begin_at(now + second, Some(now), second), now + PAUSE + second);
        assert_eq!(begin_at(now + 2 * PAUSE, Some(now), second), now + 2 * PAUSE + second);
    }
}
