//! Checks gates by their clients' answers and by the clocks of the sessions that held them.

use super::{BEGIN, BODY, FAIL, FINISH, FREED, Freed, GateReply, GateRun, Key, ONCE, black_box, result_of};
use crate::workload::prelude::*;

pub(super) fn all(run: &Recorded) -> Vec<Check> {
    match GateHistory::of(run, &run.history.ops()) {
        Ok(history) => vec![
            history.body_runs_once(),
            history.result_is_stable(),
            history.dead_ones_are_freed(),
            black_box::linearizable(run, &run.history.ops()),
        ],
        Err(error) => vec![Check::unknown("gates", "P9", format!("the history cannot be read: {error}"))],
    }
}

/// A body that ran, or was to run.
#[derive(Clone, Copy, Debug)]
struct Body {
    token: u64,
    session: u64,
    /// When it was known to somebody that it may run.
    at_us: u64,
    ran: usize,
}

/// A result that somebody was given.
#[derive(Clone, Debug)]
struct GivenResult {
    at_us: u64,
    token: u64,
    result: String,
}

/// All that was told of gates, by key.
#[derive(Default)]
struct GateHistory {
    bodies: BTreeMap<String, BTreeMap<u64, Body>>,
    given: BTreeMap<String, Vec<GivenResult>>,
    /// Asked for with a token, and when: the ends of runs that open the gate again.
    failed_us: BTreeMap<(String, u64), u64>,
    finishing: BTreeSet<(String, u64)>,
    /// When a run was acknowledged as finished.
    finished_us: BTreeMap<String, u64>,
    /// Asked for at that time and told that somebody is at it, or to proceed.
    unfinished: Vec<(String, u64, GateReply)>,
    sessions: BTreeMap<u64, SessionLife>,
    /// With when it was told.
    freed: Vec<(u64, Freed)>,
}

impl GateHistory {
    fn of(run: &Recorded, ops: &[Op]) -> Result<Self, serde_json::Error> {
        let mut history = Self::default();
        for op in ops {
            match op.what.as_str() {
                BEGIN | ONCE => history.answered(op)?,
                FINISH | FAIL => {
                    let GateRun { key, token, .. } = op.asked()?;
                    if op.what == FAIL {
                        history.failed_us.insert((key, token), op.invoked_us);
                        continue;
                    }
                    if let (Completion::Ok, Some(at_us)) = (op.ended, op.completed_us) {
                        history.finished_us.entry(key.clone()).or_insert(at_us);
                    }
                    history.finishing.insert((key, token));
                }
                _ => {}
            }
        }
        for event in run.history.notes() {
            match event.what.as_str() {
                BODY => {
                    let GateRun { key, token, session } = event.told()?;
                    history.body(key, token, session, event.at_us).ran += 1;
                }
                FREED => history.freed.push((event.at_us, event.told()?)),
                _ => {}
            }
        }
        history.sessions = run.history.sessions()?;
        Ok(history)
    }

    fn answered(&mut self, op: &Op) -> Result<(), serde_json::Error> {
        let (Key { key, session }, answer, at_us) = (op.asked()?, op.answer()?, op.completed_us.unwrap_or(u64::MAX));
        match answer {
            Some(GateReply::Done { token, result }) => {
                self.finished_us.entry(key.clone()).and_modify(|first| *first = at_us.min(*first)).or_insert(at_us);
                self.given.entry(key).or_default().push(GivenResult { at_us, token, result });
            }
            Some(other) => {
                if let GateReply::Proceed { token } = other {
                    self.body(key.clone(), token, session, at_us);
                }
                self.unfinished.push((key, op.invoked_us, other));
            }
            None => {}
        }
        Ok(())
    }

    fn body(&mut self, key: String, token: u64, session: u64, at_us: u64) -> &mut Body {
        let body = self.bodies.entry(key).or_default().entry(token).or_insert(Body { token, session, at_us, ran: 0 });
        body.at_us = body.at_us.min(at_us);
        body
    }

    /// Whether the run may be over by then: it was given up, or its session was closed or may have expired.
    fn may_be_over(&self, key: &str, body: &Body, at_us: u64) -> bool {
        let failed = self.failed_us.get(&(key.to_owned(), body.token)).is_some_and(|failed_us| *failed_us <= at_us);
        failed || self.sessions.get(&body.session).is_none_or(|session| session.may_be_over(at_us))
    }

    /// A second run begins only when the first is over without a result.
    fn body_runs_once(&self) -> Check {
        const NAME: &str = "one run at a time, and none after a result";
        const OF: &str = "P5 P9";
        let (mut runs, mut again) = (0, 0);
        for (key, bodies) in &self.bodies {
            let bodies: Vec<&Body> = bodies.values().collect();
            for body in &bodies {
                if body.ran > 1 {
                    return broken(NAME, OF, body.at_us, format!("{key}: token {} was given to two", body.token), body);
                }
            }
            for pair in bodies.windows(2) {
                if !self.may_be_over(key, pair[0], pair[1].at_us) {
                    let what =
                        format!("{key}: token {} was to proceed while {} was at it", pair[1].token, pair[0].token);
                    return broken(NAME, OF, pair[1].at_us, what, &pair);
                }
                again += 1;
            }
            runs += bodies.len();
        }
        for (key, asked_us, stands) in &self.unfinished {
            if let Some(finished_us) = self.finished_us.get(key).filter(|finished_us| asked_us > *finished_us) {
                let what = format!("{key}: it was done by {finished_us} us, and who asked later was told {stands:?}");
                return broken(NAME, OF, *asked_us, what, stands);
            }
        }
        match runs {
            0 => Check::unknown(NAME, OF, "no body ran"),
            _ => Check::valid(
                NAME,
                OF,
                format!("{runs} runs of {} keys, {again} of them after one that failed or died", self.bodies.len()),
            ),
        }
    }

    /// Whoever is given a result is given the same, of a run that was finished.
    fn result_is_stable(&self) -> Check {
        const NAME: &str = "one result for each key";
        const OF: &str = "P4 P9";
        let mut results = 0;
        for (key, given) in &self.given {
            for one in given {
                let known = self.finishing.contains(&(key.clone(), one.token)) && one.result == result_of(one.token);
                if !known || (one.token, &one.result) != (given[0].token, &given[0].result) {
                    return broken(
                        NAME,
                        OF,
                        one.at_us,
                        format!("{key}: {one:?} is no result, or not the only one"),
                        given,
                    );
                }
                results += 1;
            }
        }
        match results {
            0 => Check::unknown(NAME, OF, "nobody was given a result"),
            _ => Check::valid(NAME, OF, format!("{results} results of {} keys", self.given.len())),
        }
    }

    /// A gate whose worker is dead can be begun again.
    fn dead_ones_are_freed(&self) -> Check {
        const NAME: &str = "gates of dead workers are freed";
        const OF: &str = "P6 P10";
        if let Some((at_us, shut)) = self.freed.iter().find(|(_, freed)| !freed.free) {
            let what = format!("{}: its worker is dead, and it is shut", shut.key);
            return broken(NAME, OF, *at_us, what, &self.bodies.get(&shut.key));
        }
        match self.freed.len() {
            0 => Check::unknown(NAME, OF, "no worker died at a gate"),
            freed => Check::valid(NAME, OF, format!("{freed} gates looked at in the end")),
        }
    }
}

fn broken(name: &str, promises: &str, at_us: u64, what: String, of: &dyn std::fmt::Debug) -> Check {
    Check { at_us: Some(at_us), ..Check::invalid(name, promises, what, vec![format!("{of:?}")]) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::workload::fixture::Bench;

    /// Key `k` is begun under token 5 by session 1, which is sure to live until 1 s, and finished; another is given
    /// the result. Key `d` is left shut by session 2, which closes; it is freed.
    fn good() -> Bench {
        let mut bench = Bench::of_ops(10);
        bench.tell(1_000, ops::SURE, json!({ "session": 1, "until_ms": 1_000 }));
        bench.tell(1_000, ops::SURE, json!({ "session": 2, "until_ms": 1_000 }));
        begin(&mut bench, 10_000, "k", json!({ "is": "proceed", "token": 5 }));
        body(&mut bench, 20_000, "k", 5, 1);
        begin(&mut bench, 30_000, "k", json!({ "is": "in_progress", "token": 5 }));
        bench.op(40_000, 1, FINISH, json!({ "key": "k", "token": 5, "session": 1 }), json!(null));
        begin(&mut bench, 50_000, "k", json!({ "is": "done", "token": 5, "result": "result of 5" }));
        body(&mut bench, 60_000, "d", 7, 2);
        bench.tell(70_000, ops::CLOSING, json!({ "session": 2 }));
        body(&mut bench, 80_000, "d", 9, 1);
        bench.tell(90_000, FREED, json!({ "key": "d", "free": true }));
        bench
    }

    fn begin(bench: &mut Bench, at_us: u64, key: &str, answer: Value) {
        bench.op(at_us, 1, BEGIN, json!({ "key": key, "session": 1 }), answer);
    }

    fn body(bench: &mut Bench, at_us: u64, key: &str, token: u64, session: u64) {
        bench.tell(at_us, BODY, json!({ "key": key, "token": token, "session": session }));
    }

    fn after(change: impl FnOnce(&mut Bench)) -> Vec<Verdict> {
        let mut bench = good();
        change(&mut bench);
        bench.verdicts(all)
    }

    const TWICE: [Verdict; 4] = [Verdict::Invalid, Verdict::Valid, Verdict::Valid, Verdict::Valid];
    const UNSTABLE: [Verdict; 4] = [Verdict::Valid, Verdict::Invalid, Verdict::Valid, Verdict::Valid];

    /// And it is seen from outside.
    fn and_seen([one, other, third, _]: [Verdict; 4]) -> [Verdict; 4] {
        [one, other, third, Verdict::Invalid]
    }

    #[test]
    fn good_gates_pass_and_silence_does_not() {
        assert_eq!(good().verdicts(all), [Verdict::Valid; 4]);
        assert_eq!(Bench::default().verdicts(all), [Verdict::Unknown; 4]);
        let expired = after(|bench| {
            body(bench, 100_000, "x", 20, 2);
            body(bench, 1_000_000, "x", 21, 1);
        });
        assert_eq!(expired, [Verdict::Valid; 4], "its session may have expired by then");
    }

    #[test]
    fn second_runs_are_caught() {
        let beside = |bench: &mut Bench| {
            body(bench, 100_000, "x", 20, 1);
            body(bench, 999_000, "x", 21, 3);
        };
        assert_eq!(after(beside), TWICE, "beside the first");
        assert_eq!(after(|bench| body(bench, 21_000, "k", 5, 3)), TWICE, "under one token");
        let late = |bench: &mut Bench| begin(bench, 60_000, "k", json!({ "is": "in_progress", "token": 6 }));
        assert_eq!(after(late), and_seen(TWICE), "after the result was there");
    }

    #[test]
    fn other_results_and_gates_left_shut_are_caught() {
        for (token, result, found) in [(5, "another", UNSTABLE), (6, "result of 6", and_seen(UNSTABLE))] {
            let answer = json!({ "is": "done", "token": token, "result": result });
            assert_eq!(after(|bench| begin(bench, 60_000, "k", answer)), found);
        }
        let shut = after(|bench| bench.tell(95_000, FREED, json!({ "key": "d", "free": false })));
        assert_eq!(shut[2], Verdict::Invalid);
    }
}
