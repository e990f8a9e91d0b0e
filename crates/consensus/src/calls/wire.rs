//! The bodies of peer calls and answers, with their encoding. Bodies come from outside, so decoding refuses what it
//! does not understand.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lockkeeper_store::LogPosition;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::application::ClockReport;
use crate::connection::order::Ticket;
use crate::error::{BarrierError, ChangeError, ProposeError, invalid};
use crate::raft::log::codec;
use crate::raft::types::{LogId, MAX_INDEX, TypeConfig, Vote};
use crate::status::{MAX_ADDRESS_BYTES, MAX_MEMBERS, MemberChange, Members};

/// First byte of every body: the version of what follows.
const VERSION: u8 = 1;
/// Payload bytes in one snapshot piece.
pub(crate) const PIECE_BYTES: usize = 1024 * 1024;

pub(crate) fn encode<T: Serialize>(value: &T) -> io::Result<Bytes> {
    postcard::to_extend(value, vec![VERSION]).map(Bytes::from).map_err(io::Error::other)
}

pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match body.split_first() {
        Some((&VERSION, rest)) => postcard::from_bytes(rest).map_err(|_| invalid("peer message")),
        _ => Err(invalid("peer message")),
    }
}

/// A claim or an answer to one, with the sender's feature level behind it.
pub(crate) fn encode_announced<T: Serialize>(message: &T, level: u32) -> io::Result<Bytes> {
    encode(&(message, level))
}

/// A claim or an answer to one, and the level that its sender announces.
pub(crate) fn decode_announced<T: DeserializeOwned>(body: &[u8]) -> io::Result<(T, u32)> {
    let (message, level): (T, u32) = decode(body)?;
    if level == 0 { Err(invalid("feature level")) } else { Ok((message, level)) }
}

/// Head of an append; the entries follow as (term, index, length, record payload).
#[derive(Serialize, Deserialize)]
struct AppendHead {
    vote: Vote,
    prev: Option<LogId>,
    commit: Option<LogId>,
    entries: u32,
    clock_ms: u64,
    /// Up to where the leader's own log is durable.
    durable: u64,
    /// None for a heartbeat.
    ticket: Option<Ticket>,
}

/// An append, and the leader's replicated clock when it was sent.
pub(crate) struct Append {
    pub(crate) request: AppendEntriesRequest<TypeConfig>,
    pub(crate) clock_ms: u64,
    /// Up to where its own log was durable.
    pub(crate) durable: u64,
    /// Its place among the appends, unless it is a heartbeat.
    pub(crate) ticket: Option<Ticket>,
}

/// The answer to an append, and the follower's clocks.
pub(crate) struct AppendReply {
    pub(crate) clocks: ClockReport,
    pub(crate) answer: AppendEntriesResponse<TypeConfig>,
    /// See [`StateMachine::is_observed`](crate::StateMachine::is_observed).
    pub(crate) observes: bool,
}

/// Behind an answer to an append: nobody observes the log at its sender. Earlier programs neither write nor read it.
const NOBODY_OBSERVES: u8 = 0;

pub(crate) fn encode_append_reply(reply: &AppendReply) -> io::Result<Bytes> {
    let mut body = postcard::to_extend(&(&reply.clocks, &reply.answer), vec![VERSION]).map_err(io::Error::other)?;
    if !reply.observes {
        body.push(NOBODY_OBSERVES);
    }
    Ok(body.into())
}

pub(crate) fn decode_append_reply(body: &[u8]) -> io::Result<AppendReply> {
    let Some((&VERSION, body)) = body.split_first() else { return Err(invalid("peer message")) };
    let ((clocks, answer), rest) = postcard::take_from_bytes(body).map_err(|_| invalid("peer message"))?;
    Ok(AppendReply { clocks, answer, observes: rest.first() != Some(&NOBODY_OBSERVES) })
}

/// Encodes an append. Entries are copied once, and shared after that.
pub(crate) fn encode_append(
    request: &AppendEntriesRequest<TypeConfig>,
    clock_ms: u64,
    durable: u64,
    ticket: Option<Ticket>,
) -> io::Result<Bytes> {
    let records = request.entries.iter().map(codec::record_of).collect::<io::Result<Vec<_>>>()?;
    let head = AppendHead {
        vote: request.vote,
        prev: request.prev_log_id,
        commit: request.leader_commit,
        entries: u32::try_from(records.len()).map_err(io::Error::other)?,
        clock_ms,
        durable,
        ticket,
    };
    let head = encode(&head)?;
    let bytes = records.iter().map(|record| 20 + record.payload.len()).sum::<usize>();
    let mut body = BytesMut::with_capacity(4 + head.len() + bytes);
    body.put_u32_le(u32::try_from(head.len()).map_err(io::Error::other)?);
    body.put_slice(&head);
    for record in &records {
        body.put_u64_le(record.position.term);
        body.put_u64_le(record.position.index);
        body.put_u32_le(u32::try_from(record.payload.len()).map_err(io::Error::other)?);
        body.put_slice(&record.payload);
    }
    Ok(body.freeze())
}

pub(crate) fn decode_append(mut body: Bytes) -> io::Result<Append> {
    let short = || invalid("append");
    let head_bytes = body.try_get_u32_le().map_err(|_| short())? as usize;
    if body.len() < head_bytes {
        return Err(short());
    }
    let head: AppendHead = decode(&body.split_to(head_bytes))?;
    let mut entries = Vec::new();
    for _ in 0..head.entries {
        let term = body.try_get_u64_le().map_err(|_| short())?;
        let index = body.try_get_u64_le().map_err(|_| short())?;
        let bytes = body.try_get_u32_le().map_err(|_| short())? as usize;
        if body.len() < bytes {
            return Err(short());
        }
        entries.push(codec::entry_of(LogPosition { term, index }, &body.split_to(bytes))?);
    }
    if !body.is_empty() {
        return Err(short());
    }
    let request = AppendEntriesRequest { vote: head.vote, prev_log_id: head.prev, entries, leader_commit: head.commit };
    Ok(Append { request, clock_ms: head.clock_ms, durable: head.durable, ticket: head.ticket })
}

/// A command for the leader.
#[derive(Serialize, Deserialize)]
pub(crate) enum Command {
    Propose {
        payload: Bytes,
        ticket: Ticket,
    },
    Transfer {
        to: Option<u64>,
    },
    /// A change of the membership; with a version, only of the membership that has it.
    Change {
        change: MemberChange,
        if_version: Option<u64>,
    },
}

/// What a node tells one that joins.
#[derive(Serialize, Deserialize)]
pub(crate) struct KnownMembers {
    /// The node that answers.
    pub(crate) node: u64,
    /// Log index of the membership that it knows.
    pub(crate) version: u64,
    pub(crate) voters: Vec<u64>,
    /// Where peers reach all members.
    pub(crate) peers: Vec<(u64, String)>,
}

impl KnownMembers {
    pub(crate) fn of(node: u64, members: &Members) -> KnownMembers {
        KnownMembers {
            node,
            version: members.version,
            voters: members.voters.keys().copied().collect(),
            peers: members.all().map(|(node, addresses)| (*node, addresses.peer.clone())).collect(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let fits = |(node, address): &(u64, String)| *node != 0 && (1..=MAX_ADDRESS_BYTES).contains(&address.len());
        let known = |voter: &u64| self.peers.iter().any(|(node, _)| node == voter);
        if self.version > MAX_INDEX
            || self.peers.len() > MAX_MEMBERS
            || !self.peers.iter().all(fits)
            || !self.voters.iter().all(known)
        {
            return Err(format!("node {} names members that no cluster has", self.node));
        }
        Ok(())
    }
}

/// (term, index), or why not.
pub(crate) type ProposeReply = Result<(u64, u64), ProposeError>;
pub(crate) type MembersReply = Result<Members, ChangeError>;
pub(crate) type TransferReply = Result<u64, ChangeError>;
/// (term, index), or why not.
pub(crate) type ReadIndexReply = Result<(u64, u64), BarrierError>;

/// A call of the failure detector.
#[derive(Serialize, Deserialize)]
pub(crate) enum LivenessCheck {
    /// Hold this call open as long as you lead in this term.
    Hold { term: u64 },
    /// Are you there?
    Probe,
}

/// One piece of a snapshot; the piece's bytes follow the head.
#[derive(Serialize, Deserialize)]
pub(crate) struct PieceHead {
    pub(crate) vote: Vote,
    pub(crate) meta: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) last: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum PieceReply {
    /// Received; go on. After the last piece: installed.
    Taken { vote: Vote },
    /// The receiver knows a higher vote.
    HigherVote { vote: Vote },
    /// The receiver does not have what comes before: begin again.
    Restart,
}

pub(crate) fn encode_piece(head: &PieceHead, bytes: &[u8]) -> io::Result<Bytes> {
    let head = encode(head)?;
    let mut body = BytesMut::with_capacity(4 + head.len() + bytes.len());
    body.put_u32_le(u32::try_from(head.len()).map_err(io::Error::other)?);
    body.put_slice(&head);
    body.put_slice(bytes);
    Ok(body.freeze())
}

pub(crate) fn decode_piece(mut body: Bytes) -> io::Result<(PieceHead, Bytes)> {
    let head_bytes = body.try_get_u32_le().map_err(|_| invalid("snapshot piece"))? as usize;
    if body.len() < head_bytes {
        return Err(invalid("snapshot piece"));
    }
    let head = decode(&body.split_to(head_bytes))?;
    Ok((head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a cluster of two programs, too: the earlier one has an answer that ends before.
    #[test]
    fn an_answer_says_that_nobody_observes_in_a_way_that_earlier_programs_read_over() {
        type Earlier = (ClockReport, AppendEntriesResponse<TypeConfig>);
        let clocks = ClockReport { wall_ms: 1_000, clock_ms: Some(900) };
        for observes in [false, true] {
            let reply = AppendReply { clocks, answer: AppendEntriesResponse::Success, observes };
            let body = encode_append_reply(&reply).unwrap();
            let read = decode_append_reply(&body).unwrap();
            assert_eq!((read.clocks, read.observes), (clocks, observes));
            assert_eq!(decode::<Earlier>(&body).unwrap().0, clocks);
        }
        let earlier = encode(&(clocks, AppendEntriesResponse::<TypeConfig>::Success)).unwrap();
        assert!(decode_append_reply(&earlier).unwrap().observes, "somebody may wait there");
    }

    #[test]
    fn a_level_is_read_behind_a_message() {
        let message = (7_u64, String::from("claim"));
        let announced = encode_announced(&message, 300).unwrap();
        assert_eq!(decode_announced::<(u64, String)>(&announced).unwrap(), (message.clone(), 300));
        let without = encode(&message).unwrap();
        assert!(decode_announced::<(u64, String)>(&without).is_err(), "there is no level");
        assert!(decode_announced::<(u64, String)>(&[&without[..], &[0]].concat()).is_err(), "there is no level 0");
        assert!(decode_announced::<(u64, String)>(&[&without[..], &[0x80]].concat()).is_err(), "cut off");
    }
}
