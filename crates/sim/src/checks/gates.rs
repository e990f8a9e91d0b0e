//! Gates: one caller at a time begins the operation of a key, its token rises, and once it is done every caller gets
//! its result as long as it is kept. How a gate goes on is [`Gate`]'s rule, which the fault suite judges by too.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_checkers::gate::{Gate, GateAnswer, GateAsk};
use lockkeeper_core::gate::FOREVER_MS;
use lockkeeper_core::{Actor, Command, Event, GateKey, GateOp, GateStanding, Op, Reply};

use super::Checked;
use super::change::Change;

/// How a gate stands, until when at most, and the result if it is done.
#[derive(Debug, Default)]
struct Standing {
    gate: Gate,
    until_ms: u64,
    result: Arc<[u8]>,
}

/// How each gate stands, worked out from the answers.
#[derive(Debug, Default)]
pub struct Gates {
    standing: BTreeMap<String, Standing>,
    /// Who was given leave, under which request: to be given the same again.
    begun: BTreeMap<(u64, u128), (String, GateStanding)>,
}

impl Gates {
    /// Takes in a command of the log.
    ///
    /// # Errors
    /// If somebody is let in beside another or behind a result, or is given what nobody stored.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        for event in &change.outcome.events {
            if let Event::SessionEnded { session, .. } = event {
                for standing in self.standing.values_mut() {
                    let ended = standing.gate.step(GateAsk::SessionEnds { owner: session.0 }, None);
                    standing.gate = ended.unwrap_or_default();
                }
            }
        }
        let Command::Do { actor, op: Op::Gate(op) } = change.command else { return Ok(()) };
        let Ok(reply) = &change.outcome.reply else { return Ok(()) };
        let Some((key, ask, answer)) = translated(actor, op, reply) else { return Ok(()) };
        let (clock_ms, changed) = (change.clock_ms, change.outcome.changed);
        let standing = self.standing.entry(key.to_string()).or_default();
        if standing.until_ms <= clock_ms {
            standing.gate = standing.gate.opened();
        }
        let request = actor.session.zip(actor.request.as_ref()).map(|(session, request)| (session.0, request.id.0));
        // What changed the log changed how the gate stands, and nothing else did.
        let next = standing.gate.step(ask, Some(answer)).filter(|next| (*next != standing.gate) == changed);
        let next = match (op, reply) {
            // A worker asks again, under the same request, for what it was given.
            (GateOp::Begin { .. }, Reply::Gate(again @ GateStanding::Proceed { .. })) if !changed => {
                let given = request.and_then(|request| self.begun.get(&request));
                given.filter(|(of, given)| of == key.as_str() && given == again).map(|_| standing.gate.clone())
            }
            (_, Reply::Gate(GateStanding::Done { result, .. })) => next.filter(|_| *result == standing.result),
            (_, Reply::GateSettled) if !changed => return Ok(()),
            (GateOp::Reset { token: Some(wanted), .. }, Reply::GateReset { token, .. }) => {
                next.filter(|_| wanted == token)
            }
            _ => next,
        };
        standing.gate = next.ok_or_else(|| {
            format!("gate {key} answered {reply:?} to {op:?} of {actor:?} at {clock_ms} ms, and stood {standing:?}")
        })?;
        match (op, reply) {
            (_, Reply::Gate(begun @ GateStanding::Proceed { until_ms, .. })) if changed => {
                standing.until_ms = *until_ms;
                self.begun.extend(request.map(|request| (request, (key.to_string(), begun.clone()))));
            }
            (GateOp::Finish { result, keep_ms, .. }, _) => {
                (standing.until_ms, standing.result) = (clock_ms + keep_ms, result.clone());
            }
            (GateOp::FinishForever { result, .. }, _) => {
                (standing.until_ms, standing.result) = (FOREVER_MS, result.clone());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Which gate was asked what, and what it answered.
fn translated<'a>(actor: &Actor, op: &'a GateOp, reply: &Reply) -> Option<(&'a GateKey, GateAsk, GateAnswer)> {
    Some(match (op, reply) {
        (GateOp::Begin { key, .. }, Reply::Gate(standing)) => {
            let answer = match standing {
                GateStanding::Proceed { token, .. } => GateAnswer::Proceed { token: token.0 },
                GateStanding::InProgress { token, .. } => GateAnswer::InProgress { token: token.0 },
                GateStanding::Done { token, .. } => GateAnswer::Finished { token: token.0 },
            };
            (key, GateAsk::Begin { owner: actor.session.map_or(0, |session| session.0) }, answer)
        }
        (GateOp::Finish { key, token, .. } | GateOp::FinishForever { key, token, .. }, Reply::GateSettled) => {
            (key, GateAsk::Finish { token: token.0 }, GateAnswer::Settled)
        }
        (GateOp::Fail { key, token }, Reply::GateSettled) => {
            (key, GateAsk::Fail { token: token.0 }, GateAnswer::Settled)
        }
        (GateOp::Reset { key, .. }, Reply::GateReset { token, was_done }) => {
            (key, GateAsk::Reset { token: token.0, was_done: *was_done }, GateAnswer::Settled)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::FencingToken;

    use super::super::test_history::{History, change, data};
    use super::*;

    fn begin() -> GateOp {
        let key = GateKey::parse("g").unwrap();
        GateOp::Begin { key, fingerprint: "f".into(), pending_ms: 50, label: "w".into() }
    }

    fn finish(token: u64) -> GateOp {
        let key = GateKey::parse("g").unwrap();
        GateOp::Finish { key, token: FencingToken(token), result: data("r"), keep_ms: 50 }
    }

    #[test]
    fn one_at_a_time_and_then_the_result_is_right() {
        let (mut history, mut gates) = (History::default(), Gates::default());
        let session = history.open();
        let token = history.run(None, begin());
        history.run(None, begin());
        history.run(None, finish(token));
        history.run(None, begin());
        history.clock_ms += 60;
        history.each(|each| gates.change(each).unwrap());
        let token = history.run(Some(session), begin());
        history.expire(session);
        let later = history.run(None, begin());
        assert!(later > token);
        history.each(|each| gates.change(each).unwrap());
    }

    #[test]
    fn two_workers_at_once_are_refused() {
        let (mut history, mut gates) = (History::default(), Gates::default());
        history.run(None, begin());
        let (command, outcome) = history.last();
        gates.change(&change(&command, &outcome, 1)).unwrap();
        gates.change(&change(&command, &outcome, 2)).unwrap_err();
    }

    #[test]
    fn leave_is_repeated_to_its_own_request_alone() {
        let (mut history, mut gates) = (History::default(), Gates::default());
        let session = history.open();
        history.keyed(session, 7, begin());
        history.keyed(session, 7, begin());
        let (command, outcome) = history.last();
        history.each(|each| gates.change(each).unwrap());
        gates.change(&change(&command, &outcome, 9)).unwrap();
        // Another request of the same session gets leave to go ahead as well; another token.
        history.keyed(session, 8, begin());
        let (other, _) = history.last();
        gates.change(&change(&other, &outcome, 9)).unwrap_err();
        let mut spoilt = outcome;
        if let Ok(Reply::Gate(GateStanding::Proceed { token, .. })) = &mut spoilt.reply {
            token.0 += 1;
        }
        gates.change(&change(&command, &spoilt, 9)).unwrap_err();
    }

    #[test]
    fn a_worker_behind_a_result_is_refused() {
        let (mut history, mut gates) = (History::default(), Gates::default());
        let token = history.run(None, begin());
        let (begun, first) = history.last();
        history.run(None, finish(token));
        let (command, outcome) = history.last();
        gates.change(&change(&begun, &first, 1)).unwrap();
        gates.change(&change(&command, &outcome, 2)).unwrap();
        gates.change(&change(&command, &outcome, 2)).unwrap_err();
        gates.change(&change(&begun, &first, 3)).unwrap_err();
    }

    #[test]
    fn a_result_that_nobody_stored_is_refused() {
        let (mut history, mut gates) = (History::default(), Gates::default());
        let token = history.run(None, begin());
        history.run(None, finish(token));
        history.run(None, begin());
        let (command, mut outcome) = history.last();
        history.each(|each| gates.change(each).unwrap());
        gates.change(&change(&command, &outcome, 3)).unwrap();
        if let Ok(Reply::Gate(GateStanding::Done { result, .. })) = &mut outcome.reply {
            *result = data("other");
        }
        gates.change(&change(&command, &outcome, 3)).unwrap_err();
    }
}
