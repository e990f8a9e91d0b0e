//! `--json`: lists are objects, and failures are problem documents with a code for programs.

use std::process::Output;

use serde_json::Value;

use crate::support::{Dev, Killed, complaint, eventually, json, lockkeeper};

#[test]
fn lists_are_objects_and_failures_are_problem_documents() {
    let dev = Dev::start(1, &[]);
    lists_have_names(&dev);
    results_are_objects(&dev);
    failures_have_codes(&dev);
}

fn lists_have_names(dev: &Dev) {
    for (arguments, list) in [
        (&["locks"][..], "locks"),
        (&["sessions"], "sessions"),
        (&["gates", "list"], "gates"),
        (&["namespaces"], "namespaces"),
        (&["member"], "members"),
        (&["status"], "endpoints"),
        (&["schedules"], "schedules"),
        (&["ls"], "children"),
        (&["ls", "--long"], "children"),
        (&["auth", "role", "list"], "roles"),
        (&["auth", "token", "list"], "tokens"),
    ] {
        let shown = json(&dev.run(&[arguments, &["--json"]].concat()));
        assert!(shown[list].is_array(), "{arguments:?}: {shown}");
    }
}

fn results_are_objects(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (certs, man, snapshot) = (path("certs"), path("man"), path("snapshot"));
    for arguments in [
        &["create", "/a"][..],
        &["set", "/a", "b"],
        &["get", "/a"],
        &["delete", "/a"],
        &["health"],
        &["doctor"],
        &["top", "--once"],
        &["rate", "r", "--limit", "5", "--per", "1s"],
        &["auth", "whoami"],
        &["auth", "status"],
        &["certs", "init", "--dir", &certs],
        &["snapshot", "save", &snapshot],
        &["man", &man],
    ] {
        let output = dev.run(&[arguments, &["--json"]].concat());
        assert!(json(&output).is_object(), "{arguments:?}: {output:?}");
        assert!(output.stdout.starts_with(b"{\n"), "{arguments:?}: indented");
    }
}

fn failures_have_codes(dev: &Dev) {
    let _holder = Killed(dev.lock(&["held", "--label", "the holder"], "exec sleep 100").spawn().unwrap());
    eventually("the lock is held", || dev.holders("held") == 1);
    let gate = ["gate", "g", "--fingerprint", "f", "--label", "the worker", "--"];
    let _worker = Killed(dev.command(&[&gate[..], &["sleep", "100"]].concat()).spawn().unwrap());
    eventually("the gate is begun", || !json(&dev.run(&["--json", "gates", "list"]))["gates"][0].is_null());
    let problem_of = |output: Output| -> Value {
        assert!(output.stdout.is_empty(), "{output:?}");
        let problem: Value = serde_json::from_str(&complaint(&output)).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!(problem["exit_code"].as_i64(), output.status.code().map(i64::from), "{problem}");
        for field in ["type", "title", "detail"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {problem}");
        }
        problem
    };
    let failed = |arguments: &[&str]| problem_of(dev.run(&[&["--json"], arguments].concat()));
    for (arguments, exit_code, code) in [
        (&["get", "/none"][..], 1, "no_node"),
        (&["unlock", "held", "--force", "--token", "1"], 1, "not_held"),
        (&["unlock", "held", "--token", "1"], 2, "usage"),
        (&["ls", "--no-such-option"], 2, "usage"),
        (&["serve", "--config", "/none.toml"], 2, "usage"),
        (&["lock", "a", "true"], 125, "usage"),
        (&["lock", "/a", "--", "true"], 125, "bad_path"),
        (&["lock", "a", "--", "no-such-command-anywhere"], 127, "command_not_found"),
        (&["lock", "a", "--", "/"], 126, "not_executable"),
        (&["semaphore", "held", "--permits", "2", "--", "true"], 125, "lock_mismatch"),
        (&["gate", "g", "--fingerprint", "other", "--", "true"], 118, "gate_mismatch"),
    ] {
        let problem = failed(arguments);
        assert_eq!((&problem["code"], &problem["exit_code"]), (&code.into(), &exit_code.into()), "{arguments:?}");
    }
    let nowhere = ["--json", "--endpoints", "http://127.0.0.1:1", "--patience", "100ms", "locks"];
    let problem = problem_of(lockkeeper().args(nowhere).output().unwrap());
    assert_eq!((&problem["code"], &problem["exit_code"]), (&"unreachable".into(), &122.into()));
    let busy = failed(&["lock", "held", "--wait", "0", "--", "true"]);
    assert_eq!((&busy["code"], &busy["exit_code"], &busy["place"]), (&"lock_busy".into(), &120.into(), &1.into()));
    assert_eq!(busy["holders"][0]["label"], "the holder");
    let in_progress = failed(&["gate", "g", "--fingerprint", "f", "--", "true"]);
    assert_eq!((&in_progress["code"], &in_progress["exit_code"]), (&"in_progress".into(), &119.into()));
    assert_eq!(in_progress["holders"][0]["label"], "the worker");
}
