//! Checks registers in three ways: each key as one object seen from outside, by the zxids of the log, and one answer
//! against the other where a change was requested twice.

use super::{ROOT, RegisterCall, RegisterReply, RegisterRequest, path};
use crate::check::model::{self, NodeOp, Reply};
use crate::check::wgl::{self, Operation, OperationOf, RegisterAnswer, RegisterAsk};
use crate::workload::prelude::*;

pub(super) fn all(run: &Recorded) -> Vec<Check> {
    let ops = run.history.ops();
    vec![linearizable(&ops), replayed(run, &ops), answered_alike(&ops)]
}

/// Each key by itself, as it is seen from outside.
fn linearizable(ops: &[Op]) -> Check {
    const NAME: &str = "linearizable registers";
    let mut values = Values::default();
    let mut operations = Vec::new();
    for op in ops.iter().filter(|op| op.asked::<RegisterRequest>().is_ok()) {
        match operation(op, &mut values) {
            Ok(Some(operation)) => operations.push(operation),
            Ok(None) => {}
            Err(error) => return Check::unknown(NAME, "P7", format!("an answer cannot be read: {error}")),
        }
    }
    let model = wgl::RegisterModel { init: None, upsert: false };
    wgl::judge(NAME, "P4 P7 P9 P10", &model, operations, wgl::Budget::default())
}

/// Numbers for values.
#[derive(Default)]
struct Values(BTreeMap<String, u64>);

impl Values {
    fn number(&mut self, value: &str) -> u64 {
        let next = self.0.len() as u64;
        *self.0.entry(value.to_owned()).or_insert(next)
    }
}

type Keyed = (String, OperationOf<wgl::RegisterModel>);

/// The operation as the model knows it; none if it certainly did not take place.
fn operation(op: &Op, values: &mut Values) -> Result<Option<Keyed>, serde_json::Error> {
    let asked: RegisterRequest = op.asked()?;
    let input = match &asked.call {
        RegisterCall::Read => RegisterAsk::Read,
        RegisterCall::Write { value } => RegisterAsk::Write(values.number(value)),
        RegisterCall::CompareAndSet { version, value } => {
            RegisterAsk::Cas { version: *version, to: values.number(value) }
        }
        RegisterCall::Create { value } => RegisterAsk::Create(values.number(value)),
        RegisterCall::Delete { version } => RegisterAsk::Delete(*version),
    };
    let output = op.answer::<RegisterReply>()?.map(|answer| understood(answer, &asked.call, values));
    Ok(Operation::of(op, input, output).map(|operation| (asked.key, operation)))
}

fn understood(answer: RegisterReply, call: &RegisterCall, values: &mut Values) -> RegisterAnswer {
    match answer {
        RegisterReply::Value { value, version } => RegisterAnswer::Value(Some((values.number(&value), version))),
        RegisterReply::Done { version: None } => RegisterAnswer::Deleted,
        RegisterReply::Done { version } => RegisterAnswer::Written { version },
        RegisterReply::Refused { code: Code::NodeExists } => RegisterAnswer::Exists,
        RegisterReply::Refused { code: Code::BadVersion } => RegisterAnswer::OtherVersion,
        RegisterReply::Refused { .. } if *call == RegisterCall::Read => RegisterAnswer::Value(None),
        RegisterReply::Refused { .. } => RegisterAnswer::Missing,
        // That it is torn is for another check to tell; the first answer goes here.
        RegisterReply::Torn { first, .. } => understood(*first, call, values),
    }
}

/// All keys together, by the zxids of the answers and the log.
fn replayed(run: &Recorded, ops: &[Op]) -> Check {
    const NAME: &str = "registers replayed from the log";
    let mut replies = Vec::new();
    for op in ops {
        let Ok(asked) = op.asked::<RegisterRequest>() else { continue };
        match op.answer::<RegisterReply>() {
            Ok(answer) => {
                replies.extend(what(asked.call, answer).and_then(|what| Reply::of(op, path(&asked.key), what)))
            }
            Err(error) => return Check::unknown(NAME, "P4 P7 P9", format!("an answer cannot be read: {error}")),
        }
    }
    model::replay(NAME, "P4 P7 P9", ROOT, run, &replies)
}

/// What the tree has to show of it; none of a read that was not answered, or of what was refused.
fn what(call: RegisterCall, answer: Option<RegisterReply>) -> Option<NodeOp> {
    let version = match answer {
        Some(RegisterReply::Done { version }) => version,
        Some(RegisterReply::Value { value, version }) => return Some(NodeOp::Found { value, version: Some(version) }),
        Some(RegisterReply::Refused { .. }) => return None,
        // That it is torn is for another check to tell; the first answer goes here.
        Some(RegisterReply::Torn { first, .. }) => return what(call, Some(*first)),
        None => None,
    };
    match call {
        RegisterCall::Read => None,
        RegisterCall::Write { value } => Some(NodeOp::Set { expected: None, value: Some(value), version }),
        RegisterCall::CompareAndSet { version: expected, value } => {
            Some(NodeOp::Set { expected: Some(expected), value: Some(value), version })
        }
        RegisterCall::Create { value } => Some(NodeOp::Created(Some(value))),
        RegisterCall::Delete { version } => Some(NodeOp::Deleted { expected: version }),
    }
}

/// No change that was asked for twice under one request id was answered in two ways.
fn answered_alike(ops: &[Op]) -> Check {
    const NAME: &str = "one answer for one request id";
    let mut changes = 0;
    for op in ops.iter().filter(|op| op.ended == Completion::Ok && op.what != "read") {
        match op.answer::<RegisterReply>() {
            Ok(Some(RegisterReply::Torn { first, second })) => {
                let line = format!("client {} op {}: {:?} gave {first:?} and {second:?}", op.client, op.op, op.input);
                let mut check = Check::invalid(NAME, "P9", "one request id got two answers", vec![line]);
                check.at_us = op.completed_us;
                return check;
            }
            Ok(_) => changes += 1,
            Err(error) => return Check::unknown(NAME, "P9", format!("an answer cannot be read: {error}")),
        }
    }
    match changes {
        0 => Check::unknown(NAME, "P9", "no change was answered"),
        _ => Check::valid(NAME, "P9", format!("{changes} changes were answered, none of them in two ways")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::to_value;

    use super::super::name;
    use super::*;
    use crate::check::Verdict;

    fn op(from: u64, to: u64, call: RegisterCall, answer: Option<RegisterReply>) -> Op {
        let ended = if answer.is_some() { Completion::Ok } else { Completion::Info };
        let (what, output, completed_us) = (name(&call).into(), to_value(answer).unwrap(), Some(to));
        let input = to_value(RegisterRequest { key: "k".into(), call }).unwrap();
        Op { client: 1, op: from, what, invoked_us: from, completed_us, ended, input, output, zxid: None }
    }

    fn create(value: &str) -> RegisterCall {
        RegisterCall::Create { value: value.into() }
    }

    fn is(value: &str, version: i32) -> Option<RegisterReply> {
        Some(RegisterReply::Value { value: value.into(), version })
    }

    fn done(version: i32) -> Option<RegisterReply> {
        Some(RegisterReply::Done { version: Some(version) })
    }

    #[test]
    fn a_register_may_do_what_registers_do() {
        let swap = RegisterCall::CompareAndSet { version: 0, value: "b".into() };
        let good = [
            op(1, 2, RegisterCall::Read, Some(RegisterReply::Refused { code: Code::NoNode })),
            op(3, 9, create("a"), done(0)),
            op(4, 5, RegisterCall::Read, is("a", 0)),
            op(6, 8, swap.clone(), done(1)),
            op(7, 10, swap, Some(RegisterReply::Refused { code: Code::BadVersion })),
            op(11, 12, RegisterCall::Write { value: "c".into() }, None),
            op(13, 14, RegisterCall::Read, is("b", 1)),
            op(15, 16, RegisterCall::Read, is("c", 2)),
            op(17, 18, RegisterCall::Delete { version: Some(2) }, Some(RegisterReply::Done { version: None })),
        ];
        let check = linearizable(&good);
        assert_eq!(check.verdict, Verdict::Valid, "{check:?}");
        assert_eq!(answered_alike(&good).verdict, Verdict::Valid);
    }

    #[test]
    fn stale_reads_lost_writes_and_doubled_writes_are_caught() {
        let stale = [
            op(1, 2, create("a"), done(0)),
            op(3, 4, RegisterCall::Read, Some(RegisterReply::Refused { code: Code::NoNode })),
        ];
        assert_eq!(linearizable(&stale).verdict, Verdict::Invalid);
        let write = RegisterCall::Write { value: "b".into() };
        let doubled = [
            op(1, 2, create("a"), done(0)),
            op(3, 4, write.clone(), done(1)),
            op(5, 6, RegisterCall::Read, is("b", 2)),
        ];
        assert_eq!(linearizable(&doubled).verdict, Verdict::Invalid);
        let lost = [op(1, 2, create("a"), done(0)), op(3, 4, write, done(1)), op(5, 6, RegisterCall::Read, is("a", 0))];
        assert_eq!(linearizable(&lost).verdict, Verdict::Invalid);
    }

    #[test]
    fn two_answers_to_one_request_and_silence_are_caught() {
        let (first, second) =
            (Box::new(RegisterReply::Done { version: Some(1) }), Box::new(RegisterReply::Done { version: Some(2) }));
        let torn = op(1, 2, RegisterCall::Write { value: "b".into() }, Some(RegisterReply::Torn { first, second }));
        assert_eq!(answered_alike(&[torn]).verdict, Verdict::Invalid);
        assert_eq!(answered_alike(&[]).verdict, Verdict::Unknown);
        assert_eq!(linearizable(&[]).verdict, Verdict::Unknown);
    }
}
