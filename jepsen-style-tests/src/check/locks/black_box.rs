//! Prepares the same histories for the black-box checker ([`wgl`]), which knows neither zxids nor the log. One fact
//! comes from the log, because only the log shows it: when a session ended, which closes the operations left open in
//! it.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Check;
use crate::check::wgl::{self, Budget, LockAnswer, LockAsk, LockModel, Operation, OperationOf};
use crate::history::Recorded;
use crate::history::ops::{self, AcquireRequest, Granted, TokenRef};
use crate::history::{Completion, Op};
use lockkeeper_client::api::locks::Mode;

const NAME: &str = "linearizable, as a black box";
const PROMISES: &str = "P1 P7";

/// When the first watch told of the end of a session, by its number.
pub(crate) fn ends_us(run: &Recorded) -> Result<BTreeMap<u64, u64>, String> {
    let ends = super::session_ends(&run.log)?;
    Ok(ends.into_iter().filter_map(|(session, end)| Some((session, *run.seen_us.get(&end)?))).collect())
}

/// One operation, whatever its kind: on one lock, or on several at once. On several it is one on each: each lock has an
/// order of its own, and linearizability is local.
struct LockRequest {
    locks: Vec<String>,
    owner: u64,
    ask: LockAsk,
    answer: Option<LockAnswer>,
}

impl LockRequest {
    /// An acquire of which nobody knows whether, and under which token, it was granted.
    fn is_untold(&self) -> bool {
        matches!(self.ask, LockAsk::Acquire { .. }) && self.answer.is_none()
    }

    /// The token that this is about, which its client must have been told.
    fn about(&self) -> Option<u64> {
        match self.ask {
            LockAsk::Release { token, .. } | LockAsk::Downgrade { token, .. } | LockAsk::Verify { token } => {
                Some(token)
            }
            LockAsk::Acquire { .. } | LockAsk::SessionEnds { .. } => None,
        }
    }
}

fn asked(op: &Op) -> Result<Option<LockRequest>, serde_json::Error> {
    let of = |under: TokenRef| (under.locks, under.session, under.token);
    let done = (op.ended == Completion::Ok).then_some(LockAnswer::Done);
    let (locks, owner, ask, answer) = match op.what.as_str() {
        ops::ACQUIRE => {
            let asks: AcquireRequest = op.asked()?;
            let answer = op.answer::<Granted>()?.map(|granted| LockAnswer::Granted { token: granted.token });
            let ask = LockAsk::Acquire { owner: asks.session, shared: asks.mode == Mode::Shared };
            (asks.locks, asks.session, ask, answer)
        }
        ops::RELEASE => {
            let (locks, owner, token) = of(op.asked()?);
            (locks, owner, LockAsk::Release { owner, token }, done)
        }
        ops::DOWNGRADE => {
            let (locks, owner, token) = of(op.asked()?);
            (locks, owner, LockAsk::Downgrade { owner, token }, done)
        }
        ops::STEAL | ops::FORCE => {
            let (locks, owner, token) = of(op.asked()?);
            let answer = op.answer::<bool>()?.map(|freed| if freed { LockAnswer::Done } else { LockAnswer::NotHeld });
            (locks, owner, LockAsk::Release { owner, token }, answer)
        }
        ops::VERIFY => {
            let (mut locks, owner, token) = of(op.asked()?);
            // Of several that are held together the client asks for the first.
            locks.truncate(1);
            (locks, owner, LockAsk::Verify { token }, op.answer::<bool>()?.map(LockAnswer::Held))
        }
        _ => return Ok(None),
    };
    Ok(Some(LockRequest { locks, owner, ask, answer }))
}

fn token_granted(op: &Op) -> Option<u64> {
    (op.what == ops::ACQUIRE).then(|| op.answer::<Granted>().ok().flatten())?.map(|granted| granted.token)
}

/// Operations, each with the lock it is on.
type OnLocks = Vec<(String, OperationOf<LockModel>)>;

/// All operations by lock, with the ends of sessions.
fn operations(run: &Recorded) -> Result<OnLocks, String> {
    let ends = ends_us(run)?;
    let mut all = Vec::new();
    // What an owner may still hold of a lock when its session ends: tokens, or something that nobody was told of (0).
    let mut left: BTreeMap<(String, u64), BTreeSet<u64>> = BTreeMap::new();
    // When an owner was last known to live.
    let mut alive_us: BTreeMap<u64, u64> = BTreeMap::new();
    let ops = run.history.ops();
    let granted: BTreeSet<u64> = ops.iter().filter_map(token_granted).collect();
    // A grant that was taken away before its client was told: the library has asked anew, and the client was told of
    // another.
    let never_told =
        |op: &Op| op.what == ops::FORCE && op.asked::<TokenRef>().is_ok_and(|under| !granted.contains(&under.token));
    let mut asks = Vec::new();
    for op in ops.iter().filter(|op| !never_told(op)) {
        asks.extend(asked(op).map_err(|error| error.to_string())?.map(|asked| (op, asked)));
    }
    // A grant that nobody was told of explains nothing where only told ones are given back and asked about: it has a
    // token of its own, and nothing is refused here because a lock is held, so an order with it is one without it. With
    // it a search has more orders to try by far.
    let all_told = asks.iter().filter_map(|(_, asked)| asked.about()).all(|token| granted.contains(&token));
    asks.retain(|(_, asked)| !(all_told && asked.is_untold()));
    for (op, asked) in asks {
        for lock in &asked.locks {
            let left = left.entry((lock.clone(), asked.owner)).or_default();
            match (asked.ask, asked.answer) {
                (LockAsk::Acquire { .. }, Some(LockAnswer::Granted { token })) => drop(left.insert(token)),
                (LockAsk::Acquire { .. }, None) if op.ended == Completion::Info => drop(left.insert(0)),
                (LockAsk::Release { token, .. }, Some(LockAnswer::Done)) => drop(left.remove(&token)),
                _ => {}
            }
        }
        let by_owner = op.what != ops::VERIFY && op.what != ops::FORCE;
        if op.ended == Completion::Ok && by_owner {
            let last = alive_us.entry(asked.owner).or_default();
            *last = (*last).max(op.invoked_us);
        }
        let Some(operation) = Operation::of(op, asked.ask, asked.answer) else { continue };
        let operation = operation.closed_at(ends.get(&asked.owner).copied());
        all.extend(asked.locks.into_iter().map(|lock| (lock, operation.clone())));
    }
    let left = left.into_iter().filter(|(_, tokens)| !tokens.is_empty());
    for (number, ((lock, owner), _)) in (1u64..).zip(left) {
        let alive_us = alive_us.get(&owner).copied().unwrap_or_default();
        let (ask, end_us) = (LockAsk::SessionEnds { owner }, ends.get(&owner).copied());
        all.push((lock, Operation::session_end(number, ask, LockAnswer::Done, alive_us, end_us)));
    }
    Ok(all)
}

/// Of exclusive locks.
pub(super) fn exclusive(run: &Recorded) -> Check {
    judge(NAME, &LockModel::default(), run, |_, ask| !matches!(ask, LockAsk::Downgrade { .. }))
}

/// Of locks with readers.
pub(super) fn readers_and_writers(run: &Recorded) -> Check {
    judge(NAME, &LockModel::default(), run, |_, _| true)
}

/// Of semaphores, each with its permits.
pub(super) fn semaphores(run: &Recorded, semaphores: &[(&str, u16)]) -> Vec<Check> {
    let one = |(name, permits): &(&str, u16)| {
        let model = LockModel::of(usize::from(*permits));
        judge(&format!("{NAME}: {name}"), &model, run, |lock, ask| {
            lock == *name && !matches!(ask, LockAsk::Downgrade { .. })
        })
    };
    semaphores.iter().map(one).collect()
}

fn judge(name: &str, model: &LockModel, run: &Recorded, wanted: impl Fn(&str, &LockAsk) -> bool) -> Check {
    match operations(run) {
        Ok(mut all) => {
            all.retain(|(lock, operation)| wanted(lock, &operation.input));
            wgl::judge(name, PROMISES, model, all, Budget::default())
        }
        Err(why) => Check::unknown(NAME, PROMISES, format!("the history cannot be read: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_checkers::lives;
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::history::{Event, EventKind, History};

    struct LockHistoryBuilder {
        run: Recorded,
        events: Vec<Event>,
    }

    impl LockHistoryBuilder {
        fn of(ends: &[(u64, u64, u64)]) -> Self {
            let mut run = Recorded::default();
            for (number, (session, zxid, at_us)) in (1..).zip(ends) {
                let path = format!("{}/s{session}", ops::SESSIONS);
                run.log.insert(lives::NodeEvent { zxid: number, created: true, path: path.clone() });
                run.log.insert(lives::NodeEvent { zxid: *zxid, created: false, path });
                run.seen_us.insert(*zxid, *at_us);
            }
            Self { run, events: Vec::new() }
        }

        fn op(
            &mut self,
            what: &str,
            from_us: u64,
            to_us: u64,
            kind: EventKind,
            asked: serde_json::Value,
            answer: serde_json::Value,
        ) {
            let op = self.events.len() as u64 + 1;
            let event = |at_us, kind, value| Event { at_us, client: 1, op, kind, what: what.into(), value, zxid: None };
            self.events.extend([event(from_us, EventKind::Invoke, asked), event(to_us, kind, answer)]);
        }

        fn acquire(&mut self, session: u64, mode: Mode, from_us: u64, to_us: u64, token: Option<u64>) {
            self.acquire_of(&["l"], session, mode, (from_us, to_us), token);
        }

        fn acquire_of(
            &mut self,
            locks: &[&str],
            session: u64,
            mode: Mode,
            (from_us, to_us): (u64, u64),
            token: Option<u64>,
        ) {
            let locks = locks.iter().map(|lock| (*lock).to_owned()).collect();
            let asks = AcquireRequest { locks, mode, wait_ms: 9, session, permits: None, delay_ms: 0 };
            let kind = if token.is_some() { EventKind::Ok } else { EventKind::Info };
            let answer = token.map_or(json!("lost"), |token| json!(Granted { token }));
            self.op(ops::ACQUIRE, from_us, to_us, kind, json!(asks), answer);
        }

        fn under(&mut self, what: &str, session: u64, token: u64, from_us: u64, to_us: u64, answer: serde_json::Value) {
            let under = TokenRef { locks: vec!["l".into()], token, session };
            self.op(what, from_us, to_us, EventKind::Ok, json!(under), answer);
        }

        fn judged(mut self, judge: impl Fn(&Recorded) -> Check) -> Verdict {
            self.run.history = History::new(self.events);
            judge(&self.run).verdict
        }
    }

    fn two(second_from_us: u64, second_to_us: u64, ends: &[(u64, u64, u64)], released: bool) -> Verdict {
        let mut history = LockHistoryBuilder::of(ends);
        history.acquire(1, Mode::Exclusive, 0, 10, Some(5));
        if released {
            history.under(ops::RELEASE, 1, 5, 20, 30, json!(null));
        }
        history.acquire(2, Mode::Exclusive, second_from_us, second_to_us, Some(9));
        history.judged(exclusive)
    }

    #[test]
    fn two_holders_have_no_order() {
        assert_eq!(two(12, 25, &[], true), Verdict::Valid);
        assert_eq!(two(12, 19, &[], true), Verdict::Invalid, "granted before the release was asked for");
        assert_eq!(two(12, 45, &[(1, 40, 41)], false), Verdict::Valid, "its session had ended");
        let mut alive = LockHistoryBuilder::of(&[(1, 40, 41)]);
        alive.acquire(1, Mode::Exclusive, 0, 10, Some(5));
        alive.acquire(2, Mode::Exclusive, 12, 14, Some(9));
        // Something else was answered to it later: it lived.
        alive.under(ops::DOWNGRADE, 1, 5, 20, 21, json!(null));
        assert_eq!(alive.judged(exclusive), Verdict::Invalid);
    }

    #[test]
    fn what_is_another_s_is_not_given_back() {
        let stolen = |freed: bool| {
            let mut history = LockHistoryBuilder::of(&[]);
            history.acquire(1, Mode::Exclusive, 0, 10, Some(5));
            history.under(ops::STEAL, 2, 5, 20, 30, json!(freed));
            history.under(ops::VERIFY, 2, 5, 31, 32, json!(true));
            history.under(ops::RELEASE, 1, 5, 40, 50, json!(null));
            history.judged(exclusive)
        };
        assert_eq!((stolen(false), stolen(true)), (Verdict::Valid, Verdict::Invalid));
    }

    #[test]
    fn unknown_ones_end_with_their_session() {
        let mut history = LockHistoryBuilder::of(&[(1, 40, 41)]);
        history.acquire(1, Mode::Exclusive, 0, 10, None);
        history.acquire(2, Mode::Exclusive, 50, 60, Some(9));
        assert_eq!(history.judged(exclusive), Verdict::Valid);
    }

    #[test]
    fn a_grant_that_nobody_was_told_of_may_be_given_back() {
        let mut history = LockHistoryBuilder::of(&[]);
        history.acquire(1, Mode::Exclusive, 0, 10, None);
        history.under(ops::RELEASE, 1, 5, 20, 30, json!(null));
        history.acquire(2, Mode::Exclusive, 50, 60, Some(9));
        assert_eq!(history.judged(exclusive), Verdict::Valid);
    }

    /// Each waits long, and vanishes with what it was granted; each has asked twice, and was not answered once.
    #[test]
    fn many_sessions_that_end_beside_each_other_are_decided() {
        const COUNT: u64 = 24;
        let ends: Vec<_> = (1..=COUNT).map(|session| (session, 1_000 + session, 3_000 - session)).collect();
        let judged = |first_lives_until_us: u64| {
            let mut history = LockHistoryBuilder::of(&ends);
            for session in 1..=COUNT {
                history.acquire(session, Mode::Exclusive, 0, 1_000 + 10 * session, Some(100 + session));
                history.acquire(session, Mode::Exclusive, 0, 20, None);
            }
            history.under(ops::DOWNGRADE, 1, 101, first_lives_until_us, first_lives_until_us + 1, json!(null));
            history.judged(exclusive)
        };
        assert_eq!((judged(500), judged(2_000)), (Verdict::Valid, Verdict::Invalid));
    }

    #[test]
    fn what_was_taken_before_it_was_told_was_never_held() {
        let judged = |forced: u64| {
            let mut history = LockHistoryBuilder::of(&[]);
            history.acquire(1, Mode::Exclusive, 0, 40, Some(9));
            history.under(ops::FORCE, 1, forced, 20, 30, json!(true));
            history.under(ops::RELEASE, 1, 9, 50, 60, json!(null));
            history.judged(exclusive)
        };
        assert_eq!(judged(5), Verdict::Valid, "the library asked anew after it had lost 5");
        assert_eq!(judged(9), Verdict::Invalid, "taken by force and given back as well");
    }

    #[test]
    fn what_is_held_together_is_held_each() {
        let judged = |second: &[&str]| {
            let mut history = LockHistoryBuilder::of(&[(1, 40, 41)]);
            history.acquire_of(&["l", "m", "n"], 1, Mode::Exclusive, (0, 10), Some(5));
            history.acquire_of(second, 2, Mode::Exclusive, (12, 20), Some(9));
            // It lives: this was answered to it.
            let under = TokenRef { locks: vec!["n".into()], token: 5, session: 1 };
            history.op(ops::DOWNGRADE, 30, 31, EventKind::Ok, json!(under), json!(null));
            history.judged(exclusive)
        };
        assert_eq!(judged(&["k", "j"]), Verdict::Valid);
        assert_eq!(
            (judged(&["k", "n"]), judged(&["l"])),
            (Verdict::Invalid, Verdict::Invalid),
            "the last counts as well"
        );
        let given_back = |locks: &[&str]| {
            let mut history = LockHistoryBuilder::of(&[(1, 40, 60)]);
            history.acquire_of(&["l", "m"], 1, Mode::Exclusive, (0, 10), Some(5));
            let locks = locks.iter().map(|lock| (*lock).to_owned()).collect();
            let under = TokenRef { locks, token: 5, session: 1 };
            history.op(ops::RELEASE, 12, 18, EventKind::Ok, json!(under), json!(null));
            history.acquire_of(&["m"], 2, Mode::Exclusive, (12, 30), Some(9));
            // It lived until then.
            history.under(ops::DOWNGRADE, 1, 5, 40, 41, json!(null));
            history.judged(exclusive)
        };
        assert_eq!((given_back(&["l", "m"]), given_back(&["l"])), (Verdict::Valid, Verdict::Invalid));
    }

    #[test]
    fn readers_share() {
        let judged = |second: Mode| {
            let mut history = LockHistoryBuilder::of(&[]);
            history.acquire(1, Mode::Shared, 0, 10, Some(5));
            history.acquire(2, second, 11, 15, Some(6));
            history.under(ops::RELEASE, 1, 5, 20, 30, json!(null));
            history.under(ops::RELEASE, 2, 6, 20, 30, json!(null));
            history.judged(readers_and_writers)
        };
        assert_eq!((judged(Mode::Shared), judged(Mode::Write)), (Verdict::Valid, Verdict::Invalid));
    }
}
