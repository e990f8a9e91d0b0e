//! The task that keeps a stream going: looks for a node, has it served, and looks for another when that ends.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use super::connect::{Found, Opened, find};
use super::connection::{Connection, Ending};
use super::hub::{Hub, Phase, Reply};
use crate::error::Tried;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Between two looks for a stream at endpoints that have none.
const PAUSE_WITHOUT_STREAM: Duration = Duration::from_secs(5);
/// Sessions that a dead node leaves behind do not all come to the next in the same moment.
const LARGEST_SCATTER: Duration = Duration::from_millis(20);

/// Leaves nobody waiting, however the driver ends.
struct LastWord(Arc<Hub>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.enter(Phase::Stopped);
        let over = match &*self.0.phase.borrow() {
            Phase::Over(why) => Some(why.clone()),
            _ => None,
        };
        let left = {
            let mut inner = self.0.inner.lock();
            inner.watches.clear();
            inner.table.drain()
        };
        for request in left {
            let reply = over.clone().map_or(Reply::Elsewhere, Reply::Over);
            self.0.conclude(request, reply);
        }
    }
}

/// Serves the hub until it is stopped or its session is over.
pub(super) async fn drive(hub: Arc<Hub>) {
    let _last_word = LastWord(hub.clone());
    let (mut generation, mut pause) = (0, FIRST_PAUSE);
    loop {
        let Some(opened) = search(&hub, &mut pause).await else { return };
        generation += 1;
        let place = opened.place;
        let mut connection = Connection::begin(&hub, opened, generation);
        let ending = connection.run().await;
        let served = connection.served;
        connection.close(&ending).await;
        tracing::debug!(?ending, endpoint = %hub.client.endpoints.at(place), "stream ended");
        if !settle(&hub, place, ending) {
            return;
        }
        // A node that takes the stream and then does nothing with it is not asked again and again.
        let rest = if served { LARGEST_SCATTER } else { pause };
        pause = if served { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        sleep(scattered(rest)).await;
    }
}

/// Prepares for the next connection; false if there is to be none.
fn settle(hub: &Arc<Hub>, place: usize, ending: Ending) -> bool {
    let (fails, why) = match ending {
        Ending::Stopped => return false,
        Ending::Over(why) => {
            hub.enter(Phase::Over(why));
            return false;
        }
        Ending::NotLockkeeper(why) => (true, why),
        Ending::Broken(why) | Ending::Abandoned(why) => (false, why),
    };
    hub.client.endpoints.move_on_from(place);
    let failed = {
        let mut inner = hub.inner.lock();
        hub.enter(Phase::Connecting);
        let failed = if fails { inner.table.drain_sent_callers() } else { Vec::new() };
        inner.table.broken();
        inner.tried = vec![Tried { endpoint: hub.client.endpoints.at(place).to_string(), why: why.clone() }];
        failed
    };
    for request in failed {
        hub.conclude(request, Reply::NotLockkeeper { place, why: why.clone() });
    }
    true
}

/// Looks for a node that serves the stream, for as long as somebody wants one.
async fn search(hub: &Arc<Hub>, pause: &mut Duration) -> Option<Opened> {
    loop {
        let mut phase = hub.phase.subscribe();
        let found = tokio::select! {
            found = find(hub) => found,
            // What was posted goes over HTTP then.
            _ = phase.wait_for(Phase::is_final) => return None,
        };
        let rest = match found {
            Found::Stream(opened) => {
                hub.client.endpoints.prefer(opened.place);
                return Some(opened);
            }
            Found::Over(why) => {
                hub.enter(Phase::Over(why));
                return None;
            }
            Found::Nothing { tried, some_answer_without } => {
                tracing::debug!(?tried, "no endpoint serves the stream");
                let others = {
                    let mut inner = hub.inner.lock();
                    inner.tried = tried;
                    match some_answer_without {
                        true => {
                            hub.enter(Phase::None);
                            inner.watches.clear();
                            inner.table.drain()
                        }
                        false => Vec::new(),
                    }
                };
                others.into_iter().for_each(|request| hub.conclude(request, Reply::Elsewhere));
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
