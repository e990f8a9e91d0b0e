//! Curator's lock recipe over ZooKeeper's protocol: an ephemeral sequential child with a protected name, a read of the
//! queue, a watch of the predecessor alone. The token is the child's own czxid.
//!
//! A create whose answer was lost is looked up by its protected name; nothing is called certain before that.

use lockkeeper_checkers::name::in_order;
use tokio::time::Instant;
use zookeeper_client::{Client, Error};

use super::absent::{ABSENT, Absent};
use super::visit::{CONTAINER, SEQUENTIAL, Visit, sure, zxid};
use crate::workload::client_kit::Certainty;
use crate::workload::prelude::*;

/// After a failure, so that the next does not follow at once.
const REST: Duration = Duration::from_millis(20);

/// A request in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestNode {
    directory: String,
    name: String,
    /// Its czxid.
    pub(super) token: u64,
}

impl RequestNode {
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.directory, self.name)
    }
}

/// What came of asking for a place.
pub(super) enum Requested {
    Stands(RequestNode),
    /// Certainly not.
    NotDone(String),
    Unknown(String),
}

/// Asks for a place in the queue of a lock.
pub(super) async fn request(visit: &Visit, recorder: &Recorder, lock: &str) -> Requested {
    let directory = format!("/locks/{lock}");
    let prefix = format!("{directory}/_c_{}-lock-", Uuid::new_v4());
    loop {
        let sent_us = boot_us();
        match visit.client.create(&prefix, b"", &SEQUENTIAL).await {
            Ok((stat, sequence)) => {
                visit.acknowledged(sent_us);
                let name = format!("{}{sequence}", &prefix[directory.len() + 1..]);
                return Requested::Stands(RequestNode { directory, name, token: zxid(stat.czxid) });
            }
            // The directory goes when it is empty.
            Err(Error::NoNode) => match visit.client.mkdir(&directory, &CONTAINER).await {
                Err(_) if visit.is_over() => return Requested::NotDone("its session ended before it asked".into()),
                _ => {}
            },
            Err(error) if sure(&error) == Certainty::Unknown => {
                return find(visit, recorder, directory, &prefix, &error).await;
            }
            Err(error) => return Requested::NotDone(error.to_string()),
        }
    }
}

/// Looks for a request whose create was not answered.
async fn find(visit: &Visit, recorder: &Recorder, directory: String, prefix: &str, lost: &Error) -> Requested {
    loop {
        if visit.is_over() {
            return Requested::Unknown(format!("{lost}, and the session ended"));
        }
        let (names, at) = match visit.client.get_children(&directory).await {
            Ok((names, stat)) => (names, Some(zxid(stat.pzxid))),
            Err(Error::NoNode) => (Vec::new(), None),
            Err(_) => {
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Some(name) = names.into_iter().find(|name| name.starts_with(&prefix[directory.len() + 1..])) else {
            recorder.note(ABSENT, &Absent { prefix: prefix.to_owned() }, at);
            return Requested::NotDone(format!("{lost}, and it is not there"));
        };
        match visit.client.check_stat(&format!("{directory}/{name}")).await {
            Ok(Some(stat)) => return Requested::Stands(RequestNode { directory, name, token: zxid(stat.czxid) }),
            Ok(None) => return Requested::Unknown(format!("{lost}, and what was there has gone")),
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
}

/// What came of waiting.
pub(super) enum Waited {
    /// It was the first when the queue last changed, at that zxid.
    Holds(u64),
    TooLong,
    /// Its request has gone.
    Gone,
    /// The session has ended.
    Over(String),
}

/// Waits until it is the first, or for so long.
pub(super) async fn wait(visit: &Visit, place: &RequestNode, patience: Duration) -> Waited {
    let until = Instant::now() + patience;
    loop {
        let looked = look(&visit.client, place).await;
        let before = match looked {
            Ok(Looked::First(at)) => return Waited::Holds(at),
            Ok(Looked::Gone) => return Waited::Gone,
            Ok(Looked::Behind(before)) => before,
            Err(error) if visit.is_over() => return Waited::Over(error.to_string()),
            Err(_) => {
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        if Instant::now() >= until {
            return Waited::TooLong;
        }
        match visit.client.get_and_watch_data(&before).await {
            Ok((_, _, watcher)) => {
                // Whatever the event is, the queue is looked at again.
                let _ = tokio::time::timeout_at(until, watcher.changed()).await;
            }
            Err(Error::NoNode) => {}
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Looked {
    First(u64),
    Behind(String),
    Gone,
}

async fn look(client: &Client, place: &RequestNode) -> Result<Looked, Error> {
    match client.get_children(&place.directory).await {
        Ok((names, stat)) => Ok(place_among(place, &names, zxid(stat.pzxid))),
        Err(Error::NoNode) => Ok(Looked::Gone),
        Err(error) => Err(error),
    }
}

fn place_among(place: &RequestNode, names: &[String], at: u64) -> Looked {
    let queue = in_order(names);
    match queue.iter().position(|(name, _)| *name == place.name) {
        None => Looked::Gone,
        Some(0) => Looked::First(at),
        Some(own) => Looked::Behind(format!("{}/{}", place.directory, queue[own - 1].0)),
    }
}

/// What came of taking a request out.
pub(super) enum Removed {
    Done,
    /// It was not there.
    NotThere,
    Unknown(String),
}

/// Takes a request out, once.
pub(super) async fn remove(visit: &Visit, path: &str) -> Removed {
    let sent_us = boot_us();
    match visit.client.delete(path, None).await {
        Ok(()) => {
            visit.acknowledged(sent_us);
            Removed::Done
        }
        Err(Error::NoNode) => Removed::NotThere,
        Err(error) => Removed::Unknown(error.to_string()),
    }
}

/// Takes a request out for certain, or waits for the end of its session, which does that too.
pub(super) async fn remove_for_certain(visit: &Visit, path: &str) {
    while !visit.is_over() && matches!(remove(visit, path).await, Removed::Unknown(_)) {
        tokio::time::sleep(REST).await;
    }
}

/// The path, token and session of whoever is first in a queue.
pub(super) async fn first(client: &Client, lock: &str) -> Option<(String, u64, u64)> {
    let directory = format!("/locks/{lock}");
    let names = client.list_children(&directory).await.ok()?;
    let path = format!("{directory}/{}", in_order(&names).first()?.0);
    let stat = client.check_stat(&path).await.ok()??;
    Some((path, zxid(stat.czxid), stat.ephemeral_owner.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_in_the_order_of_its_sequence() {
        let names = ["_c_b-lock-0000000011", "other", "_c_c-lock-0000000009", "_c_a-lock-0000000010"];
        let names: Vec<String> = names.map(str::to_owned).to_vec();
        let at = |name: &str| {
            let place = RequestNode { directory: "/locks/l".into(), name: name.into(), token: 1 };
            place_among(&place, &names, 7)
        };
        assert_eq!(at("_c_c-lock-0000000009"), Looked::First(7));
        assert_eq!(at("_c_b-lock-0000000011"), Looked::Behind("/locks/l/_c_a-lock-0000000010".into()));
        assert_eq!(at("_c_d-lock-0000000012"), Looked::Gone);
    }
}
