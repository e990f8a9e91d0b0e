//! `lockkeeper member` against real processes: the procedures of `docs/operate.md` as they are printed, and what is
//! refused.

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use nix::sys::signal::{Signal, kill};

use crate::readme_walk::{block, printed_in, says_what_it_marks};
use crate::support::{Dev, Killed, complaint, eventually, json, lockkeeper};

const OPERATE: &str = include_str!("../../../../docs/operate.md");
/// Runs before a block, whose nodes end with it.
const BEFORE: &str = "export LOCKKEEPER_STORAGE__FREE_FLOOR_MIB=1; trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT";

/// Ports that nobody listens on.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// The page's nodes from 2 to 6 that `dev` does not run, at free ports.
fn with_free_ports(page: &str) -> String {
    let ports = free_ports(10);
    let addresses = [2, 3, 4, 5, 6].into_iter().flat_map(|node| [7000 + node, 7100 + node]);
    addresses.zip(ports).fold(page.to_owned(), |text, (port, free)| {
        text.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{free}"))
    })
}

fn run_blocks(dev: &Dev, headings: &[&str]) {
    let blocks: Vec<&str> = headings.iter().map(|heading| block(OPERATE, heading)).collect();
    let script = with_free_ports(&format!("{BEFORE}\n{}", blocks.join("\n")));
    let directory = tempfile::tempdir().unwrap();
    let printed = printed_in(directory.path(), &script, &dev.endpoints);
    says_what_it_marks(&blocks.join("\n"), &printed);
}

#[test]
fn the_page_replaces_a_node_grows_shrinks_and_hands_over() {
    let dev = Dev::start(3, &[]);
    run_blocks(&dev, &["### Look at the members", "## Upgrade"]);
    kill(dev.pids[2], Signal::SIGKILL).unwrap();
    let blocks = ["### Replace a node", "### From three to five", "### From five to three", "### Hand over leadership"];
    run_blocks(&dev, &blocks);
}

#[test]
fn the_page_makes_three_nodes_of_one() {
    let dev = Dev::start(1, &[]);
    run_blocks(&dev, &["### From one node to three"]);
}

/// A node that joins `dev` with the configuration that `member add` printed.
struct Newcomer {
    directory: tempfile::TempDir,
    process: Option<Killed>,
}

impl Newcomer {
    fn added(dev: &Dev, id: u64, more: &[&str]) -> Self {
        let (output, _) = add(dev, id, more);
        assert!(output.status.success(), "{output:?}");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("node.toml"), &output.stdout).unwrap();
        Self { directory, process: None }
    }

    fn start(&mut self) {
        // The one before must have left its directory.
        drop(self.process.take());
        let log = std::fs::File::create(self.log()).unwrap();
        let mut command = lockkeeper();
        command.args(["serve", "--config", "node.toml"]).env("LOCKKEEPER_STORAGE__FREE_FLOOR_MIB", "1");
        self.process = Some(Killed(command.current_dir(self.directory.path()).stderr(log).spawn().unwrap()));
    }

    fn log(&self) -> std::path::PathBuf {
        self.directory.path().join("node.log")
    }

    fn says(&self, what: &str) -> bool {
        says(&self.log(), what)
    }
}

fn says(log: &Path, what: &str) -> bool {
    std::fs::read_to_string(log).unwrap_or_default().contains(what)
}

/// `member add` at free ports; also the peer address.
fn add(dev: &Dev, id: u64, more: &[&str]) -> (Output, String) {
    let [peer, client] = free_ports(2)[..] else { panic!("two") };
    let (id, peer, client) = (id.to_string(), format!("127.0.0.1:{peer}"), format!("127.0.0.1:{client}"));
    let arguments = ["member", "add", &id, "--peer", &peer, "--client", &client];
    (dev.run(&[&arguments[..], more].concat()), peer)
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn voters(dev: &Dev) -> Vec<u64> {
    let listed = json(&dev.run(&["member", "list", "--json"]));
    let members = listed["members"].as_array().unwrap().iter();
    members.filter(|member| member["role"] == "voter").map(|member| member["node_id"].as_u64().unwrap()).collect()
}

#[test]
fn a_joining_node_that_is_killed_over_and_over_goes_on_and_replaces_another() {
    let dev = Dev::start(3, &[]);
    let mut node = Newcomer::added(&dev, 4, &[]);
    // Not started: it has not answered, and the command says so and what to do.
    let too_soon = dev.run(&["member", "promote", "4", "--wait=300ms"]);
    let text = String::from_utf8(too_soon.stderr.clone()).unwrap();
    assert!(!too_soon.status.success() && text.contains("is it running?"), "{text}");
    assert!(text.contains("has not caught up within 300ms") && text.contains("repeat this command"), "{text}");
    // Before it has asked, while it learns who the members are, and when it has the log.
    for what in ["listening", "a leader is established", "this node has the membership"] {
        node.start();
        eventually(what, || node.says(what) || node.says("cluster.join is not needed"));
    }
    node.start();
    // Only what is left is done, however often the command is repeated.
    for _ in 0..2 {
        let done = succeeded(&dev.run(&["member", "replace", "3", "4"]));
        assert!(done.contains("node 4 has replaced node 3"), "{done}");
        assert_eq!(voters(&dev), [1, 2, 4]);
    }
    let spent = complaint(&add(&dev, 3, &[]).0);
    assert!(spent.contains("node id 3 is spent") && spent.contains("never used"), "{spent}");
}

#[test]
fn removals_keep_a_majority_and_a_leader_hands_over_first() {
    let dev = Dev::start(3, &[]);
    let leader = json(&dev.run(&["member", "list", "--json"]))["leader"].as_u64().unwrap();
    let refused = complaint(&dev.run(&["member", "remove", &leader.to_string()]));
    assert!(refused.contains("the next loss would be an outage") && refused.contains("--force"), "{refused}");
    let removed = dev.run(&["member", "remove", &leader.to_string(), "--force"]);
    assert!(succeeded(&removed).contains("is removed"), "{removed:?}");
    assert!(String::from_utf8_lossy(&removed.stderr).contains(&format!("node {leader} led; node")), "{removed:?}");
    let rest = voters(&dev);
    assert!(rest.len() == 2 && !rest.contains(&leader), "{rest:?}");

    let dead = rest[0];
    let status = dev.run(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("the loss of one more is an outage"), "{status:?}");
    kill(dev.pids[usize::try_from(dead).unwrap() - 1], Signal::SIGSTOP).unwrap();
    let outage = dev.run(&["member", "remove", &rest[1].to_string(), "--force"]);
    assert!(!outage.status.success(), "{outage:?}");
    kill(dev.pids[usize::try_from(dead).unwrap() - 1], Signal::SIGCONT).unwrap();
    eventually("the cluster to have a leader", || dev.run(&["member", "list"]).status.success());
    assert_eq!(voters(&dev), rest, "nothing was changed");
}

#[test]
fn bad_members_are_refused_with_the_remedy() {
    let dev = Dev::start(1, &[]);
    let refused = |arguments: &[&str]| complaint(&dev.run(&[&["member"], arguments].concat()));
    let last = refused(&["remove", "1", "--force"]);
    assert!(last.contains("node 1 is the last voter") && last.contains("promote another member first"), "{last}");
    let stranger = refused(&["remove", "9"]);
    assert!(stranger.contains("node 9 is not a member; the members are 1"), "{stranger}");
    let unknown = refused(&["replace", "1", "2"]);
    assert!(unknown.contains("node 2 is not a member yet") && unknown.contains("member add 2"), "{unknown}");
    let itself = refused(&["replace", "1", "1"]);
    assert!(itself.contains("cannot replace itself"), "{itself}");
    let both = dev.run(&["member", "remove", "1", "2"]);
    assert_eq!(both.status.code(), Some(2), "two at once are no command");
    let no_address = refused(&["add", "2", "--peer", "nowhere", "--client", "127.0.0.1:1"]);
    assert!(no_address.contains("peer_address") && no_address.contains("host:port"), "{no_address}");

    let front = succeeded(&add(&dev, 2, &["--front"]).0);
    assert!(front.contains("role = \"front\""), "{front}");
    let promoted = refused(&["promote", "2"]);
    assert!(promoted.contains("node 2 is a front node, which never votes"), "{promoted}");
    let (learner, address) = add(&dev, 3, &[]);
    assert!(learner.status.success());
    let lags = refused(&["promote", "3"]);
    assert!(lags.contains("node 3 is still a learner") && lags.contains("is it running"), "{lags}");
    let taken = refused(&["add", "5", "--peer", &address, "--client", "127.0.0.1:1"]);
    assert!(taken.contains("is the address of node 3"), "{taken}");
    let learner = refused(&["transfer", "3"]);
    assert!(learner.contains("does not vote"), "{learner}");
}

#[test]
fn status_asks_every_member_and_one_endpoint_is_enough() {
    let dev = Dev::start(3, &[]);
    let mut command = lockkeeper();
    command.args(["--endpoints", &dev.endpoints[1], "status"]);
    let output = command.output().unwrap();
    let table = succeeded(&output);
    for endpoint in &dev.endpoints {
        assert!(table.contains(endpoint.as_str()), "{table}");
    }
    assert!(table.contains("3 voters, all in step: one more may be lost"), "{table}");
    kill(dev.pids[0], Signal::SIGKILL).unwrap();
    eventually("status to say that the next loss is an outage", || {
        let output = command.output().unwrap();
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.code() == Some(1) && table.contains("2 of them in step: the loss of one more is an outage")
    });
    let (again, _) = add(&dev, 1, &[]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(complaint(&again).contains("node 1 is a member already") && again.stdout.is_empty(), "{again:?}");
    assert!(complaint(&again).contains("`lockkeeper member replace 1 NEW --peer"), "{again:?}");
}
