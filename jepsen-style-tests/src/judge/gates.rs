//! Judges an idempotency gate by the answers that its callers got.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Record, Standing, WorkerEvent};

/// The answers that the callers of one operation got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateTally {
    /// Were told to do it.
    pub proceeded: usize,
    /// Ran its body.
    pub bodies: usize,
    /// Were given the stored result.
    pub done: usize,
    /// Were told that another does it.
    pub in_progress: usize,
}

/// Judges one operation that `callers` began at once, without a fault: it ran once, and every other caller was told so.
pub fn once(key: &str, told: &[Record], callers: usize, result: impl Fn(u64) -> String) -> Result<GateTally, String> {
    let mut tally = GateTally::default();
    let mut tokens = BTreeSet::new();
    let mut finished = BTreeMap::new();
    let mut results = BTreeSet::new();
    for record in told {
        match &record.what {
            WorkerEvent::Gate { key: of, standing } if of == key => match standing {
                Standing::Proceed { token, .. } => {
                    tally.proceeded += 1;
                    tokens.insert(*token);
                }
                Standing::InProgress { token } => {
                    tally.in_progress += 1;
                    tokens.insert(*token);
                }
                Standing::Done { token, result } => {
                    tally.done += 1;
                    tokens.insert(*token);
                    results.insert((record.at_us, *token, result.clone()));
                }
            },
            WorkerEvent::Body { key: of, .. } if of == key => tally.bodies += 1,
            WorkerEvent::Finished { key: of, token } if of == key => drop(finished.insert(*token, record.at_us)),
            WorkerEvent::Failed { doing, why } => return Err(format!("{key}: {doing} failed: {why}")),
            _ => {}
        }
    }
    let all = tally.proceeded + tally.in_progress + tally.done;
    if tally.proceeded != 1 || tally.bodies != 1 {
        return Err(format!(
            "{key}: {} callers were told to proceed and the body ran {} times",
            tally.proceeded, tally.bodies
        ));
    }
    if all != callers {
        return Err(format!("{key}: {all} of {callers} callers were told how it stands"));
    }
    if tokens.len() != 1 {
        return Err(format!("{key}: callers were told of different runs: {tokens:?}"));
    }
    if finished.len() != 1 {
        return Err(format!("{key}: finished {} times", finished.len()));
    }
    if let Some((_, token, other)) = results.iter().find(|(_, token, text)| *text != result(*token)) {
        return Err(format!("{key}: under token {token} somebody was given the result {other:?}"));
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(what: &[WorkerEvent]) -> Vec<Record> {
        what.iter().zip(1..).map(|(what, at_us)| Record { at_us, client: 0, what: what.clone() }).collect()
    }

    fn gate(standing: Standing) -> WorkerEvent {
        WorkerEvent::Gate { key: "k".into(), standing }
    }

    fn judged(what: &[WorkerEvent], callers: usize) -> Result<GateTally, String> {
        once("k", &told(what), callers, |token| format!("r{token}"))
    }

    #[test]
    fn one_run_is_fine_and_everything_else_is_not() {
        let proceed = gate(Standing::Proceed { token: 4, until_ms: 0 });
        let (body, finished) =
            (WorkerEvent::Body { key: "k".into(), token: 4 }, WorkerEvent::Finished { key: "k".into(), token: 4 });
        let busy = gate(Standing::InProgress { token: 4 });
        let done = gate(Standing::Done { token: 4, result: "r4".into() });
        let good = [proceed.clone(), body.clone(), busy.clone(), finished.clone(), done.clone()];
        assert_eq!(judged(&good, 3), Ok(GateTally { proceeded: 1, bodies: 1, done: 1, in_progress: 1 }));
        assert!(judged(&good, 4).unwrap_err().contains("3 of 4"));
        let twice = [proceed.clone(), body.clone(), proceed.clone(), body.clone(), finished.clone()];
        assert!(judged(&twice, 2).unwrap_err().contains("2 callers"));
        assert!(
            judged(&[proceed.clone(), body.clone(), body.clone(), finished.clone()], 1).unwrap_err().contains("ran 2")
        );
        assert!(judged(std::slice::from_ref(&busy), 1).unwrap_err().contains("ran 0"));
        let other = gate(Standing::Done { token: 5, result: "r5".into() });
        assert!(
            judged(&[proceed.clone(), body.clone(), finished.clone(), other], 2).unwrap_err().contains("different")
        );
        let wrong = gate(Standing::Done { token: 4, result: "x".into() });
        assert!(judged(&[proceed.clone(), body.clone(), finished, wrong], 2).unwrap_err().contains("result"));
        assert!(judged(&[proceed, body, done], 2).unwrap_err().contains("finished 0"));
        let failed = WorkerEvent::Failed { doing: "begin".into(), why: "x".into() };
        assert!(judged(&[failed], 1).unwrap_err().contains("failed"));
    }
}
