//! `register`: nodes as registers that are read, written, compared and set by version, created and deleted, through any
//! node. The answers must be those of one register for each key, in an order that agrees with real time (P7), and a
//! change requested twice under one request id must have happened once (P9).
//!
//! The black-box checker gets no zxids: it does not believe the servers' word on their own order. Keys change every few
//! seconds, so that unknown outcomes on one of them do not slow the search down for ever.

mod check;

use futures::future::join;
use lockkeeper_client::api::Call;
use lockkeeper_client::api::nodes::{Changed, Deleted, Node, SetData, VersionQuery};
use lockkeeper_client::{Error, Reading};

use super::client_kit::{ATTEMPT, Certainty, sure_once, sure_read};
use crate::http::{Called, HttpCall};
use crate::workload::prelude::*;

const ROOT: &str = "/registers";
/// How long a set of keys is in use, in microseconds.
const WINDOW_US: u64 = 4_000_000;
const KEYS: u64 = 3;

/// What is asked of a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RegisterRequest {
    /// Which.
    key: String,
    /// What of it.
    #[serde(flatten)]
    call: RegisterCall,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(super) enum RegisterCall {
    /// Its value.
    Read,
    /// To have this value, whatever it has.
    Write {
        /// The new value.
        value: String,
    },
    /// To have this value, if it has that version.
    CompareAndSet {
        /// The version.
        version: i32,
        /// The new value.
        value: String,
    },
    /// To come to be.
    Create {
        /// Its first value.
        value: String,
    },
    /// To go.
    Delete {
        /// If it has this version.
        version: Option<i32>,
    },
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum RegisterReply {
    /// It has this value.
    Value {
        /// The value.
        value: String,
        /// In this version.
        version: i32,
    },
    /// It was done.
    Done {
        /// The version that the register has now; none once it is deleted.
        version: Option<i32>,
    },
    /// It was not done, because of what the register was at that moment.
    Refused {
        /// In the server's word.
        code: Code,
    },
    /// It was asked for twice under one request id, and the two answers differ.
    Torn {
        /// One of them.
        first: Box<RegisterReply>,
        /// The other.
        second: Box<RegisterReply>,
    },
}

/// The workload.
#[derive(Debug)]
pub(super) struct RegisterWorkload;

#[async_trait]
impl Workload for RegisterWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "register",
            about: "nodes as linearizable registers, through any node; some changes asked for twice under one request \
                id",
            promises: "P4 P7 P9 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let Some((mut kit, mut session)) = ClientKit::open(context, &[ROOT]).await? else { return Ok(()) };
        let mut versions = BTreeMap::new();
        while kit.think(10..50).await {
            let asked = choose(&mut kit, &mut versions);
            let begun = kit.context.recorder.begin(name(&asked.call), &asked);
            let answer = match kit.rng.random_range(0..3) {
                0 => through_library(session.client(), &asked).await,
                1 => twice(&mut kit, &session, &asked).await,
                _ => through_one_node(&mut kit, &asked).await,
            };
            if let RegisterOutcome::Ok(
                RegisterReply::Value { version, .. } | RegisterReply::Done { version: Some(version) },
                _,
            ) = &answer
            {
                versions.insert(asked.key.clone(), *version);
            }
            answer.tell(begun);
            let Some(renewed) = kit.renewed(session).await else { return Ok(()) };
            session = renewed;
        }
        let _ = session.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let kit = ClientKit::new(context)?;
        for name in kit.client.children(ROOT).await.map_err(|error| error.to_string())? {
            let asked = RegisterRequest { key: name, call: RegisterCall::Read };
            let begun = kit.context.recorder.begin("read", &asked);
            through_library(&kit.client, &asked).await.tell(begun);
        }
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

fn name(call: &RegisterCall) -> &'static str {
    match call {
        RegisterCall::Read => "read",
        RegisterCall::Write { .. } => "write",
        RegisterCall::CompareAndSet { .. } => "compare_and_set",
        RegisterCall::Create { .. } => "create",
        RegisterCall::Delete { .. } => "delete",
    }
}

fn choose(kit: &mut ClientKit, versions: &mut BTreeMap<String, i32>) -> RegisterRequest {
    let key = format!("{}-{}", boot_us() / WINDOW_US, kit.rng.random_range(0..KEYS));
    let value = format!("{}.{}", kit.context.client, kit.rng.random_range(0..u32::MAX));
    let known = versions.get(&key).copied();
    let call = match (kit.rng.random_range(0..100), known) {
        (0..35, _) => RegisterCall::Read,
        (35..60, Some(version)) => RegisterCall::CompareAndSet { version, value },
        (60..75, _) => RegisterCall::Create { value },
        (75..85, version) => RegisterCall::Delete { version },
        _ => RegisterCall::Write { value },
    };
    RegisterRequest { key, call }
}

/// How an operation ended, not yet told.
enum RegisterOutcome {
    Ok(RegisterReply, Option<u64>),
    Fail(String),
    Info(String),
}

impl RegisterOutcome {
    fn tell(self, begun: OpenOp) {
        match self {
            Self::Ok(answer, zxid) => begun.ok(&answer, zxid),
            Self::Fail(why) => begun.fail(&why),
            Self::Info(why) => begun.info(&why),
        }
    }

    fn of(certain: Certainty, why: String) -> Self {
        match certain {
            Certainty::Refused(code) if of_the_register(code) => Self::Ok(RegisterReply::Refused { code }, None),
            Certainty::Refused(_) | Certainty::NotDone => Self::Fail(why),
            Certainty::Unknown => Self::Info(why),
        }
    }

    fn of_library(came: Result<(RegisterReply, u64), Error>, sure: fn(&Error) -> Certainty) -> Self {
        match came {
            Ok((answer, zxid)) => Self::Ok(answer, Some(zxid)),
            Err(error) => Self::of(sure(&error), error.to_string()),
        }
    }

    fn of_one<T>(came: Called<T>, answer: impl FnOnce(T) -> (RegisterReply, u64)) -> Self {
        match came {
            Ok(told) => {
                let (answer, zxid) = answer(told.value);
                Self::Ok(answer, Some(zxid))
            }
            Err(failure) => Self::of(sure_once(&failure), failure.to_string()),
        }
    }

    /// Two ways to ask for one and the same change: one answer is the answer, and an end that is open leaves it open.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ok(first, zxid), Self::Ok(second, _)) if first == second => Self::Ok(first, zxid),
            (Self::Ok(first, zxid), Self::Ok(second, _)) => {
                Self::Ok(RegisterReply::Torn { first: Box::new(first), second: Box::new(second) }, zxid)
            }
            (Self::Ok(answer, zxid), _) | (_, Self::Ok(answer, zxid)) => Self::Ok(answer, zxid),
            (Self::Info(why), _) | (_, Self::Info(why)) => Self::Info(why),
            (Self::Fail(why), Self::Fail(_)) => Self::Fail(why),
        }
    }
}

/// Refusals that say something of the register; the others say something of the caller.
fn of_the_register(code: Code) -> bool {
    matches!(code, Code::NoNode | Code::NodeExists | Code::BadVersion)
}

fn value_of(node: &Node) -> RegisterReply {
    RegisterReply::Value { value: node.data.as_text().unwrap_or_default().to_owned(), version: node.stat.version }
}

fn data(value: &str) -> Data {
    Data::from_bytes(value.as_bytes())
}

fn path(key: &str) -> String {
    format!("{ROOT}/{key}")
}

async fn through_library(client: &Client, asked: &RegisterRequest) -> RegisterOutcome {
    let path = path(&asked.key);
    let changed = |changed: Changed| (RegisterReply::Done { version: Some(changed.stat.version) }, changed.zxid);
    let came = match &asked.call {
        RegisterCall::Read => {
            let node = client.node(&path, &Reading::default()).await;
            return RegisterOutcome::of_library(node.map(|node| (value_of(&node), node.zxid)), sure_read);
        }
        RegisterCall::Write { value } => client.set(&path, &SetData { data: data(value) }, None).await.map(changed),
        RegisterCall::CompareAndSet { version, value } => {
            client.set(&path, &SetData { data: data(value) }, Some(*version)).await.map(changed)
        }
        RegisterCall::Create { value } => {
            client.create(&path, &Create { data: data(value), ..Create::default() }).await.map(changed)
        }
        RegisterCall::Delete { version } => {
            client.delete(&path, *version).await.map(|gone| (RegisterReply::Done { version: None }, gone.zxid))
        }
    };
    RegisterOutcome::of_library(came, sure)
}

/// One attempt at one node, without a session.
async fn through_one_node(kit: &mut ClientKit, asked: &RegisterRequest) -> RegisterOutcome {
    let node = kit.any();
    match change(asked, None) {
        None => {
            RegisterOutcome::of_one(node.get(&path(&asked.key), ATTEMPT).await, |node| (value_of(&node), node.zxid))
        }
        Some(change) => attempt(&node, &change).await,
    }
}

/// The same change under one request id at two nodes: at once, or the second some time after the first.
async fn twice(kit: &mut ClientKit, session: &Session, asked: &RegisterRequest) -> RegisterOutcome {
    let Some(change) = change(asked, Some((session.credential().to_string(), Uuid::new_v4()))) else {
        return through_one_node(kit, asked).await;
    };
    let (one, other) = (kit.any(), kit.any());
    if kit.chance(50) {
        let (first, second) = join(attempt(&one, &change), attempt(&other, &change)).await;
        return first.and(second);
    }
    let first = attempt(&one, &change).await;
    kit.think(0..300).await;
    first.and(attempt(&other, &change).await)
}

/// The change as it is sent; none for what only reads.
fn change(asked: &RegisterRequest, as_session: Option<(String, Uuid)>) -> Option<HttpCall> {
    let path = path(&asked.key);
    let call = match &asked.call {
        RegisterCall::Read => return None,
        RegisterCall::Write { value } => set(path, None, value),
        RegisterCall::CompareAndSet { version, value } => set(path, Some(*version), value),
        RegisterCall::Create { value } => {
            Call::CreateNode { path, body: Create { data: data(value), ..Create::default() } }
        }
        RegisterCall::Delete { version } => Call::DeleteNode { path, query: VersionQuery { version: *version } },
    };
    let (credential, request_id) = as_session.unzip();
    Some(HttpCall { call, credential, request_id, within: ATTEMPT })
}

fn set(path: String, version: Option<i32>, value: &str) -> Call {
    Call::SetNode { path, query: VersionQuery { version }, body: SetData { data: data(value) } }
}

async fn attempt(node: &crate::http::Api, change: &HttpCall) -> RegisterOutcome {
    if matches!(change.call, Call::DeleteNode { .. }) {
        let came: Called<Deleted> = node.send(change).await;
        return RegisterOutcome::of_one(came, |gone| (RegisterReply::Done { version: None }, gone.zxid));
    }
    let came: Called<Changed> = node.send(change).await;
    RegisterOutcome::of_one(came, |changed| (RegisterReply::Done { version: Some(changed.stat.version) }, changed.zxid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ways_the_certain_one_counts() {
        let ok = |version| RegisterOutcome::Ok(RegisterReply::Done { version: Some(version) }, Some(7));
        assert!(matches!(
            ok(1).and(RegisterOutcome::Info("late".into())),
            RegisterOutcome::Ok(RegisterReply::Done { version: Some(1) }, Some(7))
        ));
        assert!(matches!(RegisterOutcome::Fail("no".into()).and(ok(1)), RegisterOutcome::Ok(..)));
        assert!(matches!(ok(1).and(ok(1)), RegisterOutcome::Ok(RegisterReply::Done { .. }, _)));
        assert!(matches!(ok(1).and(ok(2)), RegisterOutcome::Ok(RegisterReply::Torn { .. }, _)));
        assert!(matches!(
            RegisterOutcome::Fail("no".into()).and(RegisterOutcome::Info("late".into())),
            RegisterOutcome::Info(_)
        ));
        assert!(matches!(
            RegisterOutcome::Fail("no".into()).and(RegisterOutcome::Fail("no".into())),
            RegisterOutcome::Fail(_)
        ));
    }
}
