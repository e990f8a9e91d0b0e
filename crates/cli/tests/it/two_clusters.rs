//! Endpoints of two clusters of one name: what grants refuses them, and what reports says so.

use std::process::Output;

use crate::support::{Dev, complaint, eventually, json, lockkeeper};

/// Name and uid, as `status` says it.
fn identity(dev: &Dev) -> String {
    eventually("the cluster has a uid", || {
        json(&dev.run(&["--json", "status"]))["endpoints"][0]["cluster_uid"].is_string()
    });
    let status = &json(&dev.run(&["--json", "status"]))["endpoints"][0];
    let identity = format!("{}/{}", status["cluster"].as_str().unwrap(), status["cluster_uid"].as_str().unwrap());
    let told = dev.run(&["status"]);
    assert!(String::from_utf8_lossy(&told.stdout).contains(&format!("cluster {identity}\n")), "{told:?}");
    identity
}

#[test]
fn endpoints_of_two_clusters_are_refused_and_reported() {
    let (one, other) = (Dev::start(1, &[]), Dev::start(1, &[]));
    let clusters = [identity(&one), identity(&other)];
    assert_ne!(clusters[0], clusters[1]);
    let endpoints = [one.endpoints.join(","), other.endpoints.join(",")];
    let both = endpoints.join(",");
    let run = |arguments: &[&str]| lockkeeper().args(["--endpoints", &both]).args(arguments).output().unwrap();
    let refused = |output: &Output, code: i32| {
        let complaint = complaint(output);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(clusters.iter().all(|cluster| complaint.contains(cluster)), "{complaint}");
        complaint
    };
    for prefer in ["leader", "nearest", "first", "spread"] {
        let held = run(&["--prefer", prefer, "lock", "l", "--", "echo", "granted"]);
        assert!(refused(&held, 125).contains("check --endpoints"), "{held:?}");
        assert_eq!(held.stdout, b"", "CMD was not run");
    }
    refused(&run(&["gate", "g", "--if-unreachable", "run", "--", "echo", "granted"]), 125);
    refused(&run(&["create", "/n"]), 2);
    refused(&run(&["locks"]), 2);
    refused(&run(&["member", "list"]), 2);

    let status = run(&["status"]);
    let told = refused(&status, 1);
    assert!(told.contains("the endpoints belong to 2 clusters: ") && told.contains(&endpoints[1]), "{told}");
    let table = String::from_utf8_lossy(&status.stdout);
    assert!(endpoints.iter().all(|endpoint| table.contains(endpoint)) && !table.contains("in step"), "{table}");
    let doctor = run(&["--json", "doctor"]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    let check = &json(&doctor)["cluster"][0];
    assert_eq!((check["check"].as_str(), check["verdict"].as_str()), (Some("endpoints"), Some("problem")), "{check}");
    assert!(clusters.iter().all(|cluster| check["found"].as_str().unwrap().contains(cluster)), "{check}");
    let top = String::from_utf8(run(&["top", "--once"]).stdout).unwrap();
    assert!(top.contains("the endpoints belong to 2 clusters: "), "{top}");
}
