//! `register`: nodes as registers that are read, written, compared and set by version, created and deleted, through any node. What the
//! clients are told must be what one register for each key could have told them, in an order that agrees with real time (P7), and a
//! change that was asked for twice under one request id must have happened once (P9).
//!
//! The checker is not told of zxids: it believes no word of the servers about their own order. Keys change every few seconds, so that
//! what remained unknown on one does not stand in its way for ever.

mod check;

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::future::join;
use lockkeeper_client::api::nodes::{Changed, Create, Deleted, Node, SetData};
use lockkeeper_client::api::{Code, Data};
use lockkeeper_client::{Client, Error, Reading, Session};
use rand::Rng as _;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::hand::{ATTEMPT, Hand, Sure, sure, sure_once, sure_read};
use super::{Begun, ClientContext, Recorded, Workload};
use crate::check::Check;
use crate::http::{Called, Change};
use crate::record::boot_us;

const ROOT: &str = "/registers";
/// How long a set of keys is in use, in microseconds.
const WINDOW_US: u64 = 4_000_000;
const KEYS: u64 = 3;

/// What is asked of a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    /// Which.
    key: String,
    /// What of it.
    #[serde(flatten)]
    call: Call,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(super) enum Call {
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
pub(super) enum Answer {
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
        first: Box<Answer>,
        /// The other.
        second: Box<Answer>,
    },
}

/// The workload.
#[derive(Debug)]
pub(super) struct Register;

#[async_trait]
impl Workload for Register {
    fn name(&self) -> &'static str {
        "register"
    }

    fn about(&self) -> &'static str {
        "nodes as linearizable registers, through any node; some changes asked for twice under one request id"
    }

    fn promises(&self) -> &'static str {
        "P4 P7 P9 P10"
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let Some((mut hand, mut session)) = Hand::open(context, &[ROOT]).await? else { return Ok(()) };
        let mut versions = BTreeMap::new();
        while hand.think(10..50).await {
            let asked = choose(&mut hand, &mut versions);
            let begun = hand.context.teller.begin(name(&asked.call), &asked);
            let answer = match hand.rng.random_range(0..3) {
                0 => through_library(session.client(), &asked).await,
                1 => twice(&mut hand, &session, &asked).await,
                _ => through_one_node(&mut hand, &asked).await,
            };
            if let Told::Ok(Answer::Value { version, .. } | Answer::Done { version: Some(version) }, _) = &answer {
                versions.insert(asked.key.clone(), *version);
            }
            answer.tell(begun);
            session = match hand.renewed(session).await {
                Some(session) => session,
                None => return Ok(()),
            };
        }
        let _ = session.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let hand = Hand::new(context)?;
        for name in hand.client.children(ROOT).await.map_err(|error| error.to_string())? {
            let asked = Asked { key: name, call: Call::Read };
            let begun = hand.context.teller.begin("read", &asked);
            through_library(&hand.client, &asked).await.tell(begun);
        }
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

fn name(call: &Call) -> &'static str {
    match call {
        Call::Read => "read",
        Call::Write { .. } => "write",
        Call::CompareAndSet { .. } => "compare_and_set",
        Call::Create { .. } => "create",
        Call::Delete { .. } => "delete",
    }
}

fn choose(hand: &mut Hand, versions: &mut BTreeMap<String, i32>) -> Asked {
    let key = format!("{}-{}", boot_us() / WINDOW_US, hand.rng.random_range(0..KEYS));
    let value = format!("{}.{}", hand.context.client, hand.rng.random_range(0..u32::MAX));
    let known = versions.get(&key).copied();
    let call = match (hand.rng.random_range(0..100), known) {
        (0..35, _) => Call::Read,
        (35..60, Some(version)) => Call::CompareAndSet { version, value },
        (60..75, _) => Call::Create { value },
        (75..85, version) => Call::Delete { version },
        _ => Call::Write { value },
    };
    Asked { key, call }
}

/// How an operation ended, not yet told.
enum Told {
    Ok(Answer, Option<u64>),
    Fail(String),
    Info(String),
}

impl Told {
    fn tell(self, begun: Begun) {
        match self {
            Self::Ok(answer, zxid) => begun.ok(&answer, zxid),
            Self::Fail(why) => begun.fail(&why),
            Self::Info(why) => begun.info(&why),
        }
    }

    fn of(certain: Sure, why: String) -> Self {
        match certain {
            Sure::Refused(code) if of_the_register(code) => Self::Ok(Answer::Refused { code }, None),
            Sure::Refused(_) | Sure::NotDone => Self::Fail(why),
            Sure::Unknown => Self::Info(why),
        }
    }

    fn of_library(came: Result<(Answer, u64), Error>, sure: fn(&Error) -> Sure) -> Self {
        match came {
            Ok((answer, zxid)) => Self::Ok(answer, Some(zxid)),
            Err(error) => Self::of(sure(&error), error.to_string()),
        }
    }

    fn of_one<T>(came: Called<T>, answer: impl FnOnce(T) -> (Answer, u64)) -> Self {
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
                Self::Ok(Answer::Torn { first: Box::new(first), second: Box::new(second) }, zxid)
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

fn value_of(node: &Node) -> Answer {
    Answer::Value { value: node.data.as_text().unwrap_or_default().to_owned(), version: node.stat.version }
}

fn data(value: &str) -> Data {
    Data::from_bytes(value.as_bytes())
}

fn path(key: &str) -> String {
    format!("{ROOT}/{key}")
}

async fn through_library(client: &Client, asked: &Asked) -> Told {
    let path = path(&asked.key);
    let changed = |changed: Changed| (Answer::Done { version: Some(changed.stat.version) }, changed.zxid);
    let came = match &asked.call {
        Call::Read => {
            let node = client.node(&path, &Reading::default()).await;
            return Told::of_library(node.map(|node| (value_of(&node), node.zxid)), sure_read);
        }
        Call::Write { value } => client.set(&path, &SetData { data: data(value) }, None).await.map(changed),
        Call::CompareAndSet { version, value } => {
            client.set(&path, &SetData { data: data(value) }, Some(*version)).await.map(changed)
        }
        Call::Create { value } => {
            client.create(&path, &Create { data: data(value), ..Create::default() }).await.map(changed)
        }
        Call::Delete { version } => {
            client.delete(&path, *version).await.map(|gone| (Answer::Done { version: None }, gone.zxid))
        }
    };
    Told::of_library(came, sure)
}

/// One attempt at one node, without a session.
async fn through_one_node(hand: &mut Hand, asked: &Asked) -> Told {
    let node = hand.any();
    match change(asked, None) {
        None => Told::of_one(node.get(&path(&asked.key), ATTEMPT).await, |node| (value_of(&node), node.zxid)),
        Some(change) => attempt(&node, &change).await,
    }
}

/// The same change under one request id at two nodes: at once, or the second some time after the first.
async fn twice(hand: &mut Hand, session: &Session, asked: &Asked) -> Told {
    let Some(change) = change(asked, Some((session.credential().to_string(), Uuid::new_v4()))) else {
        return through_one_node(hand, asked).await;
    };
    let (one, other) = (hand.any(), hand.any());
    if hand.chance(50) {
        let (first, second) = join(attempt(&one, &change), attempt(&other, &change)).await;
        return first.and(second);
    }
    let first = attempt(&one, &change).await;
    hand.think(0..300).await;
    first.and(attempt(&other, &change).await)
}

/// The change as it is sent; none for what only reads.
fn change(asked: &Asked, as_session: Option<(String, Uuid)>) -> Option<Change<serde_json::Value>> {
    let at = format!("/v1/nodes{}", path(&asked.key));
    let (method, target, body) = match &asked.call {
        Call::Read => return None,
        Call::Write { value } => (Method::PUT, at, Some(set(value))),
        Call::CompareAndSet { version, value } => (Method::PUT, format!("{at}?version={version}"), Some(set(value))),
        Call::Create { value } => {
            let create = Create { data: data(value), ..Create::default() };
            (Method::POST, at, serde_json::to_value(create).ok())
        }
        Call::Delete { version: None } => (Method::DELETE, at, None),
        Call::Delete { version: Some(version) } => (Method::DELETE, format!("{at}?version={version}"), None),
    };
    let (credential, request_id) = as_session.unzip();
    Some(Change { method, target, credential, request_id, within: ATTEMPT, body })
}

fn set(value: &str) -> serde_json::Value {
    serde_json::json!({ "data": data(value) })
}

async fn attempt(node: &crate::http::Api, change: &Change<serde_json::Value>) -> Told {
    if change.method == Method::DELETE {
        let came: Called<Deleted> = node.change(change).await;
        return Told::of_one(came, |gone| (Answer::Done { version: None }, gone.zxid));
    }
    let came: Called<Changed> = node.change(change).await;
    Told::of_one(came, |changed| (Answer::Done { version: Some(changed.stat.version) }, changed.zxid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ways_the_certain_one_counts() {
        let ok = |version| Told::Ok(Answer::Done { version: Some(version) }, Some(7));
        assert!(matches!(ok(1).and(Told::Info("late".into())), Told::Ok(Answer::Done { version: Some(1) }, Some(7))));
        assert!(matches!(Told::Fail("no".into()).and(ok(1)), Told::Ok(..)));
        assert!(matches!(ok(1).and(ok(1)), Told::Ok(Answer::Done { .. }, _)));
        assert!(matches!(ok(1).and(ok(2)), Told::Ok(Answer::Torn { .. }, _)));
        assert!(matches!(Told::Fail("no".into()).and(Told::Info("late".into())), Told::Info(_)));
        assert!(matches!(Told::Fail("no".into()).and(Told::Fail("no".into())), Told::Fail(_)));
    }
}
