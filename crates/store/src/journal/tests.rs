//! The durable log on a disk that loses what was not synced, and before a sled that keeps some prefix of what it was
//! given: whatever is asked for, and whenever it ends, the log that is found is the one that was acknowledged, or has
//! what was under way in addition.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::durable_log::{DurableLog, SledTasks, SledWork, Task};
use super::frame::{CHANGE_HEADER_BYTES, Change, SECTOR_BYTES};
use super::recovery::{self, Marks, Replayed, WholeLog};
use super::segment::SegmentFile;
use super::unarchived::{Archive, Unarchived};
use super::{Journal, Release};
use crate::error::FatalError;
use crate::position::LogPosition;
use crate::types::Record;

const STAMP: u64 = 77;
const SEGMENT_BYTES: usize = 8 * SECTOR_BYTES;

/// How many more calls the process lives; shared by all that it calls.
#[derive(Clone)]
struct Life(Rc<Cell<u64>>);

impl Life {
    fn of(calls: u64) -> Self {
        Self(Rc::new(Cell::new(calls)))
    }

    fn call(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
}

/// What becomes of writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// Gone.
    All,
    /// Kept, as after `kill -9`.
    None,
    /// Any sectors of them are kept.
    Any,
}

#[derive(Default)]
struct SegmentContent {
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
struct FakeSegment {
    content: Rc<RefCell<SegmentContent>>,
    life: Life,
}

fn put(content: &mut [u8], at: usize, bytes: &[u8]) {
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

impl SegmentFile for FakeSegment {
    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()> {
        assert!(at.is_multiple_of(SECTOR_BYTES) && at > 0 && at + bytes.len() <= SEGMENT_BYTES);
        // The last call may reach the disk although nobody hears of it.
        self.content.borrow_mut().unsynced.push((at, bytes.to_vec()));
        if self.life.call() { Ok(()) } else { Err(io::Error::other("the end")) }
    }

    fn sync(&self) -> io::Result<()> {
        if !self.life.call() {
            return Err(io::Error::other("the end"));
        }
        let SegmentContent { durable, unsynced } = &mut *self.content.borrow_mut();
        unsynced.drain(..).for_each(|(at, bytes)| put(durable, at, &bytes));
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("segment")
    }
}

impl FakeSegment {
    /// What is there after the end.
    fn left(&self, loss: Loss, random: &mut StdRng) -> Vec<u8> {
        let SegmentContent { durable, unsynced } = &mut *self.content.borrow_mut();
        let share = random.random_range(0.0..1.0);
        for (at, bytes) in unsynced.drain(..) {
            for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                if loss == Loss::None || (loss == Loss::Any && random.random_bool(share)) {
                    put(durable, at + number * SECTOR_BYTES, sector);
                }
            }
        }
        durable.clone()
    }
}

/// What sled has.
#[derive(Clone, Debug, Default, PartialEq)]
struct SledContent {
    records: BTreeMap<u64, Record>,
    marks: Marks,
    task: u64,
}

/// A change of sled, or a barrier.
#[derive(Clone, Debug)]
enum Step {
    Start(u64),
    Block(Vec<Record>),
    Marks(Archive),
    Remove(u64),
    Task(u64),
    Barrier,
}

impl SledContent {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Start(index) => self.marks.start = Some(*index),
            Step::Block(records) => {
                self.records.extend(records.iter().map(|record| (record.position.index, record.clone())));
            }
            Step::Marks(archive) => {
                self.marks.vote = archive.vote.clone().or(self.marks.vote.take());
                self.marks.purged = archive.purged.or(self.marks.purged);
                self.marks.committed = archive.committed.clone().or(self.marks.committed.take());
            }
            Step::Remove(index) => drop(self.records.remove(index)),
            Step::Task(number) => self.task = *number,
            Step::Barrier => {}
        }
    }
}

struct FakeSled {
    durable: SledContent,
    /// Done and not durable.
    undurable: Vec<Step>,
    left: VecDeque<Step>,
    random: StdRng,
    life: Life,
}

impl FakeSled {
    fn run(&mut self, steps: usize) -> Result<(), FatalError> {
        for _ in 0..steps {
            let Some(step) = self.left.pop_front() else { break };
            if !self.life.call() {
                return Err(FatalError::Panicked { file: "sled".into(), what: "the end".into() });
            }
            if matches!(step, Step::Barrier) {
                self.undurable.drain(..).for_each(|step| self.durable.step(&step));
            } else {
                self.undurable.push(step);
            }
        }
        Ok(())
    }

    fn now(&self) -> SledContent {
        let mut now = self.durable.clone();
        self.undurable.iter().for_each(|step| now.step(step));
        now
    }

    /// What is there after the end.
    fn remains(&mut self) -> SledContent {
        let kept = self.random.random_range(0..=self.undurable.len());
        self.undurable.drain(..kept).for_each(|step| self.durable.step(&step));
        self.durable.clone()
    }
}

impl SledTasks for FakeSled {
    fn begin(&mut self, task: Arc<Task>) {
        assert!(self.left.is_empty(), "one task at a time");
        match &task.work {
            SledWork::Archive(archive) => {
                self.left.extend(archive.start.map(Step::Start));
                let mut rest = archive.records.as_slice();
                let next = self.now().records.last_key_value().map(|(last, _)| last + 1);
                let purged = archive.purged.or(self.now().marks.purged);
                if let (Some(first), Some(next)) = (rest.first(), next) {
                    let first = first.position.index;
                    assert!(first == next || purged.is_some_and(|purged| purged.index + 1 == first), "{first} {next}");
                }
                while !rest.is_empty() {
                    let (block, others) = rest.split_at(self.random.random_range(1..=rest.len().min(4)));
                    self.left.extend([Step::Block(block.to_vec()), Step::Barrier]);
                    rest = others;
                }
                self.left.push_back(Step::Marks(archive.clone()));
            }
            SledWork::Cut(index) => {
                self.left.extend(self.now().records.range(index..).rev().map(|(index, _)| Step::Remove(*index)));
            }
        }
        self.left.extend([Step::Task(task.number), Step::Barrier]);
    }

    fn is_done(&mut self) -> Result<bool, FatalError> {
        let steps = self.random.random_range(0..4);
        self.run(steps)?;
        Ok(self.left.is_empty())
    }

    fn wait(&mut self) -> Result<(), FatalError> {
        self.run(usize::MAX)
    }
}

/// The log as it must be, in the simplest form.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    records: Vec<Record>,
    purged: Option<LogPosition>,
    vote: u64,
    committed: u64,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        let last = self.records.last().map(|record| record.position).or(self.purged);
        last.map_or(0, |last| last.index + 1)
    }

    fn cut(&mut self, next: u64) {
        self.records.retain(|record| record.position.index < next);
    }
}

/// What is asked for. Figures are taken modulo what is possible.
#[derive(Clone, Debug)]
enum Op {
    /// So many records of so many bytes each.
    Append(u8, u16),
    Vote,
    Committed,
    /// So many of the last records go.
    Truncate(u8),
    /// All records go, if none was ever purged.
    Clear,
    /// So many of the first records go, and positions behind the last.
    Purge(u8, u8),
    /// An append, its truncation and another append in one frame.
    Replace(u8, u8),
    Rest,
    Empty,
}

type Log = DurableLog<FakeSegment, FakeSled>;

fn vote_of(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn number_of(mark: Option<&(u64, Bytes)>) -> u64 {
    mark.map_or(0, |(_, data)| u64::from_be_bytes(data.as_ref().try_into().unwrap()))
}

fn record(term: u64, index: u64, bytes: usize) -> Record {
    let payload: Vec<u8> = (0..bytes).map(|at| (at as u64 * 7 + index * 31 + term) as u8).collect();
    Record { position: LogPosition { term, index }, payload: payload.into() }
}

fn bytes_of(changes: &[Change]) -> usize {
    let data = |change: &Change| match change {
        Change::Append(record) => record.payload.len(),
        Change::Vote { vote, .. } => vote.len(),
        Change::Committed(mark) => mark.len(),
        Change::Begin(_) | Change::Truncate(_) | Change::Purge(_) => 0,
    };
    changes.iter().map(|change| CHANGE_HEADER_BYTES + data(change)).sum()
}

/// Asks for one thing as the writer does; the model has it whether it succeeds or not.
fn ask(log: &mut Log, model: &mut Model, op: &Op) -> Result<(), FatalError> {
    match *op {
        Op::Append(count, bytes) => {
            model.term += u64::from(count.is_multiple_of(7));
            // A log without anything may start anywhere.
            let first = if model.next() == 0 { u64::from(count % 3) } else { model.next() };
            let count = u64::from(count % 5) + 1;
            let new: Vec<_> = (first..first + count).map(|index| record(model.term, index, bytes.into())).collect();
            model.records.extend(new.clone());
            let begins = log.begins().then_some(Change::Begin(first));
            let changes: Vec<_> = begins.into_iter().chain(new.iter().cloned().map(Change::Append)).collect();
            if log.takes(bytes_of(&changes)) { log.write(&changes) } else { log.append_many(new) }
        }
        Op::Vote => {
            model.vote += 1;
            log.write(&[Change::Vote { sequence: model.vote, vote: vote_of(model.vote) }])
        }
        Op::Committed => {
            model.committed += 1;
            log.write(&[Change::Committed(vote_of(model.committed))])
        }
        Op::Truncate(count) => {
            let count = usize::from(count) % (model.records.len() + 1);
            let Some(removed) = model.records.iter().rev().nth(count.wrapping_sub(1)) else { return Ok(()) };
            truncate(log, model, removed.position.index)
        }
        Op::Clear if model.purged.is_none() && !model.records.is_empty() => truncate(log, model, 0),
        Op::Clear => Ok(()),
        Op::Purge(count, beyond) => {
            let count = usize::from(count) % (model.records.len() + 2);
            let upto = match count.checked_sub(1).map(|at| model.records.get(at)) {
                None => return Ok(()),
                Some(Some(record)) => record.position,
                Some(None) => LogPosition { term: model.term, index: model.next() + u64::from(beyond % 4) },
            };
            model.records.retain(|record| record.position.index > upto.index);
            model.purged = Some(upto);
            log.write(&[Change::Purge(upto)])
        }
        Op::Replace(count, bytes) if model.next() > 0 => {
            // Appended and cut again before anybody was told.
            let first = model.next();
            let old: Vec<_> =
                (first..first + u64::from(count % 3) + 1).map(|index| record(model.term, index, 9)).collect();
            model.term += 1;
            let new = record(model.term, first, bytes.into());
            model.records.push(new.clone());
            let old = old.into_iter().map(Change::Append);
            let begins = log.begins().then_some(Change::Begin(first));
            let replaced = [Change::Truncate(first), Change::Append(new)];
            log.write(&begins.into_iter().chain(old).chain(replaced).collect::<Vec<_>>())
        }
        Op::Replace(..) => Ok(()),
        Op::Rest => log.empty_some(),
        Op::Empty => log.empty(),
    }
}

fn truncate(log: &mut Log, model: &mut Model, first: u64) -> Result<(), FatalError> {
    model.cut(first);
    // What follows a cut has another term.
    model.term += 1;
    log.truncate((!model.records.is_empty() || model.purged.is_some()).then_some(first))
}

/// The whole node: its files and sled while it does not run.
struct Node {
    segments: Vec<Vec<u8>>,
    sled: SledContent,
    /// The last frame that was acknowledged.
    acknowledged: u64,
}

/// A node that runs.
struct Running {
    log: Log,
    files: Vec<FakeSegment>,
    found: Model,
}

impl Node {
    fn new(segments: usize) -> Self {
        Self { segments: vec![vec![0; SEGMENT_BYTES]; segments], sled: SledContent::default(), acknowledged: 0 }
    }

    /// Opens it as `open.rs` does.
    fn open(&self, calls: u64, seed: u64) -> Result<Running, String> {
        let found = recovery::find(&self.segments, STAMP)?;
        let last = found.needed.last();
        assert!(last.map_or(0, |last| last.number) >= self.acknowledged, "an acknowledged frame is lost");
        assert!(last.map_or(0, |last| last.task) <= self.sled.task, "a task of sled is lost");
        let mut replayed = Replayed::of(self.sled.marks.clone());
        found.needed.iter().for_each(|frame| replayed.add(frame.number, &frame.changes));
        replayed.finish();
        let mut whole = WholeLog::new(&replayed, self.sled.marks.purged);
        let mut records = Vec::new();
        for record in self.sled.records.values() {
            if whole.add_of_sled(record)? {
                records.push(record.clone());
            }
        }
        let of_journal = whole.add_of_journal()?;
        records.extend(of_journal.clone());
        let model = Model {
            purged: replayed.marks.purged,
            vote: number_of(replayed.marks.vote.as_ref()),
            committed: number_of(replayed.marks.committed.as_ref()),
            term: records.last().map_or(0, |last| last.position.term),
            records,
        };
        let life = Life::of(calls);
        let segment = |content: &Vec<u8>| FakeSegment {
            content: Rc::new(RefCell::new(SegmentContent { durable: content.clone(), unsynced: Vec::new() })),
            life: life.clone(),
        };
        let files: Vec<_> = self.segments.iter().map(segment).collect();
        let journal = Journal::new(files.clone(), SEGMENT_BYTES, STAMP, &found, self.sled.task);
        let unarchived =
            Unarchived::new(of_journal.into(), whole.sled_next(), replayed.marks.clone(), self.sled.marks.clone());
        let sled = FakeSled {
            durable: self.sled.clone(),
            undurable: Vec::new(),
            left: VecDeque::new(),
            random: StdRng::seed_from_u64(seed),
            life,
        };
        Ok(Running { log: DurableLog::new(journal, unarchived, sled, self.sled.task), files, found: model })
    }

    /// Lives until the calls are used up or all was asked for, and is opened again. `model` is the log that must be
    /// found, and becomes the one that is.
    fn live(&mut self, model: &mut Model, ops: &[Op], calls: u64, loss: Loss, seed: u64) -> Result<u64, String> {
        let Running { mut log, files, found } = self.open(calls, seed)?;
        // What the caller knows beside the log.
        model.term = model.term.max(found.term) + 1;
        let (mut before, mut failed) = (model.clone(), false);
        let batches = &mut StdRng::seed_from_u64(seed ^ 0xBA7C);
        for op in ops {
            before = model.clone();
            let result = ask(&mut log, model, op);
            if result.is_ok() {
                self.acknowledged = log.number();
            }
            // Once for all that was asked for together.
            let ends_batch = batches.random_bool(0.4);
            failed = result.and_then(|()| if ends_batch { log.archive_if_full() } else { Ok(()) }).is_err();
            if failed {
                break;
            }
        }
        let used = calls - files[0].life.0.get();
        let random = &mut StdRng::seed_from_u64(seed ^ 0xD15C);
        self.segments = files.iter().map(|file| file.left(loss, random)).collect();
        self.sled = log.sled().remains();
        let found = self.open(0, 0)?.found;
        assert_found(&found, &before, model, failed);
        let term = model.term;
        *model = Model { term, ..found };
        Ok(used)
    }
}

#[track_caller]
fn assert_found(found: &Model, before: &Model, after: &Model, failed: bool) {
    let same = |a: &Model, b: &Model| Model { term: 0, ..a.clone() } == Model { term: 0, ..b.clone() };
    if same(found, after) || (failed && same(found, before)) {
        return;
    }
    // What is made in sled alone may be there in part: some records of an append, or some of a cut's are left.
    let with = |records: &[Record]| Model { records: records.to_vec(), ..after.clone() };
    let between = |short: &Model, long: &Model| {
        (short.records.len()..=long.records.len()).any(|count| same(found, &with(&long.records[..count])))
            && long.records.starts_with(&short.records)
    };
    // The committed mark may lag: nobody waits for it.
    let lags = |model: &Model| {
        found.committed <= model.committed
            && same(&Model { committed: 0, ..found.clone() }, &Model { committed: 0, ..model.clone() })
    };
    let in_part = failed && (between(before, after) || between(after, before));
    assert!(
        in_part || lags(after) || (failed && lags(before)),
        "found {found:#?}\nbefore {before:#?}\nafter {after:#?}"
    );
}

/// Everything that can happen, so that segments are used again many times, one record goes to sled alone, and sled is
/// cut.
fn script() -> Vec<Op> {
    let mut ops = vec![Op::Append(2, 40), Op::Vote, Op::Rest, Op::Truncate(1), Op::Append(3, 100)];
    for round in 0..6 {
        ops.extend([
            Op::Append(round, 300),
            Op::Replace(1, 50),
            Op::Truncate(round),
            Op::Vote,
            Op::Append(4, 200),
            Op::Committed,
        ]);
        ops.extend([Op::Purge(3, 0), Op::Rest, Op::Rest, Op::Append(1, 250)]);
    }
    ops.extend([Op::Empty, Op::Truncate(2), Op::Append(0, 10), Op::Append(0, 4000), Op::Vote, Op::Truncate(1)]);
    ops.extend([Op::Append(3, 20), Op::Purge(250, 2), Op::Append(1, 30), Op::Empty, Op::Purge(1, 0), Op::Vote]);
    ops
}

/// Lives the script up to a call, then a little more, and is whole each time.
fn crash_at(call: u64, loss: Loss, seed: u64) {
    let (mut node, mut model) = (Node::new(3), Model::default());
    let lived = node.live(&mut model, &script(), call, loss, seed);
    lived.unwrap_or_else(|error| panic!("call {call}, {loss:?}, seed {seed}: {error}"));
    let more = [Op::Append(1, 30), Op::Vote, Op::Truncate(1), Op::Append(2, 30), Op::Empty, Op::Append(1, 10)];
    let lived = node.live(&mut model, &more, u64::MAX, Loss::All, seed);
    lived.unwrap_or_else(|error| panic!("after call {call}, {loss:?}, seed {seed}: {error}"));
}

#[test]
fn whenever_it_ends_what_was_acknowledged_is_found() {
    let (mut node, mut model) = (Node::new(3), Model::default());
    let calls = node.live(&mut model, &script(), u64::MAX, Loss::All, 0).unwrap();
    assert!(calls > 250, "{calls}");
    for call in 0..=calls + 10 {
        crash_at(call, Loss::All, call);
        crash_at(call, Loss::None, call);
        (0..12).for_each(|seed| crash_at(call, Loss::Any, seed));
    }
}

#[test]
fn the_last_frame_may_be_torn_and_no_other() {
    let (mut node, mut model) = (Node::new(3), Model::default());
    node.live(&mut model, &script()[..20], u64::MAX, Loss::All, 3).unwrap();
    let found = recovery::find(&node.segments, STAMP).unwrap();
    let numbers: Vec<u64> = found.needed.iter().map(|frame| frame.number).collect();
    assert!(numbers.len() > 3, "{numbers:?}");
    for frame in &found.needed {
        let mut segments = node.segments.clone();
        segments[frame.segment][frame.start + 20] ^= 1;
        let result = recovery::find(&segments, STAMP);
        match result {
            Ok(left) if frame.number == *numbers.last().unwrap() => {
                assert_eq!(left.needed.last().map(|last| last.number), Some(frame.number - 1));
            }
            other => assert!(other.unwrap_err().contains(&format!("frame {} is damaged", frame.number))),
        }
    }
}

#[test]
fn a_full_segment_has_room_to_say_that_another_is_not_needed() {
    let life = Life::of(u64::MAX);
    let content = || {
        let durable = vec![0; SEGMENT_BYTES];
        Rc::new(RefCell::new(SegmentContent { durable, unsynced: Vec::new() }))
    };
    let files: Vec<_> = (0..2).map(|_| FakeSegment { content: content(), life: life.clone() }).collect();
    let mut journal = Journal::new(files.clone(), SEGMENT_BYTES, STAMP, &recovery::FoundFrames::default(), 0);
    let fill = |journal: &mut Journal<FakeSegment>| {
        let mut frames = 0;
        loop {
            journal.begin();
            journal.push(&Change::Vote { sequence: frames, vote: Bytes::new() });
            if !journal.has_room() {
                return frames;
            }
            journal.append().unwrap();
            frames += 1;
        }
    };
    // One sector is the header, and one is spared.
    assert_eq!(fill(&mut journal), 6);
    assert!(journal.next_is_free() && journal.released_segments() == 1);
    journal.advance();
    assert_eq!(fill(&mut journal), 6);
    assert!(!journal.next_is_released() && journal.released_segments() == 0);
    assert_eq!(journal.next_release(), Release { upto: 6, highest: None });
    journal.release(Release { upto: 6, highest: None });
    assert!(journal.next_is_released() && !journal.next_is_free(), "no durable frame says so");
    let found = |files: &[FakeSegment]| {
        let contents: Vec<_> = files.iter().map(|file| file.content.borrow().durable.clone()).collect();
        let needed = recovery::find(&contents, STAMP).unwrap().needed;
        (needed.first().map(|frame| frame.number), needed.last().map(|frame| frame.number))
    };
    assert_eq!(found(&files), (Some(1), Some(12)));
    journal.mark_before().unwrap();
    assert_eq!(found(&files), (Some(7), Some(13)));
    assert!(journal.next_is_free() && !journal.is_empty());
    journal.advance();
    // The frame that was being made is still there.
    assert!(journal.body_bytes() > 0 && journal.has_room());
    journal.append().unwrap();
    assert_eq!(found(&files), (Some(7), Some(14)));
}

#[test]
fn records_that_no_frame_takes_together_go_to_several() {
    let Running { mut log, .. } = Node::new(3).open(u64::MAX, 0).unwrap();
    let mut model = Model::default();
    ask(&mut log, &mut model, &Op::Append(4, 1400)).unwrap();
    assert_eq!((log.number(), log.sled().now()), (3, SledContent::default()));
}

#[test]
fn sled_is_not_given_what_a_cut_of_it_removes() {
    let Running { mut log, .. } = Node::new(3).open(u64::MAX, 0).unwrap();
    let mut model = Model::default();
    for op in [Op::Append(4, 20), Op::Empty, Op::Append(4, 20), Op::Truncate(7)] {
        ask(&mut log, &mut model, &op).unwrap();
    }
    let sled = log.sled().remains();
    assert_eq!((sled.records.into_values().collect::<Vec<_>>(), sled.task), (model.records, 2));
}

#[test]
fn many_small_records_go_to_sled_although_there_is_room_for_them() {
    let Running { mut log, .. } = Node::new(4).open(u64::MAX, 0).unwrap();
    for (first, is_under_way) in [(1, false), (121, true)] {
        let begins = log.begins().then_some(Change::Begin(first));
        let records = (first..first + 120).map(|index| Change::Append(record(1, index, 0)));
        log.write(&begins.into_iter().chain(records).collect::<Vec<_>>()).unwrap();
        log.archive_if_full().unwrap();
        assert_eq!(log.may_be_emptied(), !is_under_way);
    }
}

#[test]
fn the_first_frame_after_an_open_relies_on_what_sled_had_done() {
    let mut node = Node::new(3);
    node.sled.task = 4;
    let Running { mut log, files, .. } = node.open(u64::MAX, 0).unwrap();
    ask(&mut log, &mut Model::default(), &Op::Vote).unwrap();
    let contents: Vec<_> = files.iter().map(|file| file.content.borrow().durable.clone()).collect();
    assert_eq!(recovery::find(&contents, STAMP).unwrap().needed.last().map(|last| last.task), Some(4));
}

#[test]
fn what_is_purged_before_its_turn_never_goes_to_sled() {
    let Running { mut log, .. } = Node::new(3).open(u64::MAX, 0).unwrap();
    let mut model = Model::default();
    for op in [Op::Append(2, 20), Op::Append(2, 20), Op::Purge(3, 0), Op::Empty] {
        ask(&mut log, &mut model, &op).unwrap();
    }
    let sled = log.sled().remains();
    assert_eq!(sled.records.into_values().collect::<Vec<_>>(), model.records);
    assert_eq!((model.records.len(), sled.marks.purged), (3, model.purged));
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any::<u8>(), 0..400_u16).prop_map(|(count, bytes)| Op::Append(count, bytes)),
        1 => (any::<u8>(), 400..5000_u16).prop_map(|(count, bytes)| Op::Append(count, bytes)),
        3 => Just(Op::Vote),
        2 => Just(Op::Committed),
        3 => any::<u8>().prop_map(Op::Truncate),
        1 => Just(Op::Clear),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(count, beyond)| Op::Purge(count, beyond)),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(count, bytes)| Op::Replace(count, bytes)),
        4 => Just(Op::Rest),
        1 => Just(Op::Empty),
    ]
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![Just(Loss::All), Just(Loss::None), Just(Loss::Any)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_lives_leave_the_log_of_a_naive_model(
        segments in 2..5_usize,
        lives in prop::collection::vec(
            (prop::collection::vec(any_op(), 0..60), 0..400_u64, any_loss(), any::<u64>()),
            1..6,
        ),
    ) {
        let (mut node, mut model) = (Node::new(segments), Model::default());
        for (ops, calls, loss, seed) in lives {
            node.live(&mut model, &ops, calls, loss, seed).unwrap();
        }
    }
}

/// Each defect is noticed by the test of what it breaks, and by the sentence that says so.
#[cfg(mutants)]
mod of_mutants {
    use lockkeeper_mutants::{Mutant, activate};

    use super::whenever_it_ends_what_was_acknowledged_is_found;

    fn live_with(mutant: Mutant) {
        activate(Some(mutant));
        whenever_it_ends_what_was_acknowledged_is_found();
    }

    #[test]
    #[should_panic(expected = "an acknowledged frame is lost")]
    fn ack_before_journal_sync() {
        live_with(Mutant::AckBeforeJournalSync);
    }

    #[test]
    #[should_panic(expected = "is damaged or missing, yet frame")]
    fn reuse_segment_early() {
        live_with(Mutant::ReuseSegmentEarly);
    }

    #[test]
    #[should_panic(expected = "found Model")]
    fn vote_only_in_sled() {
        live_with(Mutant::VoteOnlyInSled);
    }

    #[test]
    #[should_panic(expected = "found Model")]
    fn recover_from_sled_alone() {
        live_with(Mutant::RecoverFromSledAlone);
    }
}
