//! `auth`, and every other command at a cluster that enforces access control.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use crate::support::{Dev, Killed, complaint, eventually, json, lockkeeper};

const EXAMPLE: &str = "lk_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN-_0";

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Checks that the command succeeded, and returns what it printed.
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    text(output)
}

/// A cluster that enforces access control, and the token of its administrator in a file.
struct Enforced {
    dev: Dev,
    directory: tempfile::TempDir,
}

impl Enforced {
    fn start() -> Self {
        let (dev, directory) = (Dev::start(1, &[]), tempfile::tempdir().unwrap());
        let file = directory.path().join("admin.token");
        let enabled = dev.run(&["auth", "enable", "--out", file.to_str().unwrap()]);
        assert_eq!(done(&enabled), "", "the token is in the file only: {enabled:?}");
        Self { dev, directory }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command with the token of that file.
    fn command(&self, token: &str, arguments: &[&str]) -> Command {
        let mut command = self.dev.command(&["--token-file", self.file(token).to_str().unwrap()]);
        command.args(arguments);
        command
    }

    fn run(&self, token: &str, arguments: &[&str]) -> Output {
        self.command(token, arguments).output().unwrap()
    }

    fn admin(&self, arguments: &[&str]) -> String {
        done(&self.run("admin.token", arguments))
    }

    /// Makes the principal `billing`, which may acquire and read the locks below `orders`. Returns its token's id.
    fn billing(&self) -> String {
        self.admin(&["auth", "role", "put", "orders", "locks:orders=acquire,read", "--if-version", "0"]);
        self.admin(&["auth", "grant", "billing", "orders"]);
        let file = self.file("billing.token");
        let create = ["--json", "auth", "token", "create", "billing", "--ttl", "1h", "--out", file.to_str().unwrap()];
        let made = json(&self.run("admin.token", &create));
        assert!(made.get("token").is_none(), "the token is in the file only: {made}");
        made["token_id"].as_str().unwrap().to_owned()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn without_a_token_every_command_is_refused_with_what_to_do() {
    let cluster = Enforced::start();
    for (arguments, code) in [
        (&["locks"][..], 1),
        (&["get", "/"], 1),
        (&["create", "/a"], 1),
        (&["watch", "/a"], 1),
        (&["status"], 1),
        (&["auth", "status"], 1),
        (&["auth", "disable"], 1),
        (&["lock", "orders/42", "--", "true"], 125),
        (&["gate", "orders/42", "--", "true"], 125),
        (&["bench", "--clients", "1", "--seconds", "1"], 122),
    ] {
        let refused = cluster.dev.run(arguments);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {refused:?}");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("unauthenticated"), "{arguments:?}: {why}");
        assert!(code == 122 || why.contains("--token-file"), "{arguments:?}: {why}");
    }
    let status = cluster.dev.run(&["status"]);
    assert!(!String::from_utf8_lossy(&status.stdout).contains("no leader answers"), "{status:?}");
    // The variable of other programs for it has the fencing token here.
    let token = fs::read_to_string(cluster.file("admin.token")).unwrap();
    let misplaced = cluster.dev.command(&["locks"]).env("LOCKKEEPER_TOKEN", token.trim()).output().unwrap();
    let why = String::from_utf8_lossy(&misplaced.stderr).into_owned();
    assert!(why.contains("LOCKKEEPER_TOKEN has an access token") && !why.contains(token.trim()), "{why}");
    let unknown = done(&cluster.dev.run(&["auth", "whoami"]));
    assert!(unknown.contains("unknown"), "{unknown}");

    // The same with the token, from a file and from the variables.
    cluster.admin(&["locks"]);
    cluster.admin(&["status"]);
    let from_variable = |variable: &str, value: &str| cluster.dev.command(&["locks"]).env(variable, value).output();
    let file = cluster.file("admin.token");
    done(&from_variable("LOCKKEEPER_TOKEN_FILE", file.to_str().unwrap()).unwrap());
    done(&from_variable("LOCKKEEPER_ACCESS_TOKEN", &fs::read_to_string(&file).unwrap()).unwrap());
    let wrong = from_variable("LOCKKEEPER_ACCESS_TOKEN", EXAMPLE).unwrap();
    assert!(wrong.status.code() == Some(1) && complaint(&wrong).contains("unauthenticated"), "{wrong:?}");
    cluster.admin(&["auth", "disable"]);
    done(&cluster.dev.run(&["locks"]));
}

#[test]
fn a_new_token_is_alone_on_standard_output_or_in_a_private_file() {
    let cluster = Enforced::start();
    let file = cluster.file("admin.token");
    assert_eq!(mode(&file), 0o600);
    let stored = fs::read_to_string(&file).unwrap();
    assert!(stored.starts_with("lk_") && stored.trim().len() == 46, "a token and a line's end");
    let again = cluster.run("admin.token", &["auth", "token", "create", "x", "--out", file.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(complaint(&again).contains("exists"), "{again:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), stored, "nothing was replaced");

    let made = cluster.run("admin.token", &["auth", "token", "create", "ops"]);
    let token = done(&made);
    assert!(token.lines().count() == 1 && token.starts_with("lk_"), "{made:?}");
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(said.contains("ops") && !said.contains(token.trim()), "{said}");
    let as_json = json(&cluster.run("admin.token", &["--json", "auth", "token", "create", "ops"]));
    assert!(as_json["token"].as_str().unwrap().starts_with("lk_"), "token {} is printed", as_json["token_id"]);
    let enabled_again = cluster.run("admin.token", &["auth", "enable"]);
    assert_eq!(done(&enabled_again), "", "there is an administrator, so no token is made");

    let listed = cluster.admin(&["auth", "token", "list"]);
    assert_eq!(listed.lines().filter(|line| line.contains("ops")).count(), 2, "{listed}");
    assert!(!listed.contains("lk_") && listed.contains("never"), "{listed}");
    assert!(listed.contains("LAST USED"), "{listed}");
    // The administrator's token, which shows this list.
    eventually("the use of a token to be recorded", || {
        let listed = cluster.admin(&["auth", "token", "list"]);
        listed.lines().filter(|line| line.contains("within the hour")).count() == 1
    });
}

/// A server that reads a request and closes the connection: its client cannot know what became of it.
fn silent_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.read(&mut [0; 4096]));
        }
    });
    address
}

#[test]
fn a_token_is_not_lost_with_the_answer() {
    let (dev, directory) = (Dev::start(1, &[]), tempfile::tempdir().unwrap());
    let file = directory.path().join("admin.token");
    let enable = ["auth", "enable", "--out", file.to_str().unwrap()];
    let nowhere = |arguments: &[&str]| {
        let endpoint = silent_endpoint();
        let unknown = lockkeeper().args(["--endpoints", &endpoint, "--patience", "500ms"]).args(arguments).output();
        let unknown = unknown.unwrap();
        assert_eq!(unknown.status.code(), Some(123), "{unknown:?}");
        unknown
    };
    let why = complaint(&nowhere(&enable));
    assert!(why.contains(file.to_str().unwrap()) && why.contains("--reuse"), "{why}");
    assert_eq!(mode(&file), 0o600);
    let stored = fs::read_to_string(&file).unwrap();
    assert!(!why.contains(stored.trim()));
    let refused = dev.run(&enable);
    assert!(refused.status.code() == Some(1) && complaint(&refused).contains("--reuse"), "{refused:?}");

    // The same call again, twice: once for the answer that was lost, and once more.
    for _ in 0..2 {
        let done_at_last = dev.run(&[&enable[..], &["--reuse"]].concat());
        assert!(done_at_last.status.success(), "{done_at_last:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), stored);
    let who = dev.command(&["--token-file", file.to_str().unwrap(), "auth", "whoami"]).output().unwrap();
    assert!(done(&who).contains("admin"), "{who:?}");

    let printed = text(&nowhere(&["auth", "token", "create", "ops"]));
    assert!(printed.starts_with("lk_") && printed.trim().len() == 46, "it may count");
}

#[test]
fn a_token_file_stays_only_if_its_token_may_count() {
    let cluster = Enforced::start();
    let file = cluster.file("new.token");
    let out = file.to_str().unwrap();
    let refused = cluster.run("admin.token", &["auth", "token", "create", "anyone", "--out", out]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(!file.exists(), "the cluster refused it");
    cluster.admin(&["auth", "enable", "--out", out]);
    assert!(!file.exists(), "there was an administrator, so no token was made");
    fs::write(&file, "something else").unwrap();
    let refused = cluster.run("admin.token", &["auth", "token", "create", "anyone", "--out", out, "--force"]);
    assert_eq!((refused.status.code(), &*fs::read_to_string(&file).unwrap()), (Some(1), "something else"));
    cluster.admin(&["auth", "token", "create", "ops", "--out", out, "--force"]);
    assert!(fs::read_to_string(&file).unwrap().starts_with("lk_"));
    assert_eq!(mode(&file), 0o600);
    assert_eq!(fs::read_dir(cluster.directory.path()).unwrap().count(), 2, "nothing else is left there");
}

#[test]
fn a_role_gives_its_principals_what_its_rules_say_until_it_is_taken() {
    let cluster = Enforced::start();
    let token_id = cluster.billing();
    let billing = |arguments: &[&str]| cluster.run("billing.token", arguments);
    let who = done(&billing(&["auth", "whoami"]));
    assert!(who.contains("billing") && who.contains("orders"), "{who}");
    assert_eq!(json(&billing(&["--json", "auth", "whoami"]))["principals"], serde_json::json!(["billing"]));
    for (question, answer) in [
        (&["acquire", "locks", "orders/42"][..], 0),
        (&["acquire", "locks", "orders2"], 1),
        (&["acquire", "locks"], 1),
        (&["force", "locks", "orders/42"], 1),
        (&["admin", "cluster"], 1),
    ] {
        let asked = billing(&[&["auth", "can-i"], question].concat());
        assert_eq!(asked.status.code(), Some(answer), "{question:?}: {asked:?}");
        assert_eq!(text(&asked).starts_with("yes"), answer == 0, "{question:?}: {asked:?}");
        assert!(asked.stderr.is_empty(), "{asked:?}");
    }
    let yes = done(&billing(&["auth", "can-i", "acquire", "locks", "orders/42"]));
    assert!(yes.contains("orders: locks:orders=read,acquire"), "{yes}");
    let of_another = ["--json", "auth", "can-i", "acquire", "locks", "orders/42", "--principal", "billing"];
    assert_eq!(json(&cluster.run("admin.token", &of_another))["role"], "orders");

    done(&billing(&["lock", "orders/42", "--", "true"]));
    let refused = billing(&["lock", "invoices", "--wait", "0", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    for part in ["forbidden", "acquire", "invoices", "billing"] {
        assert!(complaint(&refused).contains(part), "{part}: {refused:?}");
    }
    let denied = billing(&["auth", "role", "delete", "orders"]);
    assert!(denied.status.code() == Some(1) && complaint(&denied).contains("forbidden"), "{denied:?}");

    roles_are_shown_and_replaced_by_version(&cluster);
    cluster.admin(&["auth", "revoke", "billing", "orders"]);
    assert_eq!(billing(&["lock", "orders/42", "--", "true"]).status.code(), Some(125));
    cluster.admin(&["auth", "token", "revoke", &token_id]);
    let revoked = billing(&["locks", "orders/42"]);
    assert!(revoked.status.code() == Some(1) && complaint(&revoked).contains("unauthenticated"), "{revoked:?}");
}

fn roles_are_shown_and_replaced_by_version(cluster: &Enforced) {
    let status = cluster.admin(&["auth", "status"]);
    assert!(status.contains("is enforced") && status.contains("billing"), "{status}");
    let shown = cluster.admin(&["auth", "role", "show", "orders"]);
    assert!(shown.contains("locks:orders=read,acquire") && shown.contains("granted to billing"), "{shown}");
    assert!(cluster.admin(&["auth", "role", "list"]).contains("locks:orders=read,acquire"));
    let version =
        json(&cluster.run("admin.token", &["--json", "auth", "role", "show", "orders"]))["version"].to_string();
    let put = |version: &str| {
        let arguments = ["auth", "role", "put", "orders", "locks:orders=acquire", "--if-version", version];
        cluster.run("admin.token", &arguments)
    };
    assert_eq!(put("0").status.code(), Some(1), "the role exists");
    done(&put(&version));
    assert_eq!(put(&version).status.code(), Some(1), "the role has another version now");
    let missing = cluster.run("admin.token", &["auth", "role", "show", "nobodys"]);
    assert!(missing.status.code() == Some(1) && complaint(&missing).contains("nobodys"), "{missing:?}");
    let last = cluster.run("admin.token", &["auth", "revoke", "admin", "admin"]);
    assert_eq!(last.status.code(), Some(1), "nobody could administer any more: {last:?}");
}

#[test]
fn a_command_loses_its_lock_when_its_token_is_revoked() {
    let cluster = Enforced::start();
    let id = cluster.billing();
    let ready = cluster.file("ready");
    let script = format!(": > {}; sleep 60", ready.display());
    let mut held = cluster.command("billing.token", &["lock", "orders/42", "--", "sh", "-c", &script]);
    let mut held = Killed(held.spawn().unwrap());
    eventually("the command runs", || ready.exists());
    cluster.admin(&["auth", "token", "revoke", &id]);
    assert_eq!(held.code(), Some(121));
    eventually("the lock is free", || {
        let lock = json(&cluster.run("admin.token", &["--json", "locks", "orders/42"]));
        lock["holders"].as_array().unwrap().is_empty()
    });
}

#[test]
fn a_command_under_a_lock_has_the_token_file_of_the_environment() {
    let cluster = Enforced::start();
    cluster.billing();
    let inside = "\"$0\" locks orders/42 && echo \"$LOCKKEEPER_TOKEN\"";
    let mut command = lockkeeper();
    command.env("LOCKKEEPER_ENDPOINTS", cluster.dev.endpoints.join(","));
    command.env("LOCKKEEPER_TOKEN_FILE", cluster.file("billing.token"));
    command.args(["lock", "orders/42", "--", "sh", "-c", inside, env!("CARGO_BIN_EXE_lockkeeper")]);
    let printed = done(&command.output().unwrap());
    assert!(printed.contains("holds"), "{printed}");
    let fencing = printed.lines().last().unwrap();
    assert!(fencing.parse::<u64>().is_ok(), "LOCKKEEPER_TOKEN is the fencing token: {printed}");
}

/// Of every process on this machine: the command's own, its helpers and CMD.
fn command_lines() -> String {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_secret_is_in_a_label_or_on_a_command_line() {
    let cluster = Enforced::start();
    cluster.billing();
    let token = fs::read_to_string(cluster.file("billing.token")).unwrap();
    let (ready, secret) = (cluster.file("ready"), "hunter2-in-an-argument");
    let script = format!(": > {}; sleep 60; : {secret}", ready.display());
    let mut command = cluster.dev.command(&["lock", "orders/42", "--", "sh", "-c", &script]);
    let held = Killed(command.env("LOCKKEEPER_ACCESS_TOKEN", token.trim()).spawn().unwrap());
    eventually("the command runs", || ready.exists());
    let shown = cluster.admin(&["--json", "locks", "orders/42"]) + &cluster.admin(&["--json", "sessions"]);
    let label = format!(", {}, sh\"", held.pid());
    assert!(shown.contains(&label), "{label} in {shown}");
    assert!(!shown.contains(secret) && !shown.contains(token.trim()), "{shown}");
    let lines = command_lines();
    assert!(lines.contains(secret), "CMD's own arguments are there, so this looks at what it should");
    assert!(!lines.contains(token.trim()));
}

#[test]
fn dev_starts_again_with_data_that_enforce_access_control() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let arguments = ["--data", data.to_str().unwrap()];
    let first = Dev::start(1, &arguments);
    let token = done(&first.run(&["auth", "enable"]));
    drop(first);
    let second = Dev::start(1, &arguments);
    let with_token = second.command(&["locks"]).env("LOCKKEEPER_ACCESS_TOKEN", &token).output().unwrap();
    done(&with_token);
    assert_eq!(second.run(&["locks"]).status.code(), Some(1));
}

#[test]
fn a_token_that_cannot_be_used_is_a_usage_error_that_does_not_show_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, format!("{EXAMPLE}x")).unwrap();
    for (option, cause) in [("/no/such/token", "/no/such/token"), (file.to_str().unwrap(), "holds no access token")] {
        let refused = lockkeeper().args(["--token-file", option, "locks"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let why = complaint(&refused);
        assert!(why.contains(cause) && why.contains("--token-file") && !why.contains("abcdef"), "{why}");
    }
    let refused = lockkeeper().arg("locks").env("LOCKKEEPER_ACCESS_TOKEN", "hunter2").output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let why = complaint(&refused);
    assert!(why.contains("LOCKKEEPER_ACCESS_TOKEN") && !why.contains("hunter2"), "{why}");
}

#[test]
fn a_token_file_that_every_user_can_read_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, EXAMPLE).unwrap();
    for (mode, warned) in [(0o600, false), (0o640, false), (0o644, true)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = lockkeeper();
        command.args(["--patience", "100ms", "--endpoints", "127.0.0.1:1", "--token-file"]).arg(&file).arg("locks");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(122), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.contains("warning: every user"), warned, "{mode:o}: {said}");
    }
}

#[test]
fn wrong_arguments_of_auth_are_usage_errors_with_their_cause() {
    for (arguments, cause) in [
        (&["can-i", "own", "locks"][..], "a right is one of"),
        (&["can-i", "read", "lock"], "a resource is one of"),
        (&["role", "put", "a"], "RULE"),
        (&["role", "put", "a", "locks"], "RESOURCE[:PREFIX]=RIGHT"),
        (&["role", "put", "a", "locks=read,write,nothing"], "a right is one of"),
        (&["token", "create", "a", "--ttl", "500ms"], "at least 1s"),
    ] {
        let refused = lockkeeper().arg("auth").args(arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(cause), "{arguments:?}: {refused:?}");
    }
    let help = text(&lockkeeper().args(["auth", "--help"]).output().unwrap());
    assert!(help.contains("--token-file") && help.contains("LOCKKEEPER_ACCESS_TOKEN"), "{help}");
}

#[test]
fn namespaces_are_limited_listed_and_freed() {
    let cluster = Enforced::start();
    cluster.billing();
    assert_eq!(cluster.admin(&["namespaces"]), "no namespace has limits\n");
    let limits = ["--sessions", "9", "--lock-requests", "0", "--bytes", "2MiB", "--requests-per-s", "1000"];
    let put: Vec<&str> = ["namespaces", "put", "orders", "--owner", "billing"].into_iter().chain(limits).collect();
    assert_eq!(cluster.admin(&put), "set the limits of namespace orders\n");
    let own = done(&cluster.run("billing.token", &["namespaces"]));
    for word in ["orders", "billing", "0 of 9", "0 of 2097152", "1000"] {
        assert!(own.contains(word), "{word} in {own}");
    }
    let refused = cluster.run("billing.token", &["lock", "orders/1", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(complaint(&refused).contains("0 of at most 0 lock requests"), "{refused:?}");
    let version = json(&cluster.run("admin.token", &["namespaces", "--json"]))["namespaces"][0]["version"].clone();
    let version = version.to_string();
    let stale = cluster.run("admin.token", &["namespaces", "put", "orders", "--if-version", "1"]);
    assert_eq!(stale.status.code(), Some(1), "{stale:?}");
    cluster.admin(&["namespaces", "put", "orders", "--if-version", &version]);
    done(&cluster.run("billing.token", &["lock", "orders/1", "--", "true"]));
    assert_eq!(cluster.admin(&["namespaces", "delete", "orders"]), "namespace orders has no limits any more\n");
    let foreign = cluster.run("billing.token", &["namespaces"]);
    assert_eq!(foreign.status.code(), Some(1), "{foreign:?}");
    let wrong = cluster.run("admin.token", &["namespaces", "put", "orders", "--bytes", "2MB"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
