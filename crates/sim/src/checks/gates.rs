//! Gates: one caller at a time begins the operation of a key, its token rises, and once it is done every caller gets
//! its result as long as it is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_core::gate::FOREVER_MS;
use lockkeeper_core::{Actor, Command, Event, GateOp, GateStanding, Op, Reply};

use super::Checked;
use super::change::Change;

#[derive(Clone, Debug)]
enum Standing {
    Pending { token: u64, session: Option<u64>, until_ms: u64 },
    Done { token: u64, result: Arc<[u8]>, until_ms: u64 },
}

/// How each gate stands, worked out from the answers.
#[derive(Debug, Default)]
pub struct Gates {
    standing: BTreeMap<String, Standing>,
    last_token: BTreeMap<String, u64>,
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
                self.standing.retain(
                    |_, gate| !matches!(gate, Standing::Pending { session: Some(own), .. } if *own == session.0),
                );
            }
        }
        let Command::Do { actor: Actor { session, request, .. }, op } = change.command else { return Ok(()) };
        let Ok(reply) = &change.outcome.reply else { return Ok(()) };
        match (op, reply) {
            (Op::Gate(GateOp::Begin { key, .. }), Reply::Gate(answer)) if change.outcome.changed => {
                if let (Some(session), Some(request)) = (session, request) {
                    self.begun.insert((session.0, request.id.0), (key.to_string(), answer.clone()));
                }
                self.begun(key.as_str(), session.map(|session| session.0), answer, change.clock_ms)
            }
            (Op::Gate(GateOp::Begin { key, .. }), Reply::Gate(answer)) => self.queried(key.as_str(), answer, change),
            (Op::Gate(GateOp::Finish { key, token, result, keep_ms }), Reply::GateSettled)
                if change.outcome.changed =>
            {
                self.settle(key.as_str(), token.0, change.clock_ms)?;
                self.finished(key.as_str(), token.0, result, change.clock_ms + keep_ms)
            }
            (Op::Gate(GateOp::FinishForever { key, token, result }), Reply::GateSettled) if change.outcome.changed => {
                self.settle(key.as_str(), token.0, change.clock_ms)?;
                self.finished(key.as_str(), token.0, result, FOREVER_MS)
            }
            (Op::Gate(GateOp::Reset { key, token }), Reply::GateReset { token: of, was_done }) => {
                self.reset(key.as_str(), token.map(|token| token.0), of.0, *was_done, change.clock_ms)
            }
            (Op::Gate(GateOp::Fail { key, token }), Reply::GateSettled) if change.outcome.changed => {
                self.settle(key.as_str(), token.0, change.clock_ms)
            }
            _ => Ok(()),
        }
    }

    fn finished(&mut self, key: &str, token: u64, result: &Arc<[u8]>, until_ms: u64) -> Checked {
        self.standing.insert(key.to_owned(), Standing::Done { token, result: result.clone(), until_ms });
        Ok(())
    }

    /// Somebody opened the gate by force: what it stood for had the token that they named, if any.
    fn reset(&mut self, key: &str, wanted: Option<u64>, of: u64, was_done: bool, clock_ms: u64) -> Checked {
        let good = match self.now(key, clock_ms) {
            Some(Standing::Pending { token, .. }) => !was_done && *token == of,
            Some(Standing::Done { token, .. }) => was_done && *token == of,
            None => false,
        };
        if !good || wanted.is_some_and(|wanted| wanted != of) {
            let stood = self.standing.get(key);
            return Err(format!(
                "gate {key} was reset with token {of} ({wanted:?} was asked for), and stood {stood:?}"
            ));
        }
        self.standing.remove(key);
        Ok(())
    }

    fn now(&self, key: &str, clock_ms: u64) -> Option<&Standing> {
        self.standing.get(key).filter(|standing| match standing {
            Standing::Pending { until_ms, .. } | Standing::Done { until_ms, .. } => *until_ms > clock_ms,
        })
    }

    fn begun(&mut self, key: &str, session: Option<u64>, answer: &GateStanding, clock_ms: u64) -> Checked {
        let GateStanding::Proceed { token, until_ms } = answer else {
            return Err(format!("gate {key} was changed by one who got {answer:?}"));
        };
        if let Some(other) = self.now(key, clock_ms) {
            return Err(format!(
                "gate {key} let in a worker with token {token} at {clock_ms} ms, and stands {other:?}"
            ));
        }
        let last = self.last_token.insert(key.to_owned(), token.0).unwrap_or(0);
        if token.0 <= last {
            return Err(format!("gate {key} gave token {token} after {last}"));
        }
        let pending = Standing::Pending { token: token.0, session, until_ms: *until_ms };
        self.standing.insert(key.to_owned(), pending);
        Ok(())
    }

    /// Somebody asked and changed nothing: the answer is how it stands, or what they got before.
    fn queried(&self, key: &str, answer: &GateStanding, change: &Change<'_>) -> Checked {
        let good = match (answer, self.now(key, change.clock_ms)) {
            (GateStanding::Proceed { .. }, _) => self.is_retry(key, answer, change.command),
            (GateStanding::InProgress { token, .. }, Some(Standing::Pending { token: own, .. })) => token.0 == *own,
            (GateStanding::Done { token, result, .. }, Some(Standing::Done { token: own, result: kept, .. })) => {
                token.0 == *own && result == kept
            }
            _ => false,
        };
        if good {
            return Ok(());
        }
        Err(format!("gate {key} said {answer:?} at {} ms, and stands {:?}", change.clock_ms, self.standing.get(key)))
    }

    /// Whether a worker asks for the leave that it was given, under the same request.
    fn is_retry(&self, key: &str, answer: &GateStanding, command: &Command) -> bool {
        let Command::Do { actor: Actor { session: Some(session), request: Some(request), .. }, .. } = command else {
            return false;
        };
        let begun = self.begun.get(&(session.0, request.id.0));
        begun.is_some_and(|(of, given)| of == key && given == answer)
    }

    fn settle(&mut self, key: &str, token: u64, clock_ms: u64) -> Checked {
        match self.now(key, clock_ms) {
            Some(Standing::Pending { token: own, .. }) if *own == token => {
                self.standing.remove(key);
                Ok(())
            }
            other => Err(format!("gate {key} was settled with token {token} at {clock_ms} ms, and stood {other:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{FencingToken, GateKey};

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
