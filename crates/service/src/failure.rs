//! Every reply that is not a success: a problem document with a stable code that names the cause and the remedy.
//!
//! The three classes stay apart on the way out: *refused* (4xx; nothing changed), *try again* (429 and 503 with
//! `Retry-After`; nothing changed) and *unknown* (504; never guessed).

use lockkeeper_api::{Code, Problem};
use lockkeeper_consensus::ChangeError;
use lockkeeper_core::path::PathError;
use lockkeeper_core::{Refusal, Zxid};
use lockkeeper_node::{Bound, NodeError};

/// When a client may retry if nothing better is known: about one election.
pub const RETRY_AFTER_MS: u64 = 250;

/// A problem document and the zxid at which it is true.
#[derive(Clone, Debug)]
pub struct Failure {
    problem: Box<Problem>,
    zxid: Option<Zxid>,
}

impl Failure {
    /// A failure with this code; `detail` names the cause and the remedy.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { problem: Box::new(Problem::new(code, detail)), zxid: None }
    }

    /// The request is not one that can be carried out.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, detail)
    }

    /// When the client may try again.
    pub fn retry_after(mut self, retry_after_ms: u64) -> Self {
        self.problem.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// The zxid at which it is true.
    pub fn at(mut self, zxid: Zxid) -> Self {
        self.zxid = Some(zxid);
        self
    }

    /// Fills more of the problem document in.
    pub fn with(mut self, fill: impl FnOnce(&mut Problem)) -> Self {
        fill(&mut self.problem);
        self
    }

    /// Its stable code.
    pub fn code(&self) -> Code {
        self.problem.code
    }

    /// Its status, as HTTP has it.
    pub fn status(&self) -> u16 {
        self.problem.status
    }

    /// The zxid at which it is true, if it has one.
    pub fn zxid(&self) -> Option<Zxid> {
        self.zxid
    }

    /// The problem document.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The problem document alone.
    pub fn into_problem(self) -> Problem {
        *self.problem
    }

    /// A `405` names the methods that the resource takes.
    pub fn method_not_allowed(method: &str) -> Self {
        let detail = format!("this resource does not take {method}; header Allow and /openapi.json name what it takes");
        Self::new(Code::MethodNotAllowed, detail)
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Self::new(Code::BadPath, error.to_string())
    }
}

fn code_of(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::NoNode(_) => Code::NoNode,
        Refusal::NodeExists(_) => Code::NodeExists,
        Refusal::NotEmpty(_) => Code::NotEmpty,
        Refusal::BadVersion { .. } => Code::BadVersion,
        Refusal::NoChildrenForEphemerals(_) => Code::NoChildrenForEphemerals,
        Refusal::BadArguments(_) => Code::BadRequest,
        Refusal::InvalidAcl(_) => Code::InvalidAcl,
        Refusal::SessionRequired => Code::SessionRequired,
        Refusal::SessionExpired(_) => Code::SessionExpired,
        Refusal::NotHeld { .. } => Code::NotHeld,
        Refusal::NotQueued { .. } => Code::NotQueued,
        Refusal::RequestMismatch => Code::RequestMismatch,
        Refusal::MultiFailed { .. } => Code::TransactionFailed,
        Refusal::LockMismatch { .. } => Code::LockMismatch,
        Refusal::GateNotPending { .. } => Code::GateNotPending,
        Refusal::GateMismatch { .. } => Code::GateMismatch,
        Refusal::NoAuth { .. } | Refusal::Forbidden(_) => Code::Forbidden,
        Refusal::ForeignNames { .. } => Code::ForeignNames,
        Refusal::SessionMoved(_) => Code::SessionExpired,
        Refusal::TooManyEphemerals { .. } => Code::TooManyEphemerals,
        Refusal::StateFull { .. } => Code::StateFull,
        Refusal::Unauthenticated(_) => Code::Unauthenticated,
        Refusal::NotThere(_) => Code::NotFound,
        Refusal::NamespaceFull { .. } => Code::NamespaceFull,
        Refusal::FeatureLevelTooLow { .. } => Code::FeatureLevelTooLow,
        Refusal::OutOfBounds { .. } => Code::OutOfBounds,
        Refusal::NotANumber { .. } => Code::NotANumber,
        Refusal::RateMismatch { .. } => Code::RateMismatch,
        Refusal::RoleChanged { .. } | Refusal::NamespaceChanged { .. } | Refusal::GateTokenMismatch { .. } => {
            Code::BadVersion
        }
    }
}

fn remedy(code: Code) -> &'static str {
    match code {
        Code::NoNode => "create it first, or correct the path",
        Code::NodeExists => "delete it first, or take another path",
        Code::NotEmpty => "delete its children first",
        Code::BadVersion => "read it again, then decide",
        Code::NoChildrenForEphemerals => "create it below a node of another kind",
        Code::SessionRequired => "send Lockkeeper-Session: <id>.<secret> of a session from POST /v1/sessions",
        Code::SessionExpired => "all it owned is gone; open a new session and acquire again",
        Code::Unauthenticated => {
            "send Authorization: Bearer with a token that counts, or connect with a client certificate"
        }
        Code::NotHeld => {
            "it was released, broken or never granted to this session; stop using the resource, then acquire again"
        }
        Code::NotQueued => "acquire again with a new request id",
        Code::LockMismatch => {
            "all requests in a queue have the same kind and number of permits; use another name, or the same kind"
        }
        Code::ForeignNames => "let all clients of one lock use names of one family, or use another lock",
        Code::GateNotPending => {
            "it was settled or timed out, or its session ended; do not act, since another may do the work now"
        }
        Code::GateMismatch => "use another key for another operation",
        Code::RequestMismatch => "use a new id for a new request",
        Code::TooManyEphemerals => {
            "delete or release some, use several sessions, or raise limits.ephemerals_per_session on every node"
        }
        Code::StateFull => "delete nodes, or raise limits.state_mib on every node",
        Code::NamespaceFull => {
            "delete or release some, or ask who administers the cluster for more (lockkeeper namespaces)"
        }
        Code::FeatureLevelTooLow => {
            "the level rises by itself within seconds once every member's program supports it and its \
             cluster.max_feature_level allows it (lockkeeper status shows the level)"
        }
        Code::OutOfBounds => "nothing was added; read the number, then decide",
        Code::NotANumber => "use another path, or set a number there",
        Code::TransactionFailed => "no operation was executed; see `operation` and `cause`",
        _ => "",
    }
}

/// A refusal of the state, with its remedy.
fn refused(refusal: &Refusal) -> Failure {
    let code = code_of(refusal);
    let remedy = remedy(code);
    let detail = if remedy.is_empty() { refusal.to_string() } else { format!("{refusal}; {remedy}") };
    let failure = Failure::new(code, detail);
    match refusal {
        Refusal::MultiFailed { index, cause } => failure.with(|problem| {
            problem.operation = Some(*index);
            problem.cause = Some(code_of(cause));
        }),
        _ => failure,
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Refused(refusal) => refused(&refusal),
            NodeError::WrongSecret => Self::new(
                Code::WrongSecret,
                "the secret is not this session's; use the credential that opening it returned",
            ),
            NodeError::NoLeader { retry_after_ms } => {
                let detail = "no leader confirmed by a majority; not executed; retry, here or at another node";
                Self::new(Code::NoLeader, detail).retry_after(retry_after_ms)
            }
            NodeError::Overloaded { bound, retry_after_ms } => {
                let detail = format!("{}; not executed; retry later", reached(bound));
                Self::new(Code::Overloaded, detail).retry_after(retry_after_ms)
            }
            NodeError::UnknownOutcome(why) => {
                let remedy = "it may or may not have been executed; retry with the same Lockkeeper-Request-Id";
                Self::new(Code::UnknownOutcome, format!("{why}; {remedy}"))
            }
            NodeError::Compacted { oldest } => compacted(oldest),
            NodeError::ShuttingDown => shutting_down(),
            NodeError::Fatal(why) => {
                Self::new(Code::Internal, format!("this node has failed and is stopping: {why}; ask another node"))
            }
        }
    }
}

/// The bound of the node that is reached, with the configuration key that sets it.
fn reached(bound: Bound) -> &'static str {
    match bound {
        Bound::QueuedChanges => "too many changes wait on this node to be replicated (limits.queued_changes)",
        Bound::OwnQueuedChanges => {
            "this address has its share of the changes that wait on this node to be replicated (limits.queued_changes)"
        }
        Bound::Sessions => "too many sessions in the cluster (limits.sessions)",
        Bound::Watches => "too many watches on this node (limits.watches)",
        Bound::LockRequests => {
            "too many lock requests on this node (limits.waiting_requests and limits.in_flight_requests)"
        }
        Bound::Keepalives => "too many unconfirmed keepalives on this node",
        Bound::Reads => "too many unconfirmed reads on this node",
        Bound::Copies => "too many checksums wait for their zxid on this node",
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NoLeader => NodeError::NoLeader { retry_after_ms: RETRY_AFTER_MS }.into(),
            ChangeError::Refused(why) => Self::new(Code::MembershipConflict, why),
            ChangeError::FrontNeverVotes(_)
            | ChangeError::RoleIsFixed { .. }
            | ChangeError::ChangedMeanwhile { .. } => Self::new(Code::MembershipConflict, error.to_string()),
            ChangeError::Unknown(why) => {
                let remedy = "it may or may not have been executed; read GET /v1/cluster, then decide";
                Self::new(Code::UnknownOutcome, format!("{why}; {remedy}"))
            }
            ChangeError::Fatal(why) => NodeError::Fatal(why).into(),
            ChangeError::ShuttingDown => shutting_down(),
        }
    }
}

/// This node goes down.
pub fn shutting_down() -> Failure {
    Failure::new(Code::ShuttingDown, "this node is shutting down; retry at another node").retry_after(1_000)
}

/// The history of changes does not reach back to where a watch was to begin.
pub fn compacted(oldest: Zxid) -> Failure {
    let detail = format!(
        "the watch history begins at {oldest}, after the zxid asked for; read again, then watch from the zxid of \
         that read"
    );
    Failure::new(Code::Compacted, detail).with(|problem| problem.oldest_zxid = Some(oldest.0))
}

/// A call that needs a session names none.
pub fn session_required() -> Failure {
    let detail = "this call needs a session; send Lockkeeper-Session: <id>.<secret> as POST /v1/sessions returned it";
    Failure::new(Code::SessionRequired, detail)
}
