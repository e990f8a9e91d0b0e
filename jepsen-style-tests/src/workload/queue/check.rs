//! Checks a queue by what was put, delivered and acknowledged, and by the log of its items and claims.

use lockkeeper_checkers::lives;

use super::{ACK, BACK, LEFT, Named, PATH, PUT, QueueItem, TAKE, Taken, Taker, black_box};
use crate::workload::prelude::*;

/// A put that was acknowledged.
#[derive(Debug)]
struct Put {
    name: String,
    payload: String,
    asked_us: u64,
    done_us: u64,
}

/// An item in somebody's hands.
#[derive(Debug)]
struct Taking {
    client: u32,
    given: Taken,
    asked_us: u64,
    done_us: u64,
    /// From when on it may be another's: it was about to be acknowledged or given back, or its session may have been
    /// over.
    until_us: u64,
}

#[derive(Debug, Default)]
struct QueueHistory {
    puts: Vec<Put>,
    /// Payloads of all puts, whatever came of them.
    asked: BTreeSet<String>,
    /// By the time at which they were told.
    takings: Vec<Taking>,
    /// Acknowledgements by name: how each ended, and when.
    acks: BTreeMap<String, Vec<(Completion, Option<u64>)>>,
    /// How many items were left in the end; none if nobody knows. And when that was told.
    left: Option<(Option<u64>, u64)>,
}

pub(super) fn all(run: &Recorded) -> Vec<Check> {
    let ops = run.history.ops();
    let history = match QueueHistory::of(run, &ops) {
        Ok(history) => history,
        Err(error) => return vec![Check::unknown("queue", "P4", format!("the history cannot be read: {error}"))],
    };
    vec![
        history.none_lost(),
        history.none_twice(),
        history.one_at_a_time(),
        history.put_in_order(),
        history.taken_in_order(run),
        black_box::linearizable(run, &ops),
    ]
}

impl QueueHistory {
    fn of(run: &Recorded, ops: &[Op]) -> Result<Self, serde_json::Error> {
        let mut history = Self::default();
        let sessions = run.history.sessions()?;
        // When each client was first about to let go of an item in its hands.
        let mut letting: BTreeMap<(u32, String, u32), u64> = BTreeMap::new();
        for op in ops.iter().filter(|op| op.what == ACK || op.what == BACK) {
            let Taken { name, attempt, .. } = op.asked()?;
            letting.entry((op.client, name.clone(), attempt)).or_insert(op.invoked_us);
            if op.what == ACK {
                history.acks.entry(name).or_default().push((op.ended, op.completed_us));
            }
        }
        for op in ops {
            let done_us = op.completed_us.unwrap_or(u64::MAX);
            match op.what.as_str() {
                PUT => {
                    let QueueItem { payload } = op.asked()?;
                    history.asked.insert(payload.clone());
                    if let Some(Named { name }) = op.answer()? {
                        history.puts.push(Put { name, payload, asked_us: op.invoked_us, done_us });
                    }
                }
                TAKE => {
                    let Taker { session } = op.asked()?;
                    let Some(given) = op.answer::<Taken>()? else { continue };
                    let let_go = letting.get(&(op.client, given.name.clone(), given.attempt));
                    let session = sessions.get(&session).copied().unwrap_or_default();
                    let over = [let_go.copied(), session.closing_us, Some(session.until_us)];
                    let until_us = over.into_iter().flatten().min().unwrap_or_default();
                    let (client, asked_us) = (op.client, op.invoked_us);
                    history.takings.push(Taking { client, given, asked_us, done_us, until_us });
                }
                _ => {}
            }
        }
        history.takings.sort_by_key(|taking| taking.done_us);
        for event in run.history.notes().filter(|event| event.what == LEFT) {
            history.left = Some((event.told()?, event.at_us));
        }
        Ok(history)
    }

    /// All that was put was acknowledged by somebody, as far as is known.
    fn none_lost(&self) -> Check {
        const NAME: &str = "no item is lost";
        const OF: &str = "P4 P6";
        match self.left {
            None | Some((None, _)) => return Check::unknown(NAME, OF, "the queue was not looked at in the end"),
            Some((Some(0), _)) => {}
            Some((Some(left), at_us)) => {
                let check = Check::invalid(NAME, OF, format!("{left} items could not be taken in the end"), Vec::new());
                return Check { at_us: Some(at_us), ..check };
            }
        }
        let acknowledged =
            |put: &&Put| self.acks.get(&put.name).is_some_and(|acks| acks.iter().any(|ack| ack.0 != Completion::Fail));
        if let Some(lost) = self.puts.iter().find(|put| !acknowledged(put)) {
            let mut lines = vec![format!("{lost:?}")];
            lines.extend(
                self.takings.iter().filter(|taking| taking.given.name == lost.name).map(|taking| format!("{taking:?}")),
            );
            let check = Check::invalid(NAME, OF, format!("{} is gone, and nobody acknowledged it", lost.name), lines);
            return Check { at_us: Some(lost.done_us), ..check };
        }
        match self.puts.len() {
            0 => Check::unknown(NAME, OF, "nothing was put"),
            puts => Check::valid(NAME, OF, format!("{puts} items were put, and the queue was empty in the end")),
        }
    }

    /// An item is acknowledged at most once and not given out after that; a payload is put once; a number of giving out
    /// is used once.
    fn none_twice(&self) -> Check {
        const NAME: &str = "no item is done twice";
        const OF: &str = "P1 P9";
        let mut done_us: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, acks) in &self.acks {
            let mut ok = acks.iter().filter(|ack| ack.0 == Completion::Ok);
            if let (Some((_, Some(at_us))), second) = (ok.next(), ok.next()) {
                if second.is_some() {
                    return broken(NAME, OF, *at_us, format!("{name} was acknowledged twice"), &[acks]);
                }
                done_us.insert(name, *at_us);
            }
        }
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        let put = self.puts.iter().map(|put| (&put.payload, &put.name, put.done_us));
        let taken = self.takings.iter().map(|taking| (&taking.given.payload, &taking.given.name, taking.done_us));
        for (payload, name, at_us) in put.chain(taken) {
            if names.insert(payload, name).is_some_and(|other| other != name) || !self.asked.contains(payload) {
                let what = format!("{payload} is {name} and something else, or was never put");
                return broken(NAME, OF, at_us, what, &[name]);
            }
        }
        let mut attempts = BTreeSet::new();
        for taking in &self.takings {
            let Taken { name, attempt, .. } = &taking.given;
            if !attempts.insert((name, attempt)) {
                let what = format!("{name} was given out for the {attempt}th time to two");
                return broken(NAME, OF, taking.done_us, what, &[taking]);
            }
            if done_us.get(name.as_str()).is_some_and(|done_us| taking.asked_us > *done_us) {
                return broken(NAME, OF, taking.done_us, format!("{name} was given out after it was done"), &[taking]);
            }
        }
        match done_us.len() {
            0 => Check::unknown(NAME, OF, "nothing was acknowledged"),
            done => {
                Check::valid(NAME, OF, format!("{done} items acknowledged, given out {} times", self.takings.len()))
            }
        }
    }

    /// Nobody is given an item that is in the hands of another who is sure to have it.
    fn one_at_a_time(&self) -> Check {
        const NAME: &str = "an item is in one pair of hands";
        const OF: &str = "P1 P5";
        let mut last: BTreeMap<&str, &Taking> = BTreeMap::new();
        let mut again = 0;
        for taking in &self.takings {
            if let Some(before) = last.insert(&taking.given.name, taking) {
                if taking.done_us < before.until_us {
                    let what = format!("client {} was given what client {} had", taking.client, before.client);
                    return broken(NAME, OF, taking.done_us, what, &[before, taking]);
                }
                again += 1;
            }
        }
        match self.takings.len() {
            0 => Check::unknown(NAME, OF, "nothing was taken"),
            taken => Check::valid(NAME, OF, format!("{taken} takings, {again} of them of what another had had")),
        }
    }

    /// What was put first has the smaller name.
    fn put_in_order(&self) -> Check {
        const NAME: &str = "items stand in the order in which they were put";
        const OF: &str = "P2 P7";
        let mut puts: Vec<&Put> = self.puts.iter().collect();
        puts.sort_by_key(|put| &put.name);
        let mut latest: Option<&Put> = None;
        for put in &puts {
            if let Some(before) = latest.filter(|before| put.done_us < before.asked_us) {
                let what = format!("{} stands before {}, which was put before", before.name, put.name);
                return broken(NAME, OF, put.done_us, what, &[before, put]);
            }
            if latest.is_none_or(|before| before.asked_us < put.asked_us) {
                latest = Some(put);
            }
        }
        match puts.len() {
            0 => Check::unknown(NAME, OF, "nothing was put"),
            count => Check::valid(NAME, OF, format!("{count} items")),
        }
    }

    /// Nobody is given an item while one before it was free all the time that was asked.
    fn taken_in_order(&self, run: &Recorded) -> Check {
        const NAME: &str = "items are taken in order";
        const OF: &str = "P2";
        let claims = match claims(run) {
            Ok(claims) => claims,
            Err(why) => return Check::unknown(NAME, OF, why),
        };
        let none = Vec::new();
        let mut compared = 0;
        for taking in &self.takings {
            let Taken { name, attempt, .. } = &taking.given;
            let mine = claims.get(name.as_str()).unwrap_or(&none);
            let Some(claimed) = (*attempt as usize).checked_sub(1).and_then(|at| mine.get(at)) else {
                let what =
                    format!("{name} was given out for the {attempt}th time, and was claimed {} times", mine.len());
                return broken(NAME, OF, taking.done_us, what, &[taking]);
            };
            for put in self.puts.iter().filter(|put| put.done_us < taking.asked_us && put.name < *name) {
                let others = claims.get(put.name.as_str()).unwrap_or(&none);
                let before = others.iter().rev().find(|life| life.token < claimed.token);
                let free = match before {
                    None => true,
                    // Given back, and seen to be free again, before it was asked; not acknowledged.
                    Some(life) => {
                        let acknowledged = others.last() == Some(life);
                        let back_us = life.gone.and_then(|gone| run.seen_us.get(&gone));
                        !acknowledged && back_us.is_some_and(|back_us| *back_us < taking.asked_us)
                    }
                };
                if free {
                    let what = format!("{name} was taken at zxid {} although {} was free", claimed.token, put.name);
                    let lines = vec![format!("{taking:?}"), format!("{put:?}"), format!("claims of it: {others:?}")];
                    return Check { at_us: Some(taking.done_us), ..Check::invalid(NAME, OF, what, lines) };
                }
            }
            compared += 1;
        }
        match compared {
            0 => Check::unknown(NAME, OF, "nothing was taken"),
            _ => Check::valid(NAME, OF, format!("{compared} takings, none over the head of a free item")),
        }
    }
}

/// The claims of each item, in order: the n-th is that of its n-th giving out.
fn claims(run: &Recorded) -> Result<BTreeMap<String, Vec<Life>>, String> {
    let mut claims: BTreeMap<String, Vec<Life>> = BTreeMap::new();
    for life in lives::lives(&run.log, &format!("{PATH}/claims"))? {
        claims.entry(life.name.clone()).or_default().push(life);
    }
    Ok(claims)
}

fn broken(name: &str, promises: &str, at_us: u64, what: String, of: &[impl std::fmt::Debug]) -> Check {
    let lines = of.iter().map(|one| format!("{one:?}")).collect();
    Check { at_us: Some(at_us), ..Check::invalid(name, promises, what, lines) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::workload::fixture::Bench;

    struct QueueFixture {
        bench: Bench,
        /// What was put, by the name that it got.
        payloads: BTreeMap<String, String>,
    }

    impl QueueFixture {
        /// Items 0 and 1 are put; 0 is taken, given back, taken by another and acknowledged; 1 is taken and
        /// acknowledged.
        fn good() -> Self {
            let mut queue = Self { bench: Bench::of_ops(1_000), payloads: BTreeMap::new() };
            for session in [1, 2] {
                queue.told(ops::SURE, json!({ "session": session, "until_ms": 1_000 }));
            }
            queue.put(10_000, "a", "i-0");
            queue.put(20_000, "b", "i-1");
            queue.take(30_000, 1, "i-0", "a", 1, (30, 35));
            queue.bench.op(40_000, 1, BACK, json!({ "name": "i-0", "payload": "a", "attempt": 1 }), json!(null));
            queue.take(50_000, 2, "i-0", "a", 2, (50, 55));
            queue.take(52_000, 1, "i-1", "b", 1, (52, 57));
            queue.ack(60_000, 2, "i-0", 2);
            queue.ack(70_000, 1, "i-1", 1);
            queue.told(LEFT, json!(0));
            queue
        }

        fn told(&mut self, what: &str, value: Value) {
            self.bench.tell(1_000, what, value);
        }

        fn put(&mut self, at_us: u64, payload: &str, name: &str) {
            self.payloads.insert(name.into(), payload.into());
            self.bench.op(at_us, 3, PUT, json!({ "payload": payload }), json!({ "name": name }));
        }

        fn take(&mut self, at_us: u64, client: u32, name: &str, payload: &str, attempt: u32, claim: (u64, u64)) {
            let given = json!({ "name": name, "payload": payload, "attempt": attempt });
            self.bench.op(at_us, client, TAKE, json!({ "session": client }), given);
            for (zxid, created) in [(claim.0, true), (claim.1, false)] {
                self.bench.log(zxid, created, &format!("{PATH}/claims/{name}"));
                self.bench.run.seen_us.insert(zxid, zxid * 1_000);
            }
        }

        fn ack(&mut self, at_us: u64, client: u32, name: &str, attempt: u32) {
            let given = json!({ "name": name, "payload": self.payloads.get(name), "attempt": attempt });
            self.bench.op(at_us, client, ACK, given, json!(null));
        }

        /// Which checks find something, after that.
        fn found(change: impl FnOnce(&mut Self)) -> Vec<usize> {
            let mut queue = Self::good();
            change(&mut queue);
            queue.bench.found(all)
        }
    }

    const LOST: usize = 0;
    const TWICE: usize = 1;
    const TWO_HANDS: usize = 2;
    const PUT_ORDER: usize = 3;
    const TAKEN_ORDER: usize = 4;
    const SEEN_OUTSIDE: usize = 5;

    #[test]
    fn a_good_queue_passes_and_silence_does_not() {
        assert_eq!(QueueFixture::good().bench.verdicts(all), [Verdict::Valid; 6]);
        assert_eq!(Bench::default().verdicts(all), [Verdict::Unknown; 6]);
    }

    #[test]
    fn lost_items_are_caught() {
        assert_eq!(QueueFixture::found(|bench| bench.put(80_000, "c", "i-2")), [LOST], "gone without a word");
        assert_eq!(QueueFixture::found(|bench| bench.told(LEFT, json!(3))), [LOST], "left over");
    }

    #[test]
    fn items_done_twice_are_caught() {
        assert_eq!(QueueFixture::found(|bench| bench.ack(90_000, 1, "i-0", 1)), [TWICE, SEEN_OUTSIDE]);
        let found = QueueFixture::found(|bench| bench.take(90_000, 1, "i-0", "a", 3, (90, 95)));
        assert_eq!(found, [TWICE, SEEN_OUTSIDE], "after it was done");
        let found = QueueFixture::found(|bench| bench.take(45_000, 3, "i-0", "a", 1, (30, 35)));
        assert_eq!(found, [TWICE, SEEN_OUTSIDE], "one number for two");
        let again = QueueFixture::found(|bench| {
            bench.put(21_000, "a", "i-2");
            bench.ack(95_000, 1, "i-2", 1);
        });
        assert_eq!(again, [TWICE, SEEN_OUTSIDE], "one payload in two items");
    }

    #[test]
    fn an_item_in_two_hands_is_caught() {
        let found = QueueFixture::found(|bench| {
            bench.put(22_000, "c", "i-2");
            bench.take(100_000, 1, "i-2", "c", 1, (100, 105));
            bench.take(110_000, 2, "i-2", "c", 2, (110, 115));
            bench.ack(120_000, 2, "i-2", 2);
        });
        assert_eq!(found, [TWO_HANDS]);
    }

    #[test]
    fn wrong_orders_are_caught() {
        let put = QueueFixture::found(|bench| {
            bench.put(80_000, "c", "i-00");
            bench.take(85_000, 1, "i-00", "c", 1, (85, 95));
            bench.ack(94_000, 1, "i-00", 1);
        });
        assert_eq!(put, [PUT_ORDER]);
        let taken = QueueFixture::found(|bench| {
            bench.put(22_000, "c", "i-2");
            bench.put(24_000, "d", "i-3");
            bench.take(81_000, 1, "i-3", "d", 1, (81, 85));
            bench.ack(84_000, 1, "i-3", 1);
            bench.take(90_000, 2, "i-2", "c", 1, (91, 95));
            bench.ack(94_000, 2, "i-2", 1);
        });
        assert_eq!(taken, [TAKEN_ORDER]);
    }
}
