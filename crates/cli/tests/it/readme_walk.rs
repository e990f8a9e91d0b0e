//! Runs the README's shell blocks, the curl commands of `docs/http.md` and the front node of `docs/running.md`
//! unchanged against three real processes, and the commands of `docs/security.md` and `docs/deploy.md` that make
//! certificates, give rights and get in again. `scripts/interop` runs the README's blocks in other languages; the
//! client's documentation tests compile the Rust block.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lockkeeper_checkers::skip::{has, has_programs};

use crate::support::{Dev, Killed, eventually, lockkeeper};

const README: &str = include_str!("../../../../README.md");
const HTTP: &str = include_str!("../../../../docs/http.md");
const RUNNING: &str = include_str!("../../../../docs/running.md");
const SECURITY: &str = include_str!("../../../../docs/security.md");
const DEPLOY: &str = include_str!("../../../../docs/deploy.md");
const FRONT: &str = include_str!("../../../../cluster-config/front-node/node4.toml");
const MARK: &str = "# → ";

/// A `lockkeeper dev` cluster, stopped when dropped.
struct DevCluster(Child);

impl Drop for DevCluster {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let _ = self.0.wait();
    }
}

fn start_dev() -> (DevCluster, Vec<String>) {
    let mut child = lockkeeper()
        .args(["dev", "--free-ports", "--nodes", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dev starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let dev = DevCluster(child);
    let line = lines.map_while(Result::ok).find(|line| line.contains("LOCKKEEPER_ENDPOINTS="));
    let line = line.expect("dev says how to reach it");
    let list = line.split("LOCKKEEPER_ENDPOINTS=").nth(1).expect("just found").trim();
    (dev, list.split(',').map(str::to_owned).collect())
}

/// The shell block under a heading.
pub(crate) fn block(page: &'static str, heading: &str) -> &'static str {
    let after = page.split(heading).nth(1).expect("the page has the heading");
    after.split("```bash\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of bash is below it")
}

/// Runs a script, which must succeed, with the built `lockkeeper`. Returns its output.
fn printed(script: &str, endpoints: &[String]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    printed_in(directory.path(), script, endpoints)
}

/// The same in a directory.
pub(crate) fn printed_in(directory: &Path, script: &str, endpoints: &[String]) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().expect("it is in a directory");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("there is a PATH"));
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env("PATH", path)
        .env("LOCKKEEPER_ENDPOINTS", endpoints.join(","))
        .current_dir(directory)
        .output()
        .expect("bash starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "the script failed: {}\n{printed}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn the_readmes_blocks_take_the_lock_under_rising_tokens() {
    if !has("curl", || has_programs(&["curl"])) {
        return;
    }
    let (_dev, endpoints) = start_dev();
    let mut last = 0;
    for heading in ["### Shell", "### curl"] {
        let printed = printed(block(README, heading), &endpoints);
        let token = printed.lines().find_map(|line| line.strip_prefix("write under token "));
        let token: u64 = token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{heading}: {printed}"));
        assert!(token > last, "{heading}: {token} after {last}");
        last = token;
    }
}

#[test]
fn the_walk_prints_what_the_page_says() {
    if !has("curl", || has_programs(&["curl"])) {
        return;
    }
    let (_dev, endpoints) = start_dev();
    let walk = block(HTTP, "## A walk with curl");
    let script = walk.replace("http://127.0.0.1:7001", &endpoints[0]).replace("http://127.0.0.1:7002", &endpoints[1]);
    assert!(script.contains(&endpoints[0]) && script.contains(&endpoints[1]), "the walk talks to two nodes");
    says_what_it_marks(walk, &printed(&script, &endpoints));
}

/// What a block marks is in its output, in this order.
pub(crate) fn says_what_it_marks(block: &str, printed: &str) {
    let mut rest = printed;
    for line in block.lines().filter_map(|line| line.strip_prefix(MARK)) {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing, or out of order, in:\n{printed}"));
        rest = &rest[at + line.len()..];
    }
}

#[test]
fn the_rights_of_the_page_are_given() {
    let (_dev, endpoints) = start_dev();
    let (rights, limits) = (block(SECURITY, "### Five minutes to access control"), block(SECURITY, "### Namespaces"));
    let blocks = format!("{rights}\nexport LOCKKEEPER_TOKEN_FILE=admin.token\n{limits}");
    says_what_it_marks(&blocks, &printed(&blocks, &endpoints));
}

/// A node alone with TLS for its clients, whose administrator has lost the token. Restarted with a super user.
struct LostToken {
    directory: tempfile::TempDir,
    address: SocketAddr,
    node: Option<Killed>,
}

impl LostToken {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let peer = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let certificates = "lockkeeper certs init --dir . --cluster orders
            lockkeeper certs node --dir . --id 1 --host localhost";
        printed_in(directory.path(), certificates, &[]);
        let config = format!(
            "[cluster]\nid = \"orders\"\nnode = 1\n[listen]\nclient = \"{address}\"\npeer = \"{peer}\"\n\
             [storage]\nfree_floor_mib = 1\n[tls.client]\ncertificate = \"node1.pem\"\nkey = \"node1.key\"\n"
        );
        std::fs::write(directory.path().join("node1.toml"), config).unwrap();
        Self { directory, address, node: None }
    }

    fn endpoint(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// Starts the node, or starts it again.
    fn serve(&mut self, super_digest: &str) {
        // The one before must have left its directory.
        drop(self.node.take());
        let mut command = lockkeeper();
        command.args(["serve", "--config", "node1.toml"]).current_dir(self.directory.path()).stderr(Stdio::null());
        command.env("LOCKKEEPER_ADMIN__SUPER_DIGEST", super_digest);
        self.node = Some(Killed(command.spawn().unwrap()));
        let ready = format!("curl -fsS --cacert authority.pem {}/readyz", self.endpoint());
        eventually("the node to be ready", || {
            let asked = Command::new("bash").args(["-c", &ready]).current_dir(self.directory.path()).output();
            asked.is_ok_and(|output| output.status.success())
        });
    }
}

#[test]
fn the_way_back_of_the_page_leads_back() {
    if !has("curl and openssl", || has_programs(&["curl", "openssl"])) {
        return;
    }
    let section = SECURITY.split("### When the last token of an administrator is lost").nth(1).unwrap();
    let blocks: Vec<&str> = section.split("```bash\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [hash, way_back, ..] = &blocks[..] else { panic!("two blocks") };
    let mut lost = LostToken::start();
    lost.serve("");
    let endpoints = [lost.endpoint()];
    let enabled = "lockkeeper --ca authority.pem auth enable >/dev/null";
    printed_in(lost.directory.path(), enabled, &endpoints);

    let page_address = "https://lock-1.example:7001";
    assert!(way_back.contains(page_address));
    let script = way_back.replace(page_address, &endpoints[0]);
    let made = printed(hash, &[]);
    says_what_it_marks(hash, &made);
    lost.serve(&format!("super:{}", made.trim()));
    says_what_it_marks(way_back, &printed_in(lost.directory.path(), &script, &endpoints));
    let metrics = format!("curl -fsS --cacert authority.pem {}/metrics", endpoints[0]);
    assert!(printed_in(lost.directory.path(), &metrics, &[]).contains("\nlockkeeper_super_user 1\n"));
}

#[test]
fn the_certificates_of_the_page_are_made() {
    let directory = tempfile::tempdir().unwrap();
    for (heading, files) in [("## Five minutes to TLS", 10), ("### Replacing the authority", 2)] {
        // It belongs to an item of a list.
        let block: Vec<&str> = block(SECURITY, heading).lines().map(str::trim_start).collect();
        let block = block.join("\n");
        says_what_it_marks(&block, &printed_in(directory.path(), &block, &[]));
        let made = if files == 10 { "certs" } else { "certs-2" };
        assert_eq!(std::fs::read_dir(directory.path().join(made)).unwrap().count(), files, "{heading}");
    }
    let both = std::fs::read_to_string(directory.path().join("both.pem")).unwrap();
    assert_eq!(both.matches("BEGIN CERTIFICATE").count(), 2);
}

#[test]
fn the_secret_of_the_page_has_what_each_pod_reads() {
    let directory = tempfile::tempdir().unwrap();
    printed_in(directory.path(), block(DEPLOY, "<!-- A test runs this block as it stands here. -->"), &[]);
    let mut files: Vec<_> = std::fs::read_dir(directory.path().join("secret"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    // Not the key of the authority.
    let nodes = (1..=3).flat_map(|node| [format!("node{node}.key"), format!("node{node}.pem")]);
    assert_eq!(files, ["authority.pem".to_owned()].into_iter().chain(nodes).collect::<Vec<_>>());
}

/// The addresses of the page, and those of the cluster that the test has.
fn addresses(dev: &Dev) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (endpoint, node) in dev.endpoints.iter().zip(1..) {
        let config = std::fs::read_to_string(dev.data.join(format!("node{node}.toml"))).unwrap();
        let peer = config.lines().find_map(|line| line.strip_prefix("peer = \"")).unwrap().trim_end_matches('"');
        all.push((format!("127.0.0.1:700{node}"), endpoint.trim_start_matches("http://").to_owned()));
        all.push((format!("127.0.0.1:710{node}"), peer.to_owned()));
    }
    let free = [7004, 7104].map(|port| (port, std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
    all.extend(free.map(|(port, listener)| (format!("127.0.0.1:{port}"), listener.local_addr().unwrap().to_string())));
    all
}

#[test]
fn the_front_node_of_the_page_serves_and_its_session_moves_when_it_is_killed() {
    if !has("curl", || has_programs(&["curl"])) {
        return;
    }
    let dev = Dev::start(3, &[]);
    let addresses = addresses(&dev);
    let here = |text: &str| addresses.iter().fold(text.to_owned(), |text, (page, own)| text.replace(page, own));
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("cluster-config/front-node");
    std::fs::create_dir_all(&config).unwrap();
    let front =
        here(FRONT).replace("id = \"local\"", "id = \"dev\"").replace("free_floor_mib = 256", "free_floor_mib = 1");
    std::fs::write(config.join("node4.toml"), front).unwrap();

    let page = block(RUNNING, "## Front nodes");
    // `$!` is the front node's process: it is killed while a session at it holds a lock.
    let script = format!(
        "trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n{}\n{}",
        here(page),
        r#"
        export front=$! A F
        lockkeeper --endpoints $F,$A --prefer first lock moved --ttl 2s -- sh -c '
            lockkeeper --endpoints $F locks moved && kill -9 $front && sleep 4 &&
            lockkeeper --endpoints $A locks moved && echo "held on under $LOCKKEEPER_TOKEN"'
        lockkeeper --endpoints $A status --json >status.json
        curl -fsS -X DELETE $A/v1/cluster/members/4
        "#
    );
    let printed = printed_in(directory.path(), &script, &dev.endpoints);
    says_what_it_marks(page, &printed);
    assert!(printed.contains("held on under "), "{printed}");
    let (_, after) = printed.rsplit_once("held on under ").unwrap();
    assert!(!after.contains("\"role\":\"front\""), "it is removed: {after}");
}
