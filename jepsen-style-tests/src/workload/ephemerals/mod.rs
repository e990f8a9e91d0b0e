//! `ephemerals`: sessions with ephemeral nodes and a place in a group. Some are closed, some fall silent and some are
//! killed. None ends early by the clock of the client that kept it alive (P5), all that one owned goes at one zxid, and
//! a node that says that a session is over has removed what it owned (P6).
//!
//! Half of the sessions belong to the library. The others are kept alive by single calls through one node each, so that
//! a node that wrongly acknowledges a keepalive has a client that relies on it.

mod check;
mod life;
pub(super) mod zookeeper;

use lockkeeper_client::Reading;

use super::client_kit::end;
use crate::workload::prelude::*;

/// Where ephemeral nodes are; the last is the group.
const DIRECTORIES: [&str; 3] = ["/ephemerals/a", "/ephemerals/b", GROUP];
const GROUP: &str = "/ephemerals/group";

// Operations, and what is told.
const CREATE: &str = "create";
const DELETE: &str = "delete";
const CLOSE: &str = "close";
const LIST: &str = "list";
const GONE: &str = "gone";

/// The workload.
#[derive(Debug)]
pub(super) struct EphemeralsWorkload;

/// A path of a session: argument of `create` and `delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owned {
    session: u64,
    path: String,
}

/// Told as `gone`: a node said that the session is over, and was asked right after what it had owned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SessionGone {
    session: u64,
    /// Which node.
    at: String,
    /// How it was said: `not_found`, `session_expired`, `closed`.
    how: String,
    /// When it was said.
    said_us: u64,
    /// How many paths were asked for.
    asked: usize,
    /// What was still there and still this session's.
    standing: Vec<String>,
    /// Whether it still took the session's keepalive: by then nothing may bring it back.
    revived: bool,
}

/// Answer of `list`: the names in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Listed {
    names: Vec<String>,
}

#[async_trait]
impl Workload for EphemeralsWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "ephemerals",
            about: "sessions that are closed, fall silent or are killed, and the ephemeral nodes and memberships they \
                owned",
            promises: "P5 P6 P7 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut kit = ClientKit::new(context)?;
        if !kit.prepare(&["/ephemerals", DIRECTORIES[0], DIRECTORIES[1], DIRECTORIES[2]]).await {
            return Ok(());
        }
        let mut turn = kit.context.client;
        while !kit.context.stop.is_cancelled() {
            life::live(&mut kit, turn.is_multiple_of(2)).await;
            turn = turn.wrapping_add(1);
        }
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let mut kit = ClientKit::new(context)?;
        for directory in DIRECTORIES {
            list(&mut kit, directory).await;
        }
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

/// Reads who is there, linearizable.
async fn list(kit: &mut ClientKit, directory: &str) {
    let begun = kit.context.recorder.begin(LIST, &directory);
    let reading = Reading { children: true, ..Reading::default() };
    let came = kit.client.node(directory, &reading).await;
    let names = came.map(|node| (Listed { names: node.children.unwrap_or_default() }, Some(node.zxid)));
    end(begun, names, sure);
}
