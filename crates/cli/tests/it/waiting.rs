//! Commands that wait say on standard error whom they wait for, and every holder has a name.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, complaint, eventually, json};

/// A process, and the file with its standard error.
struct Waiter {
    process: Killed,
    errors: PathBuf,
}

impl Waiter {
    fn start(mut command: Command, errors: PathBuf) -> Self {
        command.stdout(Stdio::null()).stderr(File::create(&errors).unwrap());
        Self { process: Killed(command.spawn().unwrap()), errors }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    /// Waits until a line of standard error has all these parts.
    fn says(&self, parts: &[&str]) -> String {
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        let mut found = None;
        eventually(&format!("{parts:?} in {:?}", self.errors), || {
            found = self.errors().lines().find(has_all).map(str::to_owned);
            found.is_some()
        });
        found.unwrap()
    }
}

/// Runs commands against a cluster, with their standard error in files of this directory.
struct Trial {
    dev: Dev,
    directory: tempfile::TempDir,
}

impl Trial {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self, label: &str, arguments: &[&str], marker: &Path) -> Waiter {
        let script = format!(": > {}; exec sleep 100", marker.display());
        let mut command = self.dev.command(arguments);
        command.args(["--label", label, "--", "sh", "-c", &script]);
        Waiter::start(command, self.path(label))
    }

    /// Starts a command, and waits until its CMD runs.
    fn hold(&self, label: &str, arguments: &[&str]) -> Waiter {
        let marker = self.path(&format!("{label}.runs"));
        let holder = self.start(label, arguments, &marker);
        eventually("CMD runs", || marker.exists());
        holder
    }

    fn wait(&self, label: &str, arguments: &[&str]) -> Waiter {
        self.start(label, arguments, &self.path(&format!("{label}.runs")))
    }
}

#[test]
fn a_wait_is_explained_on_standard_error() {
    let trial = Trial { dev: Dev::start(3, &[]), directory: tempfile::tempdir().unwrap() };
    place_and_holder_and_each_change(&trial);
    every_command_that_waits(&trial);
    a_wait_that_ends_is_explained(&trial);
}

fn place_and_holder_and_each_change(trial: &Trial) {
    let nightly = ["lock", "jobs/nightly"];
    let holder = trial.hold("deploy@db1", &nightly);
    let token = json(&trial.dev.run(&["--json", "locks", "jobs/nightly"]))["holders"][0]["token"].to_string();
    let queued = |count: usize| {
        let view = json(&trial.dev.run(&["--json", "locks", "jobs/nightly"]));
        view["waiting"].as_u64() == Some(count.try_into().unwrap())
    };
    let first = trial.wait("first", &nightly);
    eventually("the first waits", || queued(1));
    let quiet = trial.wait("quiet", &["lock", "jobs/nightly", "--quiet"]);
    eventually("the quiet one waits", || queued(2));
    let third = trial.wait("third", &["lock", "jobs/nightly", "--json"]);
    let line = first.says(&["held by"]);
    let start = "lockkeeper lock: waiting for jobs/nightly, place 1, held by deploy@db1, queued ";
    assert!(line.starts_with(start) && line.ends_with(&format!("s ago (token {token})")), "{line}");
    let document: serde_json::Value = serde_json::from_str(&third.says(&["\"holder\""])).unwrap();
    let (waiting, token) = (&document["waiting"], token.parse::<u64>().unwrap());
    assert_eq!(waiting["for"], "jobs/nightly");
    assert_eq!((&waiting["place"], &waiting["holder"]["token"]), (&3.into(), &token.into()));
    assert_eq!(waiting["holder"]["label"], "deploy@db1");

    // A line for each holder, and for a wait of some seconds no other.
    kill(holder.process.pid(), Signal::SIGTERM).unwrap();
    third.says(&["\"label\":\"first\"", "\"place\":2"]);
    let errors = third.errors();
    assert_eq!(errors.lines().filter(|line| line.contains("\"holder\"")).count(), 2, "{errors}");
    assert_eq!(quiet.errors(), "");
}

fn every_command_that_waits(trial: &Trial) {
    for (name, arguments, what) in [
        ("semaphore", &["semaphore", "licences", "--permits", "1"][..], "licences, place 1, "),
        ("elect", &["elect", "scheduler"], "the leadership of scheduler, place 1, "),
        ("gate", &["gate", "invoices/1", "--fingerprint", "f", "--wait"], "invoices/1, "),
        ("shared", &["lock", "reports"], "reports, place 1, "),
        ("cron", &["cron", "tidy", "--at", "* * * * * *"], " of tidy, "),
    ] {
        let (holding, waiting) = (format!("{name}-holder"), format!("{name}-waiter"));
        let _holder = trial.hold(&holding, arguments);
        let waiter = trial.wait(&waiting, arguments);
        // A lock's node knows only since when its holder is in the queue.
        let time = if what.contains("place") { ", queued " } else { " for " };
        let line = waiter.says(&["waiting for ", what, &format!("held by {holding}{time}")]);
        assert!(line.contains(" (token "), "{line}");
    }
}

fn a_wait_that_ends_is_explained(trial: &Trial) {
    let _holder = trial.hold("pg_dump", &["lock", "dump"]);
    let _ahead = trial.wait("ahead", &["lock", "dump"]);
    eventually("one waits", || json(&trial.dev.run(&["--json", "locks", "dump"]))["waiting"] == 1);
    let ended = trial.dev.run(&["lock", "dump", "--wait", "100ms", "--", "true"]);
    assert_eq!(ended.status.code(), Some(120), "{ended:?}");
    let line = complaint(&ended);
    for part in ["dump is still held by pg_dump, queued ", " (token ", " after a wait of 100ms at place 2;"] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

/// Below cron, systemd and in containers, `$USER` is not set.
#[test]
fn holders_are_never_blank() {
    let dev = Dev::start(1, &[]);
    let mut nameless = dev.lock(&["a"], "exec sleep 100");
    nameless.env_remove("USER").env_remove("LOGNAME");
    let _holder = Killed(nameless.spawn().unwrap());
    eventually("the lock is held", || dev.holders("a") == 1);
    let holder = json(&dev.run(&["--json", "locks", "a"]))["holders"][0].clone();
    let label = holder["label"].as_str().unwrap();
    assert!(label.starts_with(&format!("uid {}@", nix::unistd::getuid())) && label.ends_with(", sh"), "{label}");
    let sessions = json(&dev.run(&["--json", "sessions"]));
    let left = sessions["sessions"][0]["remaining_ms"].as_u64().unwrap();
    assert!((1..=10_000).contains(&left), "{sessions}");
    let table = String::from_utf8(dev.run(&["sessions"]).stdout).unwrap();
    assert!(table.contains("SILENT") && table.contains("LEFT"), "{table}");
}
