//! The commands against a real cluster, and `serve` and `dev` with invalid input.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_checkers::skip::skip;
use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, alive, complaint, eventually, json, lockkeeper, pid_of};

#[test]
fn every_json_output_parses_and_tables_are_text() {
    let dev = Dev::start(3, &[]);
    let text = |arguments: &[&str]| String::from_utf8(dev.run(arguments).stdout).unwrap();

    let created = json(&dev.run(&["--json", "create", "/a", "one"]));
    assert_eq!(created["path"], "/a");
    let sequential = json(&dev.run(&["--json", "create", "/a/job-", "--sequential"]));
    assert_eq!(sequential["path"], "/a/job-0000000000");
    assert_eq!(json(&dev.run(&["--json", "set", "/a", "two", "--version", "0"]))["stat"]["version"], 1);
    assert_eq!(json(&dev.run(&["--json", "get", "/a"]))["data"]["text"], "two");
    assert_eq!(text(&["get", "/a"]), "two");
    assert_eq!(json(&dev.run(&["--json", "ls", "/a"])), serde_json::json!({ "children": ["job-0000000000"] }));
    assert_eq!(json(&dev.run(&["--json", "ls", "/a", "--long"]))["children"][0]["path"], "/a/job-0000000000");
    assert!(text(&["ls", "-l", "/"]).lines().nth(1).unwrap().starts_with("a "));
    assert_eq!(dev.run(&["create", "/ttl", "--kind", "ttl", "--ttl", "1h"]).status.code(), Some(0));
    let refused = dev.run(&["delete", "/a"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(complaint(&refused).contains("not_empty"));
    assert_eq!(dev.run(&["delete", "/a/job-0000000000"]).status.code(), Some(0));
    assert_eq!(json(&dev.run(&["--json", "delete", "/a"]))["path"], "/a");

    assert_eq!(json(&dev.run(&["--json", "locks"]))["locks"], serde_json::json!([]));
    assert_eq!(json(&dev.run(&["--json", "sessions"]))["sessions"], serde_json::json!([]));
    the_gates_in_use(&dev);
    let inside =
        "LOCKKEEPER_ENDPOINTS=$1; export LOCKKEEPER_ENDPOINTS; \"$0\" locks && \"$0\" locks b && \"$0\" sessions";
    let binary = env!("CARGO_BIN_EXE_lockkeeper");
    let under = ["lock", "b", "--label", "me and mine", "--", "sh", "-c", inside, binary, &dev.endpoints.join(",")];
    let output = dev.run(&under);
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(shown.matches("me and mine").count(), 3, "{shown}");

    let status = json(&dev.run(&["--json", "status", "--checksum"]));
    let zxids: Vec<_> = status["endpoints"].as_array().unwrap().iter().map(|node| node["state"].clone()).collect();
    assert_eq!(zxids.len(), 3);
    for (one, other) in zxids.iter().zip(&zxids[1..]) {
        assert!(one["zxid"] != other["zxid"] || one["checksum"] == other["checksum"]);
    }
    assert!(text(&["status"]).contains("leader"));

    let plot = tempfile::NamedTempFile::new().unwrap();
    let bench = dev.run(&[
        "--json",
        "bench",
        "--plot",
        plot.path().to_str().unwrap(),
        "--clients",
        "2",
        "--seconds",
        "1",
        "--warm-up",
        "0",
        "--server-pids",
        &dev.pids[0].to_string(),
    ]);
    let bench = json(&bench)["measurements"].take();
    assert_eq!(bench.as_array().unwrap().len(), 2);
    assert!(bench[0]["cycles"].as_u64().unwrap() > 0 && bench[1]["tokens_not_rising"] == 0);
    let drawn = std::fs::read_to_string(plot.path()).unwrap();
    assert!(drawn.contains("one lock for all clients"), "{drawn}");
    let rates = ["--rate", "20,1000000,1000000"];
    let ramp =
        [&["--json", "bench", "--clients", "2", "--seconds", "1", "--warm-up", "0", "--locks", "own"], &rates[..]];
    let ramp = json(&dev.run(&ramp.concat()))["measurements"].take();
    let (last, kept) = ramp.as_array().unwrap().split_last().unwrap();
    assert!(kept.len() < 2, "a ramp ends at the first rate that is not kept: {ramp}");
    assert!(last["cycles_per_second"].as_f64().unwrap() < 0.9 * last["rate"].as_f64().unwrap(), "{ramp}");
    let refused = dev.run(&["bench", "--rate", "0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let refused = dev.run(&["bench", "--plot", "/no/such/directory/plot.svg"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    a_watch_continues_at_another_node(&dev);
}

fn the_gates_in_use(dev: &Dev) {
    let text = |arguments: &[&str]| String::from_utf8(dev.run(arguments).stdout).unwrap();
    assert_eq!(text(&["gates", "list"]), "no gates are in use\n");
    assert_eq!(json(&dev.run(&["--json", "gates", "list"]))["gates"], serde_json::json!([]));
    let missing = dev.run(&["gates", "show", "mail/ann"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(complaint(&missing).contains("not_found"));
    let run = ["gate", "mail/ann", "--label", "the mailer", "--", "echo", "sent\u{1b}[31m"];
    assert_eq!(dev.run(&run).status.code(), Some(0));
    let inside =
        "LOCKKEEPER_ENDPOINTS=$1; export LOCKKEEPER_ENDPOINTS; \"$0\" gates list mail/ && \"$0\" gates show mail/bob";
    let binary = env!("CARGO_BIN_EXE_lockkeeper");
    let under = ["gate", "mail/bob", "--label", "worker", "--", "sh", "-c", inside, binary, &dev.endpoints.join(",")];
    let output = dev.run(&under);
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{shown}"));
    assert!(line("mail/ann").contains(" done ") && line("mail/ann").contains("the mailer"), "{shown}");
    assert!(line("mail/bob").contains("in progress") && shown.contains("by worker in session"), "{shown}");
    let listed = json(&dev.run(&["--json", "gates", "list", "mail/"]));
    assert_eq!((&listed["gates"][0]["key"], &listed["gates"][0]["result_bytes"]), (&"mail/ann".into(), &10.into()));
    assert_eq!(json(&dev.run(&["--json", "gates", "show", "mail/ann"]))["result"]["text"], "sent\u{1b}[31m\n");
    let shown = text(&["gates", "show", "mail/ann"]);
    assert!(shown.contains("result, 10 bytes: sent\\u{1b}[31m"), "{shown}");
}

fn a_watch_continues_at_another_node(dev: &Dev) {
    let from = json(&dev.run(&["--json", "create", "/w"]))["zxid"].to_string();
    let mut command = dev.command(&["--json", "watch", "/w", "--recursive", "--from", &from]);
    let mut watch = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut expect = |path: &str| {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&line["path"], &line["kind"]), (&path.into(), &"created".into()));
    };
    dev.run(&["create", "/w/1"]);
    expect("/w/1");
    // Its node is stopped; changes meanwhile are not missed.
    kill(dev.pids[0], Signal::SIGKILL).unwrap();
    // A create with an unknown outcome may have succeeded.
    eventually("a change is taken", || {
        dev.run(&["create", "/w/2"]);
        dev.run(&["get", "/w/2"]).status.success()
    });
    dev.run(&["create", "/w/3"]);
    expect("/w/2");
    expect("/w/3");
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let dev = Dev::start(1, &[]);
    for arguments in [&["--json", "status"][..], &["ls", "/"], &["--help"], &["completions", "bash"], &["locks"]] {
        let mut command = dev.command(arguments);
        let mut child = Killed(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        drop(child.0.stdout.take());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.0.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!(said, "", "{arguments:?}");
        assert_eq!(child.code(), Some(0), "{arguments:?}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(lockkeeper().args(["completions", shell]).output().unwrap().stdout).unwrap();
        for word in ["semaphore", "elect", "gate", "permits", "fingerprint"] {
            assert!(script.contains(word), "{shell} completes {word}");
        }
    }
}

#[test]
fn completions_have_the_names_of_locks_and_no_internal_commands() {
    let dev = Dev::start(1, &[]);
    let _holder = Killed(dev.lock(&["orders/42"], "sleep 60").spawn().unwrap());
    eventually("it holds", || dev.holders("orders/42") == 1);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(lockkeeper().args(["completions", shell]).output().unwrap().stdout).unwrap();
        assert!(!script.contains("__exec") && !script.contains("__guard"), "{shell}");
        if shell == "zsh" {
            // clap's own function is renamed, and called by the one that is registered.
            for part in
                ["_lockkeeper_line() {", "    _lockkeeper_line \"$@\"", " || compadd -a names", "\n_lockkeeper() {"]
            {
                assert_eq!(script.matches(part).count(), 1, "{part}");
            }
        }
    }
    let complete = r#"
        complete_line() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _lockkeeper_or_locks "$1" "${@: -1}" "${@: -2:1}"; echo "$((COMP_CWORD)): ${COMPREPLY[*]}"; }
        . <("$1" completions bash)
        complete_line "$1" lock ord
        complete_line "$1" lock --shared orders/
        complete_line "$1" lock --sha
        complete_line "$1" lock other
        complete_line "$1" lock a -- ord
        complete_line "$1" unl"#;
    let mut bash = Command::new("bash");
    bash.args(["-c", complete, "bash", env!("CARGO_BIN_EXE_lockkeeper")]);
    let output = bash.env("LOCKKEEPER_ENDPOINTS", dev.endpoints.join(",")).output().unwrap();
    let completed = String::from_utf8(output.stdout).unwrap();
    let expected = "2: orders/42\n3: orders/42\n2: --shared\n2: \n4: \n1: unlock\n";
    assert_eq!(completed, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn help_and_version_are_commands_too() {
    let printed = |arguments: &[&str]| {
        let output = lockkeeper().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(printed(&["help"]), printed(&["--help"]));
    assert_eq!(printed(&["help", "lock"]), printed(&["lock", "--help"]));
    let version = printed(&["version"]);
    assert_eq!(version, printed(&["--version"]));
    let of_checkout = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = of_checkout.ok().filter(|git| git.status.success());
    let commit = commit.map_or("unknown".into(), |git| String::from_utf8(git.stdout).unwrap());
    assert!(version.contains(&format!("commit {}, test build", commit.trim())), "{version}");
    // As in a manual page.
    let missing = lockkeeper().args(["lock", "x", "true"]).env("LOCKKEEPER_ENDPOINTS", "127.0.0.1:1").output().unwrap();
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("Usage: lockkeeper lock [OPTIONS] <NAME>... -- <CMD>..."), "{said}");
}

#[test]
fn dev_keeps_data_in_its_directory_and_leaves_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    let first = Dev::start(3, &["--data", &data]);
    let endpoints = first.endpoints.clone();
    assert!(first.run(&["create", "/kept", "value"]).status.success());
    stop(first, Signal::SIGINT);
    let second = Dev::start(3, &["--data", &data]);
    assert_eq!(second.endpoints, endpoints, "the addresses are the same");
    assert_eq!(second.run(&["get", "/kept"]).stdout, b"value");
    stop(second, Signal::SIGTERM);
    let other = lockkeeper().args(["dev", "--nodes", "5", "--data", &data]).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
    complaint(&other);

    let temporary = Dev::start(1, &[]);
    let path = temporary.data.clone();
    assert!(path.exists());
    stop(temporary, Signal::SIGINT);
    assert!(!path.exists());
}

/// In a network of its own, where nobody else has the usual ports.
#[test]
fn commands_find_the_usual_ports_of_dev_and_a_second_one_says_what_to_export_first() {
    let mut network = Command::new("unshare");
    network.arg("--net");
    if !nix::unistd::geteuid().is_root() {
        network.arg("--map-root-user");
    }
    network.args(["bash", "-euo", "pipefail", "-c"]);
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "ip link set lo up || exit 77
         trap 'kill $(jobs -p) && wait' EXIT
         for run in first second; do
             {program} dev >$run &
             until grep Ctrl-C $run >/dev/null; do kill -0 $!; sleep 0.02; done
         done
         {program} health
         {program} lock demo -- sh -c 'echo token $LOCKKEEPER_TOKEN'"
    );
    let mut output = network.arg(script).current_dir(directory.path());
    for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
        output = output.env_remove(variable);
    }
    let output = output.output().unwrap();
    if output.status.code() == Some(77) || String::from_utf8_lossy(&output.stderr).starts_with("unshare:") {
        return skip("iproute2, and leave to make a network");
    }
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.starts_with("ready\ntoken "), "{printed}");
    let [first, second] = ["first", "second"].map(|run| std::fs::read_to_string(directory.path().join(run)).unwrap());
    assert!(!first.contains("export"), "{first}");
    for address in ["http://127.0.0.1:7003 ", "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183\n"] {
        assert!(first.contains(address) && !second.contains(address), "{first}{second}");
    }
    let export = second.find("export LOCKKEEPER_ENDPOINTS=http://127.0.0.1:").unwrap();
    assert!(export < second.find("lockkeeper status").unwrap(), "{second}");
}

#[test]
fn dev_serves_zookeeper_clients_at_the_printed_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    let first = Dev::start(3, &["--data", &data]);
    let addresses = first.zookeeper.clone();
    assert_eq!(addresses.len(), 3);
    addresses.iter().for_each(|address| speaks_zookeepers_protocol(address));
    let mut too_long = TcpStream::connect(&addresses[0]).unwrap();
    too_long.write_all(&[0x01, 0, 0, 0]).unwrap();
    assert_eq!(too_long.read(&mut [0]).unwrap(), 0, "the connection is closed");
    let log = || std::fs::read_to_string(directory.path().join("node1.log")).unwrap();
    eventually("the log says so", || log().contains("16777216 bytes is longer than zookeeper.max_frame_bytes"));
    stop(first, Signal::SIGINT);
    let second = Dev::start(3, &["--data", &data]);
    assert_eq!(second.zookeeper, addresses, "it is reached where it was");
    stop(second, Signal::SIGINT);

    // The files as earlier versions wrote them.
    for node in 1..=3 {
        let file = directory.path().join(format!("node{node}.toml"));
        let config = std::fs::read_to_string(&file).unwrap();
        let listen = format!("[zookeeper]\nlisten = \"{}\"\n", addresses[node - 1]);
        assert!(config.contains(&listen), "{config}");
        let config = config.replace(&listen, "");
        let older: Vec<&str> = config.lines().filter(|line| !line.starts_with("zookeeper = ")).collect();
        std::fs::write(&file, older.join("\n")).unwrap();
    }
    let third = Dev::start(3, &["--data", &data]);
    assert!(third.zookeeper.is_empty(), "{:?}", third.zookeeper);
    stop(third, Signal::SIGINT);
}

fn speaks_zookeepers_protocol(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"srvr").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("Zookeeper version:"), "{address}: {answer}");
}

/// Stops the cluster and checks that it stopped in order.
fn stop(mut dev: Dev, signal: Signal) {
    kill(pid_of(&dev.process), signal).unwrap();
    assert_eq!(dev.process.wait().unwrap().code(), Some(0));
    assert!(dev.pids.iter().all(|pid| !alive(pid.as_raw())));
}

#[test]
fn nodes_end_with_a_dev_that_is_killed() {
    let mut dev = Dev::start(3, &[]);
    kill(pid_of(&dev.process), Signal::SIGKILL).unwrap();
    dev.process.wait().unwrap();
    eventually("the nodes have ended", || dev.pids.iter().all(|pid| !alive(pid.as_raw())));
    std::fs::remove_dir_all(&dev.data).unwrap();
}

fn serve(directory: &Path, config: &str) -> Output {
    let path = directory.join("node.toml");
    std::fs::write(&path, config).unwrap();
    lockkeeper().args(["serve", "--config"]).arg(&path).output().unwrap()
}

/// Configuration of a single node without logs, so that only its last message is printed.
fn config(node: u64, cluster: &str, client: &str, data: &Path) -> String {
    format!(
        "[cluster]\nid = \"{cluster}\"\nnode = {node}\n[listen]\nclient = \"{client}\"\npeer = \"127.0.0.1:0\"\n\
         [storage]\ndirectory = {data:?}\n[log]\nlevel = \"off\"\n"
    )
}

/// No node can take over the leadership, which is no error.
#[test]
fn a_stop_of_all_nodes_is_quick_and_quiet() {
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let dev = Dev::start(3, &["--data", directory.path().to_str().unwrap()]);
        let _held = Killed(dev.lock(&["x"], "exec sleep 100").stderr(Stdio::null()).spawn().unwrap());
        eventually("the lock is held", || dev.holders("x") == 1);
        let began = Instant::now();
        dev.signal(Signal::SIGTERM);
        eventually("all nodes have stopped", || dev.pids.iter().all(|pid| !alive(pid.as_raw())));
        quickest = quickest.min(began.elapsed());
        for node in 1..=3 {
            let log = std::fs::read_to_string(dev.data.join(format!("node{node}.log"))).unwrap();
            let trouble: Vec<&str> =
                log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
            assert!(trouble.is_empty() && log.contains("stopped"), "node {node}: {trouble:?} in {log}");
        }
    }
    // Each of these would include a wait for a leader.
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
}

#[test]
fn serve_reports_an_error_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let valid = config(1, "a", "127.0.0.1:0", &data);

    let absent = lockkeeper().args(["serve", "--config", "/no/such/file.toml"]).output().unwrap();
    assert_eq!(absent.status.code(), Some(2));
    assert!(complaint(&absent).contains("/no/such/file.toml"));

    let unreadable = lockkeeper().args(["serve", "--config"]).arg(directory.path()).output().unwrap();
    assert_eq!(unreadable.status.code(), Some(2));
    complaint(&unreadable);

    for (bad, named) in [
        ("[cluster]\nid = 1\nnode = \"x\"\n".to_owned(), "node"),
        ("[cluster\n".to_owned(), "node.toml"),
        (format!("{valid}[limits]\nbody_bites = 3\n"), "body_bites"),
        (valid.replace("node = 1", "node = 0"), "cluster.node"),
    ] {
        let output = serve(directory.path(), &bad);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(complaint(&output).contains(named), "{output:?}");
    }

    let path = directory.path().join("node.toml");
    std::fs::write(&path, &valid).unwrap();
    let checked = lockkeeper().args(["serve", "--check-config", "--config"]).arg(&path).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert!(!data.exists(), "a check touches nothing");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let in_use = serve(directory.path(), &config(1, "a", &address, &data));
    assert_eq!(in_use.status.code(), Some(1), "{in_use:?}");
    assert!(complaint(&in_use).contains(&address));

    // A directory of node 1 of cluster a.
    std::fs::write(&path, &valid).unwrap();
    let mut served = Killed(lockkeeper().args(["serve", "--config"]).arg(&path).spawn().unwrap());
    let log = data.clone();
    eventually("the directory is made", || {
        log.join("identity").exists() || std::fs::read_dir(&log).is_ok_and(|mut d| d.next().is_some())
    });
    eventually("it can be told to stop", || {
        let _ = kill(served.pid(), Signal::SIGTERM);
        served.0.try_wait().unwrap().is_some()
    });
    for foreign in [config(2, "a", "127.0.0.1:0", &data), config(1, "b", "127.0.0.1:0", &data)] {
        let output = serve(directory.path(), &foreign);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        complaint(&output);
    }
}

/// Creates up to 200 nodes of 100 KB while the process lives. Returns the names of the acknowledged ones.
fn fill(endpoint: &str, process: &mut Killed) -> Vec<String> {
    let data = "x".repeat(100_000);
    let create = |name: &String| {
        let path = format!("/{name}");
        let output = lockkeeper().args(["--endpoints", endpoint, "--patience", "1s", "create", &path, &data]).output();
        output.unwrap().status.success()
    };
    let names = (0..200).map(|number| format!("full-{number}"));
    names.take_while(|_| process.0.try_wait().unwrap().is_none()).filter(create).collect()
}

#[test]
fn a_full_disk_ends_serve_in_one_line_and_loses_nothing_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let path = directory.path().join("node.toml");
    std::fs::write(&path, config(1, "a", &address, &directory.path().join("data"))).unwrap();
    let endpoint = format!("http://{address}");
    let ready = || lockkeeper().args(["--endpoints", &endpoint, "status"]).output().unwrap().status.success();

    // Files are limited to 6 MiB and SIGXFSZ is ignored, so that writes fail as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 6144; exec \"$0\" serve --config \"$1\"";
    let mut limited = std::process::Command::new("bash");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]).arg(&path).stderr(Stdio::piped());
    let mut limited = Killed(limited.spawn().unwrap());
    eventually("the node serves", ready);
    let acknowledged = fill(&endpoint, &mut limited);
    assert!(acknowledged.len() > 3, "{acknowledged:?}");
    eventually("the node ends", || limited.0.try_wait().unwrap().is_some());
    assert_eq!(limited.code(), Some(1));
    let said: Vec<String> = BufReader::new(limited.0.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    // The first file that exceeds the limit is a snapshot, or sled's if the node rested for a second before.
    let names_file = ["snapshots/", "log/sled/db"].iter().any(|file| said[0].contains(file));
    assert!(said[0].contains("File too large") && names_file, "names cause and file: {said:?}");

    let again = Killed(lockkeeper().args(["serve", "--config"]).arg(&path).spawn().unwrap());
    eventually("it serves again", ready);
    let listed = lockkeeper().args(["--endpoints", &endpoint, "ls", "/"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for name in &acknowledged {
        assert!(listed.lines().any(|line| line.trim_start_matches('/') == name), "{name} is gone from: {listed}");
    }
    drop(again);
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for arguments in [
        &["nonsense"][..],
        &["get"],
        &["--endpoints", "ftp://x", "locks"],
        &["unlock", "a", "--token", "x"],
        &["create", "/a", "--kind", "ttl"],
    ] {
        assert_eq!(lockkeeper().args(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}

/// An ordinary build of the program has no mutants, and a release build no clock that can be put wrong.
#[test]
#[cfg_attr(mutants, ignore = "a mutant build has them")]
fn the_program_has_no_mutants() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_lockkeeper")).unwrap();
    let has = |text: &str| program.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("LOCKKEEPER_ENDPOINTS"), "this looks where nothing is to be found");
    for text in ["LOCKKEEPER_MUTANT", "MUTANT BUILD", "ack-before-barrier"] {
        assert!(!has(text), "{text} is in it");
    }
    // The fault suite puts the clocks of debug builds wrong; see `clock_control` of the server.
    assert_eq!(has("LOCKKEEPER_CLOCK_CONTROL"), cfg!(debug_assertions), "the injected clock");
}
