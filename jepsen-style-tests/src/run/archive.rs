//! What was recorded, on disk beside the report, and the present checks on it: `history.jsonl`, `faults.jsonl` and
//! `run.json` as the report writes them, and `log.jsonl`, what the watches of all nodes told of the tree. The store of
//! `fenced-lock` is queried during the run itself, so its answer is in the history.

use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_checkers::lives;
use serde::{Deserialize, Serialize};

use crate::check::{Check, Verdict, order};
use crate::history::{DataSet, Event, History, Recorded, WakeUps};
use crate::record;
use crate::workload::ExpectedVerdict;

use super::settings;

const LOG: &str = "log.jsonl";

/// What a transaction did to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Did {
    Deleted,
    Created,
    Set,
}

/// A line of the log.
#[derive(Debug, Serialize, Deserialize)]
struct ArchivedChange {
    zxid: u64,
    did: Did,
    path: String,
    /// When the first node told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen_us: Option<u64>,
}

/// What of the report's `run.json` belongs to what was recorded.
#[derive(Debug, Deserialize)]
struct ArchivedSettings {
    ttl_ms: u64,
    clients: u32,
    #[serde(default)]
    wake_ups: WakeUps,
}

/// Writes the log.
pub fn save_log(dir: &Path, run: &Recorded) -> io::Result<()> {
    let seen_us = |zxid: u64| run.seen_us.get(&zxid).copied();
    let events = run.log.iter().map(|event| {
        let did = if event.created { Did::Created } else { Did::Deleted };
        ArchivedChange { zxid: event.zxid, did, path: event.path.clone(), seen_us: seen_us(event.zxid) }
    });
    let data = run.data.iter().map(|set| {
        let DataSet { zxid, path } = set.clone();
        ArchivedChange { zxid, did: Did::Set, path, seen_us: seen_us(zxid) }
    });
    let mut lines: Vec<ArchivedChange> = events.chain(data).collect();
    lines.sort_by_key(|line| line.zxid);
    let mut file = BufWriter::new(std::fs::File::create(dir.join(LOG))?);
    for line in lines {
        serde_json::to_writer(&mut file, &line).map_err(io::Error::other)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// Reads all that was recorded of a run. The directory that its clients shared is not part of it.
pub fn load(dir: &Path) -> io::Result<Recorded> {
    let settings: ArchivedSettings =
        serde_json::from_slice(&std::fs::read(dir.join("run.json"))?).map_err(io::Error::other)?;
    let mut run = Recorded {
        history: History::new(record::read::<Event>(&dir.join("history.jsonl"))?),
        faults: record::read(&dir.join("faults.jsonl"))?,
        ttl: Duration::from_millis(settings.ttl_ms),
        clients: settings.clients,
        wake_ups: settings.wake_ups,
        ..Recorded::default()
    };
    for ArchivedChange { zxid, did, path, seen_us } in record::read(&dir.join(LOG))? {
        run.seen_us.extend(seen_us.map(|at| (zxid, at)));
        match did {
            Did::Set => drop(run.data.insert(DataSet { zxid, path })),
            Did::Created | Did::Deleted => {
                run.log.insert(lives::NodeEvent { zxid, created: did == Did::Created, path });
            }
        }
    }
    Ok(run)
}

/// Judges each run, named by the directory of its report, and prints its checks. Whether all are valid.
pub fn judge(directories: &[PathBuf]) -> bool {
    let mut passes = true;
    for directory in directories {
        match judged(directory) {
            Ok(checks) => {
                let count = |of: &[Verdict]| checks.iter().filter(|check| of.contains(&check.verdict)).count();
                let (wrong, left) = (count(&[Verdict::Unknown, Verdict::Invalid]), count(&[Verdict::NotChecked]));
                passes &= wrong == 0;
                println!("{}: {} checks, {wrong} not valid, {left} not checked", directory.display(), checks.len());
                checks.iter().for_each(print);
            }
            Err(why) => {
                passes = false;
                println!("{}: {why}", directory.display());
            }
        }
    }
    passes
}

fn print(check: &Check) {
    let Check { name, promises, verdict, detail, counterexample, at_us } = check;
    let at = at_us.map_or(String::new(), |at| format!(" ({at} us)"));
    println!("  {} {name} [{promises}]: {detail}{at}", verdict.words());
    counterexample.iter().for_each(|line| println!("    {line}"));
}

fn judged(directory: &Path) -> Result<Vec<Check>, String> {
    let told = |error: std::io::Error| error.to_string();
    let report = std::fs::read(directory.join("run.json")).map_err(told)?;
    let report: serde_json::Value = serde_json::from_slice(&report).map_err(|error| error.to_string())?;
    let workload = settings::workload(report["workload"].as_str().unwrap_or_default())?;
    let run = load(directory).map_err(told)?;
    let mut checks = workload.check(&run);
    if workload.expected() != ExpectedVerdict::Valid {
        // What the control shows, it is there to show.
        checks.clear();
    }
    let (ops, can) = (run.history.ops(), workload.facts().promises);
    for check in &checks {
        let beyond: Vec<&str> =
            check.promises.split_whitespace().filter(|one| !can.split(' ').any(|p| p == *one)).collect();
        if !beyond.is_empty() {
            return Err(format!("{} speaks of {beyond:?}, of which the workload says nothing", check.name));
        }
    }
    checks.push(order::is_whole(&run.history));
    if ops.iter().any(|op| op.zxid.is_some()) {
        checks.push(order::agrees(&ops));
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let event = |zxid, created| lives::NodeEvent { zxid, created, path: format!("/n{zxid}") };
        let run = Recorded {
            log: [event(3, true), event(5, false)].into(),
            data: [DataSet { zxid: 4, path: "/n3".into() }].into(),
            seen_us: [(3, 30), (4, 40), (5, 50)].into(),
            ..Recorded::default()
        };
        save_log(dir.path(), &run).unwrap();
        std::fs::write(dir.path().join("history.jsonl"), "").unwrap();
        std::fs::write(dir.path().join("faults.jsonl"), "").unwrap();
        let wake_ups = WakeUps::Counted { counted: 7, until: 5 };
        let settings = serde_json::json!({ "ttl_ms": 2000, "clients": 3, "seed": 1, "wake_ups": wake_ups });
        std::fs::write(dir.path().join("run.json"), settings.to_string()).unwrap();
        let back = load(dir.path()).unwrap();
        assert_eq!((back.log, back.data, back.seen_us), (run.log, run.data, run.seen_us));
        assert_eq!((back.ttl, back.clients, back.wake_ups), (Duration::from_secs(2), 3, wake_ups));
        std::fs::write(dir.path().join("run.json"), r#"{ "ttl_ms": 2000, "clients": 3 }"#).unwrap();
        assert_eq!(load(dir.path()).unwrap().wake_ups, WakeUps::default(), "a run of before they were kept");
    }
}
