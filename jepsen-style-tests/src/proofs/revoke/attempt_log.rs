//! When what was attempted, by which way, and whether it succeeded.

use std::fmt;

use crate::proofs::prelude::*;

/// One attempt.
#[derive(Clone, Debug)]
struct TimedAttempt {
    way: &'static str,
    node: u64,
    begun: Instant,
    outcome: Result<(), String>,
}

/// All of them.
#[derive(Clone, Default)]
pub(super) struct AttemptLog(Arc<Mutex<Vec<TimedAttempt>>>);

/// How long after its revocation the latest success of each way was begun; none where none was begun after it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Latest(BTreeMap<&'static str, Option<Duration>>);

impl Latest {
    /// Adds another round.
    pub(super) fn merge(&mut self, other: Self) {
        for (way, after) in other.0 {
            let known = self.0.entry(way).or_default();
            *known = (*known).max(after);
        }
    }
}

impl fmt::Display for Latest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |after: &Option<Duration>| after.map_or_else(|| "none".into(), millis);
        let all: Vec<String> = self.0.iter().map(|(way, after)| format!("{way} {}", told(after))).collect();
        f.write_str(&all.join(", "))
    }
}

impl AttemptLog {
    fn all(&self) -> Vec<TimedAttempt> {
        self.0.lock().clone()
    }

    /// Makes an attempt and notes it. Gives what it gave, where it succeeded.
    pub(super) async fn attempt<T>(
        &self,
        way: &'static str,
        node: u64,
        attempt: impl Future<Output = Result<T, String>>,
    ) -> Option<T> {
        let begun = Instant::now();
        let (value, outcome) = match attempt.await {
            Ok(value) => (Some(value), Ok(())),
            Err(why) => (None, Err(why)),
        };
        let mut all = self.0.lock();
        all.push(TimedAttempt { way, node, begun, outcome });
        value
    }

    /// Judges all ways. `ended` tells when the right to one was taken away; nothing that was begun later than `within`
    /// after that may have succeeded. Each way must have succeeded before at each node, and have been tried afterwards.
    pub(super) fn judge(&self, ended: impl Fn(&str) -> Instant, within: Duration) -> Result<Latest, Failed> {
        let all = self.all();
        let mut by_way: BTreeMap<(&'static str, u64), Vec<&TimedAttempt>> = BTreeMap::new();
        for attempt in &all {
            by_way.entry((attempt.way, attempt.node)).or_default().push(attempt);
        }
        if by_way.is_empty() {
            return broken("nothing was attempted");
        }
        let mut latest = Latest::default();
        for ((way, node), attempts) in by_way {
            let ended = ended(way);
            let succeeded = || attempts.iter().filter(|attempt| attempt.outcome.is_ok());
            let late = succeeded().filter(|attempt| attempt.begun > ended + within).count();
            let after = succeeded().filter_map(|attempt| attempt.begun.checked_duration_since(ended)).max();
            if late > 0 {
                let after = millis(after.unwrap_or_default());
                return broken(format!(
                    "{late} attempts by way of {way} at node {node} succeeded that were begun later than {} after the \
                     right to them was taken away, the latest after {after}",
                    millis(within)
                ));
            }
            let before = succeeded().filter(|attempt| attempt.begun < ended).count();
            let tried = attempts.iter().filter(|attempt| attempt.begun > ended + within).count();
            if before == 0 || tried == 0 {
                let why = attempts.iter().find_map(|attempt| attempt.outcome.as_ref().err());
                return broken(format!(
                    "too little was tried by way of {way} at node {node}: {before} successes before, {tried} attempts \
                     after (a failure: {why:?})"
                ));
            }
            let known = latest.0.entry(way).or_default();
            *known = (*known).max(after);
        }
        Ok(latest)
    }

    /// For somebody whose rights nobody touched: how many attempts succeeded, and why others did not.
    pub(super) fn of_somebody_undisturbed(&self) -> (usize, Vec<String>) {
        let all = self.all();
        let failures = all.iter().filter_map(|attempt| {
            let why = attempt.outcome.as_ref().err()?;
            Some(format!("{} at node {}: {why}", attempt.way, attempt.node))
        });
        let failures: Vec<String> = failures.collect();
        (all.len() - failures.len(), failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn log(attempts: &[(f64, bool)], start: Instant) -> AttemptLog {
        let log = AttemptLog::default();
        for (at, succeeds) in attempts {
            let outcome = if *succeeds { Ok(()) } else { Err("unauthenticated".to_owned()) };
            let begun = start + Duration::from_secs_f64(*at);
            log.0.lock().push(TimedAttempt { way: "http", node: 1, begun, outcome });
        }
        log
    }

    #[test]
    fn a_late_success_breaks_the_promise_and_so_does_too_little() {
        let start = Instant::now();
        let judge = |attempts: &[(f64, bool)]| log(attempts, start).judge(|_| start + 5 * SECOND, SECOND);
        let latest = judge(&[(1.0, true), (5.25, true), (5.5, false), (7.0, false)]).unwrap();
        assert_eq!(latest.to_string(), "http 250.0 ms");
        assert_eq!(judge(&[(1.0, true), (7.0, false)]).unwrap().to_string(), "http none");
        let refused = |attempts: &[(f64, bool)]| judge(attempts).unwrap_err().to_string();
        assert!(refused(&[(1.0, true), (6.5, true)]).contains("succeeded"));
        assert!(refused(&[(1.0, true), (5.5, false)]).contains("too little"));
        assert!(refused(&[(1.0, false), (7.0, false)]).contains("unauthenticated"));
        assert!(refused(&[]).contains("nothing"));
    }

    #[test]
    fn rounds_are_merged_by_the_latest() {
        let start = Instant::now();
        let of = |after| log(&[(0.0, true), (5.0 + after, true), (7.0, false)], start);
        let judge = |log: AttemptLog| log.judge(|_| start + 5 * SECOND, SECOND).unwrap();
        let mut latest = judge(of(0.125));
        latest.merge(judge(of(0.5)));
        latest.merge(judge(log(&[(0.0, true), (7.0, false)], start)));
        assert_eq!(latest.to_string(), "http 500.0 ms");
        let disturbed = log(&[(0.0, true), (1.0, false)], start).of_somebody_undisturbed();
        assert_eq!((disturbed.0, disturbed.1.len()), (1, 1));
    }
}
