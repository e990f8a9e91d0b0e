//! Gates as seen from outside: each is one object that is begun, finished or failed, and freed when its worker's
//! session ends. Of the servers' own order only the end of a session is believed.

use super::{BEGIN, BODY, FAIL, FINISH, GateReply, GateRun, Key, ONCE};
use crate::check::locks;
use crate::check::wgl::{self, GateAnswer, GateAsk, LatestEffect, Operation, OperationOf};
use crate::workload::prelude::*;

const NAME: &str = "linearizable gates, as a black box";
const PROMISES: &str = "P7 P9";

pub(super) fn linearizable(run: &Recorded, ops: &[Op]) -> Check {
    match GateObservations::of(run, ops) {
        Ok(seen) => wgl::judge(NAME, PROMISES, &wgl::GateModel, seen.operations, wgl::Budget::default()),
        Err(why) => Check::unknown(NAME, PROMISES, why),
    }
}

/// A body that ran, as its client told it.
struct BodyRun {
    client: u32,
    at_us: u64,
    run: GateRun,
}

/// What was seen from outside.
struct GateObservations {
    /// When each session was seen to end.
    ends_us: BTreeMap<u64, u64>,
    /// When a session was last known to live.
    alive_us: BTreeMap<u64, u64>,
    /// By key and session, what may still be pending when the session ends: a run under this token, or one that nobody
    /// was told of.
    left: BTreeMap<(String, u64), Option<u64>>,
    operations: Vec<(String, OperationOf<wgl::GateModel>)>,
}

impl GateObservations {
    fn of(run: &Recorded, ops: &[Op]) -> Result<Self, String> {
        let unread = |error: serde_json::Error| format!("the history cannot be read: {error}");
        let told = run.history.notes().filter(|event| event.what == BODY);
        let body = |event: &crate::history::Event| {
            Ok(BodyRun { client: event.client, at_us: event.at_us, run: event.told()? })
        };
        let bodies: Vec<BodyRun> = told.map(body).collect::<Result<_, _>>().map_err(unread)?;
        let mut seen = Self {
            ends_us: locks::ends_us(run)?,
            alive_us: BTreeMap::new(),
            left: BTreeMap::new(),
            operations: Vec::new(),
        };
        for op in ops {
            match op.what.as_str() {
                BEGIN => seen.begun(op).map_err(unread)?,
                ONCE => seen.all_in_one(op, &bodies).map_err(unread)?,
                FINISH | FAIL => seen.settled(op).map_err(unread)?,
                _ => {}
            }
        }
        seen.let_go();
        Ok(seen)
    }

    fn add(&mut self, key: &str, session: u64, operation: Option<OperationOf<wgl::GateModel>>) {
        let closed = operation.map(|operation| operation.closed_at(self.ends_us.get(&session).copied()));
        self.operations.extend(closed.map(|operation| (key.to_owned(), operation)));
    }

    fn lived(&mut self, session: u64, op: &Op) {
        if op.ended == Completion::Ok {
            let last = self.alive_us.entry(session).or_default();
            *last = (*last).max(op.invoked_us);
        }
    }

    fn begun(&mut self, op: &Op) -> Result<(), serde_json::Error> {
        let (Key { key, session }, answer) = (op.asked()?, op.answer::<GateReply>()?);
        self.lived(session, op);
        match answer {
            Some(GateReply::Proceed { token }) => drop(self.left.insert((key.clone(), session), Some(token))),
            None if op.ended == Completion::Info => drop(self.left.entry((key.clone(), session)).or_default()),
            _ => {}
        }
        let answer = answer.map(|stands| match stands {
            GateReply::Proceed { token } => GateAnswer::Proceed { token },
            GateReply::InProgress { token } => GateAnswer::InProgress { token },
            GateReply::Done { token, .. } => GateAnswer::Finished { token },
        });
        self.add(&key, session, Operation::of(op, GateAsk::Begin { owner: session }, answer));
        Ok(())
    }

    /// The recipe that does it all: it was let in when its body ran, and was given the result, its own or another's, in
    /// the end.
    fn all_in_one(&mut self, op: &Op, bodies: &[BodyRun]) -> Result<(), serde_json::Error> {
        let (Key { key, session }, answer) = (op.asked()?, op.answer::<GateReply>()?);
        let until_us = op.completed_us.unwrap_or(u64::MAX);
        let own = bodies.iter().find(|body| {
            body.client == op.client
                && (op.invoked_us..=until_us).contains(&body.at_us)
                && (&body.run.key, body.run.session) == (&key, session)
        });
        let Op { client, op: number, invoked_us, .. } = *op;
        let begin = |output, end| {
            let input = GateAsk::Begin { owner: session };
            Some(Operation { client, op: number, input, output, invoked_us, end })
        };
        match own {
            Some(body) => {
                let token = body.run.token;
                self.left.insert((key.clone(), session), Some(token));
                self.add(&key, session, begin(Some(GateAnswer::Proceed { token }), LatestEffect::Done(body.at_us)));
            }
            // It may have been let in without hearing of it.
            None if op.ended == Completion::Info => {
                self.left.entry((key.clone(), session)).or_default();
                self.add(&key, session, begin(None, LatestEffect::Open));
            }
            None => {}
        }
        if let Some(GateReply::Done { token, .. }) = answer {
            self.add(&key, session, begin(Some(GateAnswer::Finished { token }), LatestEffect::Done(until_us)));
        }
        Ok(())
    }

    fn settled(&mut self, op: &Op) -> Result<(), serde_json::Error> {
        let GateRun { key, token, session } = op.asked()?;
        self.lived(session, op);
        let done = (op.ended == Completion::Ok).then_some(GateAnswer::Settled);
        if done.is_some() && self.left.get(&(key.clone(), session)) == Some(&Some(token)) {
            self.left.remove(&(key.clone(), session));
        }
        let ask = if op.what == FINISH { GateAsk::Finish { token } } else { GateAsk::Fail { token } };
        self.add(&key, session, Operation::of(op, ask, done));
        Ok(())
    }

    /// What sessions let go when they end.
    fn let_go(&mut self) {
        for (op, (key, owner)) in (1..).zip(std::mem::take(&mut self.left).into_keys()) {
            let alive_us = self.alive_us.get(&owner).copied().unwrap_or_default();
            let (ask, end_us) = (GateAsk::SessionEnds { owner }, self.ends_us.get(&owner).copied());
            self.operations.push((key, Operation::session_end(op, ask, GateAnswer::Settled, alive_us, end_us)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::history::{Event, EventKind};
    use crate::workload::fixture::{Bench, told};

    const TOOK_US: u64 = 5;

    /// Clients and sessions have the same numbers here.
    fn begin(bench: &mut Bench, at_us: u64, session: u32, answer: Value) {
        let kind = if answer.is_object() { EventKind::Ok } else { EventKind::Info };
        bench.ended(at_us, session, BEGIN, json!({ "key": "k", "session": session }), (kind, answer));
    }

    fn once(bench: &mut Bench, at_us: u64, session: u32, body: Option<u64>, end: (EventKind, Value)) {
        if let Some(token) = body {
            let run = json!({ "key": "k", "token": token, "session": session });
            bench.event(Event { client: session, ..told(at_us + 2, BODY, run.clone(), None) });
            // As it is told: nobody says when it is done.
            bench.took_us = 0;
            bench.ended(at_us + 3, session, FINISH, run, (EventKind::Info, json!("in the recipe")));
            bench.took_us = TOOK_US;
        }
        bench.ended(at_us, session, ONCE, json!({ "key": "k", "session": session }), end);
    }

    fn finish(bench: &mut Bench, at_us: u64, session: u32, token: u64) {
        bench.op(at_us, session, FINISH, json!({ "key": "k", "token": token, "session": session }), Value::Null);
    }

    fn session_ends(bench: &mut Bench, session: u64, seen_us: u64) {
        for (zxid, created) in [(session, true), (session + 100, false)] {
            bench.log(zxid, created, &format!("{}/s{session}", ops::SESSIONS));
        }
        bench.run.seen_us.insert(session + 100, seen_us);
    }

    fn proceed(token: u64) -> Value {
        json!({ "is": "proceed", "token": token })
    }

    fn done(token: u64) -> Value {
        json!({ "is": "done", "token": token, "result": "r" })
    }

    fn judged(tell: impl FnOnce(&mut Bench)) -> Verdict {
        let mut bench = Bench::of_ops(TOOK_US);
        tell(&mut bench);
        bench.verdicts(|run| vec![linearizable(run, &run.history.ops())])[0]
    }

    #[test]
    fn one_is_let_in_and_the_others_are_told_of_it() {
        let turn = |second: Value| {
            judged(|bench| {
                begin(bench, 10, 1, proceed(5));
                begin(bench, 20, 2, second);
                finish(bench, 30, 1, 5);
                once(bench, 40, 2, None, (EventKind::Ok, done(5)));
            })
        };
        assert_eq!(turn(json!({ "is": "in_progress", "token": 5 })), Verdict::Valid);
        assert_eq!(turn(proceed(6)), Verdict::Invalid, "two were let in");
        assert_eq!(turn(done(5)), Verdict::Invalid, "before it was done");
        assert_eq!(judged(|_| {}), Verdict::Unknown);
    }

    #[test]
    fn the_recipe_is_a_beginning_and_an_end() {
        let twice = |second: Option<u64>, result: u64| {
            judged(|bench| {
                once(bench, 10, 1, Some(5), (EventKind::Ok, done(5)));
                once(bench, 20, 2, second, (EventKind::Ok, done(result)));
            })
        };
        assert_eq!(twice(None, 5), Verdict::Valid);
        assert_eq!((twice(None, 6), twice(Some(6), 6)), (Verdict::Invalid, Verdict::Invalid));
        let broken_off = judged(|bench| {
            once(bench, 10, 1, None, (EventKind::Info, json!("broken off")));
            begin(bench, 20, 2, json!({ "is": "in_progress", "token": 5 }));
        });
        assert_eq!(broken_off, Verdict::Valid, "let in, and never told");
    }

    #[test]
    fn who_dies_lets_go_at_its_session_s_end_and_not_before() {
        let judged = |end_us: u64, lost: bool| {
            judged(|bench| {
                session_ends(bench, 1, end_us);
                begin(bench, 10, 1, if lost { Value::Null } else { proceed(5) });
                begin(bench, 20, 2, json!({ "is": "in_progress", "token": 5 }));
                begin(bench, 30, 2, proceed(6));
            })
        };
        assert_eq!((judged(33, false), judged(33, true)), (Verdict::Valid, Verdict::Valid));
        let alive = super::tests::judged(|bench| {
            session_ends(bench, 1, 60);
            begin(bench, 10, 1, proceed(5));
            begin(bench, 30, 2, proceed(6));
            bench.op(40, 1, BEGIN, json!({ "key": "other", "session": 1 }), proceed(7));
        });
        assert_eq!(alive, Verdict::Invalid, "it lived, and had not finished");
    }
}
