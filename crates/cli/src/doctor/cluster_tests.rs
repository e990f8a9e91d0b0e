//! Each verdict on a cluster is seen to turn bad.

use lockkeeper_client::{Endpoint, Error, Tried};
use serde_json::{Value, json};

use super::cluster::judge;
use super::survey::{Answer, Survey};
use super::{Check, Verdict};
use crate::scrape::Metrics;

/// Three members in order; node 1 leads.
fn healthy(node: u64) -> Value {
    let member = |id: u64| {
        json!({ "node_id": id, "peer_address": format!("p:{id}"), "client_address": format!("c:{id}"),
            "role": "voter", "synced": (node == 1).then_some(true), "matched_index": 10, "answered_ms_ago": 5 })
    };
    json!({
        "cluster": "c", "node_id": node, "version": "1.0.0", "term": 3, "leader": 1, "leading": node == 1,
        "role": "voter", "ready": true, "last_log_index": 10, "applied_index": 10, "zxid": 9, "sessions": 0,
        "nodes": 1, "watches": 0, "lock_waiters": 0, "members": [member(1), member(2), member(3)],
        "failure_tolerance": (node == 1).then_some(1),
    })
}

const METRICS: &str = "lockkeeper_build_info{version=\"1.0.0\"} 1\nlockkeeper_clock_skew_ms 4\n\
    lockkeeper_cluster_clock_seconds 1000\nlockkeeper_certificate_expiry_seconds{listener=\"client\"} 9000000\n\
    lockkeeper_tls_reload_failed{listener=\"client\"} 0\n";

fn answer(node: u64, status: Result<Value, Error>, metrics: &str) -> Answer {
    Answer {
        endpoint: Endpoint::parse(&format!("http://c:{node}")).unwrap(),
        is_named: true,
        status: status.map(|status| serde_json::from_value(status).unwrap()),
        metrics: Metrics::parse(metrics),
        asked_unix_s: 1000.5,
    }
}

/// A healthy cluster, but for what `change` does to the answers of its nodes.
fn survey(change: impl Fn(u64, &mut Value, &mut String)) -> Survey {
    let answers = (1..=3).map(|node| {
        let (mut status, mut metrics) = (healthy(node), METRICS.to_owned());
        change(node, &mut status, &mut metrics);
        answer(node, Ok(status), &metrics)
    });
    Survey { answers: answers.collect() }
}

fn silent(mut survey: Survey, nodes: &[u64]) -> Survey {
    for answer in &mut survey.answers {
        if answer.node().is_some_and(|node| nodes.contains(&node)) {
            let tried = vec![Tried { endpoint: answer.endpoint.to_string(), why: "refused".into(), code: None }];
            (answer.status, answer.metrics) = (Err(Error::Unreachable { tried }), Metrics::default());
        }
    }
    survey
}

/// The checks that are not `ok`.
fn bad(survey: &Survey) -> Vec<(&'static str, Verdict)> {
    let checks = judge(survey).into_iter().filter(|check| check.verdict != Verdict::Ok);
    checks.map(|check| (check.check, check.verdict)).collect()
}

#[test]
fn a_healthy_cluster_has_no_bad_check() {
    assert_eq!(bad(&survey(|_, _, _| {})), []);
}

type Trouble = fn(u64, &mut Value, &mut String);

fn check_each(troubles: &[(Trouble, &[(&str, Verdict)])]) {
    for (trouble, expected) in troubles {
        assert_eq!(bad(&survey(trouble)), *expected);
    }
}

#[test]
fn each_trouble_of_a_member_turns_its_check() {
    use Verdict::{Problem, Warning};
    check_each(&[
        (
            |node, status, _| {
                if node == 3 {
                    status["version"] = "1.1.0".into()
                }
            },
            &[("versions", Warning)],
        ),
        (
            |node, status, _| {
                if node == 3 {
                    status["ready"] = false.into()
                }
            },
            &[("readiness", Problem)],
        ),
        (
            |node, status, _| {
                if node == 3 {
                    status["leader"] = Value::Null
                }
            },
            &[("leader", Warning)],
        ),
        (
            |node, status, _| {
                if node == 3 {
                    status["alarms"] = json!(["nearly full"])
                }
            },
            &[("alarms", Warning)],
        ),
        (|_, status, _| status["members"][2]["turned_away"] = "an older copy".into(), &[("data of members", Problem)]),
        (
            |node, status, _| {
                if node == 1 {
                    status["members"][2]["synced"] = false.into();
                    status["failure_tolerance"] = 0.into();
                }
            },
            &[("quorum", Warning), ("followers", Warning)],
        ),
        (
            |node, status, _| {
                if node == 1 {
                    status["members"][1]["synced"] = false.into();
                    status["members"][2]["synced"] = false.into();
                    status["failure_tolerance"] = 0.into();
                }
            },
            &[("quorum", Problem), ("followers", Warning)],
        ),
        (
            |node, status, _| {
                status["members"].as_array_mut().unwrap().pop();
                if node == 1 {
                    status["failure_tolerance"] = 0.into()
                }
            },
            &[("members", Warning), ("quorum", Warning)],
        ),
    ]);
}

/// The check of the quorum, after a change of what the leader answers.
fn quorum(change: impl Fn(&mut Value)) -> Check {
    let survey = survey(|node, status, _| {
        if node == 1 {
            change(status)
        }
    });
    judge(&survey).into_iter().find(|check| check.check == "quorum").unwrap()
}

#[test]
fn the_leader_says_how_many_may_be_lost() {
    let healthy = quorum(|_| {});
    assert_eq!(healthy.found, "3 voters, all in step: one more may be lost");
    let older_version = quorum(|status| status["failure_tolerance"] = Value::Null);
    assert_eq!(older_version, healthy, "what it does not say is counted");
    let half_done = quorum(|status| {
        status["joint_voters"] = json!([[1, 2], [1, 2, 3]]);
        status["failure_tolerance"] = 0.into();
    });
    assert_eq!(half_done.verdict, Verdict::Warning);
    assert!(half_done.found.contains("half done, from 1, 2 to 1, 2, 3"), "{half_done:?}");
    assert!(
        half_done.remedy.as_ref().unwrap().starts_with("`lockkeeper member promote 3` finishes it"),
        "{half_done:?}"
    );
    let one_set_lacks_it = quorum(|status| {
        status["joint_voters"] = json!([[1, 2], [1, 2, 3]]);
        status["failure_tolerance"] = 0.into();
        status["members"][1]["synced"] = false.into();
    });
    assert_eq!(one_set_lacks_it.verdict, Verdict::Problem);
    assert_eq!(one_set_lacks_it.found, "1 of 2 voters are in step, 2 are needed");
}

#[test]
fn each_bad_metric_turns_its_check() {
    use Verdict::{Problem, Warning};
    fn at_2(node: u64, metrics: &mut String, from: &str, to: &str) {
        if node == 2 {
            assert!(metrics.contains(from));
            *metrics = metrics.replace(from, to);
        }
    }
    check_each(&[
        (|node, _, metrics| at_2(node, metrics, "1.0.0", "1.0.1"), &[("builds", Warning)]),
        (|node, _, metrics| at_2(node, metrics, "skew_ms 4", "skew_ms -20000"), &[("clocks", Warning)]),
        (
            |_, _, metrics| *metrics = metrics.replace("seconds 1000", "seconds 900"),
            &[("clock of this machine", Warning)],
        ),
        (|node, _, metrics| at_2(node, metrics, "9000000", "900000"), &[("certificates in use", Warning)]),
        (|node, _, metrics| at_2(node, metrics, "9000000", "-5"), &[("certificates in use", Problem)]),
        (|node, _, metrics| at_2(node, metrics, "\"client\"} 0", "\"client\"} 1"), &[("replaced files", Warning)]),
    ]);
}

#[test]
fn members_that_do_not_answer_are_a_problem() {
    use Verdict::{Problem, Skipped, Warning};
    let one_silent = silent(survey(|_, _, _| {}), &[3]);
    assert_eq!(bad(&one_silent), [("endpoints", Warning), ("members", Problem)]);
    let no_leader = silent(survey(|_, _, _| {}), &[1]);
    let expected = [
        ("endpoints", Warning),
        ("members", Problem),
        ("leader", Problem),
        ("quorum", Skipped),
        ("followers", Skipped),
    ];
    assert_eq!(bad(&no_leader), expected);
    assert_eq!(bad(&silent(survey(|_, _, _| {}), &[1, 2, 3])), [("endpoints", Problem)]);
}

#[test]
fn endpoints_of_two_clusters_are_not_compared() {
    let mixed = survey(|node, status, _| {
        if node == 3 {
            status["cluster"] = "other".into();
        }
    });
    assert_eq!(bad(&mixed), [("endpoints", Verdict::Problem)]);
    let uid =
        |of: fn(u64) -> Option<&'static str>| survey(move |node, status, _| status["cluster_uid"] = of(node).into());
    let one_name = uid(|node| Some(if node == 3 { "02" } else { "01" }));
    assert_eq!(bad(&one_name), [("endpoints", Verdict::Problem)]);
    let found = &judge(&one_name)[0].found;
    assert!(found.starts_with("the endpoints belong to 2 clusters: c/01 (") && found.contains("c/02 ("), "{found}");
    // Node 3 does not know it yet.
    assert!(bad(&uid(|node| (node != 3).then_some("01"))).is_empty());
    let found = judge(&uid(|node| ["01", "02"].get(node as usize - 1).copied()))[0].found.clone();
    assert!(found.ends_with("c/01 (http://c:1); c/02 (http://c:2); no uid yet: http://c:3"), "{found}");
    // Node 3 belongs to a cluster of the same name that has no uid.
    let without = survey(|node, status, _| match node {
        3 => status["members"] = json!([{ "node_id": 3, "peer_address": "q:3", "role": "voter" }]),
        _ => status["cluster_uid"] = "01".into(),
    });
    let found = judge(&without)[0].found.clone();
    assert!(found.ends_with("2 clusters: c without a uid (http://c:3); c/01 (http://c:1, http://c:2)"), "{found}");
}

#[test]
fn a_refusal_names_the_right_that_is_missing() {
    let refused = Error::Refused(Box::new(lockkeeper_api::Problem::new(lockkeeper_api::Code::Forbidden, "no right")));
    let checks = judge(&Survey { answers: vec![answer(1, Err(refused), "")] });
    assert!(checks[0].remedy.as_ref().unwrap().contains("--token-file"), "{checks:?}");
}

/// What a node says that waits for others at the first start of its cluster.
fn in_no_cluster(node: u64, status: &mut Value) {
    let why = "not formed yet: waiting for node 2 at lock-2:7101 (connection refused)";
    *status = json!({
        "cluster": "c", "node_id": node, "version": "1.0.0", "term": 0, "leading": false, "ready": false,
        "not_ready_because": why, "last_log_index": 0, "applied_index": 0, "zxid": 0, "sessions": 0, "nodes": 1,
        "watches": 0, "lock_waiters": 0, "members": [],
    });
}

#[test]
fn a_cluster_that_is_forming_needs_all_its_nodes_and_says_which_are_missing() {
    let checks = judge(&survey(|node, status, _| in_no_cluster(node, status)));
    let problems: Vec<&Check> = checks.iter().filter(|check| check.verdict != Verdict::Ok).collect();
    let [Check { check: "members", found, remedy: Some(remedy), .. }] = problems[..] else { panic!("{problems:?}") };
    assert!(
        found.contains("node 1: not formed yet: waiting for node 2 at lock-2:7101 (connection refused)"),
        "{found}"
    );
    assert!(remedy.contains("every node of [peers]") && !remedy.contains("stop"), "{remedy}");
}

#[test]
fn a_node_that_was_never_a_member_is_not_to_be_stopped() {
    let survey = survey(|node, status, _| match node {
        3 => in_no_cluster(3, status),
        _ => status["members"].as_array_mut().unwrap().truncate(2),
    });
    let check = judge(&survey).into_iter().find(|check| check.check == "members").unwrap();
    assert_eq!(check.verdict, Verdict::Warning);
    assert!(check.found.contains("node 3: not formed yet") && check.remedy.unwrap().contains("member add"));
}
