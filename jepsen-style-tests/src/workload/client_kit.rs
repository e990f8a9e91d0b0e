//! The tools of every client, whatever its workload: the library, the nodes one by one, randomness, pauses, and the
//! classification of failures. It must never call an outcome certain that is not.

use std::ops::Range;

use lockkeeper_client::recipes::RecipeError;
use lockkeeper_client::{Error, Options, PreferredNode, SessionOptions};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::json;

use crate::http::{Api, Failure, new_client};
use crate::workload::prelude::*;

/// How long one node is given for an answer. Shorter than a session lives, so that a frozen node does not cost one.
pub(super) const ATTEMPT: Duration = Duration::from_secs(1);
/// How long the library retries over all endpoints.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct ClientKit {
    pub(super) context: ClientContext,
    pub(super) rng: StdRng,
    pub(super) client: Client,
    /// Its nodes, the one it begins with first, over connections that it has to itself.
    pub(super) nodes: Vec<Api>,
}

/// What is certain about a failed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// The cluster refused, for this reason.
    Refused(Code),
    /// It did not take place and will not.
    NotDone,
    /// It may or may not have taken place.
    Unknown,
}

impl Certainty {
    /// Ends an operation that failed, in the way that is certain.
    pub(super) fn end(&self, begun: OpenOp, why: &str) {
        match self {
            Self::Unknown => begun.info(why),
            Self::Refused(_) | Self::NotDone => begun.fail(why),
        }
    }
}

impl ClientKit {
    pub(super) fn new(context: ClientContext) -> Result<Self, String> {
        // Both clients that follow the leader and clients that stay where they are meet the faults.
        let prefer = if context.seed.is_multiple_of(2) { PreferredNode::Leader } else { PreferredNode::First };
        let options = Options {
            prefer,
            connect_timeout: ATTEMPT / 2,
            attempt_timeout: ATTEMPT,
            patience: PATIENCE,
            liveness_interval: ATTEMPT / 2,
            ..Options::default()
        };
        let client = Client::new(&context.endpoints, options).map_err(|error| error.to_string())?;
        let connections = new_client().map_err(|error| error.to_string())?;
        let nodes = client.endpoints().iter().map(|at| Api::at(connections.clone(), at.as_str())).collect();
        Ok(Self { rng: StdRng::seed_from_u64(context.seed), context, client, nodes })
    }

    /// Any node.
    pub(super) fn any(&mut self) -> Api {
        let first = self.nodes[0].clone();
        self.nodes.choose(&mut self.rng).cloned().unwrap_or(first)
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// Sleeps for so many milliseconds; false if it is to end.
    pub(super) async fn think(&mut self, ms: Range<u64>) -> bool {
        let pause = Duration::from_millis(self.rng.random_range(ms));
        tokio::select! {
            () = self.context.stop.cancelled() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }

    /// A session of the library, as soon as the cluster gives one; none if it is to end before.
    pub(super) async fn session(&mut self) -> Option<Session> {
        let options = SessionOptions {
            timeout: self.context.ttl,
            label: format!("client {}", self.context.client),
            ..SessionOptions::default()
        };
        while !self.context.stop.is_cancelled() {
            if let Ok(session) = Session::open(&self.client, &options).await {
                self.context.recorder.note("opened", &json!({ "session": session.id() }), None);
                return Some(session);
            }
            self.think(50..100).await;
        }
        None
    }

    /// A kit with a session, once these nodes exist ([`prepare`](Self::prepare)); none if it is to end before.
    pub(super) async fn open(context: ClientContext, paths: &[&str]) -> Result<Option<(Self, Session)>, String> {
        let mut kit = Self::new(context)?;
        if !kit.prepare(paths).await {
            return Ok(None);
        }
        Ok(kit.session().await.map(|session| (kit, session)))
    }

    /// The same session while it lives, or another.
    pub(super) async fn renewed(&mut self, session: Session) -> Option<Session> {
        if session.left().is_zero() { self.session().await } else { Some(session) }
    }

    /// Makes persistent nodes, each below the one before it, as soon as the cluster does; false if it is to end before.
    pub(super) async fn prepare(&mut self, paths: &[&str]) -> bool {
        for path in paths {
            loop {
                match self.client.create(path, &Create::default()).await {
                    Ok(_) => break,
                    Err(error) if error.code() == Some(Code::NodeExists) => break,
                    Err(_) if self.think(50..100).await => {}
                    Err(_) => return false,
                }
            }
        }
        true
    }
}

/// What is certain after an error of the library. That a session is over may be the answer to a second attempt whose
/// first one was carried out.
pub(super) fn sure(error: &Error) -> Certainty {
    match error {
        Error::Refused(problem) => of_code(problem.code),
        Error::Unreachable { .. } => Certainty::NotDone,
        _ => Certainty::Unknown,
    }
}

/// The same for a read. It changes nothing, so the library does not track whether it came through: unless a node
/// refused it, the outcome is unknown.
pub(super) fn sure_read(error: &Error) -> Certainty {
    match error {
        Error::Refused(problem) => of_code(problem.code),
        _ => Certainty::Unknown,
    }
}

/// The same for a single attempt at one node.
pub(super) fn sure_once(failure: &Failure) -> Certainty {
    match failure {
        Failure::Refused(problem) => of_code(problem.code),
        Failure::NotDone(_) => Certainty::NotDone,
        Failure::Unknown(_) => Certainty::Unknown,
    }
}

/// The same for a recipe, which may have made several calls: only its own error is certain.
pub(super) fn sure_recipe(error: &RecipeError) -> Certainty {
    match error {
        RecipeError::Client(error) => match sure(error) {
            Certainty::NotDone | Certainty::Refused(_) => Certainty::NotDone,
            Certainty::Unknown => Certainty::Unknown,
        },
        _ => Certainty::NotDone,
    }
}

fn of_code(code: Code) -> Certainty {
    match code {
        Code::UnknownOutcome | Code::Internal => Certainty::Unknown,
        code if code.is_transient() => Certainty::NotDone,
        code => Certainty::Refused(code),
    }
}

/// Records the end of an operation as far as it is certain.
pub(super) fn end<T, E: std::fmt::Display>(
    begun: OpenOp,
    came: Result<(T, Option<u64>), E>,
    sure: impl FnOnce(&E) -> Certainty,
) -> Option<T>
where
    T: Serialize,
{
    match came {
        Ok((answer, zxid)) => {
            begun.ok(&answer, zxid);
            Some(answer)
        }
        Err(error) => {
            sure(&error).end(begun, &error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_client::api::Problem;

    use super::*;

    fn refused(code: Code) -> Error {
        Error::Refused(Box::new(Problem::new(code, "because")))
    }

    #[test]
    fn nothing_is_certain_that_may_have_happened() {
        assert_eq!(sure(&refused(Code::BadVersion)), Certainty::Refused(Code::BadVersion));
        assert_eq!(sure(&refused(Code::NoLeader)), Certainty::NotDone);
        assert_eq!(sure(&Error::Unreachable { tried: Vec::new() }), Certainty::NotDone);
        for open in [
            refused(Code::UnknownOutcome),
            refused(Code::Internal),
            Error::UnknownOutcome("no answer".into()),
            Error::Lost("expired".into()),
            Error::NotLockkeeper { endpoint: "x".into(), why: "y".into() },
        ] {
            assert_eq!(sure(&open), Certainty::Unknown, "{open}");
        }
        assert_eq!(sure_read(&refused(Code::NoNode)), Certainty::Refused(Code::NoNode));
        assert_eq!(sure_read(&refused(Code::NoLeader)), Certainty::NotDone);
        let unanswered = Error::Unreachable { tried: Vec::new() };
        assert_eq!(sure_read(&unanswered), Certainty::Unknown, "it may have been read, and the answer be late");
        assert_eq!(sure_once(&Failure::Unknown("timeout".into())), Certainty::Unknown);
        assert_eq!(sure_once(&Failure::NotDone("no connection".into())), Certainty::NotDone);
        assert_eq!(sure_recipe(&RecipeError::Client(Error::Lost("gone".into()))), Certainty::Unknown);
    }
}
