//! What `lockkeeper serve` tells the service manager that started it, and what else a package needs of the program.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper_checkers::skip::{has, has_programs};
use nix::sys::signal::{Signal, kill};

use crate::support::{Dev, Killed, complaint, lockkeeper};

/// Takes the place of systemd: the socket of `NOTIFY_SOCKET`.
struct ServiceManager {
    directory: tempfile::TempDir,
    socket: UnixDatagram,
}

impl ServiceManager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { directory, socket }
    }

    fn start(&self, config: &str, watchdog: Duration) -> Killed {
        let path = self.directory.path().join("node.toml");
        let data = self.directory.path().join("data");
        let storage = format!("[storage]\ndirectory = {data:?}\nfree_floor_mib = 1\n[log]\nlevel = \"off\"\n");
        std::fs::write(&path, format!("{config}{storage}")).unwrap();
        let mut command = lockkeeper();
        command.args(["serve", "--config"]).arg(&path).stdout(Stdio::null());
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        Killed(command.spawn().unwrap())
    }

    fn message(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message within the time limit");
        String::from_utf8(bytes[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    /// The messages up to the first one with such a line.
    fn until(&self, wanted: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.message());
            if messages.last().unwrap().iter().any(|line| wanted(line)) {
                return messages;
            }
        }
    }
}

#[test]
fn a_node_alone_tells_that_it_serves_and_that_it_stops() {
    let manager = ServiceManager::new();
    let config = "[cluster]\nid = \"a\"\nnode = 1\n[listen]\nclient = \"127.0.0.1:0\"\npeer = \"127.0.0.1:0\"\n";
    let mut node = manager.start(config, Duration::from_secs(60));
    let started = manager.until(|line| line == "READY=1");
    assert!(started[0][0].starts_with("STATUS=starting: "), "{started:?}");
    manager.until(|line| line == "STATUS=ready; leads");
    kill(node.pid(), Signal::SIGTERM).unwrap();
    let stopped = manager.until(|line| line == "STOPPING=1");
    assert!(stopped.last().unwrap()[1].contains("leadership"), "{stopped:?}");
    assert_eq!(node.code(), Some(0));
}

#[test]
fn the_first_node_of_a_cluster_is_started_while_it_waits_for_the_others() {
    // Nobody answers there.
    let others = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let peers = others.iter().zip(2..).map(|(listener, node)| (node, listener.local_addr().unwrap().to_string()));
    let section = |(node, peer): (u64, String)| format!("[peers.{node}]\npeer = \"{peer}\"\n");
    let sections: String = peers.chain([(1, "127.0.0.1:1".to_owned())]).map(section).collect();
    let listen = "[listen]\nclient = \"127.0.0.1:0\"\npeer = \"127.0.0.1:0\"\n";
    let manager = ServiceManager::new();
    let config = format!("[cluster]\nid = \"a\"\nnode = 1\n{sections}{listen}");
    let mut node = manager.start(&config, Duration::from_millis(300));

    let started = manager.until(|line| line == "READY=1");
    let status = started.last().unwrap().iter().find(|line| line.starts_with("STATUS=not ready: "));
    assert!(status.is_some_and(|status| status.contains("every node of [peers]")), "{started:?}");
    // Both are named with their addresses, and with the reason once it is known.
    let named = |node: usize| format!("node {} at {} (timed out)", node + 2, others[node].local_addr().unwrap());
    manager
        .until(|line| line.contains("not formed yet: waiting for ") && (0..2).all(|node| line.contains(&named(node))));
    let is_progress = |line: &str| line == "WATCHDOG=1";
    manager.until(is_progress);
    // A reload does not end a node that has nothing to read again.
    kill(node.pid(), Signal::SIGHUP).unwrap();
    for _ in 0..3 {
        manager.until(is_progress);
    }
    // A process that stands still is silent.
    kill(node.pid(), Signal::SIGSTOP).unwrap();
    manager.socket.set_read_timeout(Some(Duration::from_millis(900))).unwrap();
    let mut bytes = [0; 4096];
    while manager.socket.recv(&mut bytes).is_ok() {}
    manager.socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    kill(node.pid(), Signal::SIGCONT).unwrap();
    manager.until(is_progress);
    kill(node.pid(), Signal::SIGTERM).unwrap();
    manager.until(|line| line == "STOPPING=1");
    assert_eq!(node.code(), Some(0));
}

#[test]
fn a_service_manager_that_is_gone_is_no_failure() {
    let manager = ServiceManager::new();
    std::fs::remove_file(manager.directory.path().join("notify")).unwrap();
    let config = "[cluster]\nid = \"a\"\nnode = 1\n[listen]\nclient = \"127.0.0.1:0\"\npeer = \"127.0.0.1:0\"\n";
    let mut node = manager.start(config, Duration::from_secs(60));
    let data = manager.directory.path().join("data");
    crate::support::eventually("the data directory is made", || data.exists());
    crate::support::eventually("the node stops when it is told to", || {
        let _ = kill(node.pid(), Signal::SIGTERM);
        node.0.try_wait().unwrap().is_some_and(|status| status.code() == Some(0) || status.code().is_none())
    });
}

#[test]
fn there_is_a_manual_page_for_each_command_and_man_takes_it() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    let written = lockkeeper().arg("man").arg(&pages).output().unwrap();
    assert!(written.status.success(), "{written:?}");
    for name in ["lockkeeper", "lockkeeper-serve", "lockkeeper-certs-node", "lockkeeper-man"] {
        assert!(pages.join(format!("{name}.1")).exists(), "{name}");
    }
    let names: Vec<_> = std::fs::read_dir(&pages).unwrap().map(|page| page.unwrap().path()).collect();
    assert!(!names.iter().any(|page| page.to_string_lossy().contains("__")), "hidden commands have none");
    let refused = lockkeeper().args(["man", "/dev/null/pages"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(complaint(&refused).contains("/dev/null/pages"));
    if !has("man-db", || has_programs(&["man"])) {
        return;
    }
    for page in names {
        let mut man = Command::new("man");
        let checked = man.args(["--warnings=w", "--local-file"]).arg(&page).env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
        let shown = String::from_utf8_lossy(&checked.stdout);
        assert!(shown.contains("SYNOPSIS") && !shown.contains("EXTRA"), "{page:?}");
        if page.ends_with("lockkeeper-lock.1") {
            assert!(shown.contains("lockkeeper lock [OPTIONS] <NAME>... -- <CMD>..."), "{shown}");
            assert!(shown.contains("\n         121  the lock was lost"), "{shown}");
        }
    }
}

#[test]
fn health_is_about_the_named_nodes() {
    let dev = Dev::start(1, &[]);
    let healthy = dev.run(&["health"]);
    assert_eq!((healthy.status.code(), healthy.stdout.as_slice()), (Some(0), b"ready\n".as_slice()));
    // It accepts the connection, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("{},{}", dev.endpoints[0], silent.local_addr().unwrap());
    let mut command = lockkeeper();
    let sick = command.args(["--endpoints", &both, "--patience", "200ms", "health"]).output().unwrap();
    assert_eq!(sick.status.code(), Some(1));
    assert!(complaint(&sick).contains("lockkeeper status"));
}
