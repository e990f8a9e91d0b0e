//! Names for values that always differ between two systems.
//!
//! A zxid is named after the step in which it first appeared (`z17`, `z17'` for a second one), a session after the
//! connection that opened it. Two transcripts with the same names in the same places agree on which values are equal.
//! Whether they agree on their order is compared at the end ([`Names::in_order`]). Each zxid must always have the same
//! time.

use std::collections::BTreeMap;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Names {
    zxids: BTreeMap<i64, String>,
    times_ms: BTreeMap<i64, i64>,
    sessions: BTreeMap<i64, String>,
    step: usize,
    named_in_step: usize,
}

impl Names {
    /// New names refer to this step from now on.
    pub(crate) fn begin(&mut self, step: usize) {
        self.step = step;
        self.named_in_step = 0;
    }

    /// The name of a zxid; zero and negative numbers have none.
    pub(crate) fn zxid(&mut self, zxid: i64) -> String {
        if zxid <= 0 {
            return zxid.to_string();
        }
        let (step, count) = (self.step, &mut self.named_in_step);
        let name = self.zxids.entry(zxid).or_insert_with(|| {
            *count += 1;
            first_of(step) + &"'".repeat(*count - 1)
        });
        name.clone()
    }

    /// Whether the time agrees with the time seen before for this zxid.
    pub(crate) fn is_time_of(&mut self, zxid: i64, time_ms: i64) -> bool {
        *self.times_ms.entry(zxid).or_insert(time_ms) == time_ms
    }

    pub(crate) fn open(&mut self, session: i64, name: &str) {
        self.sessions.entry(session).or_insert_with(|| name.to_owned());
    }

    pub(crate) fn session(&self, session: i64) -> &str {
        self.sessions.get(&session).map_or("unknown", String::as_str)
    }

    /// The names of all zxids, oldest first.
    pub(crate) fn in_order(&self) -> Vec<String> {
        self.zxids.values().cloned().collect()
    }
}

/// The name of the first zxid that appears in a step.
pub(crate) fn first_of(step: usize) -> String {
    format!("z{step}")
}

/// The step after which a zxid is named.
pub(crate) fn step_of(zxid: &str) -> Option<usize> {
    zxid.strip_prefix('z')?.trim_end_matches('\'').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zxid_is_named_once_and_ordered_by_its_number() {
        let mut names = Names::default();
        names.begin(3);
        assert_eq!((names.zxid(50), names.zxid(40), names.zxid(50)), ("z3".into(), "z3'".into(), "z3".into()));
        names.begin(4);
        assert_eq!((names.zxid(40), names.zxid(45), names.zxid(0)), ("z3'".into(), "z4".into(), "0".into()));
        assert_eq!(names.in_order(), ["z3'", "z4", "z3"]);
        assert_eq!((step_of("z3''"), step_of("z41"), step_of("0")), (Some(3), Some(41), None));
        assert!(names.is_time_of(40, 1_000) && names.is_time_of(40, 1_000) && !names.is_time_of(40, 1_001));
    }
}
