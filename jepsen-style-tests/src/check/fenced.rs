//! Checks a store that holders change by the store's own list of accepted writes: each write is the previous number
//! plus one, under a token not smaller than the previous one. Each acknowledged write is in the list once, and no
//! refused write is in it.

use std::collections::BTreeMap;

use super::Check;
use crate::history::ops::{self, NumberWrite, StoreContents};
use crate::history::{Completion, History, Op};

/// The check that the control without a fence is there to fail.
pub const NONE_LOST: &str = "no lost update, no stale write";

const FEWEST_WRITES: usize = 20;

/// All that can be said of it. Without a fence nothing is there to refuse.
pub fn checks(history: &History, fenced: bool) -> Vec<Check> {
    let ops = history.ops();
    let store = match of_store(&ops) {
        Ok(store) if store.is_empty() => {
            return vec![Check::unknown("fenced store", "P1", "nobody read what the store took")];
        }
        Ok(store) => store,
        Err(why) => return vec![Check::unknown("fenced store", "P1", format!("the history cannot be read: {why}"))],
    };
    let mut checks = vec![nothing_lost(&store), acknowledged_once(&store)];
    if fenced {
        checks.push(refused(&store));
    }
    checks
}

/// One number: what the store took, and the writes that clients sent.
#[derive(Clone, Debug, Default)]
struct Number {
    store: String,
    taken: Vec<(i64, i64)>,
    /// When the store was asked for that.
    read_us: Option<u64>,
    sent: Vec<(NumberWrite, Completion, u64)>,
}

fn of_store(ops: &[Op]) -> Result<BTreeMap<String, Number>, serde_json::Error> {
    let mut numbers: BTreeMap<String, Number> = BTreeMap::new();
    for op in ops.iter().filter(|op| op.what == ops::TAKEN) {
        if let (Some(lock), Some(taken)) = (op.input.as_str(), op.answer::<StoreContents>()?) {
            let StoreContents { store, writes } = taken;
            let number = Number { store, taken: writes, read_us: op.completed_us, sent: Vec::new() };
            numbers.insert(lock.to_owned(), number);
        }
    }
    for op in ops.iter().filter(|op| op.what == ops::WRITE) {
        let added: NumberWrite = op.asked()?;
        if let Some(number) = numbers.get_mut(&added.lock) {
            number.sent.push((added, op.ended, op.invoked_us));
        }
    }
    Ok(numbers)
}

/// No update is lost and no stale token was taken.
fn nothing_lost(numbers: &BTreeMap<String, Number>) -> Check {
    const PROMISES: &str = "P1";
    let (mut stale, mut lost, mut lines, mut at_us) = (0, 0, Vec::new(), None);
    for (lock, number) in numbers {
        let (mut value, mut token) = (0, 0);
        for (at, write) in number.taken.iter().enumerate() {
            let (is_stale, is_lost) = (write.1 < token, write.0 != value + 1);
            if is_stale || is_lost {
                stale += usize::from(is_stale);
                lost += usize::from(is_lost);
                if lines.is_empty() {
                    let from = at.saturating_sub(2);
                    let line = |(value, token): &(i64, i64)| format!("{lock}: {value} under token {token}");
                    lines = number.taken[from..=at].iter().map(line).collect();
                    let sent = number
                        .sent
                        .iter()
                        .find(|(added, ..)| (added.value, i64::try_from(added.token).ok()) == (write.0, Some(write.1)));
                    at_us = sent.map(|sent| sent.2).or(number.read_us);
                }
            }
            value = write.0;
            token = token.max(write.1);
        }
    }
    let total: usize = numbers.values().map(|number| number.taken.len()).sum();
    let store = numbers.values().next().map_or("", |number| &number.store);
    let detail = format!(
        "{store}: {total} writes taken, {lost} of them not the number before plus one, {stale} under a stale token"
    );
    match () {
        () if stale + lost > 0 => Check { at_us, ..Check::invalid(NONE_LOST, PROMISES, detail, lines) },
        () if total < FEWEST_WRITES => Check::unknown(NONE_LOST, PROMISES, detail),
        () => Check::valid(NONE_LOST, PROMISES, detail),
    }
}

/// What clients were told is what the store did.
fn acknowledged_once(numbers: &BTreeMap<String, Number>) -> Check {
    const NAME: &str = "the store's word is what clients were told";
    let (mut ok, mut fail, mut info) = (0, 0, 0);
    for (lock, number) in numbers {
        let mut taken: BTreeMap<(i64, i64), usize> = BTreeMap::new();
        for write in &number.taken {
            *taken.entry(*write).or_default() += 1;
        }
        for (added, ended, at_us) in &number.sent {
            let times = taken.get(&(added.value, i64::try_from(added.token).unwrap_or(-1))).copied().unwrap_or(0);
            let right = match ended {
                Completion::Ok => times == 1,
                Completion::Fail => times == 0,
                Completion::Info => times <= 1,
            };
            match ended {
                Completion::Ok => ok += 1,
                Completion::Fail => fail += 1,
                Completion::Info => info += 1,
            }
            if !right {
                let detail = format!(
                    "{lock}: a write of {} under token {} ended as {ended:?} and was taken {times} times",
                    added.value, added.token
                );
                return Check { at_us: Some(*at_us), ..Check::invalid(NAME, "P1", detail, vec![format!("{added:?}")]) };
            }
        }
    }
    let detail = format!("{ok} writes taken, {fail} refused, {info} unknown");
    if ok + fail == 0 { Check::unknown(NAME, "P1", detail) } else { Check::valid(NAME, "P1", detail) }
}

/// The fence had something to refuse.
fn refused(numbers: &BTreeMap<String, Number>) -> Check {
    const NAME: &str = "the fence refuses late writes";
    let late = || numbers.values().flat_map(|number| &number.sent).filter(|(added, ..)| added.late);
    let refused = late().filter(|(_, ended, _)| *ended == Completion::Fail).count();
    let harmless = late().filter(|(_, ended, _)| *ended == Completion::Ok).count();
    let detail = format!(
        "{} sent late on purpose: {refused} refused, {harmless} taken because nobody had read since",
        late().count()
    );
    if refused == 0 { Check::unknown(NAME, "P1", detail) } else { Check::valid(NAME, "P1", detail) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::history::{Event, EventKind};

    /// Writes as (token, value, how they ended, late), and what the store took.
    fn judged(writes: &[(u64, i64, EventKind, bool)], taken: &[(i64, i64)], fenced: bool) -> Vec<Verdict> {
        let mut events = Vec::new();
        let mut push = |at_us: u64, kind, what: &str, value| {
            events.push(Event { at_us, client: 1, op: at_us / 2, kind, what: what.into(), value, zxid: None });
        };
        for (at, (token, value, ended, late)) in (1u64..).zip(writes) {
            let added = NumberWrite { lock: "l".into(), token: *token, value: *value, late: *late };
            push(at * 2, EventKind::Invoke, ops::WRITE, json!(added));
            push(at * 2 + 1, *ended, ops::WRITE, json!(true));
        }
        push(1_000, EventKind::Invoke, ops::TAKEN, json!("l"));
        push(1_001, EventKind::Ok, ops::TAKEN, json!(StoreContents { store: "a file".into(), writes: taken.to_vec() }));
        checks(&History::new(events), fenced).iter().map(|check| check.verdict).collect()
    }

    /// What clients told of their writes, and what the store took.
    type Told = (Vec<(u64, i64, EventKind, bool)>, Vec<(i64, i64)>);

    fn good(count: i64) -> Told {
        let writes = (1..=count).map(|n| (u64::try_from(n * 10).unwrap(), n, EventKind::Ok, false)).collect();
        (writes, (1..=count).map(|n| (n, n * 10)).collect())
    }

    #[test]
    fn a_good_store_passes_and_each_fault_is_found() {
        use Verdict::{Invalid, Unknown, Valid};
        let (mut writes, taken) = good(25);
        assert_eq!(judged(&writes, &taken, true), [Valid, Valid, Unknown], "nothing was refused");
        writes.push((40, 5, EventKind::Fail, true));
        assert_eq!(judged(&writes, &taken, true), [Valid, Valid, Valid]);
        assert_eq!(judged(&writes, &taken, false), [Valid, Valid]);
        assert_eq!(judged(&writes[..3], &taken[..3], false), [Unknown, Valid], "too few");

        let mut twice = taken.clone();
        twice.push((25, 260));
        let mut sent = writes.clone();
        sent.push((260, 25, EventKind::Ok, false));
        assert_eq!(judged(&sent, &twice, true), [Invalid, Valid, Valid], "one read what another was about to change");

        let mut stale = taken.clone();
        stale.push((26, 40));
        let mut sent = writes.clone();
        sent.push((40, 26, EventKind::Ok, true));
        assert_eq!(judged(&sent, &stale, true)[0], Invalid, "a stale token was taken");

        assert_eq!(judged(&writes, &taken[..24], true)[1], Invalid, "acknowledged and not there");
        let mut refused = writes.clone();
        refused.push((250, 25, EventKind::Fail, true));
        assert_eq!(judged(&refused, &taken, true)[1], Invalid, "refused and there");
        let mut open = writes;
        open.push((260, 26, EventKind::Info, false));
        assert_eq!(judged(&open, &taken, true), [Valid, Valid, Valid], "unknown and not there");
        assert_eq!(checks(&History::default(), true)[0].verdict, Unknown);
    }
}
