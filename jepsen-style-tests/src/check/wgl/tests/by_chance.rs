//! Sequential executions made concurrent are always accepted; and on small histories of any kind the naive search says
//! the same.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::super::lock::EndedOwners;
use super::*;

/// Whether some order explains the operations, by trying every order. No use beyond ten operations.
fn naive<M: Model>(model: &M, operations: &[OperationOf<M>]) -> bool {
    let mut left: Vec<&OperationOf<M>> = operations.iter().collect();
    try_all(model, &model.init(), &mut left)
}

fn try_all<M: Model>(model: &M, state: &M::State, left: &mut Vec<&OperationOf<M>>) -> bool {
    if left.iter().all(|operation| !matches!(operation.end, LatestEffect::Done(_))) {
        return true;
    }
    for at in 0..left.len() {
        let first = left.remove(at);
        // It may come next if none of the others was over before it began.
        let may = !left.iter().any(|other| matches!(other.end, LatestEffect::Done(over) if over < first.invoked_us));
        // One that ended without a sure effect before something that was placed cannot be told here, as what is placed
        // has gone: it is given up instead, at the moment when something begins after its end.
        let late: Vec<_> = left
            .iter()
            .copied()
            .filter(|other| matches!(other.end, LatestEffect::Until(over) if over < first.invoked_us))
            .collect();
        let mut rest: Vec<_> =
            left.iter().copied().filter(|other| !late.iter().any(|l| std::ptr::eq(*l, *other))).collect();
        if may
            && let Some(next) = model.step(state, &first.input, first.output.as_ref())
            && try_all(model, &next, &mut rest)
        {
            return true;
        }
        left.insert(at, first);
    }
    false
}

/// What chance says of one operation.
#[derive(Clone, Debug)]
struct Draw {
    /// Which client, and which of the operations that the model knows.
    client: u32,
    what: u8,
    value: u64,
    /// How long before and after its point it was asked and answered.
    before: u64,
    after: u64,
    /// What the client knows of it.
    fate: u8,
}

fn draws(count: std::ops::Range<usize>, fates: u8) -> impl Strategy<Value = Vec<Draw>> {
    let draw = (0u32..4, 0u8..8, 0u64..4, 0u64..60, 0u64..60, 0u8..fates);
    let draw =
        draw.prop_map(|(client, what, value, before, after, fate)| Draw { client, what, value, before, after, fate });
    proptest::collection::vec(draw, count)
}

/// A model that can be run, not only asked whether an answer is right.
trait Runs: Model {
    fn run(&self, state: &Self::State, draw: &Draw, point: u64) -> Option<(Self::Input, Self::Output)>;
}

/// A client whose session is over has a new one.
fn owner(draw: &Draw, ended: &EndedOwners) -> u64 {
    (0..).map(|number| u64::from(draw.client) + 4 * number).find(|owner| !ended.contains(*owner)).expect("endless")
}

impl Runs for RegisterModel {
    fn run(&self, state: &Self::State, draw: &Draw, _: u64) -> Option<(RegisterAsk, RegisterAnswer)> {
        let version = state.map_or(0, |(_, version)| version);
        let ask = match draw.what {
            0..=2 => RegisterAsk::Read,
            3 | 4 => RegisterAsk::Write(draw.value),
            5 => RegisterAsk::Cas { version, to: draw.value },
            6 => RegisterAsk::Cas { version: version - 1, to: draw.value },
            _ => RegisterAsk::Delete(None),
        };
        Some((ask, RegisterModel::run(self, *state, ask).0))
    }
}

impl Runs for LockModel {
    fn run(&self, state: &Self::State, draw: &Draw, point: u64) -> Option<(LockAsk, LockAnswer)> {
        let owner = owner(draw, &state.ended);
        let shared = self.permits == 1 && draw.value > 1;
        let is_free = match shared {
            true => state.holders.iter().all(|holder| holder.shared),
            false => state.holders.len() < self.permits,
        };
        Some(match (draw.what, state.holders.first().copied()) {
            (0..=3, _) if is_free => (LockAsk::Acquire { owner, shared }, LockAnswer::Granted { token: point + 1 }),
            (0, _) => (LockAsk::Acquire { owner, shared }, LockAnswer::Busy),
            (1..=4, Some(grant)) => (LockAsk::Release { owner: grant.owner, token: grant.token? }, LockAnswer::Done),
            (5, Some(grant)) => (LockAsk::SessionEnds { owner: grant.owner }, LockAnswer::Done),
            (6, _) => {
                let token = point.saturating_sub(draw.value * 50);
                let held = state.holders.iter().any(|holder| holder.token == Some(token));
                (LockAsk::Verify { token }, LockAnswer::Held(held))
            }
            (_, Some(grant)) if self.permits == 1 && !grant.shared => {
                (LockAsk::Downgrade { owner: grant.owner, token: grant.token? }, LockAnswer::Done)
            }
            _ => return None,
        })
    }
}

/// The same without readers.
fn alone(draws: &[Draw]) -> Vec<Draw> {
    draws.iter().map(|draw| Draw { value: draw.value.min(1), what: draw.what.min(6), ..draw.clone() }).collect()
}

impl Runs for GateModel {
    fn run(&self, state: &Self::State, draw: &Draw, point: u64) -> Option<(GateAsk, GateAnswer)> {
        use lockkeeper_checkers::gate::GatePhase;
        let begin = GateAsk::Begin { owner: u64::from(draw.client) };
        Some(match (draw.what, state.stands) {
            (0..=3, GatePhase::Open) => (begin, GateAnswer::Proceed { token: point + 1 }),
            (0..=3, GatePhase::Pending { token, .. }) => (begin, GateAnswer::InProgress { token: token? }),
            (_, GatePhase::Finished(token)) => (begin, GateAnswer::Finished { token }),
            (4, GatePhase::Pending { token, .. }) => (GateAsk::Finish { token: token? }, GateAnswer::Settled),
            (5, GatePhase::Pending { token, .. }) => (GateAsk::Fail { token: token? }, GateAnswer::Settled),
            (6, GatePhase::Pending { owner, .. }) => (GateAsk::SessionEnds { owner }, GateAnswer::Settled),
            _ => return None,
        })
    }
}

impl Runs for ItemModel {
    fn run(&self, state: &Self::State, draw: &Draw, _: u64) -> Option<(ItemAsk, ItemDone)> {
        use super::super::item::ItemState;
        let ask = match (draw.what, *state) {
            (0..=6, ItemState::Nowhere) => ItemAsk::Put,
            (0..=3, ItemState::Free { given }) => {
                ItemAsk::Take { owner: u64::from(draw.client), attempt: given + 1 + u32::from(draw.value == 0) }
            }
            (0, ItemState::Held { attempt, .. }) => ItemAsk::Acknowledge { attempt },
            (1..=3, ItemState::Held { attempt, .. }) => ItemAsk::GiveBack { attempt },
            (4, ItemState::Held { owner, .. }) => ItemAsk::SessionEnds { owner },
            _ => return None,
        };
        Some((ask, ItemDone))
    }
}

impl Runs for AppendList {
    fn run(&self, state: &Self::State, draw: &Draw, _: u64) -> Option<(ListAsk, ListAnswer)> {
        Some(match draw.what {
            0..=3 => (ListAsk::Append(draw.value), ListAnswer::Appended),
            _ => (ListAsk::Read, ListAnswer::All(state.clone())),
        })
    }
}

/// Runs the draws one after the other, and lets each be seen around its point in time. Some clients are told nothing,
/// and not all of what they asked for happens.
fn concurrent<M: Runs>(model: &M, draws: &[Draw]) -> Vec<OperationOf<M>> {
    let mut state = model.init();
    let mut all = Vec::new();
    for (at, draw) in draws.iter().enumerate() {
        let point = 100 + 20 * at as u64;
        let Some((input, output)) = model.run(&state, draw, point) else { continue };
        let happens = draw.fate != 2;
        if happens {
            state = model.step(&state, &input, Some(&output)).expect("what was run is right");
        }
        let over = point + draw.after;
        let (end, output) = match draw.fate {
            0 => (LatestEffect::Until(over), None),
            1 | 2 => (LatestEffect::Open, None),
            _ => (LatestEffect::Done(over), Some(output)),
        };
        let invoked_us = point - draw.before;
        all.push(Operation { client: draw.client, op: at as u64, input, output, invoked_us, end });
    }
    all
}

fn accepted<M: Runs>(model: &M, draws: &[Draw]) -> Result<(), TestCaseError> {
    let operations = concurrent(model, draws);
    match search(model, &operations, Budget::default()) {
        Finding::Linearizable { order } => {
            prop_assert_eq!(replayed(model, &operations, &order), Ok(()));
            Ok(())
        }
        other => Err(TestCaseError::fail(format!("{other:?}: {operations:?}"))),
    }
}

/// Answers are given to others and moments are moved: good or bad, both searches must say the same.
fn agree<M: Runs>(model: &M, draws: &[Draw], swap: (usize, usize), moved: (usize, u64)) -> Result<(), TestCaseError> {
    let mut operations = concurrent(model, draws);
    let count = operations.len().max(1);
    if let (Some(one), Some(other)) = (operations.get(swap.0 % count).cloned(), operations.get(swap.1 % count).cloned())
    {
        if one.output.is_some() && other.output.is_some() {
            operations[swap.0 % count].output = other.output;
            operations[swap.1 % count].output = one.output;
        }
        let late = &mut operations[moved.0 % count];
        late.invoked_us += moved.1;
        late.end = match late.end {
            LatestEffect::Done(at) => LatestEffect::Done(at + moved.1),
            LatestEffect::Until(at) => LatestEffect::Until(at + moved.1),
            LatestEffect::Open => LatestEffect::Open,
        };
    }
    let found = matches!(search(model, &operations, Budget::default()), Finding::Linearizable { .. });
    prop_assert_eq!(found, naive(model, &operations), "{:?}", operations);
    if !found {
        let small = shrink(model, &operations);
        prop_assert!(small.len() <= operations.len() && !naive(model, &small), "{:?}", small);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_happened_is_accepted(draws in draws(0..60, 40)) {
        accepted(&RegisterModel::default(), &draws)?;
        accepted(&LockModel::default(), &draws)?;
        accepted(&LockModel::default(), &alone(&draws))?;
        accepted(&LockModel::of(2), &draws)?;
        accepted(&GateModel, &draws)?;
        accepted(&ItemModel, &draws)?;
        accepted(&AppendList::default(), &draws)?;
    }
}

proptest! {
    // The small ones are cheap.
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_naive_search_says_the_same(
        draws in draws(0..8, 10), swap in (0usize..8, 0usize..8), moved in (0usize..8, 0u64..150),
    ) {
        agree(&RegisterModel::default(), &draws, swap, moved)?;
        agree(&LockModel::default(), &draws, swap, moved)?;
        agree(&LockModel::default(), &alone(&draws), swap, moved)?;
        agree(&LockModel::of(2), &draws, swap, moved)?;
        agree(&GateModel, &draws, swap, moved)?;
        agree(&ItemModel, &draws, swap, moved)?;
        agree(&AppendList::default(), &draws, swap, moved)?;
    }
}
