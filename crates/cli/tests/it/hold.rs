//! `lockkeeper lock` with several names and with a delay, `semaphore`, and `elect`, with real processes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, alive, complaint, eventually, json, lockkeeper, numbers};

#[test]
fn commands_under_several_locks_permits_and_elections() {
    let dev = Dev::start(3, &[]);
    several_locks_are_held_together_or_not_at_all(&dev);
    what_is_held_together_is_shown_so(&dev);
    a_delay_outlives_a_dead_holder_and_not_an_orderly_one(&dev);
    no_more_hold_than_there_are_permits(&dev);
    one_leads_and_says_so(&dev);
    a_deposed_leader_is_killed_and_stands_again(&dev);
    a_limit_that_changes_an_option_is_reported(&dev);
    bad_arguments(&dev);
}

/// A command of lockkeeper that runs `sleep` until it is dropped.
fn sleeper(dev: &Dev, arguments: &[&str]) -> Killed {
    let mut command = dev.command(arguments);
    Killed(command.args(["--", "sleep", "100"]).stdout(Stdio::null()).spawn().unwrap())
}

fn held(dev: &Dev, arguments: &[&str], lock: &str, holders: usize) -> Killed {
    let sleeper = sleeper(dev, arguments);
    eventually("it is held", || dev.holders(lock) == holders);
    sleeper
}

fn release(mut held: Killed) {
    kill(held.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(held.code(), Some(128 + 15));
}

fn view(dev: &Dev, lock: &str) -> serde_json::Value {
    json(&dev.run(&["--json", "locks", lock]))
}

fn several_locks_are_held_together_or_not_at_all(dev: &Dev) {
    let output =
        dev.lock(&["b", "a", "b", "c"], "printf '%s\\n' \"$LOCKKEEPER_LOCK\" $LOCKKEEPER_TOKEN").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("b\na\nb\nc\n"), "as they were named: {text}");

    let alone = held(dev, &["lock", "b"], "b", 1);
    let busy = dev.lock(&["a", "b", "c", "--wait", "200ms"], "echo ran").output().unwrap();
    assert_eq!(busy.status.code(), Some(120), "{busy:?}");
    assert!(busy.stdout.is_empty() && complaint(&busy).contains("b is still held by"));
    assert!(["a", "c"].iter().all(|lock| dev.holders(lock) == 0), "all or nothing");
    release(alone);

    let together = held(dev, &["lock", "c", "a", "b"], "b", 1);
    let tokens: Vec<_> = ["a", "b", "c"].map(|lock| view(dev, lock)["holders"][0]["token"].clone()).into();
    assert!(tokens.iter().all(|token| token.is_u64() && *token == tokens[0]), "{tokens:?}");
    assert_eq!(dev.lock(&["a", "--wait", "0"], "true").output().unwrap().status.code(), Some(120));
    release(together);
    assert!(["a", "b", "c"].iter().all(|lock| dev.holders(lock) == 0));
}

fn what_is_held_together_is_shown_so(dev: &Dev) {
    let together = held(dev, &["lock", "east", "west"], "west", 1);
    let alone = held(dev, &["lock", "north"], "north", 1);
    let text = String::from_utf8(dev.run(&["locks"]).stdout).unwrap();
    let line = |lock: &str| text.lines().find(|line| line.starts_with(lock)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("LOCK").contains("TOGETHER WITH"));
    assert!(line("east").contains(" west ") && line("west").contains(" east "), "{text}");
    assert!(!line("north").contains("east"));
    // A forced release of one lock loses all of them.
    let token = view(dev, "east")["holders"][0]["token"].to_string();
    assert!(dev.run(&["unlock", "east", "--force", "--token", &token]).status.success());
    let mut together = together;
    assert_eq!(together.code(), Some(121));
    assert_eq!((dev.holders("east"), dev.holders("west")), (0, 0));
    release(alone);
}

fn a_delay_outlives_a_dead_holder_and_not_an_orderly_one(dev: &Dev) {
    let orderly = held(dev, &["lock", "slow", "--delay", "5m"], "slow", 1);
    let text = String::from_utf8(dev.run(&["locks", "slow"]).stdout).unwrap();
    assert!(text.contains("exclusive, delay 5m"), "{text}");
    release(orderly);
    let dead = held(dev, &["lock", "slow", "--ttl", "1s", "--delay", "5m"], "slow", 1);
    kill(dead.pid(), Signal::SIGKILL).unwrap();
    eventually("its place is kept", || view(dev, "slow")["holders"][0]["delayed_until_ms"].is_u64());
    let text = String::from_utf8(dev.run(&["locks", "slow"]).stdout).unwrap();
    assert!(text.contains("closed for another 4m"), "{text}");
    assert_eq!(dev.lock(&["slow", "--wait", "0"], "true").output().unwrap().status.code(), Some(120));
    // An operator ends the delay.
    let token = view(dev, "slow")["holders"][0]["token"].to_string();
    let ended = dev.run(&["unlock", "slow", "--force", "--token", &token]);
    assert!(String::from_utf8(ended.stdout).unwrap().starts_with("ended the delay of slow"));
    assert_eq!(dev.lock(&["slow", "--wait", "10s"], "true").output().unwrap().status.code(), Some(0));
}

fn no_more_hold_than_there_are_permits(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let script = format!("echo 1 >> {0}; sleep 0.05; echo -1 >> {0}; test \"$LOCKKEEPER_LOCK\" = few", log.display());
    let contend = || {
        let mut command = dev.command(&["semaphore", "few", "--permits", "2", "--", "sh", "-c", &script]);
        Killed(command.spawn().unwrap())
    };
    let mut contenders: Vec<Killed> = (0..6).map(|_| contend()).collect();
    assert!(contenders.iter_mut().all(|one| one.code() == Some(0)));
    let mut inside = 0;
    let steps = numbers(&log);
    assert_eq!(steps.len(), 12);
    for step in steps {
        inside += step;
        assert!((0..=2).contains(&inside));
    }

    let one = held(dev, &["semaphore", "few", "--permits", "2"], "few", 1);
    let other = held(dev, &["semaphore", "few", "--permits", "2"], "few", 2);
    let third = dev.run(&["semaphore", "few", "--permits", "2", "--wait", "100ms", "--", "true"]);
    assert_eq!(third.status.code(), Some(120), "{third:?}");
    complaint(&third);
    let text = String::from_utf8(dev.run(&["locks", "few"]).stdout).unwrap();
    assert!(text.contains("permit, 2 in all"), "{text}");
    // All must give the same number, and nobody may use the name as a lock.
    for other_shape in [&["semaphore", "few", "--permits", "3"][..], &["lock", "few"]] {
        let mut command = dev.command(other_shape);
        let refused = command.args(["--wait", "0", "--", "true"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        assert!(complaint(&refused).contains("lock_mismatch"), "{refused:?}");
    }
    release(one);
    release(other);
    assert_eq!(dev.holders("few"), 0);
}

/// The leader's data as the client library sees it: command and library share one election.
fn leader_of(dev: &Dev, election: &str) -> Option<Vec<u8>> {
    let client = lockkeeper_client::Client::new(&dev.endpoints, lockkeeper_client::Options::default()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let leader = runtime.block_on(async { client.observe_election(election).unwrap().next().await.unwrap() });
    leader.map(|leader| leader.data)
}

fn one_leads_and_says_so(dev: &Dev) {
    let lock = "elections/scheduler";
    let arguments = ["elect", "scheduler", "--data", "http://10.0.0.7:8080", "--label", "the first"];
    let leader = held(dev, &arguments, lock, 1);
    eventually("the leader is known", || leader_of(dev, "scheduler").is_some());
    assert_eq!(leader_of(dev, "scheduler").unwrap(), b"http://10.0.0.7:8080");
    let late = dev.run(&["elect", "scheduler", "--wait", "100ms", "--", "true"]);
    assert_eq!(late.status.code(), Some(120), "{late:?}");
    assert!(complaint(&late).contains("the first"));

    let script = "echo $LOCKKEEPER_ELECTION; exit 9";
    let mut command = dev.command(&["elect", "scheduler", "--", "sh", "-c", script]);
    let mut candidate = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    eventually("it stands for election", || view(dev, lock)["waiting"] == 1);
    release(leader);
    let mut said = String::new();
    BufReader::new(candidate.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "scheduler\n");
    assert_eq!(candidate.code(), Some(9), "the leadership ends with the command");
    assert_eq!(dev.holders(lock), 0);
    assert_eq!(leader_of(dev, "scheduler"), None);
}

fn a_deposed_leader_is_killed_and_stands_again(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pids");
    let lock = "elections/forever";
    let script = format!("trap '' TERM; echo $$ >> {}; while :; do sleep 0.02; done", file.display());
    let mut command = dev.command(&["elect", "forever", "--forever", "--ttl", "1s", "--", "sh", "-c", &script]);
    let mut leader = Killed(command.stderr(Stdio::null()).spawn().unwrap());
    eventually("it leads", || numbers(&file).len() == 1);
    let token = view(dev, lock)["holders"][0]["token"].to_string();
    assert!(dev.run(&["unlock", lock, "--force", "--token", &token]).status.success());
    eventually("it leads again", || numbers(&file).len() == 2);
    let pids = numbers(&file);
    assert!(!alive(pids[0]) && alive(pids[1]), "one at a time");
    assert!(view(dev, lock)["holders"][0]["token"].as_u64() > token.parse().ok());
    // A CMD that exits is not started again.
    kill(nix::unistd::Pid::from_raw(pids[1]), Signal::SIGKILL).unwrap();
    assert_eq!(leader.code(), Some(128 + 9));
    assert_eq!(dev.holders(lock), 0);
}

fn a_limit_that_changes_an_option_is_reported(dev: &Dev) {
    for (options, reported) in [
        (&["--ttl", "100ms"][..], "--ttl 100ms is less than the cluster allows (timing.min_session_timeout_ms)"),
        (&["--ttl", "1d"], "--ttl 1day is more than the cluster allows (timing.max_session_timeout_ms)"),
        (&["--grace", "10s"], "--grace is more than a fifth of the time"),
        (&["--max-hold", "1s", "--grace", "1s"], "--grace is more than a fifth of the time"),
    ] {
        let output = dev.lock(&[&["limits"], options].concat(), "exit 7").output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert!(complaint(&output).contains(reported), "{options:?}: {output:?}");
    }
    let within = dev.lock(&["limits", "--ttl", "1h", "--grace", "12m"], "true").output().unwrap();
    assert!(within.stderr.is_empty(), "{within:?}");
}

fn bad_arguments(dev: &Dev) {
    let began = Instant::now();
    let many: Vec<String> = (0..257).map(|n| format!("lock{n}")).collect();
    let mut too_many = vec!["lock"];
    too_many.extend(many.iter().map(String::as_str));
    for (arguments, named) in [
        (&too_many[..], "256"),
        (&["lock", "a", "b", "--unfair"], "--unfair"),
        (&["lock", "a", "--shared", "--unfair"], "--unfair"),
        (&["lock", "a", "--max-hold", "1ms"], "100ms"),
        (&["lock", "a", "b", "--shared"], "--shared"),
        (&["lock", "a", "--delay", "11m"], "10m"),
        (&["lock"], "NAME"),
        (&["semaphore", "a"], "--permits"),
        (&["semaphore", "a", "--permits", "0"], "0"),
        (&["semaphore", "a", "--permits", "1001"], "1001"),
        (&["elect", "a/../b"], ".."),
        (&["elect", "a", "--ttl", "1ms"], "--ttl"),
    ] {
        let mut command = dev.command(arguments);
        let output = command.args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{arguments:?}: {output:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn each_help_tells_its_exit_codes() {
    for (command, codes) in [
        ("lock", &["120", "121", "122", "123", "125", "126", "127"][..]),
        ("semaphore", &["120", "121", "122", "123", "125", "126", "127"]),
        ("elect", &["120", "121", "122", "123", "125", "126", "127"]),
        ("gate", &["117", "118", "119", "121", "122", "123", "125", "126", "127"]),
    ] {
        let help = lockkeeper().args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        for code in codes {
            assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{command} --help tells {code}");
        }
    }
}
