//! Entry point for fuzzing: any bytes, decoded as any message of a peer. For `cargo fuzz` and for the test below; not
//! part of the interface.

use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest, VoteResponse};
use openraft::vote::{RaftLeaderId, RaftVote};

use crate::admission::claim::{ClaimReply, DirectoryClaim};
use crate::calls::validation::{Validator, check_clocks};
use crate::calls::wire::{
    self, AppendReply, Command, LivenessCheck, MembersReply, PieceReply, ProposeReply, ReadIndexReply, TransferReply,
};
use crate::raft::state_machine::decode_meta;
use crate::raft::types::{LogId, TypeConfig, Vote};

mod inputs;

pub use inputs::seeds;

/// Reads bytes as a message of a peer: the first byte chooses the kind and this node's state, the rest is the body. The
/// message is accepted or refused; decoding must never panic, and an accepted message is within its bounds.
pub fn decode_any(bytes: &[u8]) {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let known = Validator { node: 1, term: u64::from(choice >> 5) * 1000, fresh: choice >> 5 == 0 };
    let own = Vote::from_leader_id(RaftLeaderId::new(known.term, 1), true);
    match choice & 0b1_1111 {
        0 => append(&known, body),
        1 => drop(wire::decode::<VoteRequest<TypeConfig>>(body).map(|vote| known.check_vote_request(&vote))),
        2 => drop(wire::decode_piece(Bytes::copy_from_slice(body)).map(|(head, _)| {
            decode_meta(&head.meta).map(|meta| known.check_snapshot(&head.vote, &meta, meta.last_log_id))
        })),
        3 => drop(wire::decode::<TransferLeaderRequest<TypeConfig>>(body).map(|ask| known.check_transfer(&ask))),
        4 => drop(wire::decode::<LivenessCheck>(body)),
        5 => drop(wire::decode::<Command>(body)),
        6 => append_answer(&known, own, body),
        7 => {
            drop(wire::decode::<VoteResponse<TypeConfig>>(body).map(|answer| known.check_vote_answer(2, &own, answer)))
        }
        8 => drop(wire::decode::<PieceReply>(body).map(|reply| match reply {
            PieceReply::Taken { vote } | PieceReply::HigherVote { vote } => {
                known.check_higher_vote(2, &own, &vote).is_ok()
            }
            PieceReply::Restart => false,
        })),
        9 => drop(wire::decode::<ProposeReply>(body)),
        10 => drop(wire::decode::<MembersReply>(body)),
        11 => drop(wire::decode::<TransferReply>(body)),
        12 => drop(wire::decode::<ReadIndexReply>(body)),
        13 => drop(wire::decode_announced::<ClaimReply>(body)),
        16 => drop(wire::decode_announced::<DirectoryClaim>(body).is_ok_and(|(claim, _)| claim.is_well_formed())),
        14 => drop(crate::raft::log::codec::decode_vote(body)),
        _ => drop(crate::raft::log::codec::decode_committed(body)),
    }
}

/// What is taken can be written into the log and sent on: its entries come back as they were.
fn append(known: &Validator, body: &[u8]) {
    let Ok(wire::Append { mut request, clock_ms, durable, ticket }) = wire::decode_append(Bytes::copy_from_slice(body))
    else {
        return;
    };
    if known.check_append(&mut request).is_ok() {
        let Ok(again) = wire::encode_append(&request, clock_ms, durable, ticket) else { return };
        let back = wire::decode_append(again).map(|back| back.request.entries);
        assert!(back.is_ok_and(|back| back == request.entries), "an append does not come back as it was");
    }
}

fn append_answer(known: &Validator, own: Vote, body: &[u8]) {
    let Ok(AppendReply { clocks, answer, .. }) = wire::decode_append_reply(body) else { return };
    drop(check_clocks(&clocks));
    for (prev, matched) in [(None, None), (Some(3), None), (Some(3), Some(5))] {
        let id = |index: Option<u64>| index.map(|index| LogId::new(own.leader_id().to_committed(), index));
        let request = AppendEntriesRequest { vote: own, prev_log_id: id(prev), entries: vec![], leader_commit: None };
        drop(known.check_append_answer(2, &request, id(matched), answer.clone()));
    }
}

#[cfg(test)]
mod tests;
