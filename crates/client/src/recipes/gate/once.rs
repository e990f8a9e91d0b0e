//! [`Gate::run_once`]: an operation from its beginning to its stored result.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_api::Code;
use tokio::time::sleep;

use super::{Begun, Done, Gate, GateTicket, InProgress, Keep, millis};
use crate::error::Error;
use crate::recipes::error::RecipeError;
use crate::recipes::gapless_watch::GaplessWatch;

/// Pause before the client asks again about a gate whose time should be over: clocks differ.
const SHORTEST_RECHECK: Duration = Duration::from_millis(100);

/// What [`Gate::run_once`] does while nothing can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfUnreachable {
    /// Fails with the error, without running the work.
    #[default]
    Refuse,
    /// Runs the work **without the gate**: other callers may run it at the same time, and again later, because no
    /// result is stored. The work gets the token [`UNPROTECTED`].
    RunAnyway,
}

/// The token of work that runs without its gate. It is smaller than every token of the cluster, so a resource that
/// checks tokens refuses it once any worker has been there.
pub const UNPROTECTED: u64 = 0;

impl Gate {
    /// Does the operation if no worker has, waits for the result while another worker does it, and returns the result.
    ///
    /// `work` gets the ticket's token, runs while the ticket is [valid](GateTicket::run), and returns the result,
    /// which is kept for a time or [for ever](Keep::Forever). Its error means "did not take place" and opens the gate
    /// for the next worker; so after an error in the middle of the work the next worker must be able to continue. If
    /// `work` is dropped or panics, the gate stays pending until the session or the pending time ends.
    ///
    /// Waiters watch the gate, and all are woken when it changes: all of them want the result.
    ///
    /// While nothing can be reached, [`if_unreachable`](Self::if_unreachable) decides. That is so after
    /// [`Error::Unreachable`] and after a lost session, if a further question finds nothing either
    /// ([`Client::is_outage`](crate::Client::is_outage)); never in an overloaded cluster, or after a refusal, a
    /// certificate that is not accepted ([`Error::Tls`]), an answer of another program or an unknown outcome. Work that
    /// has begun behind the gate is dropped when the gate is lost, whatever is declared.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
    /// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
    /// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
    /// # use std::time::Duration;
    /// let gate = session.gate("mails/welcome/ann");
    /// let send = async |_token: u64| Ok::<_, std::io::Error>(b"sent".to_vec());
    /// let first = gate.run_once("welcome ann", Duration::from_secs(60), send).await?;
    /// let second = gate.run_once("welcome ann", Duration::from_secs(60), send).await?;
    /// assert!(first.ran_here && !second.ran_here);
    /// assert_eq!(second.result, b"sent");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`OnceError`].
    pub async fn run_once<E>(
        &self,
        fingerprint: &str,
        keep: impl Into<Keep>,
        work: impl AsyncFnOnce(u64) -> Result<Vec<u8>, E>,
    ) -> Result<Once, OnceError<E>> {
        let keep = keep.into();
        keep.check()?;
        let gate = if keep == Keep::Forever { self.clone().forever() } else { self.clone() };
        let ticket = match gate.ticket_or_result(fingerprint).await {
            Ok(Turn::Work(ticket)) => ticket,
            Ok(Turn::Result(done)) => {
                return Ok(Once { ran_here: false, is_protected: true, token: done.token, result: done.result });
            }
            Err(error) => {
                if self.if_unreachable == IfUnreachable::Refuse || !self.is_outage(&error).await {
                    return Err(error.into());
                }
                tracing::warn!(%error, key = self.key, "work runs without its gate, as declared");
                let result = work(UNPROTECTED).await.map_err(OnceError::Work)?;
                return Ok(Once { ran_here: true, is_protected: false, token: UNPROTECTED, result });
            }
        };
        let token = ticket.token();
        match ticket.run(work(token)).await? {
            Ok(result) => {
                ticket.finish(&result, keep).await?;
                Ok(Once { ran_here: true, is_protected: true, token, result })
            }
            Err(error) => {
                if let Err(error) = ticket.fail().await {
                    tracing::debug!(%error, key = self.key, "gate left pending until its session or time ends");
                }
                Err(OnceError::Work(error))
            }
        }
    }

    /// Waits until the work is the caller's, or is done.
    async fn ticket_or_result(&self, fingerprint: &str) -> Result<Turn, Error> {
        let mut follow = None;
        loop {
            let (in_progress, as_of) = match self.begin_at(fingerprint).await? {
                (Begun::Proceed(ticket), _) => return Ok(Turn::Work(ticket)),
                (Begun::Done(done), _) => return Ok(Turn::Result(done)),
                (Begun::InProgress(in_progress), as_of) => (in_progress, as_of),
            };
            let follow = follow
                .get_or_insert_with(|| GaplessWatch::node(self.session.client(), &format!("/gates/{}", self.key)));
            tokio::select! {
                changed = follow.change(as_of, |_| true) => drop(changed.map_err(only_client)?),
                () = sleep(until_over(&in_progress)) => {}
                because = self.session.lost() => return Err(Error::Lost(because)),
            }
        }
    }

    /// Whether the gate is certainly not the caller's, and nothing can be reached. A call also ends like this in an
    /// overloaded cluster, and a session in one that is there, so the client asks once more.
    async fn is_outage(&self, error: &Error) -> bool {
        matches!(error, Error::Unreachable { .. } | Error::Lost(_)) && self.session.client().is_outage().await
    }
}

/// The end of a wait in [`Gate::run_once`].
enum Turn {
    Work(GateTicket),
    Result(Done),
}

/// The outcome of [`Gate::run_once`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Whether this call did the work; otherwise an earlier one did.
    pub ran_here: bool,
    /// Whether the gate was held meanwhile. Only [`IfUnreachable::RunAnyway`] does the work without.
    pub is_protected: bool,
    /// The worker's token; [`UNPROTECTED`] if there was no gate.
    pub token: u64,
    /// The result.
    pub result: Vec<u8>,
}

/// Why [`Gate::run_once`] has no result.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// The work failed. The gate is open for the next worker.
    #[error("the operation failed: {0}")]
    Work(E),
    /// A request to the gate failed. If the work was done by then, its result is not stored.
    #[error(transparent)]
    Gate(#[from] Error),
}

/// When to ask again about an unchanged gate. An estimate, by a clock that may differ from the replicated one: the
/// cluster decides.
fn until_over(in_progress: &InProgress) -> Duration {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap_or_default();
    let at_most = in_progress.until_ms.saturating_sub(in_progress.since_ms);
    let left_ms = in_progress.until_ms.saturating_sub(now_ms).min(at_most);
    Duration::from_millis(left_ms).max(SHORTEST_RECHECK)
}

fn only_client(error: RecipeError) -> Error {
    match error {
        RecipeError::Client(error) => error,
        other => Error::refused(Code::BadRequest, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_looked_at_when_its_time_is_over_and_never_in_a_rush() {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap();
        let in_progress =
            |since_ms, until_ms| InProgress { token: 1, session_id: None, label: String::new(), since_ms, until_ms };
        assert_eq!(until_over(&in_progress(0, 1)), SHORTEST_RECHECK);
        let left = until_over(&in_progress(now_ms, now_ms + 60_000));
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60), "{left:?}");
        // The cluster's clock is a day ahead: not longer than the work may take in all.
        let ahead = now_ms + 24 * 3_600_000;
        assert_eq!(until_over(&in_progress(ahead, ahead + 5_000)), Duration::from_secs(5));
        assert_eq!(millis(Duration::from_nanos(1)), 1);
    }
}
