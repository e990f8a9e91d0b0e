//! The configuration: every shipped file is valid, and an invalid one is refused with key, value and rule.

use std::path::Path;

use lockkeeper_server::config::{Config, NodeRole};
use lockkeeper_server::{ConfigError, Server};

const GOOD: &str = "[cluster]\nid = \"local\"\nnode = 1\n";
/// The same with TLS for ZooKeeper's clients, up to the keys of their section.
const SECURE: &str =
    "[cluster]\nid = \"local\"\nnode = 1\n[tls.zookeeper]\ncertificate = \"a\"\nkey = \"b\"\n[zookeeper]\n";

fn refused(text: &str) -> String {
    let error = match Config::from_text(text, "test.toml").and_then(|config| config.check().map(drop)) {
        Ok(()) => panic!("was taken: {text}"),
        Err(error) => error.to_string(),
    };
    assert!(!error.contains('\n'), "more than a line: {error}");
    error
}

#[test]
fn shipped_files_are_good_and_name_every_key() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cluster-config");
    for (folder, nodes, voters, role) in [
        ("three-node", 1..=3, 3, NodeRole::Member),
        ("five-node", 1..=5, 5, NodeRole::Member),
        ("front-node", 4..=4, 3, NodeRole::Front),
    ] {
        for node in nodes {
            let path = root.join(folder).join(format!("node{node}.toml"));
            let (config, checked) = Config::load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(config.cluster.node, node);
            assert_eq!((checked.peers.len(), config.cluster.role), (voters, role));
            // The file lists every default but addresses, the directory and the test switches.
            let mut plain = Config::new("local", node);
            plain.cluster.role = role;
            plain.peers = config.peers.clone();
            plain.listen = config.listen.clone();
            plain.storage.directory = config.storage.directory.clone();
            assert_eq!(config, plain, "{}", path.display());
            let text = std::fs::read_to_string(&path).unwrap();
            let all = toml::Table::try_from(&plain).unwrap();
            for (section, keys) in all.iter().filter(|(section, _)| !["testing", "peers"].contains(&section.as_str())) {
                for key in keys.as_table().unwrap().keys() {
                    assert!(
                        text.lines().any(|line| line.starts_with(&format!("{key} = "))),
                        "{section}.{key} is not in {}",
                        path.display()
                    );
                }
            }
        }
    }
}

#[test]
fn a_node_joins_by_addresses_or_forms_a_cluster_with_its_peers() {
    let joins = |join: &str| format!("{GOOD}join = {join}\n");
    let config = Config::from_text(&joins(r#"["10.0.0.1:7101", "lock-2:7101"]"#), "test.toml").unwrap();
    let checked = config.check().unwrap();
    assert!(checked.peers.is_empty() && checked.clients.is_empty());
    let refused = |text: &str| {
        let checked = Config::from_text(text, "test.toml").and_then(|config| config.check());
        match checked {
            Ok(_) => panic!("was taken: {text}"),
            Err(error) => error.to_string(),
        }
    };
    let both = refused(&format!("{}[peers.2]\npeer = \"127.0.0.1:7102\"\n", joins(r#"["10.0.0.1:7101"]"#)));
    assert!(both.contains("cluster.join") && both.contains("remove cluster.join or [peers]"), "{both}");
    let no_port = refused(&joins(r#"["10.0.0.1"]"#));
    assert!(no_port.contains("cluster.join") && no_port.contains("host:port"), "{no_port}");
    let itself = refused(&format!("{}[listen]\npeer = \"127.0.0.1:7104\"\n", joins(r#"["127.0.0.1:7104"]"#)));
    assert!(itself.contains("is this node itself"), "{itself}");
    let many = format!("{:?}", ["a:1"; 33]);
    assert!(refused(&joins(&many)).contains("cluster.join"));
}

#[test]
fn a_front_node_names_the_voters_and_not_itself() {
    let text = format!("{GOOD}role = \"front\"\n[peers.2]\npeer = \"127.0.0.1:7102\"\n");
    let config = Config::from_text(&text, "test.toml").unwrap();
    assert_eq!(config.check().unwrap().peers, [(2, "127.0.0.1:7102".to_owned())].into());
}

#[test]
fn a_node_alone_needs_two_keys() {
    let config = Config::from_text(GOOD, "test.toml").unwrap();
    let checked = config.check().unwrap();
    assert_eq!(checked.peers, [(1, "127.0.0.1:7101".to_owned())].into());
    assert_eq!(config, Config::new("local", 1));
}

#[test]
fn errors_name_key_value_and_rule() {
    for (text, wanted) in [
        ("", &["test.toml", "cluster"][..]),
        ("[cluster]\nid = \"local\"\n", &["node"]),
        ("[cluster]\nid = \"a b\"\nnode = 1\n", &["cluster.id", "a b", "must be"]),
        ("[cluster]\nid = \"local\"\nnode = 0\n", &["cluster.node", "0", "from 1"]),
        ("[cluster]\nid = \"local\"\nnode = \"x\"\n", &["cluster.node", "\"x\""]),
        ("[cluster]\nid = \"local\"\nnode = 1\n[cluster\n", &["test.toml"]),
        (&format!("{GOOD}[storage]\ndirectry = \"x\"\n"), &["storage", "directry"]),
        (&format!("{GOOD}[nonsense]\nx = 1\n"), &["nonsense"]),
        (
            &format!("{GOOD}[storage]\nsnapshot_every_entries = 1\n"),
            &["storage.snapshot_every_entries", "= 1", "from 100"],
        ),
        (
            &format!("{GOOD}[storage]\nkeep_entries = 10000001\n"),
            &["storage.keep_entries", "= 10000001", "to 10000000"],
        ),
        (&format!("{GOOD}[timing]\nelection_timeout_min_ms = 150\n"), &["timing.election_timeout_min_ms", "150"]),
        (&format!("{GOOD}[timing]\nmin_session_timeout_ms = 10\n"), &["timing.min_session_timeout_ms", "10"]),
        (&format!("{GOOD}[listen]\nclient = \"nowhere\"\n"), &["listen.client", "nowhere"]),
        (&format!("{GOOD}[listen]\nclient = \"127.0.0.1:7101\"\n"), &["listen.peer", "differ"]),
        (&format!("{GOOD}[peers.2]\npeer = \"127.0.0.1:7102\"\n"), &["cluster.node", "peers.1"]),
        (&format!("{GOOD}role = \"observer\"\n"), &["cluster.role", "observer", "front"]),
        (&format!("{GOOD}role = \"front\"\n"), &["cluster.role", "front", "needs [peers]"]),
        (
            &format!("{GOOD}role = \"front\"\n[peers.1]\npeer = \"127.0.0.1:7101\"\n"),
            &["peers.1", "cluster.role is \"front\"", "remove this section"],
        ),
        (&format!("{GOOD}[peers.x]\npeer = \"127.0.0.1:7102\"\n"), &["peers", "x"]),
        (&format!("{GOOD}[peers.1]\npeer = \"127.0.0.1\"\n"), &["peers.1.peer", "host:port"]),
        (&format!("{GOOD}[peers.1]\npeer = \"a:1\"\n[peers.2]\npeer = \"a:1\"\n"), &["peers.2.peer", "node 1"]),
        (
            &format!("{GOOD}[listen]\nallowed_origins = [\"http://a/\"]\n"),
            &["listen.allowed_origins", "http://a/", "scheme://host"],
        ),
        (
            &format!("{GOOD}[admin]\nsuper_digest = \"super:superpw\"\n"),
            &["admin.super_digest", "28 characters", "openssl"],
        ),
        (
            &format!("{GOOD}[listen]\nclient = \"0.0.0.0:7001\"\n"),
            &["listen.client = 0.0.0.0:7001", "has no TLS", "[tls.client]", "\"client\" to listen.insecure"],
        ),
        (
            &format!("{GOOD}[listen]\npeer = \"[::]:7101\"\ninsecure = [\"client\", \"zookeeper\"]\n"),
            &["listen.peer = [::]:7101", "[tls.peer]", "\"peer\" to listen.insecure"],
        ),
        (
            &format!("{GOOD}[zookeeper]\nlisten = \"10.1.2.3:2181\"\n"),
            &["zookeeper.listen = 10.1.2.3:2181", "[tls.zookeeper]", "\"zookeeper\" to listen.insecure"],
        ),
        (&format!("{GOOD}[listen]\ninsecure = [\"metrics\"]\n"), &["listen.insecure", "metrics"]),
        (&format!("{GOOD}[tls.client]\ncertificate = \"a.pem\"\n"), &["tls.client", "key"]),
        (&format!("{GOOD}[tls.client]\ncertificate = \"a.pem\"\nkey = \"\"\n"), &["tls.client.key", "name a file"]),
        (
            &format!("{GOOD}[tls.client]\ncertificate = \"a\"\nkey = \"b\"\nclient_certificates = \"required\"\n"),
            &["tls.client.client_certificates", "needs tls.client.authority"],
        ),
        (
            &format!("{GOOD}[tls.client]\ncertificate = \"a\"\nkey = \"b\"\nclient_certificates = \"all\"\n"),
            &["tls.client.client_certificates", "all", "required"],
        ),
        (
            &format!("{GOOD}[tls.client]\ncertificate = \"a\"\nkey = \"b\"\nprincipal_from = \"subject\"\n"),
            &["tls.client.principal_from", "subject", "common_name", "uri", "dns", "email"],
        ),
        (
            &format!("{GOOD}[tls.client]\ncertificate = \"a\"\nkey = \"b\"\nprincipal_prefix = \"a b\"\n"),
            &["tls.client.principal_prefix", "a b", "ASCII"],
        ),
        (
            &format!("{GOOD}[tls.zookeeper]\ncertificate = \"a\"\nkey = \"b\"\n"),
            &["zookeeper.listen", "[tls.zookeeper]"],
        ),
        (&format!("{GOOD}[tls.peer]\ncertificate = \"a\"\nkey = \"b\"\n"), &["tls.peer", "authority"]),
        (&format!("{GOOD}[tls.metrics]\ncertificate = \"a\"\n"), &["tls", "metrics"]),
        (
            &format!("{GOOD}[audit]\nfile = \"/nowhere/audit.jsonl\"\n"),
            &["audit.file = /nowhere/audit.jsonl", "directory that does not exist"],
        ),
        (&format!("{GOOD}[audit]\nfile = \"/\"\n"), &["audit.file = /", "not a directory"]),
        (&format!("{GOOD}[audit]\nfiles = \"a\"\n"), &["audit", "files"]),
        (&format!("{GOOD}[log]\nlevel = \"lou=d=\"\n"), &["log.level", "lou=d="]),
        (&format!("{GOOD}[log]\nformat = \"xml\"\n"), &["log.format", "xml"]),
    ] {
        let error = refused(text);
        for part in wanted {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn of_two_keys_of_timing_that_contradict_each_other_the_one_in_the_file_is_named() {
    for (text, wanted) in [
        (
            &format!("{GOOD}[timing]\nheartbeat_ms = 500\n"),
            &["timing.heartbeat_ms = 500", "timing.election_timeout_min_ms = 1000 or more", "300 by default"][..],
        ),
        (
            &format!("{GOOD}[timing]\nelection_timeout_min_ms = 1000\n"),
            &["timing.election_timeout_min_ms = 1000:", "timing.election_timeout_max_ms = 1100 or more"],
        ),
        (
            &format!("{GOOD}[timing]\nmin_session_timeout_ms = 20000\n"),
            &["timing.min_session_timeout_ms = 20000:", "timing.default_session_timeout_ms = 20000 or more"],
        ),
        (
            &format!("{GOOD}[timing]\nmax_session_timeout_ms = 5000\n"),
            &["timing.max_session_timeout_ms = 5000:", "timing.default_session_timeout_ms = 10000"],
        ),
    ] {
        let error = refused(text);
        for part in wanted {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn keys_of_the_ports_for_zookeeper_need_what_gives_them_an_effect() {
    for (text, wanted) in [
        (
            &format!("{GOOD}[zookeeper]\nlisten_secure = \"127.0.0.1:2281\"\n"),
            &["zookeeper.listen_secure", "127.0.0.1:2281", "needs [tls.zookeeper]"][..],
        ),
        (
            &format!("{GOOD}[zookeeper]\nlisten = \"127.0.0.1:2181\"\nport_unification = true\n"),
            &["zookeeper.port_unification", "needs [tls.zookeeper]"],
        ),
        (
            &format!("{SECURE}listen_secure = \"127.0.0.1:2281\"\nport_unification = true\n"),
            &["zookeeper.port_unification", "zookeeper.listen, which is empty"],
        ),
        (
            &format!("{SECURE}listen = \"127.0.0.1:2281\"\nlisten_secure = \"127.0.0.1:2281\"\n"),
            &["zookeeper.listen_secure", "must differ", "zookeeper.listen"],
        ),
        (&format!("{SECURE}listen_secure = \"127.0.0.1:7101\"\n"), &["zookeeper.listen_secure", "must differ"]),
        (
            &format!("{SECURE}listen = \"10.1.2.3:2181\"\nlisten_secure = \"10.1.2.3:2281\"\n"),
            &["zookeeper.listen = 10.1.2.3:2181", "zookeeper.listen_secure", "\"zookeeper\" to listen.insecure"],
        ),
        (
            &format!("{SECURE}listen = \"10.1.2.3:2181\"\nport_unification = true\n"),
            &["zookeeper.listen = 10.1.2.3:2181", "zookeeper.port_unification", "\"zookeeper\" to listen.insecure"],
        ),
    ] {
        let error = refused(text);
        for part in wanted {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn an_address_for_others_needs_tls_or_an_exception_by_name() {
    let takes = |text: &str| Config::from_text(text, "test.toml").and_then(|config| config.check().map(drop));
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        takes(&format!("{GOOD}[listen]\nclient = \"{address}\"\n")).unwrap();
    }
    let everywhere = "[listen]\nclient = \"0.0.0.0:1\"\npeer = \"0.0.0.0:2\"\n";
    let zookeeper = "[zookeeper]\nlisten = \"0.0.0.0:3\"\n";
    takes(&format!("{GOOD}{everywhere}insecure = [\"client\", \"peer\", \"zookeeper\"]\n{zookeeper}")).unwrap();
    let files = "certificate = \"a\"\nkey = \"b\"\n";
    let tls = format!("[tls.client]\n{files}[tls.zookeeper]\n{files}[tls.peer]\n{files}authority = \"c\"\n");
    takes(&format!("{GOOD}{everywhere}{zookeeper}{tls}")).unwrap();
    // Two ports: the one with TLS may be reached, the one without it only from this machine.
    takes(&format!("{SECURE}listen = \"127.0.0.1:3\"\nlisten_secure = \"0.0.0.0:4\"\n")).unwrap();
    for plain in ["listen_secure = \"0.0.0.0:4\"\n", "port_unification = true\n"] {
        takes(&format!("{SECURE}listen = \"0.0.0.0:3\"\n{plain}")).unwrap_err();
        takes(&format!("{SECURE}listen = \"0.0.0.0:3\"\n{plain}[listen]\ninsecure = [\"zookeeper\"]\n")).unwrap();
        takes(&format!("{SECURE}listen = \"127.0.0.1:3\"\n{plain}")).unwrap();
    }
}

#[test]
fn an_authority_without_an_effect_is_warned_of() {
    let warnings = |text: &str| Config::from_text(text, "test.toml").unwrap().warnings().join("\n");
    let unused = format!("{GOOD}[tls.client]\ncertificate = \"a\"\nkey = \"b\"\nauthority = \"c\"\n");
    assert!(warnings(&unused).contains("tls.client.client_certificates is \"none\""), "{}", warnings(&unused));
    assert_eq!(warnings(&format!("{unused}client_certificates = \"optional\"\n")), "");
    let rule = format!("{GOOD}[tls.client]\ncertificate = \"a\"\nkey = \"b\"\nprincipal_from = \"uri\"\n");
    assert!(warnings(&rule).contains("tls.client.principal_from"), "{}", warnings(&rule));
    let used = "authority = \"c\"\nclient_certificates = \"optional\"\n";
    assert_eq!(warnings(&format!("{rule}{used}")), "");
}

#[test]
fn a_bound_that_lets_one_session_stop_all_is_warned_of() {
    let warnings = |text: &str| Config::from_text(text, "test.toml").unwrap().warnings();
    assert!(warnings(GOOD).is_empty());
    assert!(warnings(&format!("{GOOD}[limits]\nephemerals_per_session = 10000\n")).is_empty());
    let warned = warnings(&format!("{GOOD}[limits]\nephemerals_per_session = 10001\n")).join("\n");
    for word in ["limits.ephemerals_per_session = 10001", "longer than 20 ms", "keep it at 10000"] {
        assert!(warned.contains(word), "{warned}");
    }
}

#[test]
fn an_unreadable_file_is_one_line() {
    let error = Config::load(Path::new("/does/not/exist.toml")).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }));
    assert!(error.to_string().contains("/does/not/exist.toml"));
    assert!(!error.to_string().contains('\n'));
}

#[test]
fn a_port_in_use_is_one_line_with_address_and_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (key, other) in [("listen.client", "listen.peer"), ("listen.peer", "listen.client")] {
        let text = format!("{GOOD}[listen]\n{} = \"{address}\"\n{} = \"127.0.0.1:0\"\n", &key[7..], &other[7..]);
        let error = Server::bind(Config::from_text(&text, "test.toml").unwrap()).unwrap_err();
        let line = error.to_string();
        assert!(
            line.contains(key) && line.contains(&address.to_string()) && line.contains("another process"),
            "{line}"
        );
        assert_eq!(error.exit_code(), 1);
    }
}
