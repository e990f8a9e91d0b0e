//! `lockkeeper lock` with real processes: CMD's environment, its end, and that its whole group is dead in time.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, alive, complaint, eventually, json, lockkeeper, numbers, shifted_clock};

#[test]
fn a_command_under_a_lock() {
    let dev = Dev::start(3, &[]);
    the_token_is_exported_and_the_code_passed_on(&dev);
    commands_that_cannot_run(&dev);
    signals_are_passed_on(&dev);
    shared_holders_hold_together(&dev);
    what_is_left_running_ends_with_the_command(&dev);
    a_forced_release_kills_the_group(&dev);
    a_killed_lockkeeper_takes_the_group_along(&dev);
    a_frozen_lockkeeper_does_not_keep_the_group_alive(&dev);
}

fn the_token_is_exported_and_the_code_passed_on(dev: &Dev) {
    let script =
        "echo $LOCKKEEPER_LOCK $LOCKKEEPER_TOKEN; env | grep -c '^LOCKKEEPER_[A-Z]*=.*\\.[0-9a-f]\\{32\\}' ; exit 7";
    let mut last_token = 0;
    for _ in 0..2 {
        let output = dev.lock(&["orders/42"], script).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (first, secrets) = text.trim().split_once('\n').unwrap();
        let token: u64 = first.strip_prefix("orders/42 ").unwrap().parse().unwrap();
        assert!(token > last_token);
        assert_eq!(secrets, "1", "only LOCKKEEPER_HELD has a secret");
        last_token = token;
    }
    assert_eq!(dev.holders("orders/42"), 0);
    assert_eq!(dev.lock(&["orders/42"], "kill -9 $$").output().unwrap().status.code(), Some(128 + 9));
}

fn commands_that_cannot_run(dev: &Dev) {
    let missing = dev.run(&["lock", "a", "--", "no-such-command-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(complaint(&missing).contains("no-such-command-anywhere"));
    let folder = dev.run(&["lock", "a", "--", "/"]);
    assert_eq!(folder.status.code(), Some(126), "{folder:?}");
    let nothing = dev.run(&["lock", "a"]);
    assert_eq!(nothing.status.code(), Some(125));
    let no_dashes = dev.run(&["lock", "a", "true"]);
    assert_eq!(no_dashes.status.code(), Some(125));
    let errors = String::from_utf8(no_dashes.stderr).unwrap();
    assert!(errors.contains("write -- before the command: lockkeeper --endpoints"), "{errors}");
    assert!(errors.contains(" lock a -- true"), "{errors}");
    for name in ["/orders/42", "orders/42/"] {
        let slash = dev.run(&["lock", name, "--", "true"]);
        assert_eq!(slash.status.code(), Some(125));
        assert!(complaint(&slash).contains("leave out the "), "{slash:?}");
    }
    let bad = dev.run(&["lock", "a/../b", "--", "true"]);
    assert_eq!(bad.status.code(), Some(125), "{bad:?}");
    assert_eq!(dev.holders("a"), 0, "nothing is held by commands that did not run");
}

fn signals_are_passed_on(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    for (signal, code) in [(Signal::SIGTERM, 15), (Signal::SIGINT, 2), (Signal::SIGHUP, 1), (Signal::SIGUSR1, 10)] {
        let script = format!(
            "trap 'exit {code}' {}; : > {}; while :; do sleep 0.01; done",
            &signal.as_str()[3..],
            ready.display()
        );
        let mut lock = Killed(dev.lock(&["signals"], &script).spawn().unwrap());
        eventually("the command runs", || ready.exists());
        kill(lock.pid(), signal).unwrap();
        assert_eq!(lock.code(), Some(code));
        std::fs::remove_file(&ready).unwrap();
    }
}

/// A holder of the lock until it is dropped.
fn hold(dev: &Dev, lock: &str, options: &[&str]) -> Killed {
    let mut arguments = vec![lock];
    arguments.extend(options);
    let before = dev.holders(lock);
    let held = Killed(dev.lock(&arguments, "exec sleep 100").spawn().unwrap());
    eventually("the lock is held", || dev.holders(lock) > before);
    held
}

fn release(mut held: Killed) {
    kill(held.pid(), Signal::SIGTERM).unwrap();
    held.code();
}

fn shared_holders_hold_together(dev: &Dev) {
    let first = hold(dev, "shared", &["--shared"]);
    let second = hold(dev, "shared", &["--shared"]);
    let writer = dev.lock(&["shared", "--wait", "0"], "true").output().unwrap();
    assert_eq!(writer.status.code(), Some(120));
    release(first);
    release(second);
}

fn what_is_left_running_ends_with_the_command(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!(
        "sh -c 'echo $$ > {0}; exec sleep 100' & while ! [ -s {0} ]; do sleep 0.01; done; exit 3",
        file.display()
    );
    // Null, so that the orphan does not keep a pipe open.
    let code = dev.lock(&["rest"], &script).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().code();
    assert_eq!(code, Some(3));
    assert!(!alive(numbers(&file)[0]), "it was gone before the lock was given back");
}

/// A holder with a child and a grandchild that both ignore SIGTERM. Returns their pids.
fn stubborn(dev: &Dev, lock: &str, ttl: &str, directory: &std::path::Path) -> (Killed, Vec<i32>) {
    let file = directory.join("pids");
    let script = format!(
        "trap '' TERM; echo $$ >> {0}; sh -c 'trap \"\" TERM; echo $$ >> {0}; while :; do sleep 0.02; done' & \
         while :; do sleep 0.02; done",
        file.display()
    );
    let mut command = dev.lock(&[lock, "--ttl", ttl], &script);
    let held = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("child and grandchild run", || numbers(&file).len() == 2);
    let pids = numbers(&file);
    (held, pids)
}

fn a_forced_release_kills_the_group(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (mut held, pids) = stubborn(dev, "forced", "1s", directory.path());
    let token = json(&dev.run(&["--json", "locks", "forced"]))["holders"][0]["token"].to_string();
    let refused = dev.run(&["unlock", "forced", "--token", &token]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(complaint(&refused).contains("--force"));
    assert!(dev.run(&["unlock", "forced", "--force", "--token", &token]).status.success());
    assert_eq!(held.code(), Some(121));
    assert!(pids.iter().all(|pid| !alive(*pid)));
    let again = dev.run(&["unlock", "forced", "--force", "--token", &token]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(complaint(&again).contains("nobody holds it"), "{again:?}");
    let next = hold(dev, "forced", &["--label", "the next one"]);
    let again = complaint(&dev.run(&["unlock", "forced", "--force", "--token", &token]));
    let token = json(&dev.run(&["--json", "locks", "forced"]))["holders"][0]["token"].to_string();
    for part in ["held by \"the next one\", queued ", &format!("(token {token})"), "`lockkeeper locks forced`"] {
        assert!(again.contains(part), "{part} in {again}");
    }
    release(next);
}

fn a_killed_lockkeeper_takes_the_group_along(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (mut held, pids) = stubborn(dev, "killed", "60s", directory.path());
    kill(held.pid(), Signal::SIGKILL).unwrap();
    held.code();
    eventually("child and grandchild are dead", || pids.iter().all(|pid| !alive(*pid)));
}

fn a_frozen_lockkeeper_does_not_keep_the_group_alive(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (mut held, pids) = stubborn(dev, "frozen", "1s", directory.path());
    kill(held.pid(), Signal::SIGSTOP).unwrap();
    // The next holder checks at once whether the previous one is still alive.
    let script = format!(
        "for p in {} {}; do grep -q '^State:.[^ZX]' /proc/$p/status 2>/dev/null && exit 9; done; exit 0",
        pids[0], pids[1]
    );
    let next = dev.lock(&["frozen", "--wait", "20s"], &script).output().unwrap();
    assert_eq!(next.status.code(), Some(0), "the group was dead when the lock was granted again: {next:?}");
    kill(held.pid(), Signal::SIGCONT).unwrap();
    assert_eq!(held.code(), Some(121));
}

/// `lockkeeper lock` with these arguments, as a CMD of the shell.
fn nested(dev: &Dev, arguments: &str) -> String {
    format!("{} --endpoints {} lock {arguments}", env!("CARGO_BIN_EXE_lockkeeper"), dev.endpoints.join(","))
}

#[test]
fn a_lock_within_a_lock() {
    let dev = Dev::start(3, &[]);
    the_same_lock_is_held_once_more(&dev);
    the_outer_one_decides_the_ttl(&dev);
    another_lock_has_a_session_of_its_own(&dev);
    what_cannot_be_held_once_more_is_refused(&dev);
    a_lockkeeper_that_is_left_behind_keeps_the_lock(&dev);
    another_cluster_does_not_know_the_session(&dev);
    a_lock_that_is_held_for_too_long_is_given_up(&dev);
    so_is_one_that_is_held_once_more(&dev);
    the_end_of_max_hold_leaves_the_lock_to_a_lockkeeper_within(&dev);
    an_unfair_lock_stands_in_no_queue(&dev);
}

fn the_same_lock_is_held_once_more(dev: &Dev) {
    let shown = format!(
        "{} --endpoints {} --json locks x | tr -d ' \\n' | grep -o '\"holds\":[0-9]*'; echo $LOCKKEEPER_TOKEN",
        env!("CARGO_BIN_EXE_lockkeeper"),
        dev.endpoints.join(",")
    );
    let innermost = nested(dev, &format!("x -- sh -c '{}'", shown.replace('\'', "'\\''")));
    let script = format!("{}; code=$?; {shown}; exit $code", nested(dev, &format!("x -- {innermost}")));
    let output = dev.lock(&["x"], &script).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (text, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "the holds and the token within, and the token behind: {text} {told}");
    assert_eq!(lines[0], "\"holds\":3");
    assert_eq!(lines[1], lines[2], "one token");
    assert_eq!(told.matches("once more").count(), 2, "{told}");
    assert_eq!(dev.holders("x"), 0);
}

fn the_outer_one_decides_the_ttl(dev: &Dev) {
    for (outer, inner, is_reported) in [("10s", "--ttl 30s", true), ("30s", "--ttl 30s", false), ("30s", "", false)] {
        let output = dev.lock(&["x", "--ttl", outer], &nested(dev, &format!("x {inner} -- true"))).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told.contains("--ttl 30s has no effect: x is held in"), is_reported, "{outer} {inner}: {told}");
    }
}

fn another_lock_has_a_session_of_its_own(dev: &Dev) {
    let script = format!("{} && echo in between", nested(dev, &format!("y -- {}", nested(dev, "x -- echo innermost"))));
    let output = dev.lock(&["x"], &script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "innermost\nin between\n", "{output:?}");
    assert_eq!((dev.holders("x"), dev.holders("y")), (0, 0));
}

fn what_cannot_be_held_once_more_is_refused(dev: &Dev) {
    for (outer, inner) in [
        (&["x"][..], "x --shared -- true"),
        (&["x", "--shared"], "x -- true"),
        (&["x", "--shared"], "x --shared -- true"),
        (&["x"], "x z -- true"),
        (&["x", "y"], "x -- true"),
        (&["x", "y"], "y x -- true"),
    ] {
        let output = dev.lock(outer, &nested(dev, inner)).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{outer:?} {inner}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("around this one"), "{output:?}");
    }
}

fn a_lockkeeper_that_is_left_behind_keeps_the_lock(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let (ready, done) = (directory.path().join("ready"), directory.path().join("done"));
    let waits = format!("x -- sh -c ': > {}; while ! [ -e {} ]; do sleep 0.01; done'", ready.display(), done.display());
    let script = format!(
        "setsid {} < /dev/null > /dev/null 2>&1 & while ! [ -e {} ]; do sleep 0.01; done",
        nested(dev, &waits),
        ready.display()
    );
    let output = dev.lock(&["x", "--ttl", "2s"], &script).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("still held by a lockkeeper within"), "{output:?}");
    let other = dev.lock(&["x", "--wait", "0"], "true").output().unwrap();
    assert_eq!(other.status.code(), Some(120), "{other:?}");
    std::fs::write(&done, "").unwrap();
    eventually("it is free", || dev.holders("x") == 0);
}

fn another_cluster_does_not_know_the_session(dev: &Dev) {
    let other = Dev::start(1, &[]);
    let output = dev.lock(&["x"], &nested(&other, "x -- echo there")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "there\n", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not known here"), "{output:?}");
}

fn a_lock_that_is_held_for_too_long_is_given_up(dev: &Dev) {
    let began = Instant::now();
    let mut command =
        dev.lock(&["long", "--max-hold", "600ms", "--ttl", "60s"], "trap '' TERM; sleep 100 & wait; wait");
    let output = command.stdout(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(121), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("--max-hold has passed"), "{told}");
    assert!(began.elapsed() >= Duration::from_millis(600) && began.elapsed() < Duration::from_secs(30));
    assert_eq!(dev.holders("long"), 0);
}

/// The one around has had its time, and its session must not end with it.
fn the_end_of_max_hold_leaves_the_lock_to_a_lockkeeper_within(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let [ready, done, code] = ["ready", "done", "code"].map(|name| directory.path().join(name));
    let waits = format!("x -- sh -c ': > {}; while ! [ -e {} ]; do sleep 0.01; done'", ready.display(), done.display());
    let within = directory.path().join("within.sh");
    std::fs::write(&within, format!("{}; echo $? > {}", nested(dev, &waits), code.display())).unwrap();
    let script = format!("setsid sh {} < /dev/null > /dev/null 2>&1 & sleep 100", within.display());
    let output = dev.lock(&["x", "--ttl", "5s", "--max-hold", "6s"], &script).output().unwrap();
    assert_eq!(output.status.code(), Some(121), "{output:?}");
    assert!(ready.exists(), "it was within before the time was over: {output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("still held by a lockkeeper within"), "{output:?}");
    // Longer than the session lives unless the one within renews it.
    let other = dev.lock(&["x", "--wait", "7s"], "true").output().unwrap();
    assert_eq!(other.status.code(), Some(120), "{other:?}");
    assert!(!code.exists(), "the one within has lost the lock");
    std::fs::write(&done, "").unwrap();
    eventually("it has ended", || std::fs::read_to_string(&code).is_ok_and(|code| code == "0\n"));
    eventually("it is free", || dev.holders("x") == 0);
}

fn so_is_one_that_is_held_once_more(dev: &Dev) {
    let script = format!(
        "{}; [ $? = 121 ] || exit 1; {} --endpoints {} --json locks x | grep -c '\"holds\"'; exit 7",
        nested(dev, "x --max-hold 300ms -- sleep 100"),
        env!("CARGO_BIN_EXE_lockkeeper"),
        dev.endpoints.join(",")
    );
    let output = dev.lock(&["x"], &script).output().unwrap();
    // The command around has it still, and only that one.
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{output:?}");
    assert_eq!(dev.holders("x"), 0);
}

fn an_unfair_lock_stands_in_no_queue(dev: &Dev) {
    let held = hold(dev, "unfair", &[]);
    let late = dev.lock(&["unfair", "--unfair", "--wait", "100ms"], "true").output().unwrap();
    assert_eq!(late.status.code(), Some(120), "{late:?}");
    let mut waits = Killed(dev.lock(&["unfair", "--unfair"], "exit 7").spawn().unwrap());
    let view = json(&dev.run(&["--json", "locks", "unfair"]));
    assert!(view["waiting"].as_u64().unwrap() <= 1, "at most for the moment of an attempt");
    release(held);
    assert_eq!(waits.code(), Some(7));
}

#[test]
fn a_lost_cluster_ends_the_whole_group_in_time() {
    let dev = Dev::start(3, &[]);
    let directory = tempfile::tempdir().unwrap();
    let ttl = Duration::from_secs(2);
    let (mut held, pids) = stubborn(&dev, "lost", "2s", directory.path());
    dev.signal(Signal::SIGSTOP);
    // The last acknowledged keepalive was sent before now, so the session can expire `ttl` after that at the earliest.
    // The group must be dead by then; `frozen + ttl` is an upper bound.
    let frozen = Instant::now();
    eventually("child and grandchild are dead", || pids.iter().all(|pid| !alive(*pid)));
    let took = frozen.elapsed();
    assert_eq!(held.code(), Some(121));
    assert!(took < ttl, "dead {took:?} after the cluster froze, before it could grant the lock again");
    dev.signal(Signal::SIGCONT);
}

#[test]
fn one_frozen_node_does_not_cost_the_lock() {
    let dev = Dev::start(3, &[]);
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let done = directory.path().join("done");
    let script = format!(": > {}; while ! [ -e {} ]; do sleep 0.02; done; exit 5", ready.display(), done.display());
    // Its first endpoint is that of the first node.
    let mut held = Killed(dev.lock(&["one", "--ttl", "2s"], &script).spawn().unwrap());
    eventually("the command runs", || ready.exists());
    let mut leader = None;
    eventually("one leads", || {
        let status = json(&dev.run(&["--json", "--patience", "1s", "status"]));
        leader = (0..3).find(|at| status["endpoints"][at]["leading"] == true);
        leader.is_some()
    });
    let leader = leader.unwrap();
    // Stop a follower that the holder may be connected to, and wait longer than the session's timeout.
    let frozen = if leader == 0 { 1 } else { 0 };
    kill(dev.pids[frozen], Signal::SIGSTOP).unwrap();
    let thawed_at = Instant::now() + Duration::from_secs(3);
    eventually("a session's life has passed", || Instant::now() >= thawed_at || held.0.try_wait().unwrap().is_some());
    kill(dev.pids[frozen], Signal::SIGCONT).unwrap();
    std::fs::write(&done, "").unwrap();
    assert_eq!(held.code(), Some(5));
}

#[test]
fn an_unreachable_cluster_has_a_code_of_its_own() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    for arguments in [&["lock", "a", "--", "true"][..], &["locks"], &["get", "/"], &["watch", "/"], &["status"]] {
        let mut command = lockkeeper();
        let output = command.args(["--patience", "200ms", "--endpoints", &address]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(122), "{arguments:?}: {output:?}");
        complaint(&output);
    }
}

/// A preloaded library steps a clock of one lockkeeper alone. The control shows that it gets there: the same step of
/// the clock by which a session ends costs the lock at once.
#[test]
fn steps_of_the_wall_clock_cost_nothing() {
    let dev = Dev::start(1, &[]);
    let directory = tempfile::tempdir().unwrap();
    let shim = shifted_clock(directory.path());
    let start = |clock: &str| {
        let step = directory.path().join(clock);
        let mut command = dev.lock(&[clock, "--ttl", "2s"], "exec sleep 100");
        command.env("LD_PRELOAD", &shim).env("LOCKKEEPER_TEST_CLOCK", clock).env("LOCKKEEPER_TEST_STEP", &step);
        let held = Killed(command.spawn().unwrap());
        eventually("the lock is held", || dev.holders(clock) == 1);
        (held, step)
    };
    let (mut held, step) = start("wall");
    let token = || json(&dev.run(&["--json", "locks", "wall"]))["holders"][0]["token"].clone();
    let silence = || json(&dev.run(&["--json", "sessions"]))["sessions"][0]["silent_ms"].as_u64().unwrap_or(u64::MAX);
    let first = token();
    for seconds in ["7200", "-7200", "0"] {
        std::fs::write(&step, seconds).unwrap();
        // The first renewal that is seen may have been sent before the step.
        let (mut before, mut renewals) = (silence(), 0);
        eventually("the session is renewed", || {
            let now = silence();
            renewals += u32::from(now < before);
            before = now;
            renewals == 3
        });
        assert_eq!((held.0.try_wait().unwrap(), token()), (None, first.clone()), "a step of {seconds} s");
    }
    drop(held);
    let (mut held, step) = start("boot");
    std::fs::write(&step, "7200").unwrap();
    assert_eq!(held.code(), Some(121));
    eventually("the lock is free", || dev.holders("boot") == 0);
}
