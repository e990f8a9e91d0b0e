//! True messages to begin with.

#![allow(clippy::unwrap_used, reason = "what is encoded here is the same at every run")]

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_store::LogPosition;
use openraft::EntryPayload;
use openraft::raft::AppendEntriesResponse;

use super::*;
use crate::admission::claim::{Start, StartId};
use crate::application::ClockReport;
use crate::calls::wire::PieceHead;
use crate::raft::types::{Entry, Membership, Stamped, StoredMembership, log_id_of};
use crate::status::{MemberAddresses, MemberChange, MemberEntry, MemberRole};

pub(super) fn id(term: u64, index: u64) -> LogId {
    log_id_of(LogPosition { term, index })
}

pub(super) fn append_body() -> Bytes {
    let front = MemberEntry { role: MemberRole::Front, ..MemberEntry::from("c:1") };
    let nodes = BTreeMap::from([(1, MemberEntry::from("a:1")), (2, MemberEntry::from("b:1")), (3, front)]);
    let membership = Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap();
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Stamped { clock_ms: 77, payload: Bytes::from_static(b"payload") }),
        EntryPayload::Membership(membership),
    ];
    let entries = payloads.into_iter().zip(5..).map(|(payload, index)| Entry { log_id: id(3, index), payload });
    let vote = Vote::from_leader_id(RaftLeaderId::new(3, 2), true);
    let (prev_log_id, leader_commit) = (Some(id(2, 4)), Some(id(3, 6)));
    wire::encode_append(
        &AppendEntriesRequest { vote, prev_log_id, entries: entries.collect(), leader_commit },
        7,
        5,
        None,
    )
    .unwrap()
}

fn append_reply() -> AppendReply {
    let clocks = ClockReport { wall_ms: 1_000, clock_ms: Some(900) };
    AppendReply { clocks, answer: AppendEntriesResponse::PartialSuccess(Some(id(3, 9))), observes: false }
}

fn claim() -> DirectoryClaim {
    let start = |number| Start { id: StartId { number, boot: 9 }, term: 2, last: 7 };
    DirectoryClaim { directory: 8, starts: vec![start(1), start(3)] }
}

/// A true message of each kind, with its choice in front.
pub fn seeds() -> Vec<Vec<u8>> {
    let candidate = Vote::from_leader_id(RaftLeaderId::new(4, 2), false);
    let leader = Vote::from_leader_id(RaftLeaderId::new(4, 2), true);
    let meta =
        crate::raft::types::SnapshotMeta { last_log_id: Some(id(3, 9)), last_membership: StoredMembership::default() };
    let head = PieceHead {
        vote: leader,
        meta: crate::raft::state_machine::encode_meta(&meta).unwrap(),
        offset: 0,
        last: true,
    };
    let bodies = [
        append_body(),
        wire::encode(&VoteRequest::<TypeConfig>::new(candidate, Some(id(3, 9)))).unwrap(),
        wire::encode_piece(&head, b"content").unwrap(),
        wire::encode(&TransferLeaderRequest::<TypeConfig>::new(leader, 1, Some(id(3, 9)))).unwrap(),
        wire::encode(&LivenessCheck::Hold { term: 4 }).unwrap(),
        wire::encode(&Command::Change {
            change: MemberChange::Add {
                node: 4,
                addresses: MemberAddresses::from("d:1"),
                role: Some(MemberRole::Front),
            },
            if_version: None,
        })
        .unwrap(),
        wire::encode_append_reply(&append_reply()).unwrap(),
        wire::encode(&VoteResponse::<TypeConfig>::new(candidate, Some(id(3, 9)), true)).unwrap(),
        wire::encode(&PieceReply::HigherVote { vote: candidate }).unwrap(),
        wire::encode::<ProposeReply>(&Ok((3, 9))).unwrap(),
        wire::encode::<MembersReply>(&Ok(crate::status::Members::default())).unwrap(),
        wire::encode::<TransferReply>(&Ok(2)).unwrap(),
        wire::encode::<ReadIndexReply>(&Ok((3, 9))).unwrap(),
        wire::encode(&ClaimReply {
            claim: claim(),
            formed: true,
            role: MemberRole::Member,
            voters: Some((3, vec![1, 2])),
        })
        .unwrap(),
        crate::raft::log::codec::encode_vote(&candidate),
        crate::raft::log::codec::encode_committed(Some(&id(3, 9))),
    ];
    bodies.iter().zip(0_u8..).map(|(body, choice)| [&[choice], &body[..]].concat()).collect()
}
