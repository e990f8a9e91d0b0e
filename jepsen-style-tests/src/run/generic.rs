//! Checks that every run gets, whatever its workload: the faults took effect, the cluster came back, its replicas
//! agree, and enough happened for the other checks to mean anything.

use std::collections::BTreeMap;

use crate::check::Check;
use crate::history::FaultRecord;
use crate::history::{Completion, Op};

use crate::report::OpCounts;

/// With fewer operations carried out a run says nothing.
const ENOUGH: u64 = 20;
/// An operation that was invoked so often and never answered says nothing either. (That it was never carried out may be
/// right: the cluster may have to refuse it.)
const OFTEN: u64 = 10;

/// Operations by their name and end.
pub fn counts(ops: &[Op]) -> BTreeMap<String, OpCounts> {
    let mut counts: BTreeMap<String, OpCounts> = BTreeMap::new();
    for op in ops {
        let of = counts.entry(op.what.clone()).or_default();
        match op.ended {
            Completion::Ok => of.ok += 1,
            Completion::Fail => of.fail += 1,
            Completion::Info => of.info += 1,
        }
    }
    counts
}

/// Whether there was enough of everything.
pub fn enough(counts: &BTreeMap<String, OpCounts>) -> Check {
    const NAME: &str = "enough was answered";
    let total = counts.values().fold(OpCounts::default(), |sum, of| sum.and(*of));
    if total.ok < ENOUGH {
        return Check::unknown(
            NAME,
            "",
            format!("only {} operations were carried out, {ENOUGH} are the least", total.ok),
        );
    }
    let idle: Vec<&str> = counts
        .iter()
        .filter(|(_, of)| of.ok + of.fail == 0 && of.info >= OFTEN)
        .map(|(name, _)| name.as_str())
        .collect();
    if !idle.is_empty() {
        return Check::unknown(NAME, "", format!("never answered: {}", idle.join(", ")));
    }
    Check::valid(
        NAME,
        "",
        format!("{} operations carried out, {} refused, {} unknown", total.ok, total.fail, total.info),
    )
}

/// Whether each fault took effect.
pub fn bit(faults: &[FaultRecord], asked: &[String]) -> Check {
    const NAME: &str = "every fault bit";
    if asked.is_empty() {
        return Check::valid(NAME, "", "none was asked for");
    }
    let tame: Vec<String> =
        faults.iter().filter(|fault| !fault.bit).map(|fault| format!("{} ({})", fault.nemesis, fault.what)).collect();
    let never: Vec<&str> =
        asked.iter().filter(|name| faults.iter().all(|fault| fault.nemesis != **name)).map(String::as_str).collect();
    if !never.is_empty() {
        return Check::unknown(NAME, "", format!("never put on: {}", never.join(", ")));
    }
    if !tame.is_empty() {
        return Check::unknown(NAME, "", format!("no evidence that these bit: {}", tame.join(", ")));
    }
    Check::valid(NAME, "", format!("{} faults of {} kinds, each with evidence", faults.len(), asked.len()))
}

/// The operations that show that the cluster works: acquires where there are any, else those whose answers name a point
/// in the replicated order. Operations that a client does without the cluster show nothing.
pub fn telling(ops: &[Op]) -> Vec<&Op> {
    let carried_out = || ops.iter().filter(|op| op.ended == Completion::Ok);
    let acquired: Vec<&Op> = carried_out().filter(|op| op.what == "acquire").collect();
    if !acquired.is_empty() {
        return acquired;
    }
    let ordered: Vec<&Op> = carried_out().filter(|op| op.zxid.is_some()).collect();
    if ordered.is_empty() { carried_out().collect() } else { ordered }
}

/// How long after a moment the first of these operations that began after it was carried out.
pub fn next_after_ms(telling: &[&Op], from_us: u64) -> Option<u64> {
    let ended = telling.iter().filter(|op| op.invoked_us >= from_us).filter_map(|op| op.completed_us);
    ended.min().map(|at_us| (at_us - from_us) / 1_000)
}

/// Whether clients got something done after the last fault was off.
pub fn goes_on(ops: &[Op], healed_us: u64) -> Check {
    const NAME: &str = "goes on after healing";
    match next_after_ms(&telling(ops), healed_us) {
        Some(ms) => {
            Check::valid(NAME, "P10", format!("first new operation carried out {ms} ms after the last fault was off"))
        }
        None => Check {
            at_us: Some(healed_us),
            ..Check::invalid(NAME, "P10", "no operation begun after the last fault was off was carried out", Vec::new())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use serde_json::Value;

    fn op(what: &str, ended: Completion, invoked_us: u64) -> Op {
        let (what, completed_us, input, output) = (what.into(), Some(invoked_us + 10), Value::Null, Value::Null);
        Op { client: 1, op: 1, what, invoked_us, completed_us, ended, input, output, zxid: None }
    }

    fn fault(nemesis: &str, bit: bool) -> FaultRecord {
        FaultRecord { nemesis: nemesis.into(), bit, ..FaultRecord::default() }
    }

    #[test]
    fn too_little_is_unknown() {
        let mut ops: Vec<Op> = (0..19).map(|at| op("acquire", Completion::Ok, at)).collect();
        assert_eq!(enough(&counts(&ops)).verdict, Verdict::Unknown);
        ops.push(op("acquire", Completion::Ok, 20));
        assert_eq!(enough(&counts(&ops)).verdict, Verdict::Valid);
        ops.extend((0..10).map(|at| op("release", Completion::Info, at)));
        let check = enough(&counts(&ops));
        assert_eq!(check.verdict, Verdict::Unknown);
        assert!(check.detail.contains("release"));
    }

    #[test]
    fn a_fault_that_did_not_bite_or_never_came_is_unknown() {
        let asked = ["kill-one".to_owned(), "pause-one".to_owned()];
        assert_eq!(bit(&[fault("kill-one", true), fault("pause-one", true)], &asked).verdict, Verdict::Valid);
        assert_eq!(bit(&[fault("kill-one", true), fault("pause-one", false)], &asked).verdict, Verdict::Unknown);
        assert!(bit(&[fault("kill-one", true)], &asked).detail.contains("never put on: pause-one"));
        assert_eq!(bit(&[], &[]).verdict, Verdict::Valid);
    }

    #[test]
    fn nothing_after_healing_is_a_broken_promise() {
        let ops = [op("acquire", Completion::Ok, 100), op("acquire", Completion::Info, 300)];
        assert_eq!(goes_on(&ops, 200).verdict, Verdict::Invalid);
        assert_eq!(goes_on(&ops, 100).verdict, Verdict::Valid);
    }
}
