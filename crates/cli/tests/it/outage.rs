//! `--if-unreachable` of `lock`, `semaphore` and `gate`: an outage before CMD starts, and nothing else, lets CMD run
//! without protection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_api::{Code, Problem};
use lockkeeper_server::local::Cluster;
use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, alive, complaint, eventually, json, lockkeeper, numbers};

/// Prints what CMD knows of its protection.
const TELL: &str = "echo token=${LOCKKEEPER_TOKEN-none} lock=${LOCKKEEPER_LOCK-none} gate=${LOCKKEEPER_GATE-none} \
                    unprotected=${LOCKKEEPER_UNPROTECTED-no}";
const UNPROTECTED: &str = "token=none lock=none gate=none unprotected=1\n";
const FORMS: [&[&str]; 3] = [&["lock", "a"], &["semaphore", "a", "--permits", "2"], &["gate", "a"]];

/// A command against an address where nothing listens.
fn nowhere(form: &[&str], options: &[&str], script: &str) -> Command {
    let mut command = lockkeeper();
    command.args(["--endpoints", "127.0.0.1:1", "--patience", "200ms"]).args(form).args(options);
    command.args(["--", "sh", "-c", script]);
    // As below another command of lockkeeper.
    command.env("LOCKKEEPER_TOKEN", "7").env("LOCKKEEPER_LOCK", "outer");
    command
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

#[track_caller]
fn ran_unprotected(output: &Output) {
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), UNPROTECTED), "{errors}");
    assert!(errors.contains("UNPROTECTED") && errors.contains("--if-unreachable run"), "{errors}");
}

#[test]
fn nothing_is_run_in_an_outage_unless_the_caller_says_so() {
    for form in FORMS {
        for options in [&[][..], &["--if-unreachable", "refuse"]] {
            let refused = nowhere(form, options, "echo ran").output().unwrap();
            assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(122), ""), "{refused:?}");
            complaint(&refused);
        }
        ran_unprotected(&nowhere(form, &["--if-unreachable", "run"], TELL).output().unwrap());
    }
    let wrong = nowhere(&["lock", "a"], &["--if-unreachable", "perhaps"], "echo ran").output().unwrap();
    assert_eq!((wrong.status.code(), text(&wrong.stdout).as_str()), (Some(125), ""));
    let elect = nowhere(&["elect", "a"], &["--if-unreachable", "run"], "echo ran").output().unwrap();
    assert_eq!(elect.status.code(), Some(125), "a leader that others do not know of is none: {elect:?}");
}

#[test]
fn an_unprotected_command_keeps_its_code_and_its_output_and_gets_signals() {
    let run = ["--if-unreachable", "run"];
    assert_eq!(nowhere(&["lock", "a"], &run, "exit 7").output().unwrap().status.code(), Some(7));
    // The most that a gate stores does not matter where nothing is stored.
    let long = nowhere(&["gate", "a"], &run, "head -c 70000 /dev/zero").output().unwrap();
    assert_eq!((long.status.code(), long.stdout.len()), (Some(0), 70_000), "{:?}", text(&long.stderr));
    let missing = lockkeeper()
        .args(["--endpoints", "127.0.0.1:1", "--patience", "200ms", "lock", "a"])
        .args(run)
        .args(["--", "no-such-command-anywhere"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");

    let directory = tempfile::tempdir().unwrap();
    let running = directory.path().join("running");
    let script = format!("echo $$ >> {}; exec sleep 100", running.display());
    let begin = || {
        let mut command = nowhere(&["lock", "a"], &run, &script);
        Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let mut ended = begin();
    eventually("it runs", || numbers(&running).len() == 1);
    kill(ended.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(ended.code(), Some(128 + 15));
    let mut killed = begin();
    eventually("it runs", || numbers(&running).len() == 2);
    kill(killed.pid(), Signal::SIGKILL).unwrap();
    killed.code();
    let pid = numbers(&running)[1];
    eventually("CMD does not outlive lockkeeper", || !alive(pid));
}

/// A command of which every request gets this answer.
fn at_a_server(status: u16, content_type: &str, body: &str) -> Command {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let mut command = lockkeeper();
    command.args(["--endpoints", &address, "--patience", "200ms", "lock", "a", "--if-unreachable", "run"]);
    command.args(["--", "echo", "ran"]);
    command
}

#[test]
fn only_an_outage_lets_a_command_run_unprotected() {
    let dev = Dev::start(1, &[]);
    let directory = tempfile::tempdir().unwrap();
    let running = directory.path().join("running");
    let script = format!("echo 1 >> {}; exec sleep 100", running.display());
    let holder = Killed(dev.lock(&["a"], &script).stdout(Stdio::null()).spawn().unwrap());
    eventually("it is held", || numbers(&running).len() == 1);
    // With a cluster nothing is different: CMD has its token, and a busy lock is busy.
    let run = ["--if-unreachable", "run"];
    let mut free = dev.command(&["lock", "free"]);
    let free = free.args(run).args(["--", "sh", "-c", TELL]).env("LOCKKEEPER_UNPROTECTED", "1").output().unwrap();
    let told = text(&free.stdout);
    assert!(told.contains("lock=free") && !told.contains("token=none") && told.ends_with("unprotected=no\n"), "{told}");
    let busy = dev.lock(&["a", "--wait", "100ms", "--if-unreachable", "run"], "echo ran").output().unwrap();
    assert_eq!((busy.status.code(), text(&busy.stdout).as_str()), (Some(120), ""), "{busy:?}");
    let refused = dev.run(&["semaphore", "a", "--permits", "2", "--if-unreachable", "run", "--", "echo", "ran"]);
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(125), ""), "{refused:?}");
    // Another program answers: a cluster may be behind it.
    let elsewhere = at_a_server(200, "text/plain", "ok").output().unwrap();
    assert_eq!(text(&elsewhere.stdout), "", "{elsewhere:?}");
    assert!(matches!(elsewhere.status.code(), Some(123 | 125)), "{elsewhere:?}");
    // A busy cluster is there: if it were an outage, everybody would run unprotected as soon as it is overloaded.
    let busy = serde_json::to_string(&Problem::new(Code::Overloaded, "too much to do")).unwrap();
    let busy = at_a_server(429, "application/problem+json", &busy).output().unwrap();
    assert_eq!((busy.status.code(), text(&busy.stdout).as_str()), (Some(122), ""), "{busy:?}");
    assert!(complaint(&busy).contains("overloaded"), "{busy:?}");
    drop(holder);
}

/// The cluster dies while one command holds the lock and two wait: the holder's CMD is killed, one waiter runs without
/// protection because its caller said so, the other does not run.
#[test]
fn a_cluster_that_dies_midway() {
    let dev = Dev::start(3, &[]);
    let directory = tempfile::tempdir().unwrap();
    let (running, ran) = (directory.path().join("running"), directory.path().join("ran"));
    let script = format!("echo $$ >> {}; exec sleep 100", running.display());
    let holding = ["a", "--ttl", "2s", "--if-unreachable", "run"];
    let mut holder = Killed(dev.lock(&holding, &script).stderr(Stdio::null()).spawn().unwrap());
    eventually("it is held", || numbers(&running).len() == 1);
    let tell = format!("{TELL} | tee -a {}", ran.display());
    let waiter = |options: &[&str]| {
        let mut command = dev.command(&["--patience", "500ms", "lock", "a", "--ttl", "2s"]);
        command.args(options).args(["--", "sh", "-c", &tell]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (runs, refuses) = (waiter(&["--if-unreachable", "run"]), waiter(&[]));
    eventually("both wait", || json(&dev.run(&["--json", "locks", "a"]))["waiting"] == 2);
    // Two of three: no majority, although one node answers.
    for pid in &dev.pids[..2] {
        kill(*pid, Signal::SIGSTOP).unwrap();
    }
    let (runs, refuses) = (runs.wait_with_output().unwrap(), refuses.wait_with_output().unwrap());
    // Who comes only now finds frozen nodes that accept connections and do not answer.
    let late = dev.lock(&["b", "--if-unreachable", "run"], TELL).output().unwrap();
    ran_unprotected(&late);
    assert_eq!(holder.code(), Some(121), "what has begun under the lock ends with it");
    assert!(!alive(numbers(&running)[0]));
    for pid in &dev.pids[..2] {
        kill(*pid, Signal::SIGCONT).unwrap();
    }
    ran_unprotected(&runs);
    assert_eq!((refuses.status.code(), text(&refuses.stdout).as_str()), (Some(122), ""), "{refuses:?}");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), UNPROTECTED);
    let settled = dev.lock(&["a", "--wait", "30s"], "true").output().unwrap();
    assert_eq!(settled.status.code(), Some(0), "the lock is in order again: {settled:?}");
}

/// Forwards this connection and all later ones of the listener to a node.
fn forward(listener: TcpListener, first: TcpStream, node: &str) {
    let node = node.strip_prefix("http://").unwrap().to_owned();
    std::thread::spawn(move || {
        let others = listener.incoming().map_while(Result::ok);
        for client in std::iter::once(first).chain(others) {
            let Ok(node) = TcpStream::connect(&node) else { return };
            for (mut from, mut to) in [(client.try_clone(), node.try_clone()), (node.try_clone(), client.try_clone())]
                .map(|(from, to)| (from.unwrap(), to.unwrap()))
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
}

#[test]
fn a_lockkeeper_that_was_frozen_itself_does_not_call_it_an_outage() {
    let dev = Dev::start(1, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let patience = Duration::from_secs(1);
    let mut command = lockkeeper();
    command.args(["--endpoints", &endpoint, "--patience", "1s", "lock", "frozen", "--if-unreachable", "run", "--"]);
    command.args(["sh", "-c", TELL]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut command = Killed(command.spawn().unwrap());
    let (first, _) = listener.accept().unwrap();
    kill(command.pid(), Signal::SIGSTOP).unwrap();
    forward(listener, first, &dev.endpoints[0]);
    // All of its patience passes while it stands still.
    std::thread::sleep(patience * 2);
    kill(command.pid(), Signal::SIGCONT).unwrap();
    let (mut printed, mut errors) = (String::new(), String::new());
    command.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    command.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(command.code(), Some(0), "{errors}");
    assert!(printed.contains("lock=frozen") && printed.contains("unprotected=no"), "{printed}{errors}");
}

/// Two of three nodes are gone. The third one says in time that it finds no leader, or that it leads and no majority
/// answers it, so it is known that nothing was done; and the caller's patience is taken once.
#[test]
fn without_a_majority_nothing_is_done_and_each_node_says_why() {
    const PATIENCE: Duration = Duration::from_secs(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut cluster = runtime.block_on(Cluster::start(3)).unwrap();
    let endpoints = cluster.endpoints();
    for node in [2, 3] {
        runtime.block_on(cluster.stop(node)).unwrap();
    }
    let at_the_rest = |form: &[&str], options: &[&str]| {
        let mut command = lockkeeper();
        command.args(["--endpoints", &endpoints.join(","), "--patience", "3s"]).args(form).args(options);
        command.args(["--", "sh", "-c", TELL]);
        command
    };
    let says_why = |errors: &str| {
        let third = errors.contains("has no leader") || errors.contains("waits for a majority");
        assert!(errors.contains("no majority: ") && third, "{errors}");
        assert!(errors.contains("refuse connections") && !errors.contains("not known"), "{errors}");
        for endpoint in &endpoints {
            assert!(errors.contains(endpoint.trim_start_matches("http://")), "{endpoint}: {errors}");
        }
    };
    for form in FORMS.iter().chain(&[&["elect", "a"][..]]) {
        let refused = at_the_rest(form, &[]).output().unwrap();
        assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(122), ""), "{form:?}: {refused:?}");
        says_why(&complaint(&refused));
    }
    for form in FORMS {
        let began = Instant::now();
        ran_unprotected(&at_the_rest(form, &["--if-unreachable", "run"]).output().unwrap());
        assert!(began.elapsed() < PATIENCE * 2, "{form:?}: {:?}", began.elapsed());
    }
    // A worker stays for better times.
    let mut worker = at_the_rest(&["cron", "job", "--at", "* * * * *"], &[]);
    let mut worker = Killed(worker.stderr(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(worker.0.stderr.take().unwrap()).read_line(&mut said).unwrap();
    says_why(&said);
}
