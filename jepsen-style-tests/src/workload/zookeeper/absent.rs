//! Checks that a node which a client did not find after it lost its connection during a create does not come later.
//!
//! The library has re-attached the session by then, which is a point in the order: a request sent over the lost
//! connection comes before it or has no effect. So a client that looks afterwards may believe what it sees.

use crate::workload::prelude::*;

/// Told: [`Absent`].
pub(super) const ABSENT: &str = "absent";

/// A request whose create was not answered is not in its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Absent {
    /// What its path would begin with.
    pub(super) prefix: String,
}

/// None where nobody looked.
pub(super) fn check(run: &Recorded) -> Option<Check> {
    const NAME: &str = "what was lost with a connection does not come later";
    const PROMISES: &str = "P2 P9";
    let mut looked = 0;
    for event in run.history.notes().filter(|event| event.what == ABSENT) {
        let Ok(Absent { prefix }) = event.told() else {
            return Some(Check::unknown(NAME, PROMISES, "what was told cannot be read"));
        };
        let came = run.log.iter().find(|logged| logged.created && logged.path.starts_with(&prefix));
        if let Some(came) = came {
            let detail = format!("client {} was told that its request is not there, and it is", event.client);
            let lines = vec![
                format!("{} us: nothing there that begins with {prefix}, at zxid {:?}", event.at_us, event.zxid),
                format!("{} was created at zxid {}", came.path, came.zxid),
            ];
            return Some(Check { at_us: Some(event.at_us), ..Check::invalid(NAME, PROMISES, detail, lines) });
        }
        looked += 1;
    }
    (looked > 0).then(|| Check::valid(NAME, PROMISES, format!("{looked} requests not found and never created")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::workload::fixture::{Bench, told};

    #[test]
    fn what_comes_after_it_was_not_there_is_found() {
        let judged = |prefixes: &[&str]| {
            let mut bench = Bench::default();
            for prefix in prefixes {
                bench.event(told(5, ABSENT, json!({ "prefix": prefix }), Some(9)));
            }
            bench.log(12, true, "/locks/l/_c_7-lock-0000000003");
            check(&bench.recorded()).map(|check| check.verdict)
        };
        assert_eq!(judged(&[]), None);
        assert_eq!(judged(&["/locks/l/_c_8-lock-"]), Some(Verdict::Valid));
        assert_eq!(judged(&["/locks/l/_c_8-lock-", "/locks/l/_c_7-lock-"]), Some(Verdict::Invalid));
    }
}
