//! What the end of a large session may cost, counted and not timed: everybody waits for it, and memory asked for is
//! what makes it slow. It counts by thread, so the tests beside it change nothing. `cargo bench -p lockkeeper-core
//! --bench endings` shows the time.
#![allow(unsafe_code)] // an allocator that counts
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it looks at the pure core from outside

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockkeeper_core::*;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work; the count is a thread's own and asks for no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OWNED: usize = 2_000;

struct CountedLog {
    state: State,
    sequence: u64,
}

impl CountedLog {
    fn apply(&mut self, command: Command) -> Outcome {
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let batch = Batch::consecutive(origin, self.sequence, vec![command]);
        let outcome = self.state.apply(Term(1), &batch).remove(0);
        assert!(outcome.reply.is_ok(), "{:?}", outcome.reply);
        outcome
    }

    /// A session that owns what `op` asks for, so many times; gives how often its end asked for memory.
    fn allocations_at_end<O: Into<Op>>(op: impl Fn(usize) -> O) -> usize {
        let mut log = CountedLog { state: State::new(), sequence: 0 };
        let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "owner".into() };
        let opened = log.apply(open).reply;
        let Ok(Reply::SessionOpened { session, .. }) = opened else { panic!("{opened:?}") };
        for number in 0..OWNED {
            log.apply(Command::Do { actor: Actor::of(session), op: op(number).into() });
        }
        let before = ALLOCATIONS.get();
        let ended = log.apply(Command::CloseSession { session });
        let allocations = ALLOCATIONS.get() - before;
        let gone = |event: &&Event| matches!(event, Event::Node { kind: NodeEventKind::Deleted, .. });
        assert_eq!(ended.events.iter().filter(gone).count(), OWNED);
        log.state.validate().unwrap();
        allocations
    }
}

fn acquire(lock: &str, number: usize) -> LockOp {
    let (locks, uuid) = (vec![LockName::parse(lock).unwrap()], RequestId(number as u128));
    LockOp::Acquire { locks, mode: LockMode::Exclusive, delay_ms: 0, uuid, label: "worker".into() }
}

#[test]
fn nodes_of_one_directory_go_without_asking_for_memory() {
    let allocations = CountedLog::allocations_at_end(|number| NodeOp::Create {
        path: NodePath::parse(&format!("/n{number:08}")).unwrap(),
        data: [b'x'; 32].into(),
        kind: NodeKind::Ephemeral,
        sequential: Sequential::No,
        acl: vec![AclEntry::open()],
    });
    assert!(allocations < 64, "{allocations} for {OWNED} nodes");
}

#[test]
fn places_in_one_queue_go_without_asking_for_memory() {
    let allocations = CountedLog::allocations_at_end(|number| acquire("one", number));
    assert!(allocations < 64, "{allocations} for {OWNED} places");
}

#[test]
fn locks_of_their_own_ask_for_no_more_than_their_deadlines() {
    let allocations = CountedLog::allocations_at_end(|number| acquire(&format!("own/{number}"), number));
    assert!(allocations < 3 * OWNED / 2, "{allocations} for {OWNED} locks");
}
