//! `certs`, and a cluster with its certificates: what the files are, what is refused, and locks over TLS at the cluster
//! of `scripts/cluster start --secure`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{complaint, eventually, json, lockkeeper};

fn run(arguments: &[&str]) -> Output {
    lockkeeper().args(arguments).output().unwrap()
}

fn certs(directory: &Path, arguments: &[&str]) -> Output {
    let (command, rest) = arguments.split_first().unwrap();
    run(&[&["--json", "certs", command, "--dir", directory.to_str().unwrap()], rest].concat())
}

#[test]
fn an_authority_makes_certificates_and_replaces_nothing_unasked() {
    let directory = tempfile::tempdir().unwrap();
    let certs = |arguments: &[&str]| certs(&directory.path().join("certs"), arguments);
    let missing = certs(&["client", "--name", "billing"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(complaint(&missing).contains("lockkeeper certs init"), "{missing:?}");

    for arguments in [
        &["init", "--cluster", "orders"][..],
        &["node", "--cluster", "orders", "--id", "1", "--host", "127.0.0.1", "--host", "localhost"],
        &["client", "--name", "billing"],
    ] {
        let made = certs(arguments);
        assert!(made.status.success(), "{made:?}");
        let made = json(&made);
        let file = |what: &str| PathBuf::from(made[what].as_str().unwrap());
        let mode = |what: &str| fs::metadata(file(what)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("key"), mode("certificate")), (0o600, 0o644), "{made}");
        let key = fs::read_to_string(file("key")).unwrap();
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));

        let again = certs(arguments);
        assert_eq!(again.status.code(), Some(1));
        assert!(complaint(&again).contains("--force"), "{again:?}");
        assert_eq!(fs::read_to_string(file("key")).unwrap(), key, "nothing was replaced");
        let forced = certs(&[arguments, &["--force"]].concat());
        assert!(forced.status.success(), "{forced:?}");
        assert_ne!(fs::read_to_string(file("key")).unwrap(), key);
    }
}

#[test]
fn bad_arguments_are_refused_with_their_cause() {
    let directory = tempfile::tempdir().unwrap();
    assert!(certs(directory.path(), &["init", "--cluster", "orders"]).status.success());
    for (arguments, cause) in [
        (&["init", "--cluster", "a b", "--force"][..], r#"--cluster \"a b\""#),
        (&["client", "--name", "../x"], "--name"),
        (&["client", "--name", &"x".repeat(65)], "1 to 64"),
        (&["client", "--name", "a", "--cluster", "other"], "is that of cluster orders"),
        (&["node", "--id", "1", "--host", "10.0.0.1:7001"], "without scheme and port"),
        (&["node", "--id", "1", "--host", "0.0.0.0"], "its own addresses"),
        (&["node", "--id", "1", "--host", "*.example"], "without wildcards"),
    ] {
        let refused = certs(directory.path(), arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(complaint(&refused).contains(cause), "{arguments:?}: {refused:?}");
    }
    for arguments in [&["node", "--id", "0", "--host", "a"][..], &["node", "--id", "1"], &["init", "--days", "0"]] {
        assert_eq!(certs(directory.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing was made");
}

#[test]
fn options_of_tls_belong_together() {
    for (arguments, cause) in [
        (&["--cert", "a.pem", "locks"][..], "--key"),
        (&["--key", "a.key", "locks"], "--cert"),
        (&["--cert", "a.pem", "--key", "a.key", "locks"], "--ca"),
        (&["--ca", "/no/such/authority.pem", "locks"], "/no/such/authority.pem"),
        (&["--endpoints", "https://127.0.0.1:1", "locks"], "--ca"),
    ] {
        let refused = run(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(complaint(&refused).contains(cause), "{arguments:?}: {refused:?}");
    }
}

/// Their files are relative to the directory in which a node is started.
#[test]
fn the_secure_configurations_are_valid_once_their_files_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let check = |node: u32| {
        let config = repository().join("cluster-config/secure").join(format!("node{node}.toml"));
        let mut command = lockkeeper();
        command.args(["serve", "--check-config", "--config"]).arg(config);
        command.current_dir(directory.path()).output().unwrap()
    };
    let files = directory.path().join("data/certs");
    assert!(certs(&files, &["init"]).status.success());
    for node in 1..=3 {
        let missing = check(node);
        assert_eq!(missing.status.code(), Some(2), "{missing:?}");
        let named = format!("node{node}.pem");
        assert!(complaint(&missing).contains(&named), "{missing:?}");
        let id = node.to_string();
        assert!(certs(&files, &["node", "--id", &id, "--host", "127.0.0.1"]).status.success());
        let checked = check(node);
        assert!(checked.status.success(), "{checked:?}");
    }

    // A key that does not belong to its certificate, the certificate of another node, a broken authority.
    let copy = |from: &str, to: &str| {
        fs::copy(files.join(from), files.join(to)).unwrap();
    };
    copy("node2.key", "node1.key");
    let mismatch = check(1);
    assert!(mismatch.status.code() == Some(2) && complaint(&mismatch).contains("does not belong"), "{mismatch:?}");
    copy("node2.pem", "node1.pem");
    let other = check(1);
    assert!(other.status.code() == Some(2) && complaint(&other).contains("[tls.peer]"), "{other:?}");
    fs::write(files.join("authority.pem"), "nonsense").unwrap();
    let broken = check(3);
    assert!(broken.status.code() == Some(2) && complaint(&broken).contains("authority.pem"), "{broken:?}");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The cluster of `scripts/cluster start --secure`, stopped when dropped.
struct SecureCluster {
    directory: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

fn script(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(repository().join("scripts/cluster"));
    command.args(arguments).arg("--dir").arg(directory).env("LOCKKEEPER_BIN", env!("CARGO_BIN_EXE_lockkeeper"));
    // The tests' disk may be small.
    command.env("LOCKKEEPER_STORAGE__FREE_FLOOR_MIB", "1").output().unwrap()
}

impl SecureCluster {
    fn start() -> Self {
        // Another process may take a port between the choice and the start.
        for _ in 0..5 {
            let directory = tempfile::tempdir().unwrap();
            // Below the ports from which connections of other tests go out, and another block for each process.
            let drawn = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let base = 12_000 + drawn % 40 * 500;
            let (clients, zookeeper) = (base.to_string(), (base + 200).to_string());
            let ports = ["--base-port", &clients, "--zookeeper-port", &zookeeper];
            let started = script(&[&["start", "--secure"][..], &ports].concat(), directory.path());
            if !started.status.success() {
                eprintln!("{}", String::from_utf8_lossy(&started.stderr));
                script(&["stop"], directory.path());
                continue;
            }
            let printed = String::from_utf8(started.stdout).unwrap();
            let exports = printed.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
            let variables = exports.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            return Self { directory, variables };
        }
        panic!("the cluster did not start");
    }

    /// The command line with the printed variables.
    fn lockkeeper(&self) -> Command {
        let mut command = lockkeeper();
        command.envs(self.variables.iter().cloned());
        command
    }

    fn endpoints(&self) -> &str {
        &self.variables.iter().find(|(name, _)| name == "LOCKKEEPER_ENDPOINTS").unwrap().1
    }

    fn certs(&self) -> PathBuf {
        self.directory.path().join("certs")
    }
}

impl Drop for SecureCluster {
    fn drop(&mut self) {
        script(&["stop"], self.directory.path());
    }
}

#[test]
fn the_secure_cluster_serves_its_clients_and_turns_others_away() {
    let cluster = SecureCluster::start();
    let run = |arguments: &[&str]| cluster.lockkeeper().args(arguments).output().unwrap();
    let status = run(&["--json", "status"]);
    assert!(status.status.success(), "{status:?}");
    let held = run(&["lock", "orders/42", "--", "sh", "-c", "echo token $LOCKKEEPER_TOKEN"]);
    let printed = String::from_utf8_lossy(&held.stdout).into_owned();
    assert!(held.status.success() && printed.starts_with("token "), "{held:?}");
    for arguments in [&["create", "/a", "one"][..], &["get", "/a"], &["sessions"], &["locks"]] {
        assert!(run(arguments).status.success(), "{arguments:?}");
    }

    // No certificate, one of a stranger, an authority of a stranger, no TLS.
    let stranger = tempfile::tempdir().unwrap();
    assert!(certs(stranger.path(), &["init"]).status.success());
    assert!(certs(stranger.path(), &["client", "--name", "operator"]).status.success());
    let file = |directory: &Path, name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (own, other) = (cluster.certs(), stranger.path());
    let without = || {
        let mut command = cluster.lockkeeper();
        command.env_remove("LOCKKEEPER_CA").env_remove("LOCKKEEPER_CERT").env_remove("LOCKKEEPER_KEY");
        command
    };
    let foreign = (file(other, "client-operator.pem"), file(other, "client-operator.key"));
    let plain = cluster.endpoints().replace("https://", "http://");
    for (arguments, cause) in [
        (&["--ca", &file(&own, "authority.pem")][..], "requires a client certificate"),
        (
            &["--ca", &file(&own, "authority.pem"), "--cert", &foreign.0, "--key", &foreign.1],
            "rejects this client's certificate",
        ),
        (&["--ca", &file(other, "authority.pem")], "certificate authorities that this client trusts"),
        (&["--endpoints", &plain], "https"),
    ] {
        let refused = without().args(arguments).arg("locks").output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {refused:?}");
        assert!(complaint(&refused).contains(cause), "{arguments:?}: {refused:?}");
        // The cluster is there, and starting it is no advice.
        let status = without().args(arguments).arg("status").output().unwrap();
        assert_eq!(status.status.code(), Some(1), "{arguments:?}: {status:?}");
        let told = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(complaint(&status).contains(cause) && !told.contains("no leader answers"), "{status:?}");
    }
    let hosts = cluster.endpoints().replace("https://", "");
    let no_authority = without().args(["--endpoints", &hosts, "status"]).output().unwrap();
    assert!(complaint(&no_authority).contains("this node speaks TLS: give --ca"), "{no_authority:?}");
    the_authority_is_replaced(&cluster);
}

/// As `docs/security.md` says: trust both, replace the certificates, trust the new one alone. The cluster serves at
/// each moment, and in the end it turns a certificate of the old authority away.
fn the_authority_is_replaced(cluster: &SecureCluster) {
    let (old, new) = (cluster.certs(), cluster.directory.path().join("certs-2"));
    assert!(certs(&new, &["init"]).status.success());
    for node in ["1", "2", "3"] {
        assert!(certs(&new, &["node", "--id", node, "--host", "127.0.0.1"]).status.success());
    }
    assert!(certs(&new, &["client", "--name", "operator"]).status.success());
    let with = |certificates: &Path, arguments: &[&str]| {
        let mut command = cluster.lockkeeper();
        for (variable, file) in [("LOCKKEEPER_CERT", "client-operator.pem"), ("LOCKKEEPER_KEY", "client-operator.key")]
        {
            command.env(variable, certificates.join(file));
        }
        command.args(arguments).output().unwrap().status.success()
    };
    let serves = |certificates: &Path| with(certificates, &["lock", "rotation", "--", "true"]);
    let endpoints: Vec<&str> = cluster.endpoints().split(',').collect();
    let lets_in = |endpoint: &str, certificates: &Path| with(certificates, &["--endpoints", endpoint, "locks"]);
    let replace = |name: &str, text: &str| {
        let file = old.join(name);
        fs::write(file.with_extension("new"), text).unwrap();
        fs::rename(file.with_extension("new"), file).unwrap();
    };
    let second_authority = new.join("authority.pem");
    let first = fs::read_to_string(old.join("authority.pem")).unwrap();
    let second = fs::read_to_string(&second_authority).unwrap();
    replace("authority.pem", &format!("{first}{second}"));
    eventually("every node lets a client of the new authority in", || endpoints.iter().all(|at| lets_in(at, &new)));
    assert!(serves(&old) && serves(&new), "both are trusted");
    for node in ["node1", "node2", "node3"] {
        for extension in ["key", "pem"] {
            let name = format!("{node}.{extension}");
            replace(&name, &fs::read_to_string(new.join(&name)).unwrap());
        }
        assert!(serves(&old) && serves(&new), "{node}");
    }
    let trusting = second_authority.to_str().unwrap();
    eventually("every node shows its new certificate", || {
        endpoints.iter().all(|at| with(&new, &["--ca", trusting, "--endpoints", at, "locks"]))
    });
    replace("authority.pem", &second);
    eventually("every node turns a client of the old authority away", || endpoints.iter().all(|at| !lets_in(at, &old)));
    assert!(serves(&new) && !serves(&old));
    assert!(with(&new, &["status"]), "every node is ready");
}
