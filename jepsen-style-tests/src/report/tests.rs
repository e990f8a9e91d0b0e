//! A fabricated run with an anomaly gives a page that shows it.

use super::*;
use crate::check::Check;
use crate::history::{Event, EventKind, FaultRecord, WakeUps};
use crate::run::campaign::Phase;
use serde_json::{Value, json};

const BEGAN_US: u64 = 1_000_000_000;

fn event(second: f64, client: u32, op: u64, kind: EventKind, value: Value) -> Event {
    let at_us = BEGAN_US + (second * 1e6) as u64;
    Event { at_us, client, op, kind, what: "acquire".into(), value, zxid: None }
}

fn history() -> History {
    let mut events = vec![
        event(5.0, 1, 1, EventKind::Invoke, json!({"lock": "a"})),
        event(5.1, 1, 1, EventKind::Ok, json!({"token": 7})),
        event(5.2, 2, 1, EventKind::Invoke, json!({"lock": "a<b>"})),
        event(5.3, 2, 1, EventKind::Ok, json!({"token": 7})),
        event(5.35, 3, 1, EventKind::Invoke, json!({"lock": "open"})),
        event(5.4, 4, 0, EventKind::Note, json!("the session is lost")),
    ];
    // Long before and not of interest.
    events.push(event(0.5, 9, 1, EventKind::Invoke, json!({"lock": "early"})));
    events.push(event(0.6, 9, 1, EventKind::Fail, json!("no")));
    History::new(events)
}

pub(super) fn report(history: &History) -> Report {
    let at_us = BEGAN_US + 5_300_000;
    let broken = Check {
        at_us: Some(at_us),
        ..Check::invalid(
            "tokens rise",
            "P1",
            "token 7 was given twice",
            vec!["client 1 got 7".into(), "client 2 got 7 & holds".into()],
        )
    };
    let ops = history.ops();
    Report {
        workload: "lock".into(),
        about: "An exclusive lock.".into(),
        promises: "P1 P2".into(),
        nemesis: "kill-leader".into(),
        seed: 42,
        command: "cargo run --release -p jepsen-style-tests -- --seed 42".into(),
        made: Provenance { commit: "0123456789ab".into(), ..Provenance::default() },
        nodes: 3,
        net: "proxy".into(),
        clients: 4,
        ttl_ms: 2_000,
        began_us: BEGAN_US,
        ended_us: BEGAN_US + 10_000_000,
        phases: vec![Phase { name: "calm".into(), from_us: BEGAN_US, to_us: BEGAN_US + 4_000_000 }],
        faults: vec![FaultRecord {
            nemesis: "kill-leader".into(),
            what: "node 2 killed".into(),
            began_us: BEGAN_US + 4_000_000,
            ended_us: BEGAN_US + 8_000_000,
            evidence: vec!["the leader changed from 2 to 3".into()],
            bit: true,
            stops_holders: false,
        }],
        skipped: vec![Skipped { nemesis: "disk-full".into(), why: "no tmpfs here".into(), by_settings: false }],
        wake_ups: WakeUps::default(),
        checks: vec![Check::valid("replicas agree", "P4", "all at zxid 9"), broken],
        counts: crate::run::generic::counts(&ops),
        recovery: vec![Recovery { nemesis: "kill-leader".into(), after_on_ms: Some(120), after_off_ms: None }],
        outcome: Outcome::Invalid,
    }
}

#[test]
fn an_anomaly_has_its_timeline_and_counterexample() {
    let history = history();
    let page = page::run(&report(&history), &history);
    let said = |words: &str| assert!(page.contains(words), "the page does not say {words:?}");
    said("token 7 was given twice");
    said("client 2 got 7 &amp; holds");
    said("What the clients did around 5.300 s");
    said("class=\"moment\"");
    said("acquire {&quot;lock&quot;:&quot;open&quot;}");
    said("a&lt;b&gt;");
    said("the session is lost");
    assert!(page.contains("nearest to it"), "the events around it");
    for fact in
        ["0123456789ab", "--seed 42", "the leader changed from 2 to 3", "no tmpfs here", "120.0 ms", "Not promised"]
    {
        said(fact);
    }
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let history = history();
    let page = page::run(&report(&history), &history);
    let own = page.replace("http://www.w3.org/2000/svg", "");
    for foreign in ["http://", "https://", "<script", "src=", "<link", "@import", "url("] {
        assert!(!own.contains(foreign), "{foreign} in the page");
    }
}

#[test]
fn a_run_is_written_whole_and_read_again() {
    let (history, dir) = (history(), tempfile::tempdir().unwrap());
    let report = report(&history);
    write(dir.path(), &report, &history).unwrap();
    let json = std::fs::read(dir.path().join("run.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Report>(&json).unwrap(), report);
    let events = crate::record::read::<Event>(&dir.path().join("history.jsonl")).unwrap();
    assert_eq!(events, history.events());
    let faults = crate::record::read::<FaultRecord>(&dir.path().join("faults.jsonl")).unwrap();
    assert_eq!(faults, report.faults);
    assert!(dir.path().join("index.html").is_file());
}

#[test]
fn an_outcome_is_its_worst_check() {
    let (valid, unknown) = (Check::valid("a", "", ""), Check::unknown("b", "", ""));
    let invalid = Check::invalid("c", "", "", Vec::new());
    assert_eq!(Outcome::of(&[valid.clone(), unknown.clone()]), Outcome::Unknown);
    assert_eq!(Outcome::of(&[unknown, invalid, valid.clone()]), Outcome::Invalid);
    let not_checked = Check::not_checked("d", "", "");
    assert_eq!(Outcome::of(&[not_checked.clone(), valid.clone()]), Outcome::Valid);
    assert_eq!(Outcome::of(&[not_checked]), Outcome::Unknown);
    assert_eq!(Outcome::of(&[valid]), Outcome::Valid);
    assert_eq!(Outcome::of(&[]), Outcome::Unknown);
    assert!(!Outcome::Unknown.passes());
}
