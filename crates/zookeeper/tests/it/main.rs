//! The codec against golden bytes, against itself and against garbage, and a bound on what decoding allocates.

mod allocation;
mod frames;
mod garbage;
mod golden_bytes;
mod numbers;
mod round_trip;
mod strategies;

#[path = "../golden/mod.rs"]
mod golden;
