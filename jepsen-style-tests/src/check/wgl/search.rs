//! The search for an order, without recursion.
//!
//! Two linked lists hold the operations not placed yet: by invocation, and by end. An operation invoked before the
//! first end may come next; placing it removes it from both lists, and backtracking puts it back. Three differences
//! from the papers: the operation that must end first is tried first; an operation that only reads is placed where it
//! first fits and nowhere else; and an operation of uncertain effect is *passed over* when its end is the first, as it
//! then never happened.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::rc::Rc;

use super::placed::Placed;
use super::{Budget, Model, Operation, OperationOf};

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An order, as places in the operations that were given; those of unknown outcome that are not in it did not
    /// happen.
    Linearizable {
        /// The order.
        order: Vec<usize>,
    },
    /// There is none.
    NotLinearizable(DeadEnd),
    /// The budget was used up.
    Unknown {
        /// What of it.
        why: String,
    },
}

/// Where the longest order that works ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadEnd {
    /// The order, as places in the operations that were given.
    pub order: Vec<usize>,
    /// The state after it.
    pub state: String,
    /// Those that must come next, and none can.
    pub stuck: Vec<usize>,
}

/// A way to go on.
#[derive(Clone, Copy, Debug)]
enum SearchStep {
    /// This operation comes next.
    Place(usize),
    /// This one, of unknown outcome and at its end, never happened.
    Pass(usize),
}

/// A point of the search: how it was reached, and the ways that are left.
struct Point {
    by: Option<SearchStep>,
    state: u32,
    steps: std::vec::IntoIter<SearchStep>,
}

/// Looks for an order in which every answer is the model's.
pub fn search<M: Model>(model: &M, operations: &[OperationOf<M>], budget: Budget) -> Finding {
    let knowing = model.knowing(operations);
    Search::new(knowing.as_ref().unwrap_or(model), operations).run(budget)
}

struct Search<'a, M: Model> {
    model: &'a M,
    /// In the order of this search: those that must take place by their end, then the others.
    operations: Vec<&'a OperationOf<M>>,
    /// Where they stood in what was given.
    given: Vec<usize>,
    /// How many must take place.
    must: usize,
    /// By invocation.
    calls: Chain,
    /// By end, without those that have none.
    ends: Chain,
    placed: Placed,
    states: States<M::State>,
    seen: HashSet<Box<[u64]>>,
    bytes: usize,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, all: &'a [OperationOf<M>]) -> Self {
        // What is not certain and changes nothing can always be left out.
        let wanted = |o: &OperationOf<M>| o.must_take_place() || !model.only_looks(&o.input);
        let mut given: Vec<usize> = (0..all.len()).filter(|at| wanted(&all[*at])).collect();
        given.sort_by_key(|at| (!all[*at].must_take_place(), all[*at].ends_us().unwrap_or(u64::MAX), *at));
        let operations: Vec<&OperationOf<M>> = given.iter().map(|at| &all[*at]).collect();
        let must = operations.iter().filter(|operation| operation.must_take_place()).count();
        let mut by_call: Vec<usize> = (0..operations.len()).collect();
        let mut by_end: Vec<usize> = by_call.iter().copied().filter(|at| operations[*at].ends_us().is_some()).collect();
        by_call.sort_by_key(|at| operations[*at].invoked_us);
        by_end.sort_by_key(|at| operations[*at].ends_us());
        Self {
            model,
            must,
            calls: Chain::new(&by_call, operations.len()),
            ends: Chain::new(&by_end, operations.len()),
            placed: Placed::none(must, operations.len() - must),
            states: States::default(),
            seen: HashSet::new(),
            bytes: 0,
            operations,
            given,
        }
    }

    fn run(mut self, budget: Budget) -> Finding {
        let init = self.intern(self.model.init());
        let mut points = vec![Point { by: None, state: init, steps: self.steps_from(init) }];
        let (mut left, mut steps, mut best) = (self.must, 0, None);
        while let Some(point) = points.last_mut() {
            if left == 0 {
                return Finding::Linearizable { order: self.order(&points) };
            }
            let (state, step) = (point.state, point.steps.next());
            let Some(step) = step else {
                if best.as_ref().is_none_or(|(depth, _)| points.len() > *depth) {
                    best = Some((points.len(), self.dead_end(&points, state)));
                }
                if let Some(by) = points.pop().and_then(|point| point.by) {
                    left += self.undo(by);
                }
                continue;
            };
            steps += 1;
            if steps > budget.steps || self.bytes > budget.bytes {
                return Finding::Unknown { why: self.exhausted(steps, budget, best.map_or(0, |(depth, _)| depth)) };
            }
            let Some(next) = self.after(state, step) else { continue };
            left -= self.apply(step);
            if self.is_new(next) {
                points.push(Point { by: Some(step), state: next, steps: self.steps_from(next) });
            } else {
                left += self.undo(step);
            }
        }
        Finding::NotLinearizable(best.map(|(_, end)| end).unwrap_or_default())
    }

    /// The ways to go on from what is placed now.
    fn steps(&self) -> std::vec::IntoIter<SearchStep> {
        let first_end = self.ends.first();
        let bound = first_end.and_then(|at| self.operations[at].ends_us()).unwrap_or(u64::MAX);
        let open = self.calls.iter().take_while(|at| self.operations[*at].invoked_us <= bound);
        let mut next: Vec<usize> = open.collect();
        // Their numbers are in the order of their ends; what nobody is sure of comes last.
        next.sort_unstable();
        let mut steps: Vec<SearchStep> = next.into_iter().map(SearchStep::Place).collect();
        steps.extend(first_end.filter(|at| *at >= self.must).map(SearchStep::Pass));
        steps.into_iter()
    }

    /// The ways that must be tried from here. What only looks, and sees now what it says that it saw, goes first and
    /// alone: it changes nothing for the others, so wherever an order has it, it may as well stand here.
    fn steps_from(&self, state: u32) -> std::vec::IntoIter<SearchStep> {
        let steps = self.steps();
        let state = self.states.get(state);
        let free = steps.as_slice().iter().copied().find(|step| match *step {
            SearchStep::Place(at) if at < self.must => {
                let Operation { input, output, .. } = self.operations[at];
                self.model.only_looks(input) && self.model.step(&state, input, output.as_ref()).is_some()
            }
            SearchStep::Place(_) | SearchStep::Pass(_) => false,
        });
        free.map_or(steps, |step| vec![step].into_iter())
    }

    fn after(&mut self, state: u32, step: SearchStep) -> Option<u32> {
        let SearchStep::Place(at) = step else { return Some(state) };
        let Operation { input, output, .. } = self.operations[at];
        let before = self.states.get(state);
        let next = self.model.step(&before, input, output.as_ref())?;
        // Uncertain and without effect here: as if it had not happened here.
        if at >= self.must && next == *before {
            return None;
        }
        Some(self.intern(next))
    }

    fn intern(&mut self, state: M::State) -> u32 {
        let weight = self.model.weight(&state);
        let (number, is_new) = self.states.intern(state);
        self.bytes += if is_new { 2 * weight + 48 } else { 0 };
        number
    }

    fn is_new(&mut self, state: u32) -> bool {
        let key = self.placed.key(state);
        let bytes = key.len() * 8 + 40;
        let is_new = self.seen.insert(key);
        self.bytes += if is_new { bytes } else { 0 };
        is_new
    }

    /// Gives how many that must take place it placed.
    fn apply(&mut self, step: SearchStep) -> usize {
        let (SearchStep::Place(at) | SearchStep::Pass(at)) = step;
        self.calls.take(at);
        self.ends.take(at);
        self.placed.insert(at);
        usize::from(at < self.must)
    }

    fn undo(&mut self, step: SearchStep) -> usize {
        let (SearchStep::Place(at) | SearchStep::Pass(at)) = step;
        self.placed.remove(at);
        self.ends.put_back(at);
        self.calls.put_back(at);
        usize::from(at < self.must)
    }

    fn order(&self, points: &[Point]) -> Vec<usize> {
        let steps = points.iter().filter_map(|point| point.by);
        steps.filter_map(|step| if let SearchStep::Place(at) = step { Some(self.given[at]) } else { None }).collect()
    }

    fn dead_end(&self, points: &[Point], state: u32) -> DeadEnd {
        let steps = self.steps();
        let stuck = steps.filter_map(|step| match step {
            SearchStep::Place(at) if at < self.must => Some(self.given[at]),
            _ => None,
        });
        DeadEnd { order: self.order(points), state: format!("{:?}", self.states.get(state)), stuck: stuck.collect() }
    }

    fn exhausted(&self, steps: u64, budget: Budget, depth: usize) -> String {
        format!(
            "the search was given up after {steps} steps of {} and about {} MB of {}, with {} of {} operations placed \
                at best",
            budget.steps,
            self.bytes >> 20,
            budget.bytes >> 20,
            depth.saturating_sub(1),
            self.operations.len()
        )
    }
}

/// Every state once, with a number.
struct States<S> {
    numbers: HashMap<Rc<S>, u32>,
    all: Vec<Rc<S>>,
}

impl<S> Default for States<S> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), all: Vec::new() }
    }
}

impl<S: Eq + Hash> States<S> {
    fn intern(&mut self, state: S) -> (u32, bool) {
        if let Some(number) = self.numbers.get(&state) {
            return (*number, false);
        }
        // The budget of memory ends the search long before.
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let state = Rc::new(state);
        self.all.push(Rc::clone(&state));
        self.numbers.insert(state, number);
        (number, true)
    }

    fn get(&self, number: u32) -> Rc<S> {
        Rc::clone(&self.all[number as usize])
    }
}

/// A chain of numbers, from which one is taken out and put back in constant time, the last taken first.
struct Chain {
    /// The next of each; that of the head is the last.
    next: Vec<usize>,
    before: Vec<usize>,
    is_in: Vec<bool>,
    head: usize,
}

impl Chain {
    fn new(order: &[usize], size: usize) -> Self {
        let head = size;
        let mut chain =
            Self { next: vec![head; size + 1], before: vec![head; size + 1], is_in: vec![false; size + 1], head };
        let mut last = head;
        for at in order {
            (chain.next[last], chain.before[*at], chain.is_in[*at]) = (*at, last, true);
            last = *at;
        }
        (chain.next[last], chain.before[head]) = (head, last);
        chain
    }

    fn first(&self) -> Option<usize> {
        Some(self.next[self.head]).filter(|first| *first != self.head)
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.first(), |at| Some(self.next[*at]).filter(|next| *next != self.head))
    }

    fn take(&mut self, at: usize) {
        if self.is_in[at] {
            let (before, next) = (self.before[at], self.next[at]);
            (self.next[before], self.before[next]) = (next, before);
        }
    }

    fn put_back(&mut self, at: usize) {
        if self.is_in[at] {
            let (before, next) = (self.before[at], self.next[at]);
            (self.next[before], self.before[next]) = (at, at);
        }
    }
}
