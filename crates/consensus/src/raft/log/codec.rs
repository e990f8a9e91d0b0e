//! The bytes of entries, votes and marks, on disk and between peers. Decoding reads untrusted bytes: it must refuse
//! what it does not know, and never panic.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use lockkeeper_store::{LogPosition, Record};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::{RaftLeaderId, RaftVote};

use crate::application::Committed;
use crate::error::invalid;
use crate::raft::types::{Entry, LogId, Membership, Stamped, Vote, log_id_of, position_of};

const KIND_BLANK: u8 = 0;
const KIND_NORMAL: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;
const FORMAT_VOTE: u8 = 1;
const FORMAT_COMMITTED: u8 = 1;

/// The record of an entry: a kind byte; then nothing, or the clock and the payload, or the membership.
pub(crate) fn record_of(entry: &Entry) -> io::Result<Record> {
    let payload = match &entry.payload {
        EntryPayload::Blank => Bytes::from_static(&[KIND_BLANK]),
        EntryPayload::Normal(stamped) => encode_proposal(stamped.clock_ms, &stamped.payload),
        EntryPayload::Membership(membership) => {
            let encoded = postcard::to_stdvec(&membership).map_err(io::Error::other)?;
            let mut bytes = BytesMut::with_capacity(1 + encoded.len());
            bytes.put_u8(KIND_MEMBERSHIP);
            bytes.put_slice(&encoded);
            bytes.freeze()
        }
    };
    Ok(Record { position: position_of(&entry.log_id()), payload })
}

/// The proposal in a record of the log; `None` in a record of consensus's own (blank, membership). For readers of a log
/// outside consensus, such as the checks of the simulation.
///
/// # Errors
/// The record was written by another version, or is damaged.
pub fn proposal_of(record: &Record) -> io::Result<Option<Committed>> {
    let EntryPayload::Normal(Stamped { clock_ms, payload }) = entry_of(record.position, &record.payload)?.payload
    else {
        return Ok(None);
    };
    Ok(Some(Committed { position: record.position, clock_ms, payload }))
}

/// The record that a proposal becomes; see [`proposal_of`].
pub fn record_of_proposal(proposal: &Committed) -> Record {
    Record { position: proposal.position, payload: encode_proposal(proposal.clock_ms, &proposal.payload) }
}

fn encode_proposal(clock_ms: u64, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(9 + payload.len());
    bytes.put_u8(KIND_NORMAL);
    bytes.put_u64_le(clock_ms);
    bytes.put_slice(payload);
    bytes.freeze()
}

/// The entry of a record; the payload is shared, not copied.
pub(crate) fn entry_of(position: LogPosition, payload: &Bytes) -> io::Result<Entry> {
    let body = match payload.first() {
        Some(&KIND_BLANK) if payload.len() == 1 => EntryPayload::Blank,
        Some(&KIND_NORMAL) if payload.len() >= 9 => EntryPayload::Normal(Stamped {
            clock_ms: u64_le(&payload[1..9]).ok_or_else(|| invalid("log entry"))?,
            payload: payload.slice(9..),
        }),
        Some(&KIND_MEMBERSHIP) => {
            let membership: Membership =
                postcard::from_bytes(&payload[1..]).map_err(|_| invalid("membership entry"))?;
            EntryPayload::Membership(membership)
        }
        _ => return Err(invalid("log entry")),
    };
    Ok(Entry::new(log_id_of(position), body))
}

fn u64_le(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

pub(crate) fn encode_vote(vote: &Vote) -> Bytes {
    let mut bytes = BytesMut::with_capacity(18);
    bytes.put_u8(FORMAT_VOTE);
    bytes.put_u64_le(vote.leader_id().term());
    bytes.put_u64_le(*vote.leader_id().node_id());
    bytes.put_u8(u8::from(vote.is_committed()));
    bytes.freeze()
}

pub(crate) fn decode_vote(bytes: &[u8]) -> io::Result<Vote> {
    if bytes.len() != 18 || bytes[0] != FORMAT_VOTE || bytes[17] > 1 {
        return Err(invalid("vote"));
    }
    match (u64_le(&bytes[1..]), u64_le(&bytes[9..])) {
        (Some(term), Some(node)) => Ok(Vote::from_leader_id(RaftLeaderId::new(term, node), bytes[17] == 1)),
        _ => Err(invalid("vote")),
    }
}

pub(crate) fn encode_committed(committed: Option<&LogId>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(17);
    if let Some(id) = committed {
        let position = position_of(id);
        bytes.put_u8(FORMAT_COMMITTED);
        bytes.put_u64_le(position.term);
        bytes.put_u64_le(position.index);
    }
    bytes.freeze()
}

pub(crate) fn decode_committed(bytes: &[u8]) -> io::Result<Option<LogId>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() != 17 || bytes[0] != FORMAT_COMMITTED {
        return Err(invalid("committed mark"));
    }
    match (u64_le(&bytes[1..]), u64_le(&bytes[9..])) {
        (Some(term), Some(index)) => Ok(Some(log_id_of(LogPosition { term, index }))),
        _ => Err(invalid("committed mark")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{MemberEntry, MemberRole};

    fn entry(payload: EntryPayload<Stamped, u64, MemberEntry>) -> Entry {
        Entry::new(log_id_of(LogPosition { term: 3, index: 9 }), payload)
    }

    #[test]
    fn entries_survive_the_way_through_a_record() {
        let front = MemberEntry { role: MemberRole::Front, ..MemberEntry::from("b:1") };
        let nodes = std::collections::BTreeMap::from([(1, MemberEntry::from("a:1")), (2, front)]);
        let membership = Membership::new(vec![std::collections::BTreeSet::from([1])], nodes).unwrap();
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(Stamped { clock_ms: 77, payload: Bytes::from_static(b"xyz") }),
            EntryPayload::Normal(Stamped { clock_ms: u64::MAX, payload: Bytes::new() }),
            EntryPayload::Membership(membership),
        ] {
            let before = entry(payload);
            let record = record_of(&before).unwrap();
            assert_eq!(entry_of(record.position, &record.payload).unwrap(), before);
        }
    }

    #[test]
    fn a_proposal_is_read_back_from_its_record_and_no_other_record_has_one() {
        let position = LogPosition { term: 3, index: 9 };
        let proposal = Committed { position, clock_ms: 77, payload: Bytes::from_static(b"xyz") };
        let mut record = record_of_proposal(&proposal);
        assert_eq!(proposal_of(&record).unwrap(), Some(proposal));
        assert_eq!(proposal_of(&record_of(&entry(EntryPayload::Blank)).unwrap()).unwrap(), None);
        record.payload = Bytes::from_static(&[9]);
        assert!(proposal_of(&record).is_err());
    }

    #[test]
    fn unknown_records_votes_and_marks_are_refused() {
        let position = LogPosition { term: 1, index: 1 };
        for bytes in
            [&b""[..], &[9], &[KIND_BLANK, 0], &[KIND_NORMAL, 1, 2], &[KIND_MEMBERSHIP, 255, 255], &[3, 1, 1, 1, 0]]
        {
            assert!(entry_of(position, &Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
        assert!(decode_vote(&[]).is_err());
        assert!(decode_vote(&[2; 18]).is_err());
        assert!(decode_committed(&[1; 3]).is_err());
    }

    #[test]
    fn votes_and_marks_survive() {
        for committed in [false, true] {
            let vote = Vote::from_leader_id(RaftLeaderId::new(5, 2), committed);
            assert_eq!(decode_vote(&encode_vote(&vote)).unwrap(), vote);
        }
        let id = log_id_of(LogPosition { term: 4, index: 44 });
        assert_eq!(decode_committed(&encode_committed(Some(&id))).unwrap(), Some(id));
        assert_eq!(decode_committed(&encode_committed(None)).unwrap(), None);
    }
}
