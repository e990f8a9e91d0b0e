//! A system-call trace of a process at work: every acknowledged append and vote was synced first; without the sync of
//! the journal the same check says that it was not; and after a sync that fails nothing is acknowledged or tried again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use futures::executor::block_on;
use lockkeeper_checkers::skip::has;
use lockkeeper_checkers::sync_trace;
use lockkeeper_store::{Barrier, LogPosition, Options, Store};

use crate::common::{append, identity, options, record, sized_record, wait};

const DIR: &str = "LOCKKEEPER_TRACED_DIR";
const AT_WORK: &str = "trace::traced_process";
const FLUSH_ONLY: &str = "LOCKKEEPER_TRACED_FLUSH_ONLY";

/// Not a test by itself: what the traced process runs.
#[test]
fn traced_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let barrier = if std::env::var(FLUSH_ONLY).is_ok() { Barrier::FlushOnly } else { Barrier::Full };
    let fatal = std::sync::Arc::new(|error| {
        println!("fatal: {error}");
        std::process::exit(3);
    });
    let options = Options { trace_marks: true, barrier, fatal, ..options() };
    let (store, _) = Store::open(Path::new(&dir), &identity(), options).unwrap();
    let (send, acknowledged) = channel();
    let mut waiting = 0;
    for index in 0..200_u64 {
        let done = send.clone();
        let payload_bytes = if index % 20 == 7 { 10_000 } else { 200 };
        block_on(store.append(
            vec![sized_record(1, 2 * index, payload_bytes), record(1, 2 * index + 1)],
            move |result| {
                done.send(result.is_ok()).unwrap();
            },
        ));
        waiting += 1;
        if index % 10 == 0 {
            let done = send.clone();
            block_on(store.save_vote(format!("vote {index}").into(), move |result| done.send(result.is_ok()).unwrap()));
            waiting += 1;
        }
        // Alone at times, in company at times: all are waited for at every third, so there are at least 66 barriers.
        if index % 3 == 0 {
            (0..std::mem::take(&mut waiting)).for_each(|_| assert!(acknowledged.recv().unwrap()));
        }
    }
    store.close().unwrap();
}

/// Not a test by itself: large appends, which sled is given, a purge of nearly all of them, rest, in which sled
/// collects, and a cut of what sled has.
#[test]
fn purging_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    #[cfg(mutants)]
    lockkeeper_mutants::from_env().unwrap();
    let open = || Store::open(Path::new(&dir), &identity(), options()).unwrap().0;
    let store = open();
    for start in (0..10_000).step_by(100) {
        append(&store, (start..start + 100).map(|index| sized_record(1, index, 4_000)).collect());
    }
    for start in (10_000..14_000).step_by(1_000) {
        append(&store, (start..start + 1_000).map(|index| record(1, index)).collect());
    }
    store.close().unwrap();
    let store = open();
    wait(|done| store.purge_to(LogPosition { term: 1, index: 13_000 }, done)).unwrap();
    while store.is_purging() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(2 * options().archive_after);
    wait(|done| store.truncate_after(Some(13_050), done)).unwrap();
    store.close().unwrap();
}

fn strace_works() -> bool {
    let mut probe = Command::new("strace");
    probe.args(["-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Runs this test under strace; gives its exit code, the trace, and what it printed.
fn traced(dir: &Path, test: &str, flush_only: bool, extra: &[&str]) -> (Option<i32>, String, String) {
    let file = dir.join("trace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-s", "1048576", "-e", "trace=pwrite64,fdatasync,fsync,write", "-o"])
        .arg(&file)
        .args(extra);
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    command.env(DIR, dir.join("data"));
    if flush_only {
        command.env(FLUSH_ONLY, "1");
    }
    let output = command.output().unwrap();
    let trace = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
    (output.status.code(), trace, String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_acknowledged_append_and_vote_was_synced_after_its_last_write() {
    if !has("strace, and leave to trace", strace_works) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, trace, printed) = traced(dir.path(), AT_WORK, false, &[]);
    assert_eq!(code, Some(0), "{printed}");
    let report = sync_trace::check(trace.lines());
    println!("full barrier: {report}");
    assert!(report.holds(), "{report}");
    assert_eq!((report.appends, report.records, report.votes), (200, 400, 20));
}

#[test]
fn the_check_reports_the_bare_flush_as_broken() {
    if !has("strace, and leave to trace", strace_works) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, trace, printed) = traced(dir.path(), AT_WORK, true, &[]);
    assert_eq!(code, Some(0), "{printed}");
    let report = sync_trace::check(trace.lines());
    println!("flush only: {} of {} acknowledged without a sync", report.violations, report.appends + report.votes);
    assert!(!report.holds());
    assert_eq!((report.appends, report.votes), (200, 20));
    // sled's periodic flusher does sync sled's file, a few times a second, and nobody the journal.
    assert!(report.violations > 200, "{report}");
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_or_tried_again() {
    if !has("strace, and leave to trace", strace_works) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Counted by thread: the writer's fortieth.
    let (code, trace, printed) = traced(dir.path(), AT_WORK, false, &["-e", "inject=fdatasync:error=EIO:when=40"]);
    assert_eq!(code, Some(3), "the hook ends the process: {printed}");
    assert!(printed.contains("fatal: cannot") && printed.contains("Input/output error"), "{printed}");
    let after = trace.split_once("EIO").expect("the fault was injected").1;
    assert!(!after.contains("\"ack "), "acknowledged after a failed sync");
    assert!(!after.contains("fdatasync("), "synced again after a failed sync");
    let report = sync_trace::check(trace.lines());
    assert!(report.holds(), "what was acknowledged before: {report}");
}

/// Of what sled has written since the last sync, a power failure leaves any part. More than one segment begun in
/// between, and sled recovers holes, or has lost what was synced before.
#[test]
fn at_most_one_segment_is_begun_between_two_syncs() {
    if !has("strace, and leave to trace", strace_works) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = purged(dir.path(), &[]);
    assert!(report.writes > 100, "{report}");
    assert!(report.segments >= 10, "sled wrote {} segments: too little is shown", report.segments);
    assert_eq!(report.most_unsynced_segments, 2);
}

/// `purging_process` under strace.
fn purged(dir: &Path, extra: &[&str]) -> sync_trace::Report {
    // Only where it writes counts here.
    let (code, trace, printed) = traced(dir, "trace::purging_process", false, &[&["-s", "32"], extra].concat());
    assert_eq!(code, Some(0), "{printed}");
    let report = sync_trace::check(trace.lines());
    println!("{report}; at most {} segments not synced", report.most_unsynced_segments);
    report
}

#[cfg(mutants)]
#[test]
fn block_without_barrier_is_noticed() {
    if !has("strace, and leave to trace", strace_works) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mutant = lockkeeper_mutants::Mutant::BlockWithoutBarrier;
    let environment = format!("{}={mutant}", lockkeeper_mutants::ENV);
    assert!(purged(dir.path(), &["-E", &environment]).most_unsynced_segments > 2);
}
