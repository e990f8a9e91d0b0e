//! The state against a naive model: every reply, every event and the final state must agree, through snapshots in the
//! middle and batches that are sent again. Invariants are checked along the way, and a second application of the same
//! log must give the same bytes.

mod access;
mod bounds;
mod choose;
mod compare;
mod gates;
mod naive;
mod new_cluster;
mod nodes;
mod owners;
mod queues;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use choose::Raw;
use lockkeeper_core::*;
use naive::Model;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::world::snapshot;

/// Commands in one run.
const COMMANDS: usize = 200;
/// The level to which a run is raised: one that no program has yet.
const LATER: FeatureLevel = FeatureLevel(FeatureLevel::LATEST.0 + 1);

/// The state and the model under the same log.
struct Pair {
    state: State,
    model: Model,
    log: Vec<(Term, Vec<u8>)>,
    clock_ms: u64,
    sequences: [u64; 3],
    /// How often each kind of answer was given.
    answers: BTreeMap<String, usize>,
}

impl Pair {
    fn new() -> Self {
        Self {
            state: State::new(),
            model: Model::new(),
            log: Vec::new(),
            clock_ms: 1_000_000,
            sequences: [0; 3],
            answers: BTreeMap::new(),
        }
    }

    /// Applies one batch to both, sometimes once more.
    fn step(&mut self, shape: Raw, raws: &[Raw]) {
        // Forth by up to 4 s, long enough for TTLs and containers within a run, and now and then back.
        self.clock_ms = (self.clock_ms + u64::from(shape[0] % 4000)).saturating_sub(u64::from(shape[1] % 8 / 7) * 3000);
        let node = usize::from(shape[2] % 3);
        let is_late = shape[3].is_multiple_of(24);
        let last = self.sequences[node];
        let sequence = if is_late { last.saturating_sub(1) } else { last + 1 };
        self.sequences[node] = last.max(sequence);
        let origin = Origin { node: NodeId(node as u64), incarnation: 1, sequence };
        let raise = (shape[0] % 6 == 5).then_some(Command::RaiseFeatureLevel { level: LATER });
        let uid = NonZeroU64::new(u64::from(shape[1] % 8)).map(|uid| Command::SetClusterUid { uid: ClusterUid(uid) });
        let chosen = raws.iter().enumerate().map(|(i, raw)| choose::command(&self.model, *raw, &raws[i..]));
        let commands = raise.into_iter().chain(uid).chain(chosen).collect();
        let foreign_names = if shape[5] % 4 < 3 { ForeignNames::Refuse } else { ForeignNames::Allow };
        let rules = Rules { foreign_names, ..rules(shape) };
        let batch = Batch { rules, ..Batch::consecutive(origin, self.clock_ms, commands) };
        let term = Term(u64::from(shape[4] % 3));
        if shape[3] % 24 == 2 {
            // Before the one that it follows.
            let early = Origin { sequence: sequence + 1, ..origin };
            self.apply(term, &Batch { origin: early, follows: sequence, ..batch.clone() });
        }
        self.apply(term, &batch);
        if shape[3] % 24 == 1 {
            self.apply(term, &batch);
        }
        if shape[5].is_multiple_of(16) {
            self.through_a_snapshot();
        }
    }

    fn apply(&mut self, term: Term, batch: &Batch) {
        let bytes = batch.encode();
        let read = Batch::decode_at(LATER, &bytes).unwrap();
        self.log.push((term, bytes));
        let mut got = self.state.apply(term, &read);
        let mut expected = self.model.apply(term.0, batch);
        got.iter_mut().chain(&mut expected).for_each(compare::without_words);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{:#?}", batch.commands[i]);
        }
        assert_eq!(got.len(), expected.len());
        got.iter().for_each(|outcome| self.count(outcome));
        self.state.validate().unwrap();
    }

    fn count(&mut self, outcome: &Outcome) {
        let text = match &outcome.reply {
            Ok(Reply::SessionsExpired(sessions)) if sessions.is_empty() => "no session expired".into(),
            Ok(Reply::Reaped(paths)) if paths.is_empty() => "nothing reaped".into(),
            Ok(Reply::Queued { held, .. }) => format!("Queued held {held} changed {}", !outcome.events.is_empty()),
            Ok(Reply::Gate(standing)) => format!("{standing:?}"),
            Ok(reply) => format!("{reply:?}"),
            Err(Refusal::NoAuth { wanted, .. }) => format!("not allowed to {wanted}"),
            Err(Refusal::MultiFailed { cause, .. }) if matches!(**cause, Refusal::NoAuth { .. }) => {
                "MultiFailed, not allowed".into()
            }
            Err(refusal) => format!("{refusal:?}"),
        };
        let kind = text.split(['(', '{']).next().unwrap_or_default().trim();
        *self.answers.entry(kind.to_string()).or_default() += 1;
        if let Ok(Reply::Queued { paths, held, .. }) = &outcome.reply
            && paths.len() > 1
        {
            *self.answers.entry(format!("set held {held}")).or_default() += 1;
        }
        for event in &outcome.events {
            if let Event::ForcedDeletion { .. } = event {
                *self.answers.entry("forced deletion".into()).or_default() += 1;
            }
            let Event::Node { kind, path, .. } = event else { continue };
            if path.name().starts_with("delay-") && path.as_str().starts_with("/locks/") {
                *self.answers.entry(format!("delay {kind:?}")).or_default() += 1;
            }
        }
    }

    fn through_a_snapshot(&mut self) {
        let bytes = snapshot(&self.state);
        let restored = State::read_snapshot_at(LATER, &bytes[..]).unwrap();
        assert_eq!(restored, self.state);
        self.state = restored;
    }

    fn finish(&self) {
        compare::states(&self.state, &self.model);
        let mut again = State::new();
        for (term, bytes) in &self.log {
            again.apply(*term, &Batch::decode_at(LATER, bytes).unwrap());
        }
        assert_eq!(snapshot(&again), snapshot(&self.state));
        assert_eq!(again.checksum(), self.state.checksum());
        let new = again.into_new_cluster(NonZeroU32::MIN).unwrap();
        new.validate().unwrap();
        compare::states(&new, &self.model.clone().into_new_cluster());
    }
}

/// Bounds that are far away, or near.
fn rules(shape: Raw) -> Rules {
    let mut rules = Rules::default();
    match shape[4] / 3 % 16 {
        0..=2 => rules.max_ephemerals_per_session = 3,
        3 => rules.max_state_bytes = 12_000,
        4 => rules.max_state_bytes = 20_000,
        _ => {}
    }
    rules
}

fn raw() -> impl Strategy<Value = Raw> {
    any::<Raw>()
}

/// What a batch is made of, and how it comes.
fn batch() -> impl Strategy<Value = (Raw, Vec<Raw>)> {
    (raw(), prop::collection::vec(raw(), 4))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_state_agrees_with_the_model(batches in prop::collection::vec(batch(), COMMANDS / 4)) {
        let mut pair = Pair::new();
        for (shape, raws) in &batches {
            pair.step(*shape, raws);
        }
        pair.finish();
    }
}

/// A comparison says nothing about what it never meets.
#[test]
fn the_commands_meet_every_kind_of_answer() {
    let mut runner = TestRunner::deterministic();
    let mut answers = BTreeMap::<String, usize>::new();
    for _ in 0..48 {
        let batches = prop::collection::vec(batch(), COMMANDS / 4).new_tree(&mut runner).unwrap().current();
        let mut pair = Pair::new();
        batches.iter().for_each(|(shape, raws)| pair.step(*shape, raws));
        pair.answers.into_iter().for_each(|(kind, count)| *answers.entry(kind).or_default() += count);
    }
    println!("{answers:#?}");
    let kinds = [
        "SessionOpened",
        "SessionClosed",
        "SessionsExpired",
        "no session expired",
        "Reaped",
        "nothing reaped",
        "Created",
        "Deleted",
        "DataSet",
        "AclSet",
        "Checked",
        "Multi",
        "Queued held true changed true",
        "Queued held false changed true",
        "Queued held true changed false",
        "Queued held false changed false",
        "Withdrawn",
        "HeldInstead",
        "Released",
        "Reentered",
        "StillHeld",
        "Added",
        "OutOfBounds",
        "NotANumber",
        "ForceReleased",
        "Claimed",
        "Downgraded",
        "set held true",
        "set held false",
        "delay Created",
        "delay Deleted",
        "Proceed",
        "InProgress",
        "Done",
        "GateSettled",
        "LockMismatch",
        "GateNotPending",
        "GateMismatch",
        "NoNode",
        "NodeExists",
        "NotEmpty",
        "BadVersion",
        "NoChildrenForEphemerals",
        "BadArguments",
        "InvalidAcl",
        "SessionRequired",
        "SessionExpired",
        "NotHeld",
        "NotQueued",
        "RequestMismatch",
        "MultiFailed",
        "SessionAttached",
        "SessionMoved",
        "TooManyEphemerals",
        "StateFull",
        "NamespaceFull",
        "NamespaceChanged",
        "NotThere",
        "AccessChanged",
        "not allowed to read",
        "not allowed to write",
        "not allowed to create",
        "not allowed to delete",
        "not allowed to admin",
        "MultiFailed, not allowed",
        "Forbidden",
        "ForeignNames",
        "forced deletion",
    ];
    for kind in kinds {
        assert!(answers.get(kind).is_some_and(|count| *count >= 5), "'{kind}' was met {:?} times", answers.get(kind));
    }
}
