//! Tests that the checks can fail: good histories of real runs, each spoilt in one way after the other. No check may
//! refuse the good one, and some check must refuse each spoilt one.
//!
//! The recorded runs lie in `tests/recorded`; `README.md` there says how they were made.

use std::path::Path;

use serde_json::{Value, json};

use super::archive;
use crate::check::{Check, Verdict, order};
use crate::history::Recorded;
use crate::history::ops;
use crate::history::{Event, EventKind, History};
use crate::workload;

/// A run that can be spoilt.
struct SpoiltRun {
    name: &'static str,
    events: Vec<Event>,
    run: Recorded,
}

/// An operation: where its invocation and its completion stand among the events.
#[derive(Clone, Copy)]
struct CompletedOp {
    asked: usize,
    ok: usize,
}

impl SpoiltRun {
    fn load_named(name: &str) -> Recorded {
        archive::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(name)).unwrap()
    }

    fn load(name: &'static str) -> Self {
        let run = Self::load_named(name);
        Self { name, events: run.history.events().to_vec(), run }
    }

    fn checks(mut self) -> Vec<Check> {
        self.run.history = History::new(self.events);
        let all = workload::all();
        let workload = all.iter().find(|workload| workload.name() == self.name).unwrap();
        let mut checks = workload.check(&self.run);
        checks.extend([order::is_whole(&self.run.history), order::agrees(&self.run.history.ops())]);
        checks
    }

    /// What was carried out under this name, by time.
    fn answered(&self, what: &str) -> Vec<CompletedOp> {
        let mut all = Vec::new();
        for (ok, event) in self.events.iter().enumerate() {
            if event.kind == EventKind::Ok && event.what == what {
                let is_of = |other: &Event| {
                    other.kind == EventKind::Invoke && (other.client, other.op) == (event.client, event.op)
                };
                all.push(CompletedOp { asked: self.events.iter().position(is_of).unwrap(), ok });
            }
        }
        all
    }

    fn lock_of(&self, op: CompletedOp) -> &Value {
        &self.events[op.asked].value["locks"]
    }

    fn answer(&mut self, op: CompletedOp) -> &mut Value {
        &mut self.events[op.ok].value
    }

    /// Two grants of one lock to two clients, one right after the other.
    fn grants(&self) -> (CompletedOp, CompletedOp) {
        let all = self.answered(ops::ACQUIRE);
        let next = |one: &CompletedOp| {
            let of_lock = all.iter().filter(|other| self.lock_of(**other) == self.lock_of(*one) && other.ok > one.ok);
            let next = of_lock.min_by_key(|other| other.ok).copied()?;
            (self.events[next.ok].client != self.events[one.ok].client).then_some((*one, next))
        };
        all.iter().find_map(next).expect("two clients take turns")
    }

    /// Events told under this name.
    fn told(&self, what: &str) -> Vec<usize> {
        let told =
            self.events.iter().enumerate().filter(|(_, event)| event.kind == EventKind::Note && event.what == what);
        told.map(|(at, _)| at).collect()
    }
}

type Spoil = fn(&mut SpoiltRun);

/// What a workload's checks speak of is what it says that it can falsify.
fn promised(name: &str) {
    let all = workload::all();
    let workload = all.iter().find(|workload| workload.name() == name).unwrap();
    let can: Vec<&str> = workload.facts().promises.split(' ').collect();
    for check in workload.check(&SpoiltRun::load_named(name)) {
        let beyond: Vec<&str> = check.promises.split_whitespace().filter(|promise| !can.contains(promise)).collect();
        assert!(beyond.is_empty(), "{name}: {} speaks of {beyond:?}", check.name);
    }
}

/// Each must be refused, and by what is wrong with it: the good history is not.
fn refuses(name: &'static str, spoils: &[(&str, Spoil)]) {
    let good = SpoiltRun::load(name).checks();
    let wrong: Vec<&Check> = good.iter().filter(|check| check.verdict == Verdict::Invalid).collect();
    assert!(wrong.is_empty(), "the good history is refused: {wrong:#?}");
    promised(name);
    let unknown = |checks: &[Check]| checks.iter().filter(|check| check.verdict == Verdict::Unknown).count();
    for (how, spoil) in spoils {
        let mut run = SpoiltRun::load(name);
        spoil(&mut run);
        let checks = run.checks();
        for check in checks.iter().filter(|check| check.verdict == Verdict::Invalid) {
            assert!(check.at_us.is_some(), "{name}: {how}: broken at no moment, and so without a timeline: {check:#?}");
        }
        let refused = checks.iter().any(|check| check.verdict == Verdict::Invalid) || unknown(&checks) > unknown(&good);
        assert!(refused, "{name}: {how}: passed\n{checks:#?}");
    }
}

#[test]
fn spoilt_locks() {
    refuses(
        "lock",
        &[
            ("two tokens swapped", |run| {
                let (one, other) = run.grants();
                let (a, b) = (run.answer(one).clone(), run.answer(other).clone());
                (*run.answer(one), *run.answer(other)) = (b, a);
            }),
            ("a grant given to two", |run| {
                let (one, other) = run.grants();
                *run.answer(other) = run.answer(one).clone();
            }),
            ("a token that no request has", |run| {
                let (one, _) = run.grants();
                *run.answer(one) = json!({ "token": 1_000_000 });
            }),
            ("granted at a zxid at which another held", |run| {
                let (one, other) = run.grants();
                run.events[other.ok].zxid = run.events[one.ok].zxid;
            }),
            ("granted while another held", |run| {
                let (one, other) = run.grants();
                let (asked_us, told_us) = (run.events[one.asked].at_us, run.events[one.ok].at_us);
                run.events[other.asked].at_us = asked_us;
                run.events[other.ok].at_us = told_us + 1;
            }),
            ("answered before it was asked", |run| {
                let (one, _) = run.grants();
                run.events[one.ok].at_us = run.events[one.asked].at_us - 1;
            }),
            ("a release that is not in the log", |run| {
                let (one, _) = run.grants();
                let token = run.answer(one)["token"].as_u64().unwrap();
                let request = run.run.log.iter().find(|event| event.zxid == token && event.path.contains("-lock-"));
                let path = request.unwrap().path.clone();
                run.run.log.retain(|event| event.created || event.path != path);
            }),
            ("a request that is not in the log", |run| {
                let (one, _) = run.grants();
                let token = run.answer(one)["token"].as_u64().unwrap();
                let request = run.run.log.iter().find(|event| event.zxid == token && event.path.contains("-lock-"));
                let path = request.unwrap().path.clone();
                run.run.log.retain(|event| event.path != path);
            }),
            ("said not to hold while it held", |run| {
                let verified = run.answered(ops::VERIFY);
                let held = verified.into_iter().find(|op| run.events[op.ok].value == json!(true)).unwrap();
                *run.answer(held) = json!(false);
            }),
            ("a release that went back in the order", |run| {
                let released = *run.answered(ops::RELEASE).last().unwrap();
                run.events[released.ok].zxid = Some(1);
            }),
        ],
    );
}

#[test]
fn spoilt_registers() {
    /// The reads of values, with their keys, by time.
    fn reads(run: &SpoiltRun) -> Vec<(CompletedOp, String)> {
        let reads = run.answered("read").into_iter().filter(|op| run.events[op.ok].value["is"] == "value");
        reads.map(|op| (op, run.events[op.asked].value["key"].to_string())).collect()
    }
    /// A read, and a later one of the same key that found something else.
    fn changed(run: &SpoiltRun) -> (CompletedOp, CompletedOp) {
        let reads = reads(run);
        let pairs = reads.iter().flat_map(|one| reads.iter().map(move |other| (one, other)));
        let mut pairs = pairs.filter(|(one, other)| {
            let (first, second) = (&run.events[one.0.ok], &run.events[other.0.asked]);
            one.1 == other.1 && first.at_us < second.at_us && first.value != run.events[other.0.ok].value
        });
        pairs.next().map(|(one, other)| (one.0, other.0)).expect("a register changes between two reads")
    }
    fn change(run: &SpoiltRun) -> CompletedOp {
        let writes = ["write", "compare_and_set"].into_iter().flat_map(|what| run.answered(what));
        let mut done = writes.filter(|op| run.events[op.ok].value["is"] == "done");
        done.next().expect("a write is acknowledged")
    }
    refuses(
        "register",
        &[
            ("a stale read", |run| {
                let (early, late) = changed(run);
                *run.answer(late) = run.answer(early).clone();
            }),
            ("a read from the future", |run| {
                let (early, late) = changed(run);
                *run.answer(early) = run.answer(late).clone();
            }),
            ("a value that nobody wrote", |run| {
                let (op, _) = reads(run)[0].clone();
                run.answer(op)["value"] = json!("nobody's");
            }),
            ("a version too many", |run| {
                let op = change(run);
                let version = run.answer(op)["version"].as_i64().unwrap();
                run.answer(op)["version"] = json!(version + 1);
            }),
            ("a lost write", |run| {
                let op = change(run);
                let zxid = run.events[op.ok].zxid.unwrap();
                run.run.data.retain(|set| set.zxid != zxid);
            }),
            ("a write that was refused and seen", |run| {
                let op = change(run);
                (run.events[op.ok].kind, run.events[op.ok].zxid) = (EventKind::Fail, None);
            }),
            ("a write at another's point", |run| {
                let op = change(run);
                run.events[op.ok].zxid = run.events[op.ok].zxid.map(|zxid| zxid + 1);
            }),
            ("a read at a point before its time", |run| {
                let (op, _) = reads(run).pop().unwrap();
                run.events[op.ok].zxid = Some(1);
            }),
        ],
    );
}

#[test]
fn spoilt_lists() {
    fn with(run: &mut SpoiltRun, what: &str, change: impl FnOnce(&mut Vec<Value>)) {
        let reads = run.answered(what).into_iter().rev();
        let long = |op: &CompletedOp| run.events[op.ok].value["elements"].as_array().is_some_and(|all| all.len() > 2);
        let op = reads.into_iter().find(long).expect("a list of three");
        change(run.answer(op)["elements"].as_array_mut().unwrap());
    }
    refuses(
        "append",
        &[
            ("an append lost", |run| with(run, "read", |all| drop(all.remove(1)))),
            ("an append twice", |run| with(run, "read", |all| all.push(all[0].clone()))),
            ("two appends turned round", |run| with(run, "read", |all| all.swap(0, 2))),
            ("what nobody appended", |run| with(run, "read", |all| all.push(json!("99.1")))),
            ("a sequential node lost", |run| with(run, "row_read", |all| drop(all.remove(1)))),
            ("a sequential node of nobody", |run| with(run, "row_read", |all| all.push(json!("99.1-0000000999")))),
            ("one name for two", |run| {
                let rows = run.answered("row");
                *run.answer(rows[1]) = run.answer(rows[0]).clone();
            }),
            ("two names for one", |run| {
                let rows = run.answered("row").into_iter();
                let twice = rows.into_iter().find(|op| run.events[op.ok].value["again"].is_string()).unwrap();
                run.answer(twice)["again"] = json!("other-0000000998");
            }),
        ],
    );
}

#[test]
fn spoilt_watches() {
    refuses(
        "watches",
        &[
            ("an event dropped", |run| {
                let seen = run.told("seen");
                run.events.remove(seen[seen.len() / 2]);
            }),
            ("an event twice", |run| {
                let seen = run.told("seen")[1];
                let again = run.events[seen].clone();
                run.events.insert(seen + 1, again);
            }),
            ("two events turned round", |run| {
                let seen = run.told("seen");
                let is_pair = |pair: &&[usize]| {
                    let (one, other) = (&run.events[pair[0]], &run.events[pair[1]]);
                    one.client == other.client && one.value["watch"] == other.value["watch"] && one.zxid < other.zxid
                };
                let pair: Vec<usize> = seen.windows(2).find(is_pair).unwrap().to_vec();
                let (one, other) = (run.events[pair[0]].clone(), run.events[pair[1]].clone());
                (run.events[pair[0]].value, run.events[pair[0]].zxid) = (other.value, other.zxid);
                (run.events[pair[1]].value, run.events[pair[1]].zxid) = (one.value, one.zxid);
            }),
            ("an event made up", |run| {
                let seen = run.told("seen")[2];
                run.events[seen].value["path"] =
                    json!(format!("{}x", run.events[seen].value["path"].as_str().unwrap()));
            }),
            ("a bookmark ahead of what was given", |run| {
                let seen = run.told("seen");
                let early = run.events[seen[1]].clone();
                let is_later = |event: &&Event| {
                    event.client == early.client
                        && event.value["watch"] == early.value["watch"]
                        && event.zxid > early.zxid
                };
                let late = seen.iter().map(|at| &run.events[*at]).find(is_later).unwrap().zxid;
                let value = json!({ "watch": early.value["watch"] });
                run.events.insert(seen[1] + 1, Event { what: "bookmark".into(), value, zxid: late, ..early });
            }),
            ("taken up behind what was given", |run| {
                let resumed = run.told("resumed")[0];
                let from = run.events[resumed].value["from"].as_u64().unwrap();
                run.events[resumed].value["from"] = json!(from + 5);
            }),
        ],
    );
}

#[test]
fn spoilt_ephemerals() {
    /// Two nodes of a session that went in one transaction.
    fn went_together(run: &SpoiltRun) -> (u64, String) {
        let gone = |zxid: u64| run.run.log.iter().filter(move |event| event.zxid == zxid && !event.created);
        let mut several =
            run.run.log.iter().filter(|event| {
                !event.created && event.path.starts_with("/ephemerals/") && gone(event.zxid).count() > 1
            });
        several.next().map(|event| (event.zxid, event.path.clone())).expect("a session with two nodes ended")
    }
    refuses(
        "ephemerals",
        &[
            ("removed one by one", |run| {
                let (zxid, path) = went_together(run);
                let mut event =
                    run.run.log.iter().find(|event| event.zxid == zxid && event.path == path).unwrap().clone();
                run.run.log.remove(&event);
                event.zxid += 1;
                run.run.log.insert(event);
            }),
            ("one left behind", |run| {
                let (zxid, path) = went_together(run);
                run.run.log.retain(|event| event.zxid != zxid || event.path != path);
            }),
            ("expired two seconds early", |run| {
                for at_us in run.run.seen_us.values_mut() {
                    *at_us = at_us.saturating_sub(2_000_000);
                }
            }),
            ("a listing without one", |run| {
                let lists = run.answered("list");
                let full =
                    |op: &CompletedOp| run.events[op.ok].value["names"].as_array().is_some_and(|all| !all.is_empty());
                let op = lists.into_iter().find(full).unwrap();
                run.answer(op)["names"].as_array_mut().unwrap().pop();
            }),
            ("said to be over and still there", |run| {
                let gone = run.told("gone")[0];
                run.events[gone].value["standing"] = json!(["/ephemerals/a/x"]);
            }),
        ],
    );
}

#[test]
fn spoilt_gates() {
    /// Answers of that kind to those who began a gate.
    fn told(run: &SpoiltRun, is: &str) -> Vec<CompletedOp> {
        let all = ["begin", "once"].into_iter().flat_map(|what| run.answered(what));
        all.filter(|op| run.events[op.ok].value["is"] == is).collect()
    }
    refuses(
        "gate",
        &[
            ("let in after the result", |run| {
                let op = *told(run, "done").last().unwrap();
                *run.answer(op) = json!({ "is": "proceed", "token": 1_000_000 });
            }),
            ("two were let in", |run| {
                let op = told(run, "in_progress")[0];
                *run.answer(op) = json!({ "is": "proceed", "token": 1_000_000 });
            }),
            ("another's result", |run| {
                let op = *told(run, "done").last().unwrap();
                let token = run.answer(op)["token"].as_u64().unwrap() + 1;
                *run.answer(op) = json!({ "is": "done", "token": token, "result": format!("result of {token}") });
            }),
            ("a result before it was made", |run| {
                let finishing = |run: &SpoiltRun, op: &CompletedOp| {
                    let is_of = |event: &&Event| {
                        event.what == "finish"
                            && event.kind == EventKind::Invoke
                            && event.value["token"] == run.events[op.ok].value["token"]
                    };
                    run.events.iter().find(is_of).is_some_and(|finish| finish.at_us > run.events[op.ok].at_us)
                };
                let early = told(run, "in_progress").into_iter().find(|op| finishing(run, op)).unwrap();
                let token = run.answer(early)["token"].as_u64().unwrap();
                *run.answer(early) = json!({ "is": "done", "token": token, "result": format!("result of {token}") });
            }),
            ("left shut", |run| {
                let freed = run.told("freed")[0];
                run.events[freed].value["free"] = json!(false);
            }),
        ],
    );
}

#[test]
fn spoilt_queues() {
    refuses(
        "queue",
        &[
            ("an item given to two", |run| {
                let takes = run.answered("take");
                *run.answer(takes[1]) = run.answer(takes[0]).clone();
            }),
            ("an acknowledgement that was refused", |run| {
                let ack = run.answered("ack")[0];
                run.events[ack.ok].kind = EventKind::Fail;
            }),
            ("acknowledged twice", |run| {
                let acks = run.answered("ack");
                run.events[acks[1].asked].value = run.events[acks[0].asked].value.clone();
            }),
            ("two puts turned round", |run| {
                let puts = run.answered("put");
                let (one, other) = (run.answer(puts[0]).clone(), run.answer(puts[1]).clone());
                (*run.answer(puts[0]), *run.answer(puts[1])) = (other, one);
            }),
            ("taken before it was put", |run| {
                let payload = run.events[run.answered("take")[3].ok].value["payload"].clone();
                let puts = run.answered("put").into_iter();
                let put = puts.into_iter().find(|put| run.events[put.asked].value["payload"] == payload).unwrap();
                let end_us = run.events.last().unwrap().at_us;
                (run.events[put.asked].at_us, run.events[put.ok].at_us) = (end_us, end_us + 1);
            }),
            ("left over", |run| {
                let left = run.told("left")[0];
                run.events[left].value = json!(3);
            }),
        ],
    );
}
