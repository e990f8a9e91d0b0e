//! Histories for the tests of these checks.

use std::collections::BTreeSet;

use lockkeeper_checkers::lives::NodeEvent;
use lockkeeper_checkers::places::{Places, places};
use lockkeeper_client::api::locks::Mode;

use super::Queues;
use super::lock_history::{GrantChange, Hold, LockHistory};
use crate::history::ops::AcquireRequest;
use crate::history::{Completion, FaultRecord};

/// A grant of lock `l` under this token, for a session of the same number.
pub(super) fn hold(token: u64) -> Hold {
    let (locks, mode, wait_ms) = (vec!["l".to_owned()], Mode::Exclusive, 0);
    let asks = AcquireRequest { locks, mode, wait_ms, session: token, permits: None, delay_ms: 0 };
    let (client, zxid, asked_us, granted_us) = (1, Some(token), 1, 2);
    Hold { client, asks, token, zxid, asked_us, granted_us, released: None, downgraded: None }
}

/// The same at a moment.
pub(super) fn hold_from(token: u64, granted_us: u64) -> Hold {
    Hold { asked_us: granted_us - 5, granted_us, ..hold(token) }
}

pub(super) fn change(asked_us: u64, ended: Completion, zxid: Option<u64>) -> Option<GrantChange> {
    Some(GrantChange { asked_us, ended, zxid })
}

pub(super) fn told(holds: &[Hold]) -> LockHistory {
    LockHistory { holds: holds.to_vec(), ..LockHistory::default() }
}

/// Queues of exclusive requests: when each came, and when it went; 0 if it did not.
pub(super) fn queues(locks: &[(&str, &[(u64, u64)])]) -> Queues {
    let queue = |(lock, requests): &(&str, &[(u64, u64)])| {
        let requests: Vec<_> = requests.iter().map(|(token, gone)| (*token, None, *gone)).collect();
        ((*lock).to_owned(), delayed_queue(lock, 0, &requests))
    };
    locks.iter().map(queue).collect()
}

/// The same of a lock whose requests ask for a delay: when each came, from when on its place was kept, when it went.
pub(super) fn delayed_queue(lock: &str, delay_ms: u32, requests: &[(u64, Option<u64>, u64)]) -> Places {
    let mut log = BTreeSet::new();
    let mut add = |zxid: u64, created: bool, name: &str| {
        if zxid > 0 {
            log.insert(NodeEvent { zxid, created, path: format!("/locks/{lock}/{name}") });
        }
    };
    for (token, kept_from, gone) in requests {
        let delay = if delay_ms > 0 { format!("delay-{delay_ms}-") } else { String::new() };
        let request = format!("_c_00000000-0000-4000-8000-{token:012}-{delay}lock-{token:010}");
        let kept = format!("delay-{delay_ms}-{token}-lock-{token:010}");
        add(*token, true, &request);
        match kept_from {
            None => add(*gone, false, &request),
            Some(from) => {
                add(*from, false, &request);
                add(*from, true, &kept);
                add(*gone, false, &kept);
            }
        }
    }
    places(&log, lock).unwrap()
}

pub(super) fn fault(nemesis: &str, began_us: u64, ended_us: u64) -> FaultRecord {
    let (nemesis, what, evidence) = (nemesis.to_owned(), String::new(), Vec::new());
    FaultRecord { nemesis, what, began_us, ended_us, evidence, bit: true, stops_holders: false }
}
