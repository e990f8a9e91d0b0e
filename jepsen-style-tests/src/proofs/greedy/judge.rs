//! Judges what was seen while a class of greedy clients was at work.

use super::clients::Class;
use super::honest::HonestSamples;
use super::refusals::RefusalsByKey;
use crate::proofs::prelude::*;

/// Times as long as in calm that a call may take in 99 of 100 cases.
const TIMES: u32 = 3;
/// Or so much longer: a change waits for those of one batch before it, which may be a megabyte, and three nodes share a
/// disk here.
const LONGER: Duration = Duration::from_millis(50);
/// What a look of two seconds cannot tell from calm.
const RESOLUTION: Duration = Duration::from_millis(10);
/// What the allocator may keep, beside a fifth of what there was.
const ALLOCATOR_MIB: u64 = 16;

/// What the configuration states, in MiB, beyond what a node has in calm.
const REQUESTS_MIB: u64 = 64;
const REPLIES_MIB: u64 = 64;
pub(super) const STATE_MIB: u64 = 32;
/// 2,048 connections, 100,000 watches, 512 waiters at most; figured at twice what they were seen to take.
const TABLES_MIB: u64 = 64;
/// The state is there once, more of it on its way to a snapshot, and in the log's tail.
const COPIES_OF_STATE: u64 = 3;

/// How it is while nobody is greedy.
pub(super) struct CalmBaseline {
    pub(super) window: HonestSamples,
    pub(super) mib: u64,
}

impl CalmBaseline {
    pub(super) fn describe(&self) -> String {
        format!("honest {}, {} MiB", summary(&self.window), self.mib)
    }

    /// Whether what there is now is within a fifth of this.
    pub(super) fn is_back(&self, now: &Self) -> bool {
        let mib = now.mib;
        let (Some(now), Some(calm)) = (now.window.summary(), self.window.summary()) else { return false };
        let fifth_more = |calm: Duration| calm + (calm / 5).max(RESOLUTION);
        now.median <= calm.median + (calm.median / 5).max(RESOLUTION / 10)
            && now.p99 <= fifth_more(calm.p99)
            && mib <= self.mib + self.mib / 5 + ALLOCATOR_MIB
    }
}

/// What was seen while a class tried, and after.
pub(super) struct Tried {
    pub(super) class: Class,
    pub(super) window: HonestSamples,
    pub(super) before_mib: u64,
    pub(super) most_mib: u64,
    /// How often a share was met, for each that the class meets.
    pub(super) refused: RefusalsByKey,
    /// How long it took until all was as before.
    pub(super) back: Option<Duration>,
}

impl Tried {
    pub(super) fn judge(&self, calm: &CalmBaseline) -> Vec<String> {
        let name = self.class.name();
        let mut findings = Vec::new();
        if let Some(first) = self.window.failures.first() {
            findings.push(format!("{name}: {} calls of the honest failed, first {first}", self.window.failures.len()));
        }
        let calm_p99 = calm.window.p99();
        let most = (calm_p99 * TIMES).max(calm_p99 + LONGER);
        match self.window.summary() {
            Some(summary) if summary.p99 <= most => {}
            Some(summary) => findings.push(format!(
                "{name}: honest p99 {} where calm had {}, so at most {}",
                millis(summary.p99),
                millis(calm_p99),
                millis(most)
            )),
            None => findings.push(format!("{name}: the honest got nothing done")),
        }
        let stated = self.stated_mib();
        if self.most_mib > self.before_mib + stated {
            findings.push(format!("{name}: {} MiB, {} before and {stated} stated", self.most_mib, self.before_mib));
        }
        let never = self.refused.iter().filter(|(_, count)| **count == 0);
        findings
            .extend(never.map(|(key, _)| format!("{name}: its share of {key} was never met, so nothing was tried")));
        if self.back.is_none() {
            findings.push(format!("{name}: a minute after, it is not within a fifth of calm ({})", calm.describe()));
        }
        findings
    }

    fn stated_mib(&self) -> u64 {
        let own = match self.class {
            Class::StalledBodies => REQUESTS_MIB,
            Class::SilentReaders => REPLIES_MIB,
            Class::LargeNodes | Class::LargeWrites => REQUESTS_MIB + COPIES_OF_STATE * STATE_MIB,
            Class::Waiters | Class::Watches | Class::HugeSession | Class::IdleConnections => 0,
        };
        own + TABLES_MIB
    }

    pub(super) fn describe(&self) -> String {
        let refused: Vec<_> = self.refused.iter().map(|(key, count)| format!("{count} by {key}")).collect();
        format!(
            "{}: honest {}, {} calls, {} failed, {} MiB at most, {} before, refused {}, back after {}",
            self.class.name(),
            summary(&self.window),
            self.window.took.len(),
            self.window.failures.len(),
            self.most_mib,
            self.before_mib,
            refused.join(" and "),
            self.back.map_or_else(|| "more than a minute".to_owned(), |after| format!("{:.0} s", after.as_secs_f64()))
        )
    }
}

fn summary(window: &HonestSamples) -> String {
    window.summary().map_or_else(|| "nothing".to_owned(), |summary: Summary| summary.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(p99_ms: u64, failures: &[&str]) -> HonestSamples {
        HonestSamples {
            took: vec![Duration::from_millis(p99_ms); 10],
            failures: failures.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    fn calm(ms: u64) -> CalmBaseline {
        CalmBaseline { window: window(ms, &[]), mib: 50 }
    }

    fn tried(window: HonestSamples, most_mib: u64) -> Tried {
        let refused = RefusalsByKey::from([("limits.waiting_requests".to_owned(), 1)]);
        let back = Some(Duration::from_secs(1));
        Tried { class: Class::Waiters, window, before_mib: 50, most_mib, refused, back }
    }

    #[test]
    fn judges_failures_times_and_memory() {
        assert!(tried(window(60, &[]), 100).judge(&calm(10)).is_empty());
        assert_eq!(tried(window(61, &[]), 100).judge(&calm(10)).len(), 1, "too slow");
        assert!(tried(window(90, &[]), 100).judge(&calm(30)).is_empty());
        assert_eq!(tried(window(10, &["refused"]), 100).judge(&calm(10)).len(), 1);
        assert_eq!(tried(window(10, &[]), 400).judge(&calm(10)).len(), 1, "465 MB of bodies");
        assert_eq!(tried(HonestSamples::default(), 100).judge(&calm(10)).len(), 1, "nothing done is no pass");
    }

    #[test]
    fn who_met_no_share_or_left_something_behind_proves_nothing() {
        let mut nothing_tried = tried(window(10, &[]), 100);
        nothing_tried.refused.insert("limits.watches".to_owned(), 0);
        assert_eq!(nothing_tried.judge(&calm(10)).len(), 1);
        let left = Tried { back: None, ..tried(window(10, &[]), 100) };
        assert_eq!(left.judge(&calm(10)).len(), 1);
        let now = |window, mib| CalmBaseline { window, mib };
        assert!(calm(100).is_back(&now(window(120, &[]), 60)) && !calm(100).is_back(&now(window(121, &[]), 60)));
        assert!(!calm(100).is_back(&now(window(100, &[]), 50 + 10 + ALLOCATOR_MIB + 1)));
        assert!(!calm(100).is_back(&now(HonestSamples::default(), 50)), "nothing done");
    }
}
