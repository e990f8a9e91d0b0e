//! `append`: lists to which each element is appended once. One kind is a node that a client reads and writes back with
//! one element more, if its version is still the one that was read; the other is a directory with a sequential node for
//! each element. At the end no acknowledged element is lost, none is there twice, and the order is that of real time
//! and of zxids (P4, P7, P9).
//!
//! Sequential nodes are often requested twice under one request id, at two nodes. Clients change to new lists every few
//! seconds, so that none gets long.

mod check;

use futures::future::join;
use lockkeeper_client::api::Call;
use lockkeeper_client::api::nodes::{Changed, Node, SetData};
use lockkeeper_client::{Error, Reading};

use super::client_kit::{ATTEMPT, Certainty, end, sure_once, sure_read};
use crate::http::{Called, HttpCall};
use crate::workload::prelude::*;

const LISTS: &str = "/appended";
const ROWS: &str = "/rows";
/// How long a list is in use, in microseconds.
const WINDOW_US: u64 = 5_000_000;
const AT_A_TIME: u64 = 2;
/// How often a list is read anew because another was faster.
const TRIES: u32 = 8;

// Operations.
const APPEND: &str = "append";
const READ: &str = "read";
const ROW: &str = "row";
const ROW_READ: &str = "row_read";

/// Argument of `append` and `row`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Element {
    list: String,
    element: String,
}

/// Answer of `append`: how many there are with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Appended {
    length: usize,
}

/// Answer of `read`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct List {
    elements: Vec<String>,
}

/// Answer of `row`: the name that the node got, and the other name that it got when it was asked for again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again: Option<String>,
}

/// The workload.
#[derive(Debug)]
pub(super) struct AppendWorkload;

#[async_trait]
impl Workload for AppendWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "append",
            about: "unique elements appended by read and compare-and-set, and as sequential nodes, some asked for \
                twice",
            promises: "P4 P7 P9 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let Some((mut kit, mut session)) = ClientKit::open(context, &[LISTS, ROWS]).await? else { return Ok(()) };
        let mut number = 0;
        while kit.think(10..50).await {
            number += 1;
            let list = format!("{}-{}", boot_us() / WINDOW_US, kit.rng.random_range(0..AT_A_TIME));
            let element = format!("{}.{number}", kit.context.client);
            match kit.rng.random_range(0..10) {
                0..4 => append(&mut kit, &session, Element { list, element }).await,
                4..6 => read(&kit, session.client(), &list).await,
                _ => row(&mut kit, &session, Element { list, element }).await,
            }
            let Some(renewed) = kit.renewed(session).await else { return Ok(()) };
            session = renewed;
        }
        let _ = session.close().await;
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let kit = ClientKit::new(context)?;
        for list in kit.client.children(LISTS).await.map_err(|error| error.to_string())? {
            read(&kit, &kit.client, &list).await;
        }
        for list in kit.client.children(ROWS).await.map_err(|error| error.to_string())? {
            let begun = kit.context.recorder.begin(ROW_READ, &list);
            let names = kit.client.children(&format!("{ROWS}/{list}")).await;
            end(begun, names.map(|elements| (List { elements }, None)), sure_read);
        }
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        let ops = run.history.ops();
        let mut checks = check::all(&ops);
        checks.push(check::replayed(run, &ops));
        checks
    }
}

fn elements(node: &Node) -> Vec<String> {
    let text = node.data.as_text().unwrap_or_default();
    text.split(',').filter(|element| !element.is_empty()).map(str::to_owned).collect()
}

async fn read(kit: &ClientKit, client: &Client, list: &str) {
    let begun = kit.context.recorder.begin(READ, &list);
    let read = match client.node(&format!("{LISTS}/{list}"), &Reading::default()).await {
        Ok(node) => Ok((List { elements: elements(&node) }, Some(node.zxid))),
        Err(error) if error.code() == Some(Code::NoNode) => Ok((List { elements: Vec::new() }, None)),
        Err(error) => Err(error),
    };
    end(begun, read, sure_read);
}

/// Reads, and sets what it read with the element behind it, until nobody else came between.
async fn append(kit: &mut ClientKit, session: &Session, element: Element) {
    let begun = kit.context.recorder.begin(APPEND, &element);
    let path = format!("{LISTS}/{}", element.list);
    let mut why = String::new();
    for _ in 0..TRIES {
        match append_once(session.client(), &path, &element.element).await {
            Ok((length, zxid)) => return begun.ok(&Appended { length }, Some(zxid)),
            // Each try is over for certain before the next begins: a refusal is an answer.
            Err(error) => match sure(&error) {
                Certainty::Refused(Code::BadVersion | Code::NodeExists | Code::NoNode) => why = error.to_string(),
                Certainty::Refused(_) | Certainty::NotDone => return begun.fail(&error.to_string()),
                Certainty::Unknown => return begun.info(&error.to_string()),
            },
        }
    }
    begun.fail(&why);
}

async fn append_once(client: &Client, path: &str, element: &str) -> Result<(usize, u64), Error> {
    let text = |elements: &[String]| Data::from_bytes(elements.join(",").as_bytes());
    let node = match client.node(path, &Reading::default()).await {
        Ok(node) => node,
        Err(error) if error.code() == Some(Code::NoNode) => {
            let create = Create { data: text(&[element.to_owned()]), ..Create::default() };
            return Ok((1, client.create(path, &create).await?.zxid));
        }
        // What was only read leaves nothing open.
        Err(error) if sure(&error) == Certainty::Unknown => return Err(Error::Unreachable { tried: Vec::new() }),
        Err(error) => return Err(error),
    };
    let mut elements = elements(&node);
    elements.push(element.to_owned());
    let set = SetData { data: text(&elements) };
    Ok((elements.len(), client.set(path, &set, Some(node.stat.version)).await?.zxid))
}

/// A sequential node: through the library, or under one request id at two nodes.
async fn row(kit: &mut ClientKit, session: &Session, element: Element) {
    let directory = format!("{ROWS}/{}", element.list);
    let path = format!("{directory}/{}-", element.element);
    let create = Create { sequential: true, ..Create::default() };
    let _ = session.client().create(&directory, &Create::default()).await;
    let begun = kit.context.recorder.begin(ROW, &element);
    if kit.chance(40) {
        let made = session.client().create(&path, &create).await;
        end(begun, made.map(|made| (Row { name: name_of(&made), again: None }, Some(made.zxid))), sure);
        return;
    }
    let change = HttpCall {
        call: Call::CreateNode { path: path.clone(), body: create },
        credential: Some(session.credential().to_string()),
        request_id: Some(Uuid::new_v4()),
        within: ATTEMPT,
    };
    let (one, other) = (kit.any(), kit.any());
    let (first, second): (Called<Changed>, Called<Changed>) = if kit.chance(50) {
        join(one.send(&change), other.send(&change)).await
    } else {
        let first = one.send(&change).await;
        // Now and then long enough for a node to have died and come back from a snapshot.
        let longest_ms = if kit.chance(10) { 4_000 } else { 300 };
        kit.think(0..longest_ms).await;
        (first, other.send(&change).await)
    };
    let again = second.as_ref().ok().filter(|_| first.is_ok()).map(|made| name_of(&made.value));
    let certain = match (&first, &second) {
        (Err(one), Err(other)) => match (sure_once(one), sure_once(other)) {
            (Certainty::Unknown, _) | (_, Certainty::Unknown) => Certainty::Unknown,
            _ => Certainty::NotDone,
        },
        _ => Certainty::NotDone,
    };
    end(begun, first.or(second).map(|made| (Row { name: name_of(&made.value), again }, Some(made.value.zxid))), |_| {
        certain
    });
}

fn name_of(made: &Changed) -> String {
    made.path.rsplit('/').next().unwrap_or_default().to_owned()
}
