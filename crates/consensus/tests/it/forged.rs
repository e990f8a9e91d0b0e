//! What a peer could send, byte by byte: mirrors of the bodies in `wire`, so that a test can say what the crate itself
//! never would.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Serialize;

const VERSION: u8 = 1;

/// (term, index) of an entry.
pub(crate) type Id = (u64, u64);

#[derive(Clone, Copy, Serialize)]
pub(crate) struct Vote {
    pub(crate) term: u64,
    pub(crate) node: Option<u64>,
    pub(crate) committed: bool,
}

pub(crate) fn leader(term: u64, node: u64) -> Vote {
    Vote { term, node: Some(node), committed: true }
}

pub(crate) fn candidate(term: u64, node: u64) -> Vote {
    Vote { term, node: Some(node), committed: false }
}

pub(crate) fn body(value: &impl Serialize) -> Bytes {
    postcard::to_extend(value, vec![VERSION]).unwrap().into()
}

fn framed(head: &impl Serialize, rest: &[u8]) -> Bytes {
    let head = body(head);
    [&(head.len() as u32).to_le_bytes(), &head[..], rest].concat().into()
}

/// A vote request, or one on trial.
pub(crate) fn vote(vote: Vote, last: Option<Id>) -> Bytes {
    body(&(vote, last, false))
}

/// The answer to one.
pub(crate) fn vote_answer(vote: Vote, granted: bool, last: Option<Id>) -> Bytes {
    body(&(vote, granted, last))
}

/// An entry's bytes: a kind, and what the kind has.
pub(crate) fn normal(clock_ms: u64, payload: &[u8]) -> Vec<u8> {
    [&[1], &clock_ms.to_le_bytes()[..], payload].concat()
}

pub(crate) fn membership(configs: &[&[u64]], nodes: &[u64]) -> Vec<u8> {
    let members = postcard::to_stdvec(&members(configs, nodes)).unwrap();
    [&[2], &members[..]].concat()
}

/// Peer address, the addresses for clients, and the role: 0 for an ordinary member, 1 for a front node.
type Entry = (String, Option<String>, Option<String>, u8);
type Members = (Vec<BTreeSet<u64>>, BTreeMap<u64, Entry>);

/// Nodes from 100 on are front nodes.
const FIRST_FRONT: u64 = 100;

fn members(configs: &[&[u64]], nodes: &[u64]) -> Members {
    let configs = configs.iter().map(|voters| voters.iter().copied().collect()).collect();
    let entry = |node: u64| (format!("memory:{node}"), None, None, u8::from(node >= FIRST_FRONT));
    (configs, nodes.iter().map(|node| (*node, entry(*node))).collect())
}

pub(crate) fn append(vote: Vote, prev: Option<Id>, commit: Option<Id>, entries: &[(Id, Vec<u8>)]) -> Bytes {
    let mut rest = Vec::new();
    for ((term, index), payload) in entries {
        rest.extend(term.to_le_bytes());
        rest.extend(index.to_le_bytes());
        rest.extend((payload.len() as u32).to_le_bytes());
        rest.extend(payload);
    }
    framed(&(vote, prev, commit, entries.len() as u32, 1_000_u64, 0_u64, None::<(u64, u64)>), &rest)
}

/// A follower's clocks, before each answer to an append: wall clock and replicated clock.
const CLOCKS: (u64, Option<u64>) = (1_000, None);

/// Answers to an append, as the number of the variant and what it has.
pub(crate) fn partial(upto: Option<Id>) -> Bytes {
    body(&(CLOCKS, 1_u8, upto))
}

pub(crate) fn conflict() -> Bytes {
    body(&(CLOCKS, 2_u8))
}

pub(crate) fn higher_vote(vote: Vote) -> Bytes {
    body(&(CLOCKS, 3_u8, vote))
}

pub(crate) fn success_at(wall_ms: u64) -> Bytes {
    body(&(wall_ms, None::<u64>, 0_u8))
}

/// The whole of a snapshot in one piece.
pub(crate) fn snapshot(vote: Vote, last: Option<Id>, configs: &[&[u64]], nodes: &[u64], content: &[u8]) -> Bytes {
    let meta = postcard::to_extend(&(last, last, members(configs, nodes)), vec![1]).unwrap();
    framed(&(vote, meta, 0_u64, true), content)
}

pub(crate) fn transfer(vote: Vote, to: u64, last: Option<Id>) -> Bytes {
    body(&(vote, to, last))
}

pub(crate) fn proposal(payload: &[u8]) -> Bytes {
    body(&(0_u8, payload, (0_u64, 0_u64)))
}
