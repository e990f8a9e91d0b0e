//! One round of keepalive: ask the preferred endpoint, and another beside it as soon as it is slow, so that a dead or
//! frozen node does not cost the session.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockkeeper_api::Code;
use lockkeeper_api::sessions::KeptAlive;
use tokio::time::sleep;

use crate::client::Client;
use crate::clock::Moment;
use crate::error::Error;

/// How a round ended.
pub(crate) enum Round {
    /// Acknowledged; counts from when that very request was sent.
    Acknowledged { sent: Moment, timeout: Duration },
    /// The cluster says that the session is over.
    Over(String),
    /// Nobody acknowledged.
    Failed(String),
}

/// How long to wait for one endpoint before the next is asked as well.
pub(crate) fn hedge_after(timeout: Duration) -> Duration {
    (timeout / 12).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

/// Asks until one endpoint acknowledges, one says that the session is over, or all have failed within `limit`.
pub(crate) async fn round(client: &Client, timeout: Duration, limit: Duration) -> Round {
    let first = client.endpoints.preferred();
    let count = client.endpoints.all().len();
    let mut asked = FuturesUnordered::new();
    let mut next = 0;
    let mut failures = Vec::new();
    loop {
        if asked.is_empty() && next == count {
            return Round::Failed(failures.join("; "));
        }
        if asked.is_empty() {
            asked.push(ask(client, first + next, limit));
            next += 1;
        }
        tokio::select! {
            Some((place, sent, answer)) = asked.next() => match answer {
                Ok(kept) => {
                    client.endpoints.prefer(place);
                    return Round::Acknowledged { sent, timeout: Duration::from_millis(kept.timeout_ms.into()) };
                }
                Err(error) if says_over(&error) => return Round::Over(error.to_string()),
                Err(error) => {
                    failures.push(error.to_string());
                    if next < count {
                        asked.push(ask(client, first + next, limit));
                        next += 1;
                    }
                }
            },
            () = sleep(hedge_after(timeout)), if next < count => {
                asked.push(ask(client, first + next, limit));
                next += 1;
            }
        }
    }
}

async fn ask(client: &Client, place: usize, limit: Duration) -> (usize, Moment, Result<KeptAlive, Error>) {
    let place = place % client.endpoints.all().len();
    let sent = Moment::now();
    let answer = client.keepalive_at(client.endpoints.at(place), limit).await;
    (place, sent, answer)
}

/// Only these say that the session is over; any other failure says something about the node that was asked.
fn says_over(error: &Error) -> bool {
    let code = error.code();
    matches!(error, Error::Lost(_)) || matches!(code, Some(Code::SessionExpired | Code::WrongSecret | Code::NotFound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedging_leaves_room_for_a_third_endpoint_before_the_next_renewal() {
        for timeout_ms in [500, 2_000, 10_000, 60_000] {
            let timeout = Duration::from_millis(timeout_ms);
            assert!(hedge_after(timeout) * 3 < timeout / 3);
        }
    }
}
