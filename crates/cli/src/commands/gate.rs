//! `lockkeeper gate`: of all callers with the same key, one runs the command; the others get its stored output.
//!
//! The gate belongs to a session, so that it opens again when this process or its host fails. CMD is dead before its
//! pending time is over, counted from before the gate was begun, so that no two callers run it at the same time.

use std::time::Duration;

use lockkeeper_api::gates::{self, Begin, Finish, GateView};
use lockkeeper_api::{Code, Data};
use lockkeeper_client::recipes::Keep;
use lockkeeper_client::{Error, Moment, Session, WatchOptions, safety_margin};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, timeout};

use crate::args::{Common, Gate, IfUnreachable};
use crate::failure::{
    EXIT_GATE_MISMATCH, EXIT_IN_PROGRESS, EXIT_INTERNAL, EXIT_OK, EXIT_UNKNOWN_OUTCOME, Failure, print_error,
};
use crate::hold::waiting::{Holder, Waiting, held_by};
use crate::hold::{self, Ended, Hold, Obtained, millis};
use crate::output::{escaped, print_bytes};

/// Largest result that the server accepts.
const MAX_RESULT_BYTES: usize = 64 << 10;
/// Longest time between reads of the gate while waiting: pending time ends without an event.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Runs the command, or prints its stored output.
pub(crate) fn run(common: &Common, args: &Gate) -> Result<u8, Failure> {
    hold::run(common, &args.holding, args)
}

/// The right to run the operation.
pub(crate) struct Begun {
    token: u64,
    /// When CMD must be dead.
    ends_at: Moment,
}

impl Gate {
    fn begin(&self) -> Begin {
        Begin {
            fingerprint: self.fingerprint.clone().unwrap_or_else(|| fingerprint(&self.holding.command)),
            pending_ms: Some(millis(self.pending)),
            label: Some(hold::label(&self.holding)),
            keep: (self.keep == Keep::Forever).then_some(gates::Keep::Forever),
            // Within its bounds, which the arguments were checked for.
            keep_ms: None,
        }
    }

    /// Waits until the gate has changed since `view`, for at most [`POLL_INTERVAL`].
    async fn change(&self, session: &Session, view: &GateView, longest: Duration) {
        let options = WatchOptions { from: Some(view.zxid), ..WatchOptions::new(format!("/gates/{}", self.key)) };
        let mut watch = session.client().watch(options);
        // The caller reads the gate next in any case.
        let _ = timeout(longest.min(POLL_INTERVAL), async {
            while let Some(Ok(lockkeeper_client::WatchItem::Bookmark(_))) = watch.next().await {}
        })
        .await;
    }
}

impl Hold for Gate {
    type Held = Begun;

    fn command(&self) -> &'static str {
        "gate"
    }

    fn name(&self) -> String {
        self.key.clone()
    }

    fn if_unreachable(&self) -> IfUnreachable {
        self.outage.if_unreachable
    }

    async fn obtain(&self, session: &Session) -> Result<Obtained<Begun>, Failure> {
        let begin = self.begin();
        let give_up_at = Instant::now() + self.wait.unwrap_or_default();
        loop {
            // Counted from before the first attempt, which can only make the deadline earlier than necessary.
            let asked = Moment::now();
            let view = session.client().gate_begin(&self.key, &begin).await.map_err(not_begun)?;
            match &view.gate {
                gates::Gate::Proceed { token, .. } => {
                    let ends_at = asked + (self.pending - safety_margin(session.timeout()));
                    return Ok(Obtained::Held(Begun { token: *token, ends_at }));
                }
                gates::Gate::Done { result, .. } => {
                    let bytes = result.to_bytes().map_err(|why| Failure::new(EXIT_INTERNAL, why))?;
                    return print_bytes(&bytes).map(|()| Obtained::ExitWith(EXIT_OK));
                }
                gates::Gate::InProgress { .. } => {
                    let left = give_up_at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let holder = holder_of(view.gate);
                        let message = format!(
                            "{} is in progress, {}; wait for the result with --wait",
                            escaped(&self.key),
                            holder.as_ref().map_or_else(String::new, |holder| held_by(holder, 0))
                        );
                        let document = json!({ "holders": holder.into_iter().collect::<Vec<_>>() });
                        return Err(Failure::new(EXIT_IN_PROGRESS, message).with_document(&document));
                    }
                    self.change(session, &view, left).await;
                }
            }
        }
    }

    async fn waiting(&self, session: &Session) -> Option<Waiting> {
        let gate = session.client().gate_stale(&self.key).await.ok()?.gate;
        Some(Waiting { holder: holder_of(gate), ..Waiting::unknown(self.key.clone()) })
    }

    fn variables(&self, held: &Begun) -> Vec<(&'static str, String)> {
        vec![("LOCKKEEPER_GATE", self.key.clone()), ("LOCKKEEPER_TOKEN", held.token.to_string())]
    }

    fn output_limit(&self) -> Option<usize> {
        Some(MAX_RESULT_BYTES)
    }

    fn ends_at(&self, held: &Begun) -> Option<Moment> {
        Some(held.ends_at)
    }

    /// Polls whether the operation is still under way with this token: a reset says nothing to its worker.
    async fn revoked(&self, session: &Session, held: &Begun) -> String {
        let every = session.timeout() / 3;
        loop {
            sleep(every).await;
            let is_held = match session.client().gate(&self.key).await {
                Ok(view) => matches!(view.gate, gates::Gate::InProgress { token, .. } if token == held.token),
                // Any other failed call says nothing about the gate; the session's own deadline still counts.
                Err(error) => error.code() != Some(Code::NotFound),
            };
            if !is_held {
                return format!("{} was reset", escaped(&self.key));
            }
        }
    }

    async fn release(&self, session: &Session, held: Begun, ended: Ended) -> Result<u8, Failure> {
        let settled = match ended.code {
            EXIT_OK => {
                let result = Data::from_bytes(&ended.output);
                let (keep_ms, keep) = match self.keep {
                    Keep::For(time) => (Some(millis(time)), None),
                    Keep::Forever => (None, Some(gates::Keep::Forever)),
                };
                let finish = Finish { token: held.token, result, keep_ms, keep };
                session.client().gate_finish(&self.key, &finish).await
            }
            // Also if a signal killed CMD, although part of the work may be done: the gate cannot stay closed without
            // the session, which ends with this process. The help says that CMD must be safe to repeat.
            _ => session.client().gate_fail(&self.key, held.token).await,
        };
        match settled {
            Ok(_) => Ok(ended.code),
            Err(error) if matches!(error, Error::Lost(_)) || error.code() == Some(Code::GateNotPending) => {
                Err(hold::lost(self, "the gate opened again before CMD ended"))
            }
            Err(Error::Refused(problem)) if ended.code == EXIT_OK => {
                let message = format!("CMD succeeded, but its result was refused, and the gate is open: {problem}");
                Err(Failure::new(EXIT_INTERNAL, message))
            }
            Err(error) if ended.code == EXIT_OK => {
                let message = format!("CMD succeeded, but its result may not be stored: {error}");
                Err(Failure::new(EXIT_UNKNOWN_OUTCOME, message))
            }
            Err(error) => {
                let within = session.timeout().as_secs_f32();
                print_error(&format!(
                    "lockkeeper gate: cannot open {} at once; it opens within {within} s: {error}",
                    escaped(&self.key)
                ));
                Ok(ended.code)
            }
        }
    }
}

/// Who does the operation.
fn holder_of(gate: gates::Gate) -> Option<Holder> {
    match gate {
        gates::Gate::InProgress { label, since_ms, token, .. } => {
            Some(Holder { label, token, since_ms, is_queued_since: false, delayed_until_ms: None })
        }
        _ => None,
    }
}

fn not_begun(error: Error) -> Failure {
    match error.code() {
        Some(Code::GateMismatch) => Failure::new(EXIT_GATE_MISMATCH, error.to_string()),
        _ => hold::before_command(error),
    }
}

/// Hash of the command and its arguments.
fn fingerprint(command: &[std::ffi::OsString]) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut hash = Sha256::new();
    for part in command {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_of_different_commands_differ() {
        let of = |parts: &[&str]| fingerprint(&parts.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["ab"]));
        assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
        assert_ne!(of(&["a", ""]), of(&["a"]));
        assert!(of(&["a"]).len() <= 256);
    }
}
