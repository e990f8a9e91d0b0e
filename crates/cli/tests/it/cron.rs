//! `lockkeeper cron` and `schedules` with real processes: each tick's command on one worker of several.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::support::{Dev, Killed, alive, complaint, eventually, json, lockkeeper, shifted_clock};

/// A tick each second.
const EVERY_SECOND: [&str; 2] = ["--at", "* * * * * *"];

#[test]
fn a_command_on_a_schedule() {
    let dev = Dev::start(3, &[]);
    workers_share_the_ticks_whatever_their_clocks(&dev);
    another_worker_takes_over(&dev);
    a_worker_that_is_told_to_end_does_so(&dev);
    a_failure_is_in_the_history(&dev);
    another_schedule_is_refused(&dev);
    schedules_are_listed(&dev);
    a_reset_ends_the_command(&dev);
    a_worker_waits_for_room(&dev);
    bad_arguments(&dev);
}

fn cron(dev: &Dev, job: &str, options: &[&str], script: &str) -> Command {
    let mut command = dev.command(&["cron", job, "--ttl", "1s"]);
    command.args(options).args(["--", "sh", "-c", script]).stdout(Stdio::null());
    command
}

fn start(mut command: Command) -> Killed {
    Killed(command.spawn().unwrap())
}

/// What `schedules` says about a job.
fn shown(dev: &Dev, job: &str) -> Option<Value> {
    let output = dev.run(&["--json", "schedules", job]);
    output.status.success().then(|| json(&output))
}

fn done(dev: &Dev, job: &str) -> Vec<Value> {
    let history = shown(dev, job).map(|shown| shown["history"].as_array().unwrap().clone());
    history.unwrap_or_default().into_iter().filter(|ended| ended["outcome"] == "done").collect()
}

/// The lines of a file, split into words.
fn lines(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

fn workers_share_the_ticks_whatever_their_clocks(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let shim = shifted_clock(directory.path());
    let runs = directory.path().join("runs");
    let script = format!(
        "echo $LOCKKEEPER_SCHEDULE $LOCKKEEPER_TICK $LOCKKEEPER_TOKEN $LOCKKEEPER_ATTEMPT $(date +%s) >> {}",
        runs.display()
    );
    let workers: Vec<Killed> = [-600, 0, 600]
        .into_iter()
        .map(|seconds| {
            let step = directory.path().join(format!("step{seconds}"));
            std::fs::write(&step, seconds.to_string()).unwrap();
            let mut command =
                cron(dev, "shared/ticks", &[&EVERY_SECOND[..], &["--overlap", "queue"]].concat(), &script);
            command.env("LD_PRELOAD", &shim).env("LOCKKEEPER_TEST_CLOCK", "wall").env("LOCKKEEPER_TEST_STEP", &step);
            start(command)
        })
        .collect();
    eventually("six ticks are done", || done(dev, "shared/ticks").len() >= 6);
    drop(workers);
    let mut tokens: BTreeMap<String, u64> = BTreeMap::new();
    for words in lines(&runs) {
        let [job, tick, token, attempt, _] = &words[..] else { panic!("{words:?}") };
        assert_eq!((job.as_str(), attempt.as_str()), ("shared/ticks", "1"));
        assert!(tokens.insert(tick.clone(), token.parse().unwrap()).is_none(), "{tick} twice");
    }
    for ended in done(dev, "shared/ticks") {
        let tick = ended["tick"].as_str().unwrap();
        assert_eq!(ended["worker"]["token"].as_u64(), tokens.get(tick).copied(), "{tick}");
        assert_eq!(ended["exit_code"], 0);
        let second = i64::try_from(ended["worker"]["started_ms"].as_u64().unwrap()).unwrap() / 1_000;
        let day_s = second % 86_400;
        let clock = format!("T{:02}:{:02}:{:02}Z", day_s / 3_600, day_s / 60 % 60, day_s % 60);
        // Not early, and on a machine with much to do some seconds late.
        assert!(tick[10..] <= clock[..] || clock.starts_with("T00:00"), "{tick} began at {clock}");
    }
    assert!(tokens.values().is_sorted(), "tokens rise from tick to tick: {tokens:?}");
}

/// A script that notes each run in that file, and hangs in the first one.
fn hanging_at_first(runs: &Path) -> String {
    format!(
        "echo $LOCKKEEPER_TICK $LOCKKEEPER_ATTEMPT $$ >> {0}; [ $(wc -l < {0}) -gt 1 ] || exec sleep 1000",
        runs.display()
    )
}

fn another_worker_takes_over(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let script = hanging_at_first(&runs);
    let mut workers: Vec<Killed> = (0..2).map(|_| start(cron(dev, "takeover", &EVERY_SECOND, &script))).collect();
    eventually("it hangs", || lines(&runs).len() == 1);
    let hanging = lines(&runs)[0].clone();
    let cmd: i32 = hanging[2].parse().unwrap();
    // CMD's parent is its worker.
    let stat = std::fs::read_to_string(format!("/proc/{cmd}/stat")).unwrap();
    let parent: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    let at = workers.iter().position(|worker| worker.pid().as_raw() == parent).unwrap();
    let mut killed = workers.remove(at);
    kill(killed.pid(), Signal::SIGKILL).unwrap();
    assert_eq!(killed.0.wait().unwrap().signal(), Some(9));
    eventually("CMD is killed too", || !alive(cmd));
    eventually("the other one runs it again", || lines(&runs).len() >= 2);
    assert_eq!(lines(&runs)[1][..2], [hanging[0].clone(), "2".into()]);
    eventually("its end is known", || done(dev, "takeover").iter().any(|ended| ended["tick"] == hanging[0].as_str()));
    let shown = shown(dev, "takeover").unwrap();
    let ends = shown["history"].as_array().unwrap().iter().filter(|ended| ended["tick"] == hanging[0].as_str());
    assert_eq!(ends.map(|ended| ended["worker"]["attempt"].as_u64().unwrap()).collect::<Vec<_>>(), [2]);
    // Ticks that became due while it hung were not done.
    assert!(shown["history"].as_array().unwrap().iter().any(|ended| ended["outcome"] == "overlapped"), "{shown}");
}

fn a_worker_that_is_told_to_end_does_so(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    // While it waits.
    let mut idle = start(cron(dev, "idle", &["--at", "0 0 1 1 *"], "true"));
    eventually("it has a schedule", || shown(dev, "idle").is_some());
    kill(idle.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(idle.code(), Some(0));
    // While CMD runs, which does not end well: another worker has to run the tick again.
    let script = format!("echo $LOCKKEEPER_TICK $LOCKKEEPER_ATTEMPT >> {}; exec sleep 1000", runs.display());
    let mut busy = start(cron(dev, "left", &EVERY_SECOND, &script));
    eventually("it runs", || lines(&runs).len() == 1);
    kill(busy.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(busy.code(), Some(0));
    let left = lines(&runs)[0][0].clone();
    let next = start(cron(dev, "left", &EVERY_SECOND, "true"));
    eventually("the next worker ends it", || done(dev, "left").iter().any(|ended| ended["tick"] == left.as_str()));
    assert_eq!(done(dev, "left")[0]["worker"]["attempt"], 2);
    drop(next);
    // CMD that ends well has done its tick.
    let well = directory.path().join("well");
    let script = format!("trap 'exit 0' TERM; echo $LOCKKEEPER_TICK >> {}; sleep 1000 & wait", well.display());
    let mut busy = start(cron(dev, "well", &EVERY_SECOND, &script));
    eventually("it runs", || lines(&well).len() == 1);
    kill(busy.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(busy.code(), Some(0));
    assert_eq!(done(dev, "well")[0]["tick"], lines(&well)[0][0].as_str());
}

fn a_failure_is_in_the_history(dev: &Dev) {
    let mut command = cron(dev, "fails", &EVERY_SECOND, "exit 7");
    let worker = start({
        command.stderr(Stdio::piped());
        command
    });
    let history = || shown(dev, "fails").map(|shown| shown["history"].as_array().unwrap().clone()).unwrap_or_default();
    eventually("two have failed", || history().len() >= 2);
    drop(worker);
    let (first, second) = (&history()[0], &history()[1]);
    assert_eq!((&first["outcome"], &first["exit_code"]), (&"failed".into(), &7.into()));
    assert_ne!(first["tick"], second["tick"]);
    let table = String::from_utf8(dev.run(&["schedules", "fails"]).stdout).unwrap();
    assert!(table.contains("failed (7)") && table.contains("schedule: '* * * * * *' in UTC"), "{table}");
}

fn another_schedule_is_refused(dev: &Dev) {
    let refused = cron(dev, "fails", &["--at", "* * * * *"], "true").output().unwrap();
    assert_eq!(refused.status.code(), Some(118));
    assert!(complaint(&refused).contains("--replace"), "{refused:?}");
    let mut former = start(cron(dev, "fails", &EVERY_SECOND, "true"));
    let before = done(dev, "fails").len();
    eventually("the former one works", || done(dev, "fails").len() > before);
    let new = start(cron(dev, "fails", &["--at", "*/2 * * * * *", "--replace"], "true"));
    assert_eq!(former.code(), Some(118));
    assert_eq!(shown(dev, "fails").unwrap()["schedule"]["at"], "*/2 * * * * *");
    drop(new);
}

fn schedules_are_listed(dev: &Dev) {
    let listed = json(&dev.run(&["--json", "schedules"]));
    let names: Vec<&str> =
        listed["schedules"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fails", "idle", "left", "shared/ticks", "takeover", "well"]);
    let table = String::from_utf8(dev.run(&["schedules"]).stdout).unwrap();
    assert!(table.starts_with("JOB") && table.contains("0 0 1 1 *") && table.contains("-01-01T00:00:00Z"), "{table}");
    let none = dev.run(&["schedules", "--namespace", "elsewhere"]);
    assert_eq!(String::from_utf8(none.stdout).unwrap(), "there are no schedules\n");
    let unknown = dev.run(&["schedules", "unknown"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(complaint(&unknown).contains("there is no schedule unknown"));
}

fn a_reset_ends_the_command(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let script = hanging_at_first(&runs);
    let worker = start(cron(dev, "reset", &EVERY_SECOND, &script));
    eventually("it hangs", || lines(&runs).len() == 1);
    let hanging = lines(&runs)[0].clone();
    let reset = dev.run(&["gates", "reset", &format!("cron/reset/{}", hanging[0])]);
    assert!(reset.status.success(), "{reset:?}");
    let cmd: i32 = hanging[2].parse().unwrap();
    eventually("CMD is killed", || !alive(cmd));
    eventually("the tick is run again", || lines(&runs).len() >= 2);
    assert_eq!(lines(&runs)[1][..2], [hanging[0].clone(), "2".into()]);
    drop(worker);
}

/// Refusals that pass do not end a worker, and a tick whose end is refused for room is not run again.
fn a_worker_waits_for_room(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let [runs, done_file, log] = ["runs", "done", "log"].map(|name| directory.path().join(name));
    let full = || assert!(dev.run(&["namespaces", "put", "full", "--bytes", "1"]).status.success());
    let room = || assert!(dev.run(&["namespaces", "delete", "full"]).status.success());
    let said = |what: &str| std::fs::read_to_string(&log).is_ok_and(|log| log.contains(what));
    full();
    let script = format!(
        "echo $LOCKKEEPER_TICK $LOCKKEEPER_ATTEMPT >> {}; while ! [ -e {} ]; do sleep 0.01; done",
        runs.display(),
        done_file.display()
    );
    let mut command = cron(dev, "job", &["--at", "* * * * * *", "--namespace", "full"], &script);
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut worker = start(command);
    eventually("it is refused", || said("namespace_full"));
    room();
    eventually("it works", || lines(&runs).len() == 1);
    full();
    std::fs::write(&done_file, "").unwrap();
    eventually("the end is refused", || said("cannot be recorded yet"));
    assert!(alive(worker.pid().as_raw()));
    room();
    eventually("the next tick is run", || lines(&runs).len() > 1);
    let attempts: Vec<String> = lines(&runs).into_iter().map(|words| words[1].clone()).collect();
    assert!(attempts.iter().all(|attempt| attempt == "1"), "{attempts:?}");
    kill(worker.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(worker.code(), Some(0));
}

fn bad_arguments(dev: &Dev) {
    for (options, word) in [
        (&["--at", "* * * *"][..], "5 fields"),
        (&["--at", "0 0 30 2 *"], "never ticks"),
        (&["--at", "* * * * *", "--zone", "Nowhere/At_all"], "tzdata"),
        (&["--at", "* * * * *", "--deadline", "10ms"], "deadline"),
        (&["--at", "* * * * *", "--namespace", "a/b"], "'a/b'"),
        (&["--at", "* * * * *", "--ttl", "1ms"], "--ttl"),
    ] {
        let mut command = dev.command(&["cron", "bad"]);
        let output = command.args(options).args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{options:?}: {output:?}");
        assert!(complaint(&output).contains(word), "{options:?}: {output:?}");
    }
    let usage = lockkeeper().args(["cron", "bad", "--", "true"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(125), "{usage:?}");
}
