//! Runs the procedures of `docs/operate.md` as they stand there, and meets what can go wrong with backups.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use crate::readme_walk::{block, printed_in, says_what_it_marks};
use crate::support::{Dev, complaint, lockkeeper};

const OPERATE: &str = include_str!("../../../../docs/operate.md");

/// Free ports, as the page's addresses.
fn addresses() -> Vec<(String, String)> {
    let listeners: Vec<(u16, TcpListener)> = (1..=3)
        .flat_map(|node| [7000 + node, 7100 + node])
        .map(|port| (port, TcpListener::bind("127.0.0.1:0").unwrap()))
        .collect();
    let here = |(port, listener): &(u16, TcpListener)| {
        (format!("127.0.0.1:{port}"), listener.local_addr().unwrap().to_string())
    };
    listeners.iter().map(here).collect()
}

fn here(text: &str, addresses: &[(String, String)]) -> String {
    addresses.iter().fold(text.to_owned(), |text, (page, own)| text.replace(page, own))
}

/// The configuration of a node of the page, with these members.
fn config(node: u64, members: &[u64], addresses: &[(String, String)]) -> String {
    let peers: String = members
        .iter()
        .map(|id| format!("[peers.{id}]\npeer = \"127.0.0.1:710{id}\"\nclient = \"127.0.0.1:700{id}\"\n"))
        .collect();
    let text = format!(
        "[cluster]\nid = \"orders\"\nnode = {node}\n{peers}[listen]\nclient = \"127.0.0.1:700{node}\"\n\
         peer = \"127.0.0.1:710{node}\"\n[storage]\ndirectory = \"data{node}\"\nfree_floor_mib = 1\n"
    );
    here(&text, addresses)
}

#[test]
fn the_procedures_of_the_page_bring_a_cluster_back_twice() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(3, &[]);
    assert!(dev.run(&["create", "/kept", "x"]).status.success());
    let back_up = block(OPERATE, "## Back up");
    says_what_it_marks(back_up, &printed_in(directory.path(), back_up, &dev.endpoints));
    drop(dev);

    let addresses = addresses();
    for node in 1..=3 {
        let path = directory.path().join(format!("node{node}.toml"));
        std::fs::write(path, config(node, &[1, 2, 3], &addresses)).unwrap();
    }
    std::fs::write(directory.path().join("alone.toml"), config(3, &[3], &addresses)).unwrap();
    let (restore, recover) = (block(OPERATE, "## Restore"), block(OPERATE, "## A majority is lost"));
    // The page's cluster has the name of the old one; here that is `dev`, and `orders` the new one.
    let restored = here(restore, &addresses).replace(".toml\nlock", ".toml --cluster-name-differs\nlock");
    let restored = restored.replace("node3.toml\n# →", "node3.toml --cluster-name-differs\n# →");
    assert_eq!(restored.matches("--cluster-name-differs").count(), 3);
    let script = format!(
        "trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\n{restored}\n\
         lockkeeper create /after x\nkill -9 $(jobs -p)\nwait || true\n\
         rm -r data1 data2\nmv alone.toml node3.toml\n{}\n\
         lockkeeper get /after >after.txt\ncat data3/origin\n",
        here(recover, &addresses)
    );
    let printed = printed_in(directory.path(), &script, &[]);
    says_what_it_marks(&format!("{restore}{recover}"), &printed);
    assert!(printed.contains("\"how\": \"recovery\""), "{printed}");
}

fn run(arguments: &[&str], directory: &Path) -> Output {
    lockkeeper().args(arguments).current_dir(directory).output().unwrap()
}

#[test]
fn a_backup_that_cannot_be_used_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(1, &[]);
    let saved = dev.command(&["snapshot", "save", "good"]).current_dir(directory.path()).output().unwrap();
    assert!(saved.status.success(), "{saved:?}");
    let good = std::fs::read(directory.path().join("good")).unwrap();
    let to_stdout = dev.run(&["snapshot", "save", "-"]);
    assert!(to_stdout.status.success() && to_stdout.stdout.starts_with(b"LKBACKUP"), "{:?}", to_stdout.status);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let no_room = dev.command(&["snapshot", "save", "-"]).stdout(full).output().unwrap();
    assert_eq!(no_room.status.code(), Some(1));
    assert!(complaint(&no_room).contains("No space left"), "{no_room:?}");
    std::fs::write(directory.path().join("cut"), &good[..good.len() - 9]).unwrap();
    for command in ["verify", "inspect"] {
        let refused = run(&["snapshot", command, "cut"], directory.path());
        assert_eq!(refused.status.code(), Some(1));
        assert!(complaint(&refused).contains("cut off after"), "{refused:?}");
    }
    let inspected = run(&["--json", "snapshot", "inspect", "good"], directory.path());
    assert_eq!(crate::support::json(&inspected)["cluster"], "dev");

    let addresses = addresses();
    std::fs::write(directory.path().join("node1.toml"), config(1, &[1], &addresses)).unwrap();
    let foreign = run(&["snapshot", "restore", "good", "--config", "node1.toml"], directory.path());
    assert_eq!(foreign.status.code(), Some(2));
    assert!(complaint(&foreign).contains("--cluster-name-differs"), "{foreign:?}");
    let recover = ["recover", "--from-survivor", "--config", "node1.toml"];
    let unconfirmed = run(&recover, directory.path());
    assert_eq!(unconfirmed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unconfirmed.stderr).contains("--yes-cluster"), "{unconfirmed:?}");
    let mistyped = run(&[&recover[..], &["--yes-cluster", "order"]].concat(), directory.path());
    assert!(String::from_utf8_lossy(&mistyped.stderr).contains("nothing was changed"), "{mistyped:?}");
    let without_data = run(&[&recover[..], &["--yes-cluster", "orders"]].concat(), directory.path());
    assert!(String::from_utf8_lossy(&without_data.stderr).contains("no data of a node"), "{without_data:?}");
    assert!(!directory.path().join("data1").exists());
}

/// A node that dies in the middle of each backup.
fn dying_node(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let mut request = [0; 1024];
            let _ = connection.read(&mut request);
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
            let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&bytes));
        }
    });
    address
}

#[test]
fn a_node_that_dies_during_a_backup_leaves_the_file_of_before() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(1, &[]);
    let save = |endpoints: &str| {
        run(&["--endpoints", endpoints, "--patience", "1s", "snapshot", "save", "backup"], directory.path())
    };
    assert!(save(&dev.endpoints[0]).status.success());
    let file = directory.path().join("backup");
    let whole = std::fs::read(&file).unwrap();
    let dying = dying_node(whole[..whole.len() / 2].to_vec());
    let broken = save(&dying);
    assert_eq!(broken.status.code(), Some(122), "{broken:?}");
    assert!(complaint(&broken).contains("broke off"), "{broken:?}");
    assert_eq!(std::fs::read(&file).unwrap(), whole);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no part of a file stays");
    // Another node has it.
    std::fs::remove_file(&file).unwrap();
    let elsewhere = save(&format!("{dying},{}", dev.endpoints[0].trim_start_matches("http://")));
    assert!(elsewhere.status.success() && file.exists(), "{elsewhere:?}");
}
