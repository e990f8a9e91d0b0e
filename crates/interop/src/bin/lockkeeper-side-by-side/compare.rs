//! Compares the two systems' transcripts.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_zookeeper::OpCode;

use crate::known::{self, EVENT_ZXID, KNOWN, KnownDifference};
use crate::names;
use crate::run::{Account, Outcome};
use crate::script::{Script, Shown, Step};

/// Fewest operations of a complete comparison.
const LEAST_OPERATIONS: usize = 300;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    steps: usize,
    alike: usize,
    known: BTreeMap<&'static str, usize>,
    /// Descriptions of the failures.
    failures: Vec<String>,
    /// Each step with its results.
    all: Vec<String>,
    asked: BTreeMap<String, usize>,
    zxids: usize,
    events: usize,
}

impl Comparison {
    /// `whole`: the whole script was run, so every known difference must have occurred.
    pub(crate) fn of(script: &Script, zookeeper: &Account, lockkeeper: &Account, whole: bool) -> Self {
        let mut comparison = Self { steps: script.steps.len(), asked: zookeeper.asked.clone(), ..Self::default() };
        for (index, step) in script.steps.iter().enumerate() {
            let outcomes = (&zookeeper.outcomes[index], &lockkeeper.outcomes[index]);
            comparison.step(step, outcomes, &lockkeeper.zxids_in_order);
        }
        comparison.order(&zookeeper.zxids_in_order, &lockkeeper.zxids_in_order);
        if whole {
            comparison.completeness();
        }
        comparison
    }

    /// `zxids` are the names of Lockkeeper's, oldest first.
    fn step(&mut self, step: &Step, (zookeeper, lockkeeper): (&Outcome, &Outcome), zxids: &[String]) {
        self.event_zxids(step, zookeeper, lockkeeper);
        let differing = differing(&zookeeper.lines, &lockkeeper.lines);
        let both = told(step, &zookeeper.lines, &lockkeeper.lines);
        let verdict = match (differing.is_empty(), &step.known) {
            (true, None) => {
                self.alike += 1;
                Ok("")
            }
            (true, Some(Shown { key, .. })) => Err(format!("no difference, though `{key}` says there is one")),
            (false, None) => Err("a difference that nothing explains".into()),
            (false, Some(shown @ Shown { key, .. })) => match known::find(key) {
                None => Err(format!("there is no `{key}` in the table of known differences")),
                Some(_) if !shown.is_told(&lockkeeper.lines, step.number, newest_before(step.number, zxids)) => {
                    Err("not what Lockkeeper is to tell, which is said behind `=>`".into())
                }
                Some(known) if explains(known, &differing) => {
                    *self.known.entry(known.key).or_default() += 1;
                    Ok(known.reason)
                }
                Some(_) => Err(format!("not the difference that `{key}` tells of")),
            },
        };
        match verdict {
            Ok(reason) => self.all.push(both + reason),
            Err(why) => self.failures.push(format!("{both}     {why}\n")),
        }
    }

    /// Checks the zxids of events. ZooKeeper 3.8 sends none. Lockkeeper sends that of the step's change, or of a change
    /// that the server makes by itself; missed events found by setWatches have none.
    fn event_zxids(&mut self, step: &Step, zookeeper: &Outcome, lockkeeper: &Outcome) {
        self.events += zookeeper.event_zxids.len();
        if zookeeper.event_zxids != lockkeeper.event_zxids
            && zookeeper.event_zxids.iter().all(|zxid| *zxid == -1)
            && let Some(known) = known::find(EVENT_ZXID)
        {
            *self.known.entry(known.key).or_default() += 1;
        }
        let found_later = step.text.contains("setWatches");
        let of_no_change = |zxid: &&i64| match &lockkeeper.change_zxids[..] {
            [] => **zxid < 1 && !(found_later && **zxid == -1),
            changes => !changes.contains(zxid),
        };
        for zxid in lockkeeper.event_zxids.iter().filter(of_no_change) {
            let changes = &lockkeeper.change_zxids;
            self.failures.push(format!(
                "{:4} {}\n     an event at {zxid}, and the changes were at {changes:?}\n",
                step.number, step.text
            ));
        }
    }

    fn order(&mut self, zookeeper: &[String], lockkeeper: &[String]) {
        let both: BTreeSet<&String> = lockkeeper.iter().collect();
        let there: BTreeSet<&String> = zookeeper.iter().collect();
        let mine: Vec<&String> = zookeeper.iter().filter(|name| both.contains(name)).collect();
        let theirs: Vec<&String> = lockkeeper.iter().filter(|name| there.contains(name)).collect();
        self.zxids = mine.len();
        if let Some((one, other)) = mine.iter().zip(&theirs).find(|(one, other)| one != other) {
            self.failures.push(format!("zxids have another order: ZooKeeper has {one} where Lockkeeper has {other}\n"));
        }
    }

    fn completeness(&mut self) {
        for known in KNOWN.iter().filter(|known| !self.known.contains_key(known.key)) {
            self.failures.push(format!("the known difference `{}` has not shown itself: strike it out\n", known.key));
        }
        for operation in OpCode::ALL.iter().map(|operation| operation.row().name) {
            if !self.asked.contains_key(operation) {
                self.failures.push(format!("nobody asked for {operation}\n"));
            }
        }
        let operations = self.operations();
        if operations < LEAST_OPERATIONS {
            self.failures.push(format!("only {operations} operations; {LEAST_OPERATIONS} are the least\n"));
        }
    }

    fn operations(&self) -> usize {
        self.asked.values().sum()
    }

    pub(crate) fn is_good(&self) -> bool {
        self.failures.is_empty()
    }

    /// The comparison as text.
    pub(crate) fn report(&self, verbose: bool) -> String {
        let mut text = String::new();
        for step in self.all.iter().filter(|_| verbose) {
            text.push_str(step);
            text.push('\n');
        }
        for failure in &self.failures {
            text.push_str(failure);
        }
        let asked: Vec<String> = self.asked.iter().map(|(name, count)| format!("{name} {count}")).collect();
        text.push_str(&format!("operations: {}\n", asked.join(", ")));
        let known: Vec<String> = self.known.iter().map(|(key, count)| format!("{key} {count}")).collect();
        text.push_str(&format!(
            "known differences: {}\n",
            if known.is_empty() { "none".into() } else { known.join(", ") }
        ));
        text.push_str(&format!(
            "{} operations in {} steps, {} events, {} zxids in order: {} steps alike, {} with a known difference, {} \
             failures\n",
            self.operations(),
            self.steps,
            self.events,
            self.zxids,
            self.alike,
            self.known.iter().filter(|(key, _)| **key != EVENT_ZXID).map(|(_, count)| count).sum::<usize>(),
            self.failures.len(),
        ));
        text
    }
}

/// Differing lines in pairs; all lines of both if their numbers differ.
fn differing(zookeeper: &[String], lockkeeper: &[String]) -> Vec<(String, String)> {
    if zookeeper.len() != lockkeeper.len() {
        return vec![(zookeeper.join("\n"), lockkeeper.join("\n"))];
    }
    let pairs = zookeeper.iter().cloned().zip(lockkeeper.iter().cloned());
    pairs.filter(|(one, other)| one != other).collect()
}

/// The name of the latest zxid seen before a step.
fn newest_before(step: usize, in_order: &[String]) -> &str {
    let told_before = |name: &&String| names::step_of(name).is_some_and(|told| told < step);
    in_order.iter().rev().find(told_before).map_or("0", String::as_str)
}

fn explains(known: &KnownDifference, differing: &[(String, String)]) -> bool {
    let [zookeeper, lockkeeper] = known.seen;
    differing.iter().all(|(one, other)| one.contains(zookeeper) && other.contains(lockkeeper))
}

fn told(step: &Step, zookeeper: &[String], lockkeeper: &[String]) -> String {
    let mut text = format!("{:4} [{}] {}\n", step.number, step.part, step.text);
    if zookeeper == lockkeeper {
        for line in zookeeper {
            text.push_str(&format!("     {line}\n"));
        }
        return text;
    }
    for (who, lines) in [("ZooKeeper ", zookeeper), ("Lockkeeper", lockkeeper)] {
        for line in lines {
            text.push_str(&format!("     {who}: {line}\n"));
        }
        if lines.is_empty() {
            text.push_str(&format!("     {who}: nothing\n"));
        }
    }
    text
}
