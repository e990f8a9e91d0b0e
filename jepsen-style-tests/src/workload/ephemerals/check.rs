//! Checks sessions and the nodes they owned: by the log, by the clocks of the clients that kept them alive, and by the
//! nodes' answers.

use lockkeeper_checkers::lives;

use super::{CLOSE, DELETE, DIRECTORIES, GONE, LIST, Listed, Owned, SessionGone};
use crate::history::Event;
use crate::workload::prelude::*;

/// What the log has of one session.
#[derive(Debug, Default)]
struct Estate {
    /// Its nodes.
    nodes: Vec<(String, Life)>,
}

/// What the clients told of sessions.
#[derive(Debug, Default)]
struct SessionHistory {
    /// By number.
    sessions: BTreeMap<u64, SessionLife>,
    /// When somebody began to close each.
    closing_us: BTreeMap<u64, u64>,
    /// Those that were closed for certain.
    closed: BTreeSet<u64>,
    /// Paths that somebody asked to delete, whatever came of it.
    deleted: BTreeSet<String>,
    gone: Vec<SessionGone>,
}

pub(super) fn all(run: &Recorded) -> Vec<Check> {
    let ops = run.history.ops();
    let told = match gather(run, &ops) {
        Ok(told) => told,
        Err(why) => return vec![Check::unknown("what clients told of sessions", "P5 P6", why)],
    };
    let mut checks = vec![said_and_done(&told)];
    match estates(run) {
        Ok(estates) => {
            checks.push(never_early(&told, &estates, run));
            checks.push(at_one_zxid(&told, &estates, &run.seen_us));
        }
        Err(why) => checks.push(Check::unknown("ephemerals in the log", "P5 P6", why)),
    }
    checks.push(listings(run, &ops));
    checks
}

fn gather(run: &Recorded, ops: &[Op]) -> Result<SessionHistory, String> {
    let unread = |error: serde_json::Error| format!("what was told cannot be read: {error}");
    let gone = run.history.notes().filter(|event| event.what == GONE);
    let mut told = SessionHistory {
        sessions: run.history.sessions().map_err(unread)?,
        gone: gone.map(Event::told).collect::<Result<_, _>>().map_err(unread)?,
        ..SessionHistory::default()
    };
    for op in ops {
        match op.what.as_str() {
            CLOSE => {
                let SessionRef { session } = op.asked().map_err(unread)?;
                told.closing_us.insert(session, op.invoked_us);
                if op.ended == Completion::Ok {
                    told.closed.insert(session);
                }
            }
            DELETE => {
                let Owned { path, .. } = op.asked().map_err(unread)?;
                told.deleted.insert(path);
            }
            _ => {}
        }
    }
    Ok(told)
}

/// The session in the name of a node.
fn owner(name: &str) -> Option<u64> {
    name.strip_prefix('s')?.split_once('-')?.0.parse().ok()
}

fn estates(run: &Recorded) -> Result<BTreeMap<u64, Estate>, String> {
    let mut estates: BTreeMap<u64, Estate> = BTreeMap::new();
    for directory in DIRECTORIES {
        for life in lives::lives(&run.log, directory)? {
            if let Some(session) = owner(&life.name) {
                let path = format!("{directory}/{}", life.name);
                estates.entry(session).or_default().nodes.push((path, life));
            }
        }
    }
    Ok(estates)
}

/// The nemesis `clock-rate` makes no clock faster than by such a part, and a timeout on that clock shorter by as much.
const TOO_FAST: u64 = 20;

/// No session is over before the clock of the one who kept it alive says that it may be, unless it was being closed.
fn never_early(told: &SessionHistory, estates: &BTreeMap<u64, Estate>, run: &Recorded) -> Check {
    const NAME: &str = "sessions never end early";
    let mut ends: Vec<(u64, u64, String)> = Vec::new();
    for (session, estate) in estates {
        let gone = estate.nodes.iter().filter(|(path, _)| !told.deleted.contains(path));
        for (path, zxid) in gone.filter_map(|(path, life)| Some((path, life.gone?))) {
            if let Some(at_us) = run.seen_us.get(&zxid) {
                ends.push((*session, *at_us, format!("{path} was removed at zxid {zxid}, seen at {at_us} us")));
            }
        }
    }
    for gone in told.gone.iter().filter(|gone| gone.how != "closed") {
        let line = format!("{} said {:?} of session {} at {} us", gone.at, gone.how, gone.session, gone.said_us);
        ends.push((gone.session, gone.said_us, line));
    }
    // A timeout is counted on the leader's clock.
    let wrong_rates = run.faults.iter().any(|fault| fault.nemesis == "clock-rate");
    let shorter_us = if wrong_rates { run.ttl.as_micros() as u64 / TOO_FAST } else { 0 };
    let (mut judged, mut least_us) = (BTreeSet::new(), u64::MAX);
    for (session, at_us, line) in &ends {
        let closing = told.closing_us.get(session).is_some_and(|closing_us| closing_us <= at_us);
        // Nobody was ever sure of one of which only its end was told.
        let life = told.sessions.get(session).filter(|life| life.until_us > 0 && !closing);
        let Some(SessionLife { until_us: sure_us, .. }) = life else { continue };
        if at_us + shorter_us < *sure_us {
            let lines = vec![format!("session {session} was sure to live until {sure_us} us"), line.clone()];
            let early_ms = (sure_us - at_us) / 1_000;
            let mut check = Check::invalid(NAME, "P5", format!("session {session} ended {early_ms} ms early"), lines);
            check.at_us = Some(*at_us);
            return check;
        }
        judged.insert(*session);
        least_us = least_us.min(at_us.saturating_sub(*sure_us));
    }
    if judged.is_empty() {
        return Check::unknown(NAME, "P5", "no session expired while it was looked at");
    }
    let detail = format!("{} sessions expired, the soonest {} ms after it might", judged.len(), least_us / 1_000);
    Check::valid(NAME, "P5", detail)
}

/// Whatever of a session was not deleted by name goes in one transaction, and nothing of it comes after.
fn at_one_zxid(told: &SessionHistory, estates: &BTreeMap<u64, Estate>, seen_us: &BTreeMap<u64, u64>) -> Check {
    const NAME: &str = "what a session owned goes at one zxid";
    let mut ended = 0;
    for (session, estate) in estates {
        let kept: Vec<_> = estate.nodes.iter().filter(|(path, _)| !told.deleted.contains(path)).collect();
        let ends: BTreeSet<Option<u64>> = kept.iter().map(|(_, life)| life.gone).collect();
        let standing_but_closed = told.closed.contains(session) && ends.contains(&None);
        if ends.len() > 1 || standing_but_closed {
            let lines = kept
                .iter()
                .map(|(path, life)| format!("{path}: created at {}, gone at {:?}", life.token, life.gone))
                .collect();
            let detail = format!("the end of session {session} is {} points in the order", ends.len());
            // The last of it that went, or where all of it stands, the last that came.
            let moment = |zxid: Option<u64>| zxid.and_then(|zxid| seen_us.get(&zxid).copied());
            let gone = moment(kept.iter().filter_map(|(_, life)| life.gone).max());
            let at_us = gone.or_else(|| moment(kept.iter().map(|(_, life)| life.token).max()));
            return Check { at_us, ..Check::invalid(NAME, "P6", detail, lines) };
        }
        ended += usize::from(kept.len() > 1 && ends.iter().all(Option::is_some));
    }
    match ended {
        0 => Check::unknown(NAME, "P6", "no session with two nodes ended"),
        _ => Check::valid(NAME, "P6", format!("{ended} sessions with two nodes or more ended, each at one zxid")),
    }
}

/// A node that says that a session is over has none of its nodes, and does not take it back.
fn said_and_done(told: &SessionHistory) -> Check {
    const NAME: &str = "who says that a session is over has removed what it owned";
    let broken = told.gone.iter().find(|gone| gone.revived || !gone.standing.is_empty());
    if let Some(gone) = broken {
        let mut lines =
            vec![format!("{} said {:?} of session {} at {} us", gone.at, gone.how, gone.session, gone.said_us)];
        lines.extend(gone.standing.iter().map(|path| format!("and then still had {path}")));
        if gone.revived {
            lines.push("and then acknowledged its keepalive".into());
        }
        let mut check = Check::invalid(NAME, "P6", "a session that was said to be over was not", lines);
        check.at_us = Some(gone.said_us);
        return check;
    }
    match told.gone.iter().map(|gone| gone.asked).sum::<usize>() {
        0 => Check::unknown(NAME, "P6", "no node was asked after it had said so"),
        asked => {
            let said = told.gone.len();
            Check::valid(NAME, "P6", format!("said {said} times; {asked} nodes of the tree looked for right after"))
        }
    }
}

/// What was listed at a zxid is what the log makes of that zxid.
fn listings(run: &Recorded, ops: &[Op]) -> Check {
    const NAME: &str = "listings agree with the log";
    let mut lives = BTreeMap::new();
    for directory in DIRECTORIES {
        match lives::lives(&run.log, directory) {
            Ok(all) => lives.insert(directory.to_owned(), all),
            Err(why) => return Check::unknown(NAME, "P6 P7", why),
        };
    }
    let mut compared = 0;
    for op in ops.iter().filter(|op| op.what == LIST && op.ended == Completion::Ok) {
        let (Ok(directory), Ok(Some(Listed { names })), Some(zxid)) = (op.asked::<String>(), op.answer(), op.zxid)
        else {
            return Check::unknown(NAME, "P6 P7", "a listing cannot be read");
        };
        let listed: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let known = lives.get(&directory).map(Vec::as_slice).unwrap_or_default();
        let stood: BTreeSet<&str> =
            known.iter().filter(|life| life.stands_after(zxid)).map(|life| life.name.as_str()).collect();
        if listed != stood {
            let lines = vec![
                format!("client {} listed {directory} at zxid {zxid}", op.client),
                format!("it was told of {:?}, which the log has not", listed.difference(&stood).collect::<Vec<_>>()),
                format!("it was not told of {:?}", stood.difference(&listed).collect::<Vec<_>>()),
            ];
            let mut check = Check::invalid(NAME, "P6 P7", "a listing is not what stood at its zxid", lines);
            check.at_us = op.completed_us;
            return check;
        }
        compared += 1;
    }
    match compared {
        0 => Check::unknown(NAME, "P6 P7", "nothing was listed"),
        _ => Check::valid(NAME, "P6 P7", format!("{compared} listings are what the log made of their zxid")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::history::FaultRecord;
    use crate::workload::fixture::Bench;

    /// Sessions 1 and 2, each with two nodes; 1 expires at zxid 20 (1,500 ms), 2 is closed at 21.
    fn good() -> Bench {
        let mut bench = Bench::of_ops(1);
        for (session, zxid) in [(1, 10), (2, 12)] {
            bench.log(zxid, true, &format!("/ephemerals/a/s{session}-0"));
            bench.log(zxid + 1, true, &format!("/ephemerals/b/s{session}-1"));
            bench.tell(100_000, ops::SURE, json!({ "session": session, "until_ms": 1_400 }));
        }
        bench.log(20, false, "/ephemerals/a/s1-0");
        bench.log(20, false, "/ephemerals/b/s1-1");
        bench.log(21, false, "/ephemerals/a/s2-0");
        bench.log(21, false, "/ephemerals/b/s2-1");
        bench.run.seen_us = (0..30).map(|zxid| (zxid, 1_480_000 + zxid * 1_000)).collect();
        bench.op_at(Some(21), 300_000, CLOSE, json!({ "session": 2 }), json!(null));
        bench.op_at(Some(15), 400_000, LIST, json!("/ephemerals/a"), json!({ "names": ["s1-0", "s2-0"] }));
        gone(&mut bench, &[], false);
        bench
    }

    fn gone(bench: &mut Bench, standing: &[&str], revived: bool) {
        let gone = SessionGone {
            session: 1,
            at: "node".into(),
            how: "not_found".into(),
            said_us: 1_600_000,
            asked: 2,
            standing: standing.iter().map(|path| (*path).to_owned()).collect(),
            revived,
        };
        bench.tell(1_600_000, GONE, serde_json::to_value(gone).unwrap());
    }

    const SAID: usize = 0;
    const EARLY: usize = 1;
    const ONE_ZXID: usize = 2;
    const LISTED: usize = 3;

    #[test]
    fn a_good_history_passes_and_an_empty_one_does_not() {
        assert_eq!(good().verdicts(all), [Verdict::Valid; 4]);
        assert_eq!(Bench::default().verdicts(all), [Verdict::Unknown; 4]);
    }

    #[test]
    fn a_clock_that_runs_too_fast_excuses_a_twentieth_of_the_timeout() {
        let fault = |nemesis: &str| FaultRecord {
            nemesis: nemesis.into(),
            ended_us: 1_000,
            bit: true,
            ..FaultRecord::default()
        };
        // It ended at 1,500 ms.
        for (nemesis, sure_ms, found) in
            [("clock-rate", 1_599, false), ("clock-rate", 1_601, true), ("clock-jump", 1_599, true)]
        {
            let mut bench = good();
            bench.run.ttl = std::time::Duration::from_secs(2);
            bench.run.faults = vec![fault(nemesis)];
            bench.tell(200_000, ops::SURE, json!({ "session": 1, "until_ms": sure_ms }));
            assert_eq!(bench.found(all), if found { vec![EARLY] } else { vec![] }, "{nemesis}, {sure_ms} ms");
        }
    }

    #[test]
    fn a_session_that_ends_early_is_caught() {
        let mut bench = good();
        bench.tell(200_000, ops::SURE, json!({ "session": 1, "until_ms": 1_501 }));
        assert_eq!(bench.found(all), [EARLY]);
        // One that is being closed may end.
        let mut bench = good();
        bench.tell(200_000, ops::SURE, json!({ "session": 2, "until_ms": 9_000 }));
        assert_eq!(bench.found(all), [0; 0]);
    }

    #[test]
    fn a_session_of_which_nobody_was_sure_is_not_judged() {
        for note in [ops::CLOSING, ops::SESSION_LOST] {
            let mut bench = Bench::of_ops(1);
            bench.log(10, true, "/ephemerals/a/s1-0");
            bench.log(20, false, "/ephemerals/a/s1-0");
            bench.run.seen_us = [(20, 1_500_000)].into();
            bench.tell(1_400_000, note, json!({ "session": 1 }));
            assert_eq!(bench.verdicts(all)[EARLY], Verdict::Unknown, "{note}");
        }
    }

    #[test]
    fn an_end_in_two_steps_and_a_late_child_are_caught() {
        let mut bench = good();
        bench.log(14, true, "/ephemerals/b/s1-3");
        bench.log(22, false, "/ephemerals/b/s1-3");
        assert_eq!(bench.found(all), [ONE_ZXID]);
        let mut bench = good();
        bench.log(25, true, "/ephemerals/b/s1-3");
        assert_eq!(bench.found(all), [ONE_ZXID]);
        let mut bench = good();
        bench.op_at(None, 100_000, CLOSE, json!({ "session": 3 }), json!(null));
        bench.log(14, true, "/ephemerals/b/s3-3");
        assert_eq!(bench.found(all), [ONE_ZXID], "closed, and still there");
        // One that was deleted by name goes by itself.
        let mut bench = good();
        bench.log(14, true, "/ephemerals/b/s1-3");
        bench.log(16, false, "/ephemerals/b/s1-3");
        bench.op_at(Some(16), 100_000, DELETE, json!({ "session": 1, "path": "/ephemerals/b/s1-3" }), json!(null));
        assert_eq!(bench.found(all), [0; 0]);
    }

    #[test]
    fn saying_before_doing_and_taking_back_are_caught() {
        let mut bench = good();
        gone(&mut bench, &["/ephemerals/a/s1-0"], false);
        assert_eq!(bench.found(all), [SAID]);
        let mut bench = good();
        gone(&mut bench, &[], true);
        assert_eq!(bench.found(all), [SAID]);
    }

    #[test]
    fn a_listing_that_lies_is_caught() {
        for names in [vec!["s1-0"], vec!["s1-0", "s2-0", "s9-0"]] {
            let mut bench = good();
            bench.op_at(Some(15), 500_000, LIST, json!("/ephemerals/a"), json!({ "names": names }));
            assert_eq!(bench.found(all), [LISTED]);
        }
    }
}
