//! Compares the events of watches with the events due: the log's creations and deletions, the changes that clients were
//! told they had made, and the events of the other watches.

use std::ops::Bound::{Excluded, Included};

use lockkeeper_checkers::lives;

use super::{
    BEGUN, BOOKMARK, Begins, CHANGE, COMPACTED, ENDED, Ends, Marks, NodeChange, RESUMED, ROOT, Resumes, SEEN, Sees,
    WatchedChange,
};
use crate::history::DataSet;
use crate::history::Event;
use crate::workload::prelude::*;

/// One watch and those that took it up.
#[derive(Debug)]
struct WatchRecord {
    client: u32,
    path: String,
    from: u64,
    /// What it gave, with when it was told.
    seen: Vec<(u64, NodeChange, u64)>,
    /// Up to here it has given all it has to give.
    upto: u64,
    resumed: usize,
    compacted: bool,
    /// How far it was to come, if it did not, and when that was told.
    missed: Option<(u64, u64)>,
    /// Whether it came as far as it was to.
    arrived: bool,
}

impl WatchRecord {
    fn name(&self) -> String {
        format!("client {}'s watch of {} from zxid {}", self.client, self.path, self.from)
    }

    fn takes(&mut self, event: &Event) -> Result<(), Wrong> {
        let zxid = event.zxid.unwrap_or_default();
        let last = self.seen.last().map_or(self.from, |(zxid, ..)| *zxid).max(self.upto);
        match event.what.as_str() {
            SEEN => {
                let Sees { effect, .. } = read(event)?;
                if zxid < last || zxid <= self.upto {
                    return Err(self.broken(event, format!("gave zxid {zxid} when it had come to {last}")));
                }
                if !self.is_of(&effect.path) {
                    return Err(self.broken(event, format!("gave what it does not watch: {effect:?}")));
                }
                if self.seen.iter().rev().take_while(|(at, ..)| *at == zxid).any(|(_, other, _)| *other == effect) {
                    return Err(self.broken(event, format!("gave {effect:?} at zxid {zxid} twice")));
                }
                // A transaction is whole when the next begins; the last may be told in part.
                self.upto = self.upto.max(zxid - 1);
                self.seen.push((zxid, effect, event.at_us));
            }
            BOOKMARK => {
                if zxid < last {
                    return Err(self.broken(event, format!("said that it had come to {zxid} when it had given {last}")));
                }
                self.upto = self.upto.max(zxid);
            }
            RESUMED => {
                let Resumes { from, .. } = read(event)?;
                if from > last {
                    return Err(self.broken(event, format!("said it could be taken up at {from}, having given {last}")));
                }
                // What had been given of a transaction that was not whole comes again.
                self.seen.retain(|(zxid, ..)| *zxid <= from);
                self.upto = self.upto.max(from);
                self.resumed += 1;
            }
            COMPACTED => self.compacted = true,
            ENDED => {
                let Ends { caught_up, goal, .. } = read(event)?;
                self.arrived |= caught_up;
                self.missed = (!caught_up).then_some((goal, event.at_us));
            }
            _ => {}
        }
        Ok(())
    }

    fn broken(&self, event: &Event, what: String) -> Wrong {
        let from = self.seen.len().saturating_sub(4);
        let mut lines: Vec<String> = self.seen[from..]
            .iter()
            .map(|(zxid, effect, at_us)| format!("gave {effect:?} at zxid {zxid} ({at_us} us)"))
            .collect();
        lines.push(format!("then told {} {} at zxid {:?}", event.what, event.value, event.zxid));
        Wrong::Broken { at_us: event.at_us, detail: format!("{} {what}", self.name()), lines }
    }

    /// Whether that is what is watched, or below it.
    fn is_of(&self, path: &str) -> bool {
        path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn covers(&self, zxid: u64, path: &str) -> bool {
        self.is_of(path) && zxid > self.from && zxid <= self.upto
    }
}

enum Wrong {
    Unreadable(String),
    Broken { at_us: u64, detail: String, lines: Vec<String> },
}

fn read<T: serde::de::DeserializeOwned>(event: &Event) -> Result<T, Wrong> {
    event.told().map_err(|error| Wrong::Unreadable(format!("{}: {error}", event.what)))
}

pub(super) fn all(run: &Recorded) -> Vec<Check> {
    const ORDER: &str = "watches are ordered and give nothing twice";
    let watches = match gather(run) {
        Ok(watches) => watches,
        Err(Wrong::Unreadable(why)) => return vec![Check::unknown(ORDER, "P8", why)],
        Err(Wrong::Broken { at_us, detail, lines }) => {
            return vec![Check { at_us: Some(at_us), ..Check::invalid(ORDER, "P8", detail, lines) }];
        }
    };
    let seen: usize = watches.iter().map(|watch| watch.seen.len()).sum();
    let resumed: usize = watches.iter().map(|watch| watch.resumed).sum();
    let compacted = watches.iter().filter(|watch| watch.compacted).count();
    let figures = format!(
        "{} watches gave {seen} changes, were taken up {resumed} times and said `compacted` {compacted} times",
        watches.len()
    );
    let ordered = match seen {
        0 => Check::unknown(ORDER, "P8", figures),
        _ => Check::valid(ORDER, "P8", figures),
    };
    vec![ordered, complete(run, &watches), caught_up(&watches)]
}

fn gather(run: &Recorded) -> Result<Vec<WatchRecord>, Wrong> {
    let mut watches: Vec<WatchRecord> = Vec::new();
    let mut places: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for event in run.history.notes() {
        if event.what == BEGUN {
            let Begins { watch, path, from } = read(event)?;
            places.insert((event.client, watch), watches.len());
            watches.push(WatchRecord {
                client: event.client,
                path,
                from,
                seen: Vec::new(),
                upto: from,
                resumed: 0,
                compacted: false,
                missed: None,
                arrived: false,
            });
        } else if [SEEN, BOOKMARK, RESUMED, COMPACTED, ENDED].contains(&event.what.as_str()) {
            let Marks { watch } = read(event)?;
            if let Some(given) = places.get(&(event.client, watch)).and_then(|at| watches.get_mut(*at)) {
                given.takes(event)?;
            }
        }
    }
    Ok(watches)
}

/// All changes that are known of, by zxid, and how.
fn known(run: &Recorded, watches: &[WatchRecord]) -> Result<BTreeMap<u64, BTreeMap<NodeChange, String>>, String> {
    let mut known: BTreeMap<u64, BTreeMap<NodeChange, String>> = BTreeMap::new();
    let mut add = |zxid: u64, effect: NodeChange, how: String| {
        if effect.path.starts_with(ROOT) {
            known.entry(zxid).or_default().entry(effect).or_insert(how);
        }
    };
    for event in &run.log {
        let kind = if event.created { WatchedChange::Created } else { WatchedChange::Deleted };
        add(event.zxid, NodeChange { kind, path: event.path.clone() }, "the log has it".into());
    }
    for set in &run.data {
        add(set.zxid, NodeChange { kind: WatchedChange::DataChanged, path: set.path.clone() }, "the log has it".into());
    }
    for op in run.history.ops().iter().filter(|op| op.what == CHANGE && op.ended == Completion::Ok) {
        let effects: Vec<NodeChange> = op.asked().map_err(|error| error.to_string())?;
        let zxid = op.zxid.ok_or("a change was acknowledged without its zxid")?;
        for effect in effects {
            add(zxid, effect, format!("client {} was told that it had done it (op {})", op.client, op.op));
        }
    }
    for watch in watches {
        for (zxid, effect, _) in &watch.seen {
            add(*zxid, effect.clone(), format!("{} gave it", watch.name()));
        }
    }
    Ok(known)
}

/// Each watch gave all that is known of its part.
fn complete(run: &Recorded, watches: &[WatchRecord]) -> Check {
    const NAME: &str = "watches miss nothing and make nothing up";
    let known = match known(run, watches) {
        Ok(known) => known,
        Err(why) => return Check::unknown(NAME, "P8", why),
    };
    let mut compared = 0;
    for watch in watches {
        let given: BTreeSet<(u64, &NodeChange)> = watch.seen.iter().map(|(zxid, effect, _)| (*zxid, effect)).collect();
        for (zxid, effects) in known.range((Excluded(watch.from), Included(watch.upto.max(watch.from)))) {
            for (effect, how) in effects.iter().filter(|(effect, _)| watch.covers(*zxid, &effect.path)) {
                if !given.contains(&(*zxid, effect)) {
                    let lines = vec![
                        format!("{effect:?} at zxid {zxid}: {how}"),
                        format!("the watch had come to zxid {} and gave {} changes", watch.upto, watch.seen.len()),
                    ];
                    let check = Check::invalid(NAME, "P8", format!("{} never gave a change", watch.name()), lines);
                    return Check { at_us: run.seen_us.get(zxid).copied(), ..check };
                }
                compared += 1;
            }
        }
    }
    if let Some(check) = made_up(run, watches, NAME) {
        return check;
    }
    match compared {
        0 => Check::unknown(NAME, "P8", "no watch had anything to give"),
        _ => Check::valid(NAME, "P8", format!("{compared} changes that had to be given were given")),
    }
}

/// What the log has not.
fn made_up(run: &Recorded, watches: &[WatchRecord], name: &str) -> Option<Check> {
    let (first, last) = (run.log.first()?.zxid, run.log.last()?.zxid);
    for watch in watches {
        for (zxid, effect, at_us) in &watch.seen {
            let (zxid, path) = (*zxid, effect.path.clone());
            let is_logged = match effect.kind {
                WatchedChange::Created => run.log.contains(&lives::NodeEvent { zxid, created: true, path }),
                WatchedChange::Deleted => run.log.contains(&lives::NodeEvent { zxid, created: false, path }),
                WatchedChange::DataChanged => run.data.contains(&DataSet { zxid, path }),
                WatchedChange::ChildrenChanged => continue,
            };
            if zxid >= first && zxid <= last && !is_logged {
                let lines = vec![format!("{effect:?} at zxid {zxid} is not in the log")];
                let check = Check::invalid(name, "P8", format!("{} made something up", watch.name()), lines);
                return Some(Check { at_us: Some(*at_us), ..check });
            }
        }
    }
    None
}

/// Once all is healed, every watch comes to the end of the log.
fn caught_up(watches: &[WatchRecord]) -> Check {
    const NAME: &str = "watches come to the end of the log";
    if let Some((watch, (goal, at_us))) = watches.iter().find_map(|watch| Some((watch, watch.missed?))) {
        let lines = vec![format!("a read said that the log had come to {goal}; the watch had come to {}", watch.upto)];
        let check = Check::invalid(NAME, "P8 P10", format!("{} did not catch up in time", watch.name()), lines);
        return Check { at_us: Some(at_us), ..check };
    }
    match watches.iter().filter(|watch| watch.arrived).count() {
        0 => Check::unknown(NAME, "P8 P10", "no watch was followed to the end of the log"),
        arrived => Check::valid(NAME, "P8 P10", format!("{arrived} watches followed to it")),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_checkers::lives::NodeEvent;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Verdict;
    use crate::history::{EventKind, History};

    const TOLD: [(&str, &str, u64); 4] = [
        ("created", "/watched/p0/a", 11),
        ("created", "/watched/p1/b", 12),
        ("data_changed", "/watched/p0/a", 13),
        ("deleted", "/watched/p1/b", 13),
    ];

    fn told(what: &str, value: Value, zxid: Option<u64>) -> Event {
        Event { at_us: 0, client: 1, op: 0, kind: EventKind::Note, what: what.into(), value, zxid }
    }

    fn seen(watch: u32, (kind, path, zxid): (&str, &str, u64)) -> Event {
        told(SEEN, json!({ "watch": watch, "kind": kind, "path": path }), Some(zxid))
    }

    fn begun(watch: u32, path: &str, from: u64) -> Event {
        told(BEGUN, json!({ "watch": watch, "path": path, "from": from }), None)
    }

    fn mark(watch: u32, zxid: u64) -> Event {
        told(BOOKMARK, json!({ "watch": watch }), Some(zxid))
    }

    fn resumed(watch: u32, from: u64) -> Event {
        told(RESUMED, json!({ "watch": watch, "from": from }), None)
    }

    /// The log has what `TOLD` has; one watch has given all of it, and was followed to the end.
    fn judged(mut more: Vec<Event>) -> Vec<Verdict> {
        let mut events = vec![begun(1, ROOT, 10)];
        events.extend(TOLD.map(|told| seen(1, told)));
        events.push(mark(1, 20));
        events.push(told(ENDED, json!({ "watch": 1, "caught_up": true, "goal": 20 }), None));
        events.append(&mut more);
        let mut run = Recorded::default();
        for (at_us, event) in (1..).zip(&mut events) {
            event.at_us = at_us;
        }
        run.history = History::new(events);
        for (kind, path, zxid) in TOLD {
            if kind == "data_changed" {
                run.data.insert(DataSet { zxid, path: path.into() });
            } else {
                run.log.insert(NodeEvent { zxid, created: kind == "created", path: path.into() });
            }
        }
        let checks = all(&run);
        for check in checks.iter().filter(|check| check.verdict == Verdict::Invalid) {
            assert!(
                check.at_us.is_some() || run.seen_us.is_empty() && check.name.contains("miss nothing"),
                "{check:?}"
            );
        }
        checks.iter().map(|check| check.verdict).collect()
    }

    const GOOD: [Verdict; 3] = [Verdict::Valid; 3];
    const MISSES: [Verdict; 3] = [Verdict::Valid, Verdict::Invalid, Verdict::Valid];
    const DISORDER: [Verdict; 1] = [Verdict::Invalid];

    #[test]
    fn whole_watches_pass() {
        assert_eq!(judged(vec![]), GOOD);
        let part = vec![begun(2, "/watched/p1", 11), seen(2, TOLD[1]), seen(2, TOLD[3]), mark(2, 15)];
        assert_eq!(judged(part), GOOD, "a part from the middle on");
        let broken_off = vec![begun(2, ROOT, 12), seen(2, TOLD[2])];
        assert_eq!(judged(broken_off), GOOD, "a transaction that was given in part at the very end");
        let taken_up =
            vec![begun(2, ROOT, 12), seen(2, TOLD[2]), resumed(2, 12), seen(2, TOLD[2]), seen(2, TOLD[3]), mark(2, 13)];
        assert_eq!(judged(taken_up), GOOD, "the whole transaction again");
    }

    #[test]
    fn gaps_are_caught_wherever_they_are() {
        assert_eq!(
            judged(vec![begun(2, ROOT, 10), seen(2, TOLD[0]), seen(2, TOLD[2]), seen(2, TOLD[3]), mark(2, 20)]),
            MISSES
        );
        assert_eq!(judged(vec![begun(2, ROOT, 12), seen(2, TOLD[2]), mark(2, 13)]), MISSES, "half a transaction");
        assert_eq!(judged(vec![begun(2, ROOT, 12), mark(2, 13)]), MISSES, "a bookmark over a gap");
        assert_eq!(
            judged(vec![begun(2, ROOT, 10), seen(2, TOLD[0]), resumed(2, 11), mark(2, 12)]),
            MISSES,
            "lost at the seam"
        );
    }

    #[test]
    fn disorder_repetition_and_invention_are_caught() {
        assert_eq!(judged(vec![begun(2, ROOT, 10), seen(2, TOLD[1]), seen(2, TOLD[0])]), DISORDER);
        assert_eq!(judged(vec![begun(2, ROOT, 10), seen(2, TOLD[0]), seen(2, TOLD[0])]), DISORDER);
        assert_eq!(judged(vec![begun(2, ROOT, 10), mark(2, 12), seen(2, TOLD[1])]), DISORDER, "behind its bookmark");
        let ghost = ("created", "/watched/p0/ghost", 12);
        let invented = judged(vec![begun(2, "/watched/p0", 11), seen(2, ghost), seen(2, TOLD[2]), mark(2, 13)]);
        assert_eq!(invented[1], Verdict::Invalid);
        let invented =
            judged(vec![begun(2, ROOT, 11), seen(2, TOLD[1]), seen(2, ("data_changed", "/watched/p1/b", 12))]);
        assert_eq!(invented[1], Verdict::Invalid);
        assert_eq!(judged(vec![begun(2, "/watched/p0", 10), seen(2, TOLD[1])]), DISORDER, "not what is watched");
    }

    #[test]
    fn a_watch_that_stays_behind_is_caught_and_silence_is_no_pass() {
        let behind = told(ENDED, json!({ "watch": 2, "caught_up": false, "goal": 20 }), None);
        let verdicts = judged(vec![begun(2, ROOT, 12), behind]);
        assert_eq!(verdicts[2], Verdict::Invalid);
        assert!(all(&Recorded::default()).iter().all(|check| check.verdict == Verdict::Unknown));
    }
}
