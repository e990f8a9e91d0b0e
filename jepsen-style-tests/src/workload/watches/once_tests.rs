//! Histories of one-shot watches that must pass, and histories that must not.

use lockkeeper_checkers::lives::NodeEvent;
use serde_json::{Value, json};

use super::*;
use crate::check::Verdict;
use crate::history::DataSet;
use crate::history::{Event, EventKind, History};

fn told(what: &str, value: Value) -> Event {
    Event { at_us: 5, client: 1, op: 0, kind: EventKind::Note, what: what.into(), value, zxid: None }
}

fn looked(at: Option<u64>, now: Option<u64>, heard: bool) -> Event {
    told(LOOKED, json!({ "watched": { "path": "/w/a", "of": "data", "at": at }, "now": now, "heard": heard }))
}

fn revealed(heard: bool) -> Event {
    told(REVEALED, json!({ "watch": 1, "zxid": 9, "heard": heard }))
}

fn fires(of: &str, path: &str, at: Option<u64>, said: &str, zxid: Option<u64>) -> Event {
    told(FIRED, json!({ "watched": { "path": path, "of": of, "at": at }, "said": said, "zxid": zxid }))
}

/// `/w/a` is created at 10, set at 12 and 14, removed at 16.
fn judged(events: Vec<Event>) -> (Verdict, Verdict) {
    let logged = |zxid, created| NodeEvent { zxid, created, path: "/w/a".into() };
    let set = |zxid| DataSet { zxid, path: "/w/a".into() };
    let (log, data) = ([logged(10, true), logged(16, false)].into(), [set(12), set(14)].into());
    let run = Recorded { history: History::new(events), log, data, ..Recorded::default() };
    let [first, truly] = &all(&run)[..] else { panic!("two checks") };
    (first.verdict, truly.verdict)
}

#[test]
fn a_read_that_shows_what_no_watch_told_is_found() {
    let of = |events| judged(events).0;
    assert_eq!(of(vec![]), Verdict::Unknown, "nobody looked");
    assert_eq!(of(vec![revealed(true), looked(Some(10), Some(10), false)]), Verdict::Valid);
    assert_eq!(of(vec![revealed(true), looked(Some(10), Some(12), true)]), Verdict::Valid);
    assert_eq!(of(vec![revealed(true), looked(Some(10), Some(12), false)]), Verdict::Invalid);
    assert_eq!(of(vec![revealed(true), looked(None, Some(10), false)]), Verdict::Invalid);
    assert_eq!(of(vec![revealed(true), looked(Some(14), None, false)]), Verdict::Invalid);
    assert_eq!(of(vec![revealed(false), looked(Some(10), Some(10), false)]), Verdict::Invalid);
}

#[test]
fn an_event_of_what_was_not_or_was_not_first_is_found() {
    let of = |event| judged(vec![event]).1;
    assert_eq!(judged(vec![]).1, Verdict::Unknown, "none fired");
    let good = [
        fires("data", "/w/a", Some(10), "changed", Some(12)),
        fires("data", "/w/a", Some(14), "deleted", Some(16)),
        fires("existence", "/w/a", None, "created", Some(10)),
        fires("children", "/w", Some(10), "children_changed", Some(16)),
    ];
    for event in good {
        assert_eq!(of(event.clone()), Verdict::Valid, "{event:?}");
    }
    let caught_up = fires("data", "/w/a", Some(10), "deleted", None);
    let made_anew = fires("data", "/w/a", Some(9), "changed", None);
    let all = vec![caught_up, made_anew, fires("data", "/w/a", Some(10), "changed", Some(12))];
    assert_eq!(judged(all).1, Verdict::Valid, "what happened meanwhile is told by its outcome");
    let bad = [
        fires("data", "/w/a", Some(10), "changed", Some(14)),
        fires("data", "/w/a", Some(10), "deleted", Some(12)),
        fires("data", "/w/a", Some(14), "changed", None),
        fires("data", "/w/a", Some(16), "deleted", None),
        fires("existence", "/w/a", None, "created", Some(11)),
        fires("children", "/w", Some(16), "children_changed", Some(16)),
        fires("data", "/w/b", Some(10), "changed", Some(12)),
    ];
    for event in bad {
        assert_eq!(of(event.clone()), Verdict::Invalid, "{event:?}");
    }
}
