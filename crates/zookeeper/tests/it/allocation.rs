//! Decoding allocates at most a small multiple of the bytes received, whatever lengths a message claims. Allocations
//! are counted per thread, so other tests do not interfere.

#![allow(unsafe_code, reason = "counting allocations takes a global allocator, whose trait is unsafe")]

use bytes::Bytes;
use lockkeeper_zookeeper::{FrameDecoder, OpCode, Reply, Request, WatcherEvent};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|allocated| allocated.set(allocated.get().saturating_add(layout.size())));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Total bytes allocated by `run`, freed or not.
fn allocated_by<T>(run: impl FnOnce() -> T) -> usize {
    let before = ALLOCATED.get();
    drop(run());
    ALLOCATED.get() - before
}

/// Allowed bytes per byte of input, counting every growth of a list. The densest message is a list of nine-byte results
/// of a multi.
const FACTOR: usize = 64;

fn check(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    let allowed = FACTOR * input.len() + 1024;
    for &operation in OpCode::ALL {
        let request = allocated_by(|| Request::decode(operation.number(), body.clone()));
        assert!(request <= allowed, "request {operation:?}: {request} bytes for {}", input.len());
        let reply = allocated_by(|| Reply::decode(operation, body.clone()));
        assert!(reply <= allowed, "reply {operation:?}: {reply} bytes for {}", input.len());
    }
    assert!(allocated_by(|| WatcherEvent::decode(body.clone())) <= allowed);
}

#[test]
fn counting_counts() {
    assert!(allocated_by(|| vec![0_u8; 5000]) >= 5000);
}

#[test]
fn huge_claims_cost_nothing() {
    for claim in [i32::MAX, 0x0fff_ffff, 1 << 20, 1000, 64] {
        let claim = claim.to_be_bytes();
        // These inputs have the claim where a message has its first, second, … length.
        check(&claim.repeat(8));
        check(&[&[0; 4], &claim[..], &claim, &[0; 64]].concat());
        check(&[&[0; 8], &claim[..], &[0; 64]].concat());
        check(&[&[0; 12], &claim[..], &[0; 64]].concat());
    }
}

#[test]
fn long_messages_cost_a_multiple_of_their_length() {
    let empty_strings = [&100_000_i32.to_be_bytes()[..], &[0; 400_000]].concat();
    check(&empty_strings);
    let deleted = [&2_i32.to_be_bytes()[..], &[0; 5]].concat().repeat(50_000);
    check(&[&deleted[..], &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0]].concat());
    let delete = [&2_i32.to_be_bytes()[..], &[0; 13]].concat().repeat(50_000);
    check(&[&delete[..], &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0]].concat());
}

#[test]
fn an_announced_frame_allocates_nothing_until_it_arrives() {
    let cost = allocated_by(|| {
        let mut decoder = FrameDecoder::for_server(1 << 20);
        decoder.feed(&(1_i32 << 20).to_be_bytes());
        assert_eq!(decoder.next_inbound(), Ok(None));
        decoder
    });
    assert!(cost < 1024, "{cost} bytes");
}
