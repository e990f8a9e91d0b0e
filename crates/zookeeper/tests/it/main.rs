//! The codec against bytes written down by hand, against itself, and against garbage; and what decoding may allocate.

mod allocation;
mod bytes_by_hand;
mod corpus;
mod frames;
mod garbage;
mod golden_replies;
mod golden_requests;
mod numbers;
mod round_trip;
mod strategies;

#[path = "../../fuzz/oracle.rs"]
mod oracle;
