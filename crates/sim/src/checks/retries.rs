//! Promise P9: a request under one id is carried out once, and every retry gets the first answer. And P4: the log has
//! every answer that was given.

use std::collections::BTreeMap;

use lockkeeper_core::{Actor, Command, GateOp, GateStanding, Op, Outcome, Refusal, Reply};

use super::Checked;
use super::change::Change;

/// An answer of the log.
type Answer = Result<Reply, Refusal>;

#[derive(Debug)]
struct First {
    op: Op,
    answer: Answer,
    zxid: u64,
}

/// The first answer under each request id.
#[derive(Debug, Default)]
pub struct Retries {
    first: BTreeMap<(u64, u128), First>,
    /// The refusals that the state does not keep, because the request may be tried again under its id.
    refused_for_now: BTreeMap<(u64, u128), Vec<(Op, Answer)>>,
    /// Requests that found an answer there.
    repeated: u64,
}

impl Retries {
    /// Takes in a command of the log.
    ///
    /// # Errors
    /// If it was carried out for a second time, or answered otherwise than the first time.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let Command::Do { actor: Actor { session: Some(session), request: Some(key), .. }, op } = change.command else {
            return Ok(());
        };
        let Outcome { zxid, reply, changed, events } = change.outcome;
        let name = (session.0, key.id.0);
        // Rights come before the memory of answers.
        let is_first = !self.first.contains_key(&name) || reply.as_ref().is_err_and(is_for_want_of_rights);
        if reply.as_ref().is_err_and(is_for_now) && is_first {
            self.refused_for_now.entry(name).or_default().push((op.clone(), reply.clone()));
            return Ok(());
        }
        if *reply == Err(Refusal::SessionExpired(*session)) || !is_kept(op, change.outcome) {
            return Ok(());
        }
        let Some(first) = self.first.get(&name) else {
            let first = First { op: op.clone(), answer: reply.clone(), zxid: zxid.0 };
            self.first.insert(name, first);
            return Ok(());
        };
        self.repeated += 1;
        let id = key.id;
        if *changed || !events.is_empty() {
            return Err(format!(
                "request {id} of session {session} was carried out at {}, and again at {zxid}: {op:?}",
                first.zxid
            ));
        }
        let due = if first.op == *op { first.answer.clone() } else { Err(Refusal::RequestMismatch) };
        if *reply != due {
            return Err(format!("request {id} of session {session} was answered {due:?}, and later {reply:?}"));
        }
        // It is true where it was given first. Whoever watches from there on must not miss what has happened since.
        if reply.is_ok() && zxid.0 != first.zxid {
            return Err(format!(
                "request {id} of session {session} was answered at {}, and the same again at {zxid}",
                first.zxid
            ));
        }
        Ok(())
    }

    /// A client was given this answer to an operation under a request id.
    ///
    /// # Errors
    /// If no replica has carried it out, or with another answer.
    pub fn answered(&self, session: u64, id: u128, op: &Op, answer: &Answer, zxid: u64) -> Checked {
        let id_shown = lockkeeper_core::RequestId(id);
        // The state keeps a gate's permission to proceed, and computes any other answer to begin each time.
        let is_computed =
            matches!((op, answer), (Op::Gate(GateOp::Begin { .. }), Ok(Reply::Gate(standing))) if !is_leave(standing));
        let for_now = self.refused_for_now.get(&(session, id));
        if for_now.is_some_and(|refused| refused.iter().any(|(refused, why)| refused == op && why == answer)) {
            return Ok(());
        }
        match self.first.get(&(session, id)) {
            None if is_computed => Ok(()),
            // The node refuses it before the log, as of a state that it has read.
            None if answer.as_ref().is_err_and(is_early) => Ok(()),
            Some(_) if answer.as_ref().is_err_and(is_for_want_of_rights) => Ok(()),
            None => Err(format!(
                "request {id_shown} of session {session} was answered {answer:?} at {zxid}, and no log has it"
            )),
            Some(first) if first.op != *op && *answer == Err(Refusal::RequestMismatch) => Ok(()),
            Some(first) if first.answer == *answer && first.op == *op && (answer.is_err() || zxid == first.zxid) => {
                Ok(())
            }
            Some(first) => Err(format!(
                "request {id_shown} of session {session} was answered {answer:?} at {zxid}; the log said {:?} at {}",
                first.answer, first.zxid
            )),
        }
    }

    /// How many requests of the log found an answer there.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }
}

fn is_leave(standing: &GateStanding) -> bool {
    matches!(standing, GateStanding::Proceed { .. })
}

/// The state keeps no answer of a gate that only says how it stands.
fn is_kept(op: &Op, outcome: &Outcome) -> bool {
    !matches!(op, Op::Gate(GateOp::Begin { .. })) || outcome.changed || outcome.reply.is_err()
}

/// Whether the request may be tried again under its id. Kept apart from the state's own list, so that a wrong entry
/// there is found.
fn is_for_now(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::StateFull { .. }
        | Refusal::NamespaceFull { .. }
        | Refusal::FeatureLevelTooLow { .. }
        | Refusal::TooManyEphemerals { .. }
        | Refusal::ForeignNames { .. }
        | Refusal::Unauthenticated(_)
        | Refusal::Forbidden(_) => true,
        Refusal::MultiFailed { cause, .. } => is_for_now(cause),
        _ => false,
    }
}

fn is_for_want_of_rights(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Unauthenticated(_) | Refusal::Forbidden(_))
}

/// Whether nodes refuse for this what they then do not propose.
fn is_early(refusal: &Refusal) -> bool {
    is_for_now(refusal) && !matches!(refusal, Refusal::ForeignNames { .. })
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::NodeKind;

    use super::super::test_history::{History, change, create};
    use super::*;

    #[test]
    fn a_request_that_happens_twice_is_refused() {
        let (mut history, mut requests) = (History::default(), Retries::default());
        let session = history.open();
        history.keyed(session, 7, create("/a", "", NodeKind::Persistent));
        let (command, outcome) = history.last();
        requests.change(&change(&command, &outcome, 1)).unwrap();
        requests.change(&change(&command, &outcome, 1)).unwrap_err();
        history.keyed(session, 7, create("/a", "", NodeKind::Persistent));
        history.each(|again| requests.change(again).unwrap());
        let forgotten = Outcome { reply: Ok(Reply::Deleted), changed: false, events: Vec::new(), ..outcome };
        requests.change(&change(&command, &forgotten, 1)).unwrap_err();
        assert_eq!(requests.repeated(), 3);
    }

    #[test]
    fn another_payload_under_the_same_id_is_refused_by_the_state() {
        let (mut history, mut requests) = (History::default(), Retries::default());
        let session = history.open();
        history.keyed(session, 7, create("/a", "", NodeKind::Persistent));
        history.keyed(session, 7, create("/b", "", NodeKind::Persistent));
        let (command, outcome) = history.last();
        history.each(|each| requests.change(each).unwrap());
        requests.change(&change(&command, &outcome, 1)).unwrap();
        let Command::Do { op, .. } = &command else { unreachable!() };
        requests.answered(session, 7, op, &outcome.reply, 0).unwrap();
        // Taken for the same as the first; carried out.
        let first = requests.first.values().next().unwrap().answer.clone();
        requests.answered(session, 7, op, &first, outcome.zxid.0).unwrap_err();
        requests.change(&change(&command, &Outcome { reply: first, ..outcome.clone() }, 1)).unwrap_err();
        requests.change(&change(&command, &Outcome { changed: true, ..outcome }, 1)).unwrap_err();
    }

    /// What the fault suite found once: a repeated answer that was said to be true now.
    #[test]
    fn an_answer_that_is_repeated_as_of_another_point_is_refused() {
        let (mut history, mut requests) = (History::default(), Retries::default());
        let session = history.open();
        let op = Op::from(create("/a", "", NodeKind::Persistent));
        let made = history.keyed(session, 7, op.clone());
        let answer = history.pending[1].1.reply.clone();
        history.create("/b", "");
        history.keyed(session, 7, op.clone());
        let (command, again) = history.last();
        history.each(|each| requests.change(each).unwrap());
        assert_eq!(again.zxid.0, made);
        requests.change(&change(&command, &again, 1)).unwrap();
        let later = Outcome { zxid: history.state.zxid(), ..again };
        requests.change(&change(&command, &later, 1)).unwrap_err();
        requests.answered(session, 7, &op, &answer, made).unwrap();
        requests.answered(session, 7, &op, &answer, made + 1).unwrap_err();
    }

    #[test]
    fn leave_to_go_ahead_that_no_log_gave_is_refused() {
        let requests = Retries::default();
        let key = lockkeeper_core::GateKey::parse("g").unwrap();
        let op = Op::from(GateOp::Begin { key, fingerprint: "f".into(), pending_ms: 50, label: "w".into() });
        let token = lockkeeper_core::FencingToken(3);
        let check_standing = |standing| requests.answered(1, 7, &op, &Ok(Reply::Gate(standing)), 3);
        let session = Some(lockkeeper_core::SessionId(2));
        check_standing(GateStanding::InProgress { token, session, label: "w".into(), since_ms: 1, until_ms: 9 })
            .unwrap();
        check_standing(GateStanding::Proceed { token, until_ms: 9 }).unwrap_err();
        requests.answered(1, 7, &op, &Err(Refusal::RequestMismatch), 3).unwrap_err();
    }

    #[test]
    fn an_answer_that_no_log_gave_is_refused() {
        let (mut history, mut requests) = (History::default(), Retries::default());
        let session = history.open();
        let op = Op::from(create("/a", "", NodeKind::Persistent));
        history.keyed(session, 7, op.clone());
        let answer = history.pending[1].1.reply.clone();
        requests.answered(session, 7, &op, &answer, 2).unwrap_err();
        history.each(|each| requests.change(each).unwrap());
        requests.answered(session, 7, &op, &answer, 2).unwrap();
        requests.answered(session, 8, &op, &answer, 2).unwrap_err();
        requests.answered(session, 7, &op, &Ok(Reply::Deleted), 2).unwrap_err();
    }
}
