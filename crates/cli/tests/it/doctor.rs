//! `doctor` against real clusters and this machine: nothing bad where all is well, and each trouble in its check.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::support::{Dev, Killed, eventually, json, lockkeeper};

/// The check by this name, with its verdict.
fn check<'a>(report: &'a Value, part: &str, name: &str) -> &'a Value {
    let checks = report[part].as_array().unwrap();
    checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

fn verdict<'a>(report: &'a Value, part: &str, name: &str) -> &'a str {
    check(report, part, name)["verdict"].as_str().unwrap()
}

fn local(config: &Path) -> Output {
    lockkeeper().args(["--json", "doctor", "--local", "--config"]).arg(config).output().unwrap()
}

#[test]
fn a_healthy_cluster_has_no_problem() {
    let dev = Dev::start(3, &[]);
    let config = dev.data.join("node1.toml");
    // Without --endpoints the members in the configuration are asked.
    let output = lockkeeper().args(["--json", "doctor", "--config"]).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    assert_ne!(report["verdict"], "problem");
    for name in ["configuration", "data directory", "names", "listener client", "listener peer", "listener zookeeper"] {
        assert_eq!(verdict(&report, "local", name), "ok", "{report:#}");
    }
    let listener = check(&report, "local", "listener client")["found"].as_str().unwrap();
    assert!(listener.contains("the node runs"), "{listener}");
    assert_eq!(verdict(&report, "local", "certificates"), "skipped");
    for name in ["endpoints", "members", "versions", "builds", "readiness", "leader", "alarms", "agreement"] {
        assert_eq!(verdict(&report, "cluster", name), "ok", "{report:#}");
    }

    // A member compares its clock with the cluster's every five seconds.
    eventually("the clocks are compared", || {
        verdict(&json(&dev.run(&["--json", "doctor"])), "cluster", "clocks") == "ok"
    });

    // One endpoint is enough to ask all members, and they are compared while changes are made.
    let mut bench = dev.command(&["bench", "--clients", "4", "--locks", "own", "--seconds", "100", "--warm-up", "0"]);
    let mut bench = Killed(bench.stdout(std::process::Stdio::null()).spawn().unwrap());
    eventually("all members agree under load", || {
        let report = json(&lockkeeper().args(["--json", "doctor", "--endpoints", &dev.endpoints[0]]).output().unwrap());
        let agreement = check(&report, "cluster", "agreement");
        assert_ne!(agreement["verdict"], "problem", "{report:#}");
        assert_eq!(check(&report, "cluster", "members")["found"], "all 3 answer", "{report:#}");
        agreement["verdict"] == "ok" && agreement["found"].as_str().unwrap().starts_with("all 3 members")
    });
    assert!(bench.0.try_wait().unwrap().is_none(), "changes were made all the time");
    drop(bench);

    kill(dev.pids[2], Signal::SIGKILL).unwrap();
    let output = dev.run(&["doctor"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for expected in ["PROBLEM  members", "node 3 at ", "→ start it", "problems: 1"] {
        assert!(text.contains(expected), "{expected} is missing in\n{text}");
    }
    eventually("the leader notices", || {
        let report = json(&dev.run(&["--json", "doctor"]));
        verdict(&report, "cluster", "quorum") == "warning" && verdict(&report, "cluster", "followers") == "warning"
    });
}

#[test]
fn a_cluster_that_cannot_be_read_is_a_problem() {
    let dev = Dev::start(1, &[]);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("admin.token");
    assert!(dev.run(&["auth", "enable", "--out", token.to_str().unwrap()]).status.success());
    let refused = dev.run(&["--json", "doctor"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let report = json(&refused);
    let endpoints = check(&report, "cluster", "endpoints");
    assert!(endpoints["remedy"].as_str().unwrap().contains("--token-file"), "{report:#}");
    let allowed = json(&dev.run(&["--json", "--token-file", token.to_str().unwrap(), "doctor"]));
    assert_eq!(verdict(&allowed, "cluster", "quorum"), "warning", "one voter survives no loss: {allowed:#}");

    let nobody = lockkeeper().args(["--endpoints", "127.0.0.1:1", "--patience", "1s", "doctor"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
}

/// A node's configuration with certificates, that does not run.
fn configuration(directory: &Path, listen: &str) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    format!(
        "[cluster]\nid = \"orders\"\nnode = 1\n[listen]\nclient = \"127.0.0.1:0\"\npeer = \"{listen}\"\n\
         [peers.1]\npeer = \"127.0.0.1:7101\"\n[storage]\ndirectory = {:?}\nfree_floor_mib = 1\n\
         [tls.client]\ncertificate = {:?}\nkey = {:?}\n",
        at("data"),
        at("node1.pem"),
        at("node1.key")
    )
}

fn issue(directory: &Path, days: &str) {
    let directory = directory.to_str().unwrap();
    let init = ["certs", "init", "--dir", directory, "--cluster", "orders", "--force"];
    assert!(lockkeeper().args(init).output().unwrap().status.success());
    let node = ["certs", "node", "--dir", directory, "--id", "1", "--host", "localhost", "--force", "--days", days];
    assert!(lockkeeper().args(node).output().unwrap().status.success());
}

#[test]
fn trouble_of_the_machine_is_found_before_the_first_start() {
    let directory = tempfile::tempdir().unwrap();
    let (data, path) = (directory.path().join("data"), directory.path().join("node1.toml"));
    issue(directory.path(), "365");
    let good = configuration(directory.path(), "127.0.0.1:0");
    let report = |text: &str| {
        fs::write(&path, text).unwrap();
        let output = local(&path);
        let report = json(&output);
        assert_eq!(output.status.code() == Some(1), report["verdict"] == "problem", "{report:#}");
        assert_eq!(report["cluster"], serde_json::json!([]));
        report
    };
    let healthy = report(&good);
    assert_ne!(healthy["verdict"], "problem", "{healthy:#}");
    for name in ["configuration", "data directory", "names", "certificates", "private keys"] {
        assert_eq!(verdict(&healthy, "local", name), "ok", "{healthy:#}");
    }
    assert!(!data.exists(), "nothing is made");

    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = configuration(directory.path(), &holder.local_addr().unwrap().to_string());
    for (text, name, expected) in [
        (taken, "listener peer", "problem"),
        (good.replace("free_floor_mib = 1\n", "free_floor_mib = 1000000000\n"), "free space", "problem"),
        (good.replace("127.0.0.1:7101", "no-such-host.invalid:7101"), "names", "problem"),
        (good.replace("127.0.0.1:7101", "192.0.2.1:7101"), "names", "warning"),
        (good.replace("node1.pem", "missing.pem"), "configuration", "problem"),
        (good.replace("[cluster]", "[cluster"), "configuration", "problem"),
        (good.replace("/data\"", "/node1.toml\""), "data directory", "problem"),
    ] {
        let report = report(&text);
        assert_eq!(verdict(&report, "local", name), expected, "{report:#}");
    }

    fs::write(&path, &good).unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 600; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_lockkeeper"), "--json", "doctor"]);
    let limited = json(&limited.args(["--local", "--config"]).arg(&path).output().unwrap());
    assert_eq!(verdict(&limited, "local", "open files"), "warning", "{limited:#}");

    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    issue(directory.path(), "1");
    fs::set_permissions(directory.path().join("node1.key"), Permissions::from_mode(0o644)).unwrap();
    let report = report(&good);
    assert_eq!(verdict(&report, "local", "data directory"), "warning", "{report:#}");
    // A day is the bound between the two.
    assert!(["warning", "problem"].contains(&verdict(&report, "local", "certificates")), "{report:#}");
    assert_eq!(verdict(&report, "local", "private keys"), "warning", "{report:#}");
}

#[test]
fn local_needs_a_configuration() {
    assert_eq!(lockkeeper().args(["doctor", "--local"]).output().unwrap().status.code(), Some(2));
}

/// At the first start of a cluster of three, while the others are not started.
#[test]
fn a_node_that_waits_for_the_others_names_them_and_is_not_to_be_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let client = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = directory.path().join("node.toml");
    let text = format!(
        "[cluster]\nid = \"a\"\nnode = 1\n[listen]\nclient = \"{client}\"\npeer = \"127.0.0.1:0\"\n[peers.1]\n\
         peer = \"127.0.0.1:9\"\n[peers.2]\npeer = \"127.0.0.1:1\"\n[peers.3]\npeer = \"127.0.0.1:2\"\n[storage]\n\
         directory = {:?}\nfree_floor_mib = 1\n",
        directory.path().join("data")
    );
    fs::write(&config, text).unwrap();
    let log = fs::File::create(directory.path().join("log")).unwrap();
    let _node = Killed(lockkeeper().args(["serve", "--config"]).arg(&config).stderr(log).spawn().unwrap());
    let ask = |arguments: &[&str]| lockkeeper().args(["--endpoints", &client]).args(arguments).output().unwrap();
    let waits = "waiting for node 2 at 127.0.0.1:1 (connection refused), node 3 at 127.0.0.1:2 (connection refused)";
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    eventually("status names them", || text(ask(&["status"])).contains(waits));
    let status = text(ask(&["status"]));
    assert!(status.contains("not formed yet") && status.contains("every node of [peers]"), "{status}");
    assert!(!status.contains("no leader answers"), "{status}");
    let report = json(&ask(&["--json", "doctor"]));
    let members = check(&report, "cluster", "members");
    assert_eq!(members["verdict"], "problem", "{report:#}");
    assert!(members["found"].as_str().unwrap().contains(waits), "{report:#}");
    assert!(members["remedy"].as_str().unwrap().contains("every node of [peers]"), "{report:#}");
    assert!(!report["cluster"].to_string().contains("stop a node"), "{report:#}");
    eventually("its log names them", || {
        let log = fs::read_to_string(directory.path().join("log")).unwrap();
        log.lines().any(|line| line.contains("WARN") && line.contains(waits))
    });
}

#[test]
fn a_leader_whose_majority_is_gone_is_none_in_its_metrics() {
    let dev = Dev::start(3, &[]);
    let says = |value: &str| {
        let address = dev.endpoints[0].trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap().contains(&format!("\nlockkeeper_is_leader {value}\n"))
    };
    eventually("node 1 leads", || {
        // Refused while it is not in step.
        dev.run(&["member", "transfer", "1"]);
        says("1")
    });
    dev.pids[1..].iter().for_each(|pid| kill(*pid, Signal::SIGKILL).unwrap());
    eventually("it has no majority", || says("0"));
    let status = dev.run(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("no majority: nodes 2, 3 do not answer"), "{status:?}");
}

/// The other two are killed, whoever leads.
#[test]
fn a_survivor_says_that_there_is_no_majority_and_who_held_what() {
    let dev = Dev::start(3, &[]);
    let mut holder = Killed(dev.lock(&["jobs/nightly"], "sleep 100").spawn().unwrap());
    eventually("it holds", || dev.holders("jobs/nightly") == 1);
    dev.pids[1..].iter().for_each(|pid| kill(*pid, Signal::SIGKILL).unwrap());
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    let why = "no majority: nodes 2, 3 do not answer (connection refused)";
    eventually("status says why", || text(dev.run(&["status"])).contains(why));
    let status = text(dev.run(&["status"]));
    assert!(status.contains("  no leader  "), "{status}");
    let report = json(&dev.run(&["--json", "doctor"]));
    assert_eq!(verdict(&report, "cluster", "leader"), "problem", "{report:#}");
    let log = || fs::read_to_string(dev.data.join("node1.log")).unwrap();
    let warnings = || log().lines().filter(|line| line.contains("WARN") && line.contains(why)).count();
    eventually("its log says so", || warnings() == 1);
    for (arguments, expected) in [
        (&["locks", "--stale"][..], "jobs/nightly"),
        (&["locks", "jobs/nightly", "--stale"], "holds"),
        (&["sessions", "--stale"], ", sh"),
        (&["gates", "list", "--stale"], "no gates are in use"),
    ] {
        let output = dev.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?} {output:?}");
        assert!(text(output).contains(expected), "{arguments:?}");
        let current: Vec<&str> = arguments.iter().copied().filter(|part| *part != "--stale").collect();
        assert_eq!(dev.run(&[&["--patience", "1s"], &current[..]].concat()).status.code(), Some(122), "{current:?}");
    }
    assert_eq!(warnings(), 1, "once, not with each request");
    holder.0.kill().unwrap();
}
