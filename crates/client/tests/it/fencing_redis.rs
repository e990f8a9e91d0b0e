//! The fenced command against a real Redis: a stale writer is refused.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockkeeper_checkers::skip::{has, has_programs};
use lockkeeper_client::fencing::Stale;
use lockkeeper_client::fencing::redis::{FENCED_COMMAND, refused};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A server on a socket of its directory, killed when dropped.
struct Redis {
    process: Child,
    directory: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Redis {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(directory.path().join("socket"))
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut redis = Self { process, directory };
        let begun = Instant::now();
        while redis.cli(&["PING"]) != "PONG" {
            assert!(redis.process.try_wait().unwrap().is_none(), "redis-server has ended");
            assert!(begun.elapsed() < READY_WITHIN, "redis-server takes no connections");
            sleep(Duration::from_millis(5));
        }
        redis
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-s").arg(self.socket()).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs a command on the keys behind the fence.
    fn fenced(&self, script: &Path, keys: &[&str], token: &str, command: &[&str]) -> String {
        let mut arguments = vec!["--eval", script.to_str().unwrap(), "{orders}:fence"];
        arguments.extend(keys);
        arguments.extend([",", token]);
        arguments.extend(command);
        self.cli(&arguments)
    }
}

#[test]
fn redis_writes_nothing_for_a_stale_token() {
    if !has("redis-server", || has_programs(&["redis-server", "redis-cli"])) {
        return;
    }
    let redis = Redis::start();
    let script = redis.directory.path().join("fenced.lua");
    std::fs::write(&script, FENCED_COMMAND).unwrap();
    let key = "{orders}:state";
    let set = |token: &str, value: &str| redis.fenced(&script, &[key], token, &["SET", key, value]);

    assert_eq!(set("33", "a"), "OK");
    assert_eq!(set("34", "b"), "OK");
    let late = set("33", "late");
    assert!(late.starts_with("STALE"), "{late}");
    assert_eq!(refused(&late, 33), Err(Stale { token: 33, seen: Some(34) }));
    assert_eq!(set("34", "c"), "OK", "34 still holds");
    assert_eq!(redis.cli(&["GET", key]), "c");

    // Any command, with its own result; one that fails does not make its writer stale.
    assert_eq!(redis.fenced(&script, &["{orders}:count"], "35", &["INCRBY", "{orders}:count", "5"]), "5");
    assert_eq!(refused(&redis.fenced(&script, &[key], "35", &["INCR", key]), 35), Ok(()));
    assert_eq!(set("35", "d"), "OK");

    // Beyond the numbers that Lua can tell apart, and by their length.
    assert_eq!(set("9007199254740993", "e"), "OK");
    assert!(set("9007199254740992", "late").starts_with("STALE"));
    assert!(set("100", "late").starts_with("STALE"));
    for no_token in ["", "-1", "x", "01", "1e3", " 1"] {
        assert!(set(no_token, "late").starts_with("BADTOKEN"), "{no_token:?}");
    }
    assert_eq!(redis.cli(&["GET", key]), "e");
}
