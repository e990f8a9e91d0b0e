//! Decides from outside whether a history is linearizable: whether there is an order in which each operation takes
//! effect between its invocation and its completion and gets the answer that a [`Model`] gives. Nothing that the server
//! says of its own order is believed here.
//!
//! The search is Wing and Gong's (*Testing and verifying concurrent objects*, 1993) with Lowe's improvements (*Testing
//! for linearizability*, 2017): depth first, remembering each pair (operations placed, state) that was tried. It is
//! exponential at worst, so it has a [`Budget`]; running out of it is *unknown*, never a pass. A history of many keys
//! is many histories ([`judge`]): linearizability is local.

mod gate;
mod item;
mod list;
mod lock;
mod placed;
mod register;
mod search;
mod shrink;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;

pub use gate::{GateAnswer, GateAsk, GateModel};
pub use item::{ItemAsk, ItemDone, ItemModel};
pub use list::{AppendList, ListAnswer, ListAsk};
pub use lock::{LockAnswer, LockAsk, LockModel};
pub use register::{RegisterAnswer, RegisterAsk, RegisterModel};
pub use search::{DeadEnd, Finding, search};
pub use shrink::shrink;

use crate::check::Check;
use crate::history::{Completion, Op};

/// What an object does when one operation after the other is carried out on it.
pub trait Model {
    /// What it remembers.
    type State: Clone + Eq + Hash + Debug;
    /// What it is asked.
    type Input: Clone + Debug;
    /// What it answers.
    type Output: Clone + Debug;

    /// As it is at first.
    fn init(&self) -> Self::State;

    /// The state after an operation was carried out and answered so; none if it would not have been answered so.
    /// Without an answer, because nobody got it, any would do: the state after the operation *took effect*; none if it
    /// could not have.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;

    /// Whether such an operation never changes the state: one of unknown outcome is then left out, and a counterexample
    /// may do without.
    fn only_looks(&self, input: &Self::Input) -> bool {
        let _ = input;
        false
    }

    /// This model, knowing beforehand what will be asked and answered: it may refuse at once what these answers will
    /// not allow later. Never what they allow. None where that does not help. Without it a search finds out about a
    /// wrong turn only much later, having taken many more.
    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = operations;
        None
    }

    /// About how many bytes a state takes.
    fn weight(&self, state: &Self::State) -> usize {
        std::mem::size_of_val(state)
    }
}

/// Until when an operation may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatestEffect {
    /// It did, before this moment: its answer was there.
    Done(u64),
    /// It did before this moment, or it never will: its session was seen to be over.
    Until(u64),
    /// Nobody knows: at any time, or never.
    Open,
}

/// One operation on one object. Moments are microseconds of the boot clock.
#[derive(Clone, Debug)]
pub struct Operation<I, O> {
    /// Who asked.
    pub client: u32,
    /// Its number at that client.
    pub op: u64,
    /// What was asked.
    pub input: I,
    /// What was answered, if it is known.
    pub output: Option<O>,
    /// When it was asked.
    pub invoked_us: u64,
    /// Until when it may have taken effect.
    pub end: LatestEffect,
}

impl<I, O> Operation<I, O> {
    /// An operation as it stands in a history. *Ok* is done, with this answer; *info* is open; *fail* is done if its
    /// refusal is an answer that the model knows, and otherwise it did not take place: none.
    ///
    /// ```
    /// use jepsen_style_tests::check::wgl::{LatestEffect, Operation, RegisterAnswer, RegisterAsk};
    /// use jepsen_style_tests::history::{Completion, Op};
    /// let op = Op { client: 1, op: 7, what: "write".into(), invoked_us: 10, completed_us: Some(30),
    ///     ended: Completion::Info,
    ///     input: 5.into(), output: "timeout".into(), zxid: None };
    /// let seen = Operation::<_, RegisterAnswer>::of(&op, RegisterAsk::Write(5), None).unwrap();
    /// assert_eq!(seen.end, LatestEffect::Open);
    /// ```
    pub fn of(op: &Op, input: I, output: Option<O>) -> Option<Self> {
        let end = match (op.ended, op.completed_us) {
            (Completion::Fail, _) if output.is_none() => return None,
            (Completion::Ok | Completion::Fail, Some(at)) => LatestEffect::Done(at),
            (Completion::Info, _) | (_, None) => LatestEffect::Open,
        };
        let output = output.filter(|_| matches!(end, LatestEffect::Done(_)));
        Some(Self { client: op.client, op: op.op, input, output, invoked_us: op.invoked_us, end })
    }

    /// Where it is open: it took effect before this moment, if there is one, or never will.
    #[must_use]
    pub fn closed_at(mut self, until_us: impl Into<Option<u64>>) -> Self {
        if let (LatestEffect::Open, Some(until_us)) = (self.end, until_us.into()) {
            self.end = LatestEffect::Until(until_us.max(self.invoked_us));
        }
        self
    }

    /// The end of a session that was last known to live at `alive_us`, and seen to be over at `end_us`, if ever.
    pub fn session_end(op: u64, input: I, done: O, alive_us: u64, end_us: Option<u64>) -> Self {
        let end = end_us.map_or(LatestEffect::Open, |at| LatestEffect::Done(at.max(alive_us)));
        Self { client: u32::MAX, op, input, output: end_us.map(|_| done), invoked_us: alive_us, end }
    }

    /// The moment after which nothing of it can happen.
    fn ends_us(&self) -> Option<u64> {
        match self.end {
            LatestEffect::Done(at) | LatestEffect::Until(at) => Some(at),
            LatestEffect::Open => None,
        }
    }

    /// Whether it must have its place in any order.
    fn must_take_place(&self) -> bool {
        matches!(self.end, LatestEffect::Done(_))
    }
}

/// What a model's operations are called.
pub type OperationOf<M> = Operation<<M as Model>::Input, <M as Model>::Output>;

/// How far a search may go.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Steps of the model.
    pub steps: u64,
    /// Bytes of what it remembers.
    pub bytes: usize,
}

impl Default for Budget {
    /// Some seconds, and half a gigabyte.
    fn default() -> Self {
        Self { steps: 20_000_000, bytes: 512 << 20 }
    }
}

/// Checks the operations of each key on its own; the word over all of them.
///
/// ```
/// use jepsen_style_tests::check::{Verdict, wgl};
/// use wgl::{LatestEffect, Operation, RegisterModel, RegisterAnswer, RegisterAsk};
/// let op = |op, input, output, from, to| {
///     ("k", Operation { client: 1, op, input, output: Some(output), invoked_us: from, end: LatestEffect::Done(to) })
/// };
/// let stale = [
///     op(1, RegisterAsk::Write(5), RegisterAnswer::Written { version: None }, 0, 10),
///     op(2, RegisterAsk::Read, RegisterAnswer::Value(None), 20, 30),
/// ];
/// let check = wgl::judge("register", "P7", &RegisterModel::default(), stale, wgl::Budget::default());
/// assert_eq!(check.verdict, Verdict::Invalid);
/// ```
pub fn judge<M: Model, K: Ord + Display>(
    name: &str,
    promises: &str,
    model: &M,
    operations: impl IntoIterator<Item = (K, OperationOf<M>)>,
    budget: Budget,
) -> Check {
    let mut keys: BTreeMap<K, Vec<OperationOf<M>>> = BTreeMap::new();
    for (key, operation) in operations {
        keys.entry(key).or_default().push(operation);
    }
    let (mut done, mut open, mut unknown) = (0, 0, None);
    for (key, operations) in &keys {
        done += operations.iter().filter(|operation| operation.must_take_place()).count();
        open += operations.iter().filter(|operation| !operation.must_take_place()).count();
        match search(model, operations, budget) {
            Finding::Linearizable { .. } => {}
            Finding::Unknown { why } => unknown = Some(format!("{key}: {why}")),
            Finding::NotLinearizable(_) => return contradiction(name, promises, model, &key.to_string(), operations),
        }
    }
    let looked = format!("{done} operations and {open} of unknown outcome on {} keys", keys.len());
    match unknown {
        Some(why) => Check::unknown(name, promises, format!("{looked}; {why}")),
        None if done == 0 => Check::unknown(name, promises, "no operation was carried out"),
        None => Check::valid(name, promises, format!("{looked}: linearizable")),
    }
}

/// What people will read of a contradiction that could not be made smaller.
const MOST_LINES: usize = 20;

fn contradiction<M: Model>(name: &str, promises: &str, model: &M, key: &str, operations: &[OperationOf<M>]) -> Check {
    let small = shrink(model, operations);
    let (core, left_open): (Vec<_>, Vec<_>) = small.iter().partition(|operation| operation.must_take_place());
    let detail = format!(
        "{key}: {} operations have no order that real time and their answers allow; {} of them suffice",
        operations.len(),
        core.len()
    );
    let before = core.len().saturating_sub(MOST_LINES);
    let mut lines: Vec<String> = core[before..].iter().map(|operation| line(operation)).collect();
    if before > 0 {
        lines.insert(0, format!("{before} operations before these"));
    }
    if !left_open.is_empty() {
        lines.push(format!("whatever became of {} more that were asked for before", left_open.len()));
    }
    let mut at_us = core.iter().filter_map(|operation| operation.ends_us()).max();
    if let Finding::NotLinearizable(end) = search(model, &small, Budget::default()) {
        lines.push(format!(
            "in the longest order that works ({} operations) the state is {}",
            end.order.len(),
            end.state
        ));
        lines.extend(end.stuck.iter().map(|at| format!("  and then this has no place: {}", line(&small[*at]))));
        at_us = end.stuck.iter().filter_map(|at| small[*at].ends_us()).min().or(at_us);
    }
    Check { at_us, ..Check::invalid(name, promises, detail, lines) }
}

fn line<I: Debug, O: Debug>(operation: &Operation<I, O>) -> String {
    let Operation { client, op, input, output, invoked_us, end } = operation;
    let answer = output.as_ref().map_or("not known".to_owned(), |output| format!("{output:?}"));
    let until = match end {
        LatestEffect::Done(at) => format!("{at} us"),
        LatestEffect::Until(at) => format!("before {at} us, or never"),
        LatestEffect::Open => "open".to_owned(),
    };
    format!("client {client} op {op}: {input:?} -> {answer} [{invoked_us} us, {until}]")
}
