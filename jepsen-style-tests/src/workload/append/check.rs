//! Checks lists by what was appended, what was read on the way, and what is there at the end.

use super::{APPEND, Element, LISTS, List, READ, ROW, ROW_READ, Row};
use crate::check::model::{self, NodeOp, Reply};
use crate::check::wgl::{self, AppendList, ListAnswer, ListAsk, Operation};
use crate::workload::prelude::*;

/// One element's addition.
#[derive(Clone, Debug)]
struct Addition {
    element: String,
    ended: Completion,
    invoked_us: u64,
    completed_us: Option<u64>,
    zxid: Option<u64>,
    /// For a sequential node: the names it got.
    names: Vec<String>,
}

/// One list: what was added, and what was there at the end, by position.
#[derive(Debug, Default)]
struct ListHistory {
    added: Vec<Addition>,
    last: Option<Vec<String>>,
    /// When that was read.
    read_us: Option<u64>,
}

type Stories = BTreeMap<String, ListHistory>;

pub(super) fn all(ops: &[Op]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (what, add, read) in [("lists", APPEND, READ), ("sequential nodes", ROW, ROW_READ)] {
        let stories = match stories(ops, add, read) {
            Ok(stories) => stories,
            Err(error) => {
                checks.push(Check::unknown(what, "P4", format!("an operation cannot be read: {error}")));
                continue;
            }
        };
        checks.push(nothing_lost(&format!("{what}: nothing lost, nothing twice"), &stories));
        checks.push(in_order(&format!("{what}: order agrees with time and zxids"), &stories));
    }
    checks.push(named_once(ops));
    checks.push(linearizable(ops));
    checks
}

fn stories(ops: &[Op], add: &str, read: &str) -> Result<Stories, serde_json::Error> {
    let mut stories = Stories::new();
    for op in ops.iter().filter(|op| op.what == add) {
        let Element { list, element } = op.asked()?;
        let names = match op.answer::<Row>() {
            Ok(Some(Row { name, again })) => std::iter::once(name).chain(again).collect(),
            _ => Vec::new(),
        };
        stories.entry(list).or_default().added.push(Addition {
            element,
            ended: op.ended,
            invoked_us: op.invoked_us,
            completed_us: op.completed_us,
            zxid: op.zxid,
            names,
        });
    }
    // Those of one list by time: the last that was read counts.
    for op in ops.iter().filter(|op| op.what == read) {
        if let Some(List { mut elements }) = op.answer()? {
            let list: String = op.asked()?;
            if read == ROW_READ {
                elements.sort_by_key(|name| sequence(name));
            }
            let history = stories.entry(list).or_default();
            (history.last, history.read_us) = (Some(elements), op.completed_us);
        }
    }
    Ok(stories)
}

/// The number in the name of a sequential node.
fn sequence(name: &str) -> Option<u64> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// The element that an entry stands for.
fn element(entry: &str) -> &str {
    entry.rsplit_once('-').map_or(entry, |(element, _)| element)
}

/// All that was acknowledged is there at the end, nothing is there twice, and nothing that was refused or never asked
/// for.
fn nothing_lost(name: &str, stories: &Stories) -> Check {
    const OF: &str = "P4 P9";
    let (mut acknowledged, mut open) = (0, 0);
    for (list, history) in stories {
        let entries = history.last.as_deref().unwrap_or_default();
        let mut there: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in entries {
            *there.entry(element(entry)).or_default() += 1;
        }
        let ends: BTreeMap<&str, &Addition> =
            history.added.iter().map(|added| (added.element.as_str(), added)).collect();
        if history.last.is_none() && history.added.iter().any(|added| added.ended == Completion::Ok) {
            return Check::unknown(name, OF, format!("{list} was not read at the end"));
        }
        let lost = history
            .added
            .iter()
            .find(|added| added.ended == Completion::Ok && !there.contains_key(added.element.as_str()));
        if let Some(added) = lost {
            return broken(name, OF, added, format!("{list}: {} was acknowledged and is not there", added.element));
        }
        if let Some((element, count)) = there.iter().find(|(_, count)| **count > 1) {
            let what = format!("{list}: {element} is there {count} times");
            return match ends.get(element) {
                Some(added) => broken(name, OF, added, what),
                None => Check { at_us: history.read_us, ..Check::invalid(name, OF, what, Vec::new()) },
            };
        }
        for element in there.keys() {
            match ends.get(element) {
                Some(added) if added.ended == Completion::Fail => {
                    let what = format!("{list}: {element} is there although it was certainly not added");
                    return broken(name, OF, added, what);
                }
                Some(_) => {}
                None => {
                    let what = format!("{list}: nobody added {element}, and it is there");
                    return Check { at_us: history.read_us, ..Check::invalid(name, OF, what, Vec::new()) };
                }
            }
        }
        acknowledged += history.added.iter().filter(|added| added.ended == Completion::Ok).count();
        open += history.added.iter().filter(|added| added.ended == Completion::Info).count();
    }
    match acknowledged {
        0 => Check::unknown(name, OF, "nothing was acknowledged"),
        _ => Check::valid(name, OF, format!("{acknowledged} acknowledged, {open} unknown, {} lists", stories.len())),
    }
}

/// What was there first was asked for before what came later was answered, and has the smaller zxid.
fn in_order(name: &str, stories: &Stories) -> Check {
    const OF: &str = "P7";
    let mut compared = 0;
    for (list, history) in stories {
        let added: BTreeMap<&str, &Addition> =
            history.added.iter().map(|added| (added.element.as_str(), added)).collect();
        // The one before with the latest invocation, and the one before with the largest zxid.
        let (mut latest, mut largest): (Option<&Addition>, Option<&Addition>) = (None, None);
        for entry in history.last.as_deref().unwrap_or_default() {
            let Some(this) = added.get(element(entry)) else { continue };
            let completed_us = this.completed_us.filter(|_| this.ended == Completion::Ok).unwrap_or(u64::MAX);
            if let Some(before) = latest.filter(|before| completed_us < before.invoked_us) {
                let what = format!(
                    "{list}: {} stands before {}, which was acknowledged before it was asked for",
                    before.element, this.element
                );
                return broken(name, OF, before, what);
            }
            if let (Some(zxid), Some(before)) = (this.zxid, largest)
                && before.zxid.is_some_and(|larger| larger >= zxid)
            {
                let what = format!("{list}: {} stands before {} and has no smaller zxid", before.element, this.element);
                return broken(name, OF, this, what);
            }
            if latest.is_none_or(|before| before.invoked_us < this.invoked_us) {
                latest = Some(this);
            }
            if this.zxid.is_some() {
                largest = Some(this);
            }
            compared += 1;
        }
    }
    match compared {
        0 => Check::unknown(name, OF, "nothing was there at the end"),
        _ => Check::valid(name, OF, format!("{compared} elements stand in order")),
    }
}

/// A sequential node that was asked for twice under one request id got one name, and no name was given to two.
fn named_once(ops: &[Op]) -> Check {
    const NAME: &str = "one sequential node for one request id";
    let stories = match stories(ops, ROW, ROW_READ) {
        Ok(stories) => stories,
        Err(error) => return Check::unknown(NAME, "P9", error.to_string()),
    };
    let mut twice = 0;
    for (list, history) in &stories {
        let mut numbers = BTreeSet::new();
        for added in history.added.iter().filter(|added| !added.names.is_empty()) {
            if added.names.iter().any(|name| *name != added.names[0]) {
                return broken(NAME, "P9", added, format!("{list}: {} was named {:?}", added.element, added.names));
            }
            if !numbers.insert(sequence(&added.names[0])) {
                let what = format!("{list}: {} got a number that another has", added.names[0]);
                return broken(NAME, "P9", added, what);
            }
            twice += usize::from(added.names.len() > 1);
        }
    }
    match twice {
        0 => Check::unknown(NAME, "P9", "nothing was answered twice"),
        _ => Check::valid(NAME, "P9", format!("{twice} were asked for twice and answered twice, with one name each")),
    }
}

/// The lists as they are seen from outside.
fn linearizable(ops: &[Op]) -> Check {
    const NAME: &str = "linearizable lists";
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    let mut number = |element: &str| {
        let next = numbers.len() as u64;
        *numbers.entry(element.to_owned()).or_insert(next)
    };
    let mut operations = Vec::new();
    for op in ops {
        let operation = if let (APPEND, Ok(Element { list, element })) = (op.what.as_str(), op.asked()) {
            let output = (op.ended == Completion::Ok).then_some(ListAnswer::Appended);
            Operation::of(op, ListAsk::Append(number(&element)), output).map(|operation| (list, operation))
        } else if let (READ, Ok(list), Ok(answer)) = (op.what.as_str(), op.asked::<String>(), op.answer::<List>()) {
            let output = answer.map(|List { elements }| ListAnswer::All(elements.iter().map(|e| number(e)).collect()));
            Operation::of(op, ListAsk::Read, output).map(|operation| (list, operation))
        } else {
            None
        };
        operations.extend(operation);
    }
    wgl::judge(NAME, "P4 P7", &AppendList::default(), operations, wgl::Budget::default())
}

/// The lists by the zxids of the answers and the log.
pub(super) fn replayed(run: &Recorded, ops: &[Op]) -> Check {
    let replies: Vec<Reply> = ops
        .iter()
        .filter_map(|op| match op.what.as_str() {
            APPEND => Reply::of(op, format!("{LISTS}/{}", op.asked::<Element>().ok()?.list), NodeOp::Put),
            READ => {
                let value = op.answer::<List>().ok()??.elements.join(",");
                Reply::of(op, format!("{LISTS}/{}", op.asked::<String>().ok()?), NodeOp::Found { value, version: None })
            }
            _ => None,
        })
        .collect();
    model::replay("lists replayed from the log", "P4 P7", LISTS, run, &replies)
}

fn broken(name: &str, promises: &str, added: &Addition, what: String) -> Check {
    let Addition { element, ended, invoked_us, completed_us, zxid, names } = added;
    let line = format!(
        "{element}: {ended:?}, asked for at {invoked_us} us, answered at {completed_us:?} us, zxid {zxid:?} {names:?}"
    );
    let mut check = Check::invalid(name, promises, what, vec![line]);
    check.at_us = completed_us.or(Some(*invoked_us));
    check
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Verdict;

    fn op(what: &str, at_us: u64, ended: Completion, input: Value, output: Value, zxid: u64) -> Op {
        let zxid = (ended == Completion::Ok).then_some(zxid);
        let (completed_us, what) = (Some(at_us + 5), what.to_owned());
        Op { client: 1, op: at_us, what, invoked_us: at_us, completed_us, ended, input, output, zxid }
    }

    fn append(at_us: u64, element: &str, ended: Completion) -> Op {
        let input = json!({ "list": "l", "element": element });
        op(APPEND, at_us, ended, input, json!({ "length": 1 }), at_us)
    }

    fn row(at_us: u64, element: &str, name: &str, again: Option<&str>) -> Op {
        let input = json!({ "list": "l", "element": element });
        op(ROW, at_us, Completion::Ok, input, json!({ "name": name, "again": again }), at_us)
    }

    fn read(what: &str, at_us: u64, elements: &[&str]) -> Op {
        op(what, at_us, Completion::Ok, json!("l"), json!({ "elements": elements }), at_us)
    }

    /// Three appends of which the last is unknown, a read on the way, three rows, and both read at the end: with these
    /// entries.
    fn history(list: &[&str], rows: &[&str]) -> Vec<Op> {
        vec![
            append(10, "a", Completion::Ok),
            append(20, "b", Completion::Ok),
            read(READ, 30, &["a", "b"]),
            append(40, "c", Completion::Info),
            append(45, "d", Completion::Fail),
            row(50, "x", "x-0000000000", Some("x-0000000000")),
            row(60, "y", "y-0000000001", None),
            read(READ, 90, list),
            read(ROW_READ, 95, rows),
        ]
    }

    fn found(ops: &[Op]) -> Vec<String> {
        let found = all(ops).into_iter().filter(|check| check.verdict != Verdict::Valid);
        let named = found.map(|check| {
            assert_eq!(check.verdict == Verdict::Invalid, check.at_us.is_some(), "{check:?}");
            check.name
        });
        named.collect()
    }

    const ROWS: [&str; 2] = ["x-0000000000", "y-0000000001"];

    #[test]
    fn good_lists_pass_whatever_became_of_the_unknown() {
        assert_eq!(found(&history(&["a", "b"], &ROWS)), [""; 0]);
        assert_eq!(found(&history(&["a", "b", "c"], &ROWS)), [""; 0]);
        assert!(all(&[]).iter().all(|check| check.verdict == Verdict::Unknown));
    }

    #[test]
    fn lost_doubled_and_invented_elements_are_caught() {
        for list in [vec!["a"], vec!["a", "b", "b"], vec!["a", "b", "d"], vec!["a", "b", "z"], vec!["a", "b", "z", "z"]]
        {
            assert!(
                found(&history(&list, &ROWS)).contains(&"lists: nothing lost, nothing twice".to_owned()),
                "{list:?}"
            );
        }
        for rows in [vec!["x-0000000000"], vec!["x-0000000000", "y-0000000001", "x-0000000002"]] {
            let found = found(&history(&["a", "b"], &rows));
            assert!(found.contains(&"sequential nodes: nothing lost, nothing twice".to_owned()), "{rows:?}");
        }
    }

    #[test]
    fn an_order_against_time_or_zxids_is_caught() {
        assert!(found(&history(&["b", "a"], &ROWS)).contains(&"lists: order agrees with time and zxids".to_owned()));
        let mut ops = history(&["a", "b"], &ROWS);
        (ops[0].zxid, ops[0].completed_us) = (Some(99), Some(25));
        assert_eq!(found(&ops), ["lists: order agrees with time and zxids"]);
        let turned = ["y-0000000000", "x-0000000001"];
        assert_eq!(found(&history(&["a", "b"], &turned)), ["sequential nodes: order agrees with time and zxids"]);
    }

    #[test]
    fn two_names_for_one_request_and_one_name_for_two_are_caught() {
        const NAME: &str = "one sequential node for one request id";
        let mut ops = history(&["a", "b"], &ROWS);
        ops[5] = row(50, "x", "x-0000000000", Some("x-0000000007"));
        assert_eq!(found(&ops), [NAME]);
        ops[5] = row(50, "x", "x-0000000001", None);
        assert_eq!(found(&ops), [NAME]);
    }

    #[test]
    fn a_read_that_lacks_what_was_acknowledged_is_caught() {
        let mut ops = history(&["a", "b"], &ROWS);
        ops[2] = read(READ, 30, &["a"]);
        assert_eq!(found(&ops), ["linearizable lists"]);
    }
}
