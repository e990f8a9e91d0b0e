//! The same histories for the black-box checker ([`wgl`]), which knows neither zxid nor log; but for one thing: when a session ended,
//! which only the log shows. That closes what was left open in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Check;
use crate::check::wgl::{self, Budget, End, LockAnswer, LockAsk, Mutex, Operation, RwAsk, RwLock, Semaphore};
use crate::history::{Ended, Op};
use crate::judge::queue::{self, lives};
use crate::workload::Recorded;
use crate::workload::tells::{self, Asks, Granted, Under};
use lockkeeper_client::api::locks::Mode;

const NAME: &str = "linearizable, as a black box";
const PROMISES: &str = "P1 P7";

/// When the first watch told of the end of a session, by its number.
fn ends_us(log: &BTreeSet<queue::Event>, seen_us: &BTreeMap<u64, u64>) -> Result<BTreeMap<u64, u64>, String> {
    let sessions = lives(log, tells::SESSIONS)?;
    let ends = sessions.iter().filter_map(|life| {
        let number = life.name.strip_prefix('s')?.parse().ok()?;
        Some((number, *seen_us.get(&life.gone?)?))
    });
    Ok(ends.collect())
}

/// One operation on one lock, whatever its kind.
struct Asked {
    lock: String,
    op: Op,
    owner: u64,
    ask: RwAsk,
    answer: Option<LockAnswer>,
}

fn asked(op: &Op) -> Result<Option<Asked>, serde_json::Error> {
    let of = |under: &Under| (under.locks.first().cloned().unwrap_or_default(), under.session, under.token);
    let refused = (op.ended == Ended::Fail).then_some(LockAnswer::NotHeld);
    let done = (op.ended == Ended::Ok).then_some(LockAnswer::Done);
    let (lock, owner, ask, answer) = match op.what.as_str() {
        tells::ACQUIRE => {
            let asks: Asks = op.asked()?;
            let answer = op.answer::<Granted>()?.map(|granted| LockAnswer::Granted { token: granted.token });
            let lock = asks.locks.first().cloned().unwrap_or_default();
            (lock, asks.session, RwAsk::Acquire { owner: asks.session, shared: asks.mode == Mode::Shared }, answer)
        }
        tells::RELEASE => {
            let (lock, owner, token) = of(&op.asked()?);
            (lock, owner, RwAsk::Release { owner, token }, done)
        }
        tells::DOWNGRADE => {
            let (lock, owner, token) = of(&op.asked()?);
            (lock, owner, RwAsk::Downgrade { owner, token }, done)
        }
        tells::STEAL => {
            let (lock, owner, token) = of(&op.asked()?);
            let not_held = op.output.as_str().is_some_and(|why| why.contains("not held"));
            (lock, owner, RwAsk::Release { owner, token }, done.or(refused.filter(|_| not_held)))
        }
        tells::VERIFY => {
            let (lock, owner, token) = of(&op.asked()?);
            (lock, owner, RwAsk::Verify { token }, op.answer::<bool>()?.map(LockAnswer::Held))
        }
        _ => return Ok(None),
    };
    Ok(Some(Asked { lock, op: op.clone(), owner, ask, answer }))
}

/// All operations by lock, with the ends of sessions.
fn operations(run: &Recorded) -> Result<Vec<(String, Operation<RwAsk, LockAnswer>)>, String> {
    let ends = ends_us(&run.log, &run.seen_us)?;
    let mut all = Vec::new();
    // What an owner may still hold of a lock when its session ends: tokens, or something that nobody was told of (0).
    let mut left: BTreeMap<(String, u64), BTreeSet<u64>> = BTreeMap::new();
    // When an owner was last known to live.
    let mut alive_us: BTreeMap<u64, u64> = BTreeMap::new();
    for op in run.history.ops() {
        let Some(asked) = asked(&op).map_err(|error| error.to_string())? else { continue };
        let left = left.entry((asked.lock.clone(), asked.owner)).or_default();
        match (asked.ask, asked.answer) {
            (RwAsk::Acquire { .. }, Some(LockAnswer::Granted { token })) => drop(left.insert(token)),
            (RwAsk::Acquire { .. }, None) if op.ended == Ended::Info => drop(left.insert(0)),
            (RwAsk::Release { token, .. }, Some(LockAnswer::Done)) => drop(left.remove(&token)),
            _ => {}
        }
        if op.ended == Ended::Ok && !matches!(asked.ask, RwAsk::Verify { .. }) {
            let last = alive_us.entry(asked.owner).or_default();
            *last = (*last).max(op.invoked_us);
        }
        let Some(operation) = Operation::of(&asked.op, asked.ask, asked.answer) else { continue };
        let operation = match ends.get(&asked.owner) {
            Some(at) => operation.closed_at(*at),
            None => operation,
        };
        all.push((asked.lock, operation));
    }
    let left = left.into_iter().filter(|(_, tokens)| !tokens.is_empty());
    for (number, ((lock, owner), _)) in (1u64..).zip(left) {
        let invoked_us = alive_us.get(&owner).copied().unwrap_or_default();
        let end = ends.get(&owner).map_or(End::Open, |at| End::Done((*at).max(invoked_us)));
        let input = RwAsk::SessionEnds { owner };
        let output = matches!(end, End::Done(_)).then_some(LockAnswer::Done);
        all.push((lock, Operation { client: u32::MAX, op: number, input, output, invoked_us, end }));
    }
    Ok(all)
}

/// Of exclusive locks.
pub(super) fn exclusive(run: &Recorded) -> Check {
    with(run, |all| wgl::judge(NAME, PROMISES, &Mutex, all.into_iter().filter_map(plain), Budget::default()))
}

/// Of locks with readers.
pub(super) fn readers_and_writers(run: &Recorded) -> Check {
    with(run, |all| wgl::judge(NAME, PROMISES, &RwLock, all, Budget::default()))
}

/// Of semaphores, each with its permits.
pub(super) fn semaphores(run: &Recorded, semaphores: &[(&str, u16)]) -> Vec<Check> {
    let one = |(name, permits): &(&str, u16)| {
        let of_this = |(lock, operation)| if lock == *name { plain((lock, operation)) } else { None };
        with(run, |all| {
            let own = all.into_iter().filter_map(of_this);
            wgl::judge(
                &format!("{NAME}: {name}"),
                PROMISES,
                &Semaphore { permits: usize::from(*permits) },
                own,
                Budget::default(),
            )
        })
    };
    semaphores.iter().map(one).collect()
}

fn with(run: &Recorded, judge: impl FnOnce(Vec<(String, Operation<RwAsk, LockAnswer>)>) -> Check) -> Check {
    match operations(run) {
        Ok(all) => judge(all),
        Err(why) => Check::unknown(NAME, PROMISES, format!("the history cannot be read: {why}")),
    }
}

/// Where there are no readers.
fn plain(
    (lock, operation): (String, Operation<RwAsk, LockAnswer>),
) -> Option<(String, Operation<LockAsk, LockAnswer>)> {
    let Operation { client, op, input, output, invoked_us, end } = operation;
    let input = match input {
        RwAsk::Acquire { owner, .. } => LockAsk::Acquire { owner },
        RwAsk::Release { owner, token } => LockAsk::Release { owner, token },
        RwAsk::Verify { token } => LockAsk::Verify { token },
        RwAsk::SessionEnds { owner } => LockAsk::SessionEnds { owner },
        RwAsk::Downgrade { .. } => return None,
    };
    Some((lock, Operation { client, op, input, output, invoked_us, end }))
}
