//! `lockkeeper gate` with real processes: a command runs once per key.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, alive, complaint, eventually, json, numbers};

#[test]
fn a_command_behind_a_gate() {
    let dev = Dev::start(3, &[]);
    it_is_run_once_and_its_output_kept(&dev);
    many_at_once_run_it_once(&dev);
    another_operation_is_refused(&dev);
    a_failure_opens_the_gate(&dev);
    while_it_runs_others_are_told(&dev);
    a_worker_that_is_killed_frees_the_gate(&dev);
    too_long_a_run_is_ended(&dev);
    too_long_an_output_is_refused(&dev);
    bytes_that_are_no_text_come_back(&dev);
    results_are_forgotten_in_time(&dev);
    results_are_kept_for_ever_until_a_reset(&dev);
    a_reset_ends_the_command(&dev);
    a_reader_that_leaves_does_not_cost_the_result(&dev);
    bad_arguments(&dev);
}

fn gate(dev: &Dev, options: &[&str], script: &str) -> Command {
    let mut command = dev.command(&["gate"]);
    command.args(options).args(["--", "sh", "-c", script]);
    command
}

fn run(dev: &Dev, options: &[&str], script: &str) -> Output {
    gate(dev, options, script).output().unwrap()
}

fn it_is_run_once_and_its_output_kept(dev: &Dev) {
    let script = "echo $LOCKKEEPER_GATE $LOCKKEEPER_TOKEN";
    let first = run(dev, &["orders/42"], script);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let text = String::from_utf8(first.stdout.clone()).unwrap();
    let token: u64 = text.trim().strip_prefix("orders/42 ").unwrap().parse().unwrap();
    assert!(token > 0);
    for _ in 0..2 {
        let again = run(dev, &["orders/42"], script);
        assert_eq!((again.status.code(), &again.stdout), (Some(0), &first.stdout));
    }
    assert_eq!(json(&dev.run(&["--json", "sessions"]))["sessions"], serde_json::json!([]));
}

fn many_at_once_run_it_once(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let script = format!("echo 1 >> {}; sleep 0.2; echo result", runs.display());
    let children: Vec<_> =
        (0..8).map(|_| gate(dev, &["crowd", "--wait"], &script).stdout(Stdio::piped()).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"result\n"[..]));
    }
    assert_eq!(numbers(&runs), [1]);
}

fn another_operation_is_refused(dev: &Dev) {
    let refused = run(dev, &["orders/42"], "echo something else");
    assert_eq!(refused.status.code(), Some(118), "{refused:?}");
    assert!(refused.stdout.is_empty());
    complaint(&refused);
    // The caller defines the identity of the operation.
    let named = run(dev, &["named", "--fingerprint", "v1"], "echo one");
    let same = run(dev, &["named", "--fingerprint", "v1"], "echo another way of doing it");
    assert_eq!((named.status.code(), &same.stdout), (Some(0), &named.stdout));
}

fn a_failure_opens_the_gate(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tried");
    let script = format!("[ -e {0} ] || {{ : > {0}; echo half; exit 7; }}; echo whole", file.display());
    let failed = run(dev, &["fails"], &script);
    assert_eq!((failed.status.code(), &failed.stdout[..]), (Some(7), &b"half\n"[..]));
    let retried = run(dev, &["fails"], &script);
    assert_eq!((retried.status.code(), &retried.stdout[..]), (Some(0), &b"whole\n"[..]));
    for (command, code) in [("no-such-command-anywhere", 127), ("/", 126)] {
        let output = dev.run(&["gate", "cannot", "--fingerprint", "x", "--", command]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    assert_eq!(run(dev, &["cannot", "--fingerprint", "x"], "exit 0").status.code(), Some(0));
}

/// A command that runs until a file exists and then prints `done`.
fn busy(dev: &Dev, key: &str, options: &[&str], directory: &Path) -> (Killed, String) {
    let (running, done) = (directory.join("running"), directory.join("done"));
    let script =
        format!("echo $$ >> {}; while ! [ -e {} ]; do sleep 0.02; done; echo done", running.display(), done.display());
    let mut arguments = vec![key];
    arguments.extend(options);
    let busy = Killed(gate(dev, &arguments, &script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("it runs", || numbers(&running).len() == 1);
    (busy, script)
}

fn while_it_runs_others_are_told(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, script) = busy(dev, "busy", &["--label", "the worker"], directory.path());
    for wait in [&["busy"][..], &["busy", "--wait", "100ms"]] {
        let told = run(dev, wait, &script);
        assert_eq!(told.status.code(), Some(119), "{told:?}");
        assert!(told.stdout.is_empty() && complaint(&told).contains("the worker"));
    }
    let waits = gate(dev, &["busy", "--wait", "20s"], &script).stdout(Stdio::piped()).spawn().unwrap();
    std::fs::write(directory.path().join("done"), "").unwrap();
    assert_eq!(first.code(), Some(0));
    let output = waits.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]));
    assert_eq!(numbers(&directory.path().join("running")).len(), 1, "it ran once");
}

fn a_worker_that_is_killed_frees_the_gate(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (first, script) = busy(dev, "killed", &["--ttl", "1s"], directory.path());
    kill(first.pid(), Signal::SIGKILL).unwrap();
    std::fs::write(directory.path().join("done"), "").unwrap();
    let next = run(dev, &["killed", "--wait", "20s"], &script);
    assert_eq!((next.status.code(), &next.stdout[..]), (Some(0), &b"done\n"[..]));
    let pids = numbers(&directory.path().join("running"));
    assert!(pids.len() == 2 && !alive(pids[0]), "{pids:?}");
}

fn too_long_a_run_is_ended(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _) = busy(dev, "long", &["--pending", "2s", "--ttl", "1s"], directory.path());
    // The next run checks at once whether the previous CMD is still alive.
    let pid = numbers(&directory.path().join("running"))[0];
    let look = format!("grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null && exit 9; echo mine");
    let foreign = run(dev, &["long", "--wait", "20s"], &look);
    assert_eq!(foreign.status.code(), Some(118), "the fingerprint of another is refused while it is pending");
    assert_eq!(first.code(), Some(121));
    assert!(!alive(pid));
    let next = run(dev, &["long", "--wait", "20s"], &look);
    assert_eq!((next.status.code(), &next.stdout[..]), (Some(0), &b"mine\n"[..]));
}

fn too_long_an_output_is_refused(dev: &Dev) {
    let fits = run(dev, &["fits"], "head -c 65536 /dev/zero | tr '\\0' x");
    assert_eq!((fits.status.code(), fits.stdout.len()), (Some(0), 65_536));
    let again = run(dev, &["fits"], "head -c 65536 /dev/zero | tr '\\0' x");
    assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 65_536), "{:?}", again.stderr);
    for script in ["head -c 65537 /dev/zero", "while :; do echo more and more; done"] {
        let output = run(dev, &["too/much", "--fingerprint", "x"], script);
        assert_eq!(output.status.code(), Some(117), "{:?}", output.stderr);
        assert!(complaint(&output).contains("64 KiB"));
    }
    assert_eq!(run(dev, &["too/much", "--fingerprint", "x"], "echo little").stdout, b"little\n", "it was open again");
}

fn bytes_that_are_no_text_come_back(dev: &Dev) {
    let script = "printf '\\377\\000\\001'";
    for _ in 0..2 {
        assert_eq!(run(dev, &["bytes"], script).stdout, [0xff, 0, 1]);
    }
}

fn results_are_forgotten_in_time(dev: &Dev) {
    let script = "echo $LOCKKEEPER_TOKEN";
    let first = run(dev, &["forgotten", "--keep", "300ms"], script);
    eventually("it is run anew", || run(dev, &["forgotten", "--keep", "1h"], script).stdout != first.stdout);
}

fn results_are_kept_for_ever_until_a_reset(dev: &Dev) {
    let script = "echo $LOCKKEEPER_TOKEN";
    let first = run(dev, &["kept", "--keep", "forever"], script);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let token = String::from_utf8(first.stdout.clone()).unwrap().trim().to_owned();
    assert_eq!(run(dev, &["kept"], script).stdout, first.stdout);
    let shown = String::from_utf8(dev.run(&["gates", "show", "kept"]).stdout).unwrap();
    assert!(shown.contains("kept until it is reset"), "{shown}");
    let listed = String::from_utf8(dev.run(&["gates", "list", "kept"]).stdout).unwrap();
    assert!(listed.contains(" never "), "{listed}");
    let wrong = dev.run(&["gates", "reset", "kept", "--token", "1"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(complaint(&wrong).contains("bad_version"), "{wrong:?}");
    let reset = dev.run(&["gates", "reset", "kept", "--token", &token]);
    assert!(reset.status.success(), "{reset:?}");
    assert!(String::from_utf8(reset.stdout).unwrap().starts_with("forgot the result of kept"));
    assert_ne!(run(dev, &["kept"], script).stdout, first.stdout);
    let reset = json(&dev.run(&["--json", "gates", "reset", "kept"]));
    assert_eq!((&reset["key"], &reset["was"]), (&"kept".into(), &"done".into()));
    let again = dev.run(&["gates", "reset", "kept"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(complaint(&again).contains("is open"), "{again:?}");
}

fn a_reset_ends_the_command(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _) = busy(dev, "reset", &["--ttl", "1s"], directory.path());
    let pid = numbers(&directory.path().join("running"))[0];
    let reset = dev.run(&["gates", "reset", "reset"]);
    assert!(String::from_utf8(reset.stdout).unwrap().contains("may still be running"));
    assert_eq!(first.code(), Some(121));
    assert!(!alive(pid));
}

fn a_reader_that_leaves_does_not_cost_the_result(dev: &Dev) {
    let script = "echo one; sleep 0.2; echo two";
    let mut first = Killed(gate(dev, &["left"], script).stdout(Stdio::piped()).spawn().unwrap());
    drop(first.0.stdout.take());
    assert_eq!(first.code(), Some(0));
    assert_eq!(run(dev, &["left"], script).stdout, b"one\ntwo\n");
}

fn bad_arguments(dev: &Dev) {
    let long = "x".repeat(300);
    for (options, named) in [
        (&["a/../b"][..], ".."),
        (&["a", "--pending", "1ms"], "1s"),
        (&["a", "--pending", "48h"], "1d"),
        (&["a", "--keep", "3y"], "365d"),
        (&["a", "--keep", "always"], "always"),
        (&["a", "--wait", "soon"], "soon"),
        (&["a", "--fingerprint", &long], "256"),
        (&[][..], "KEY"),
    ] {
        let began = Instant::now();
        let output = run(dev, options, "true");
        assert_eq!(output.status.code(), Some(125), "{options:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(named), "{options:?}: {said}");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
