//! The trace of a command under a lock, as a collector receives it from the command line and from all nodes.

use std::process::Command;

use lockkeeper_server::config::OtlpSection;
use lockkeeper_server::local::Cluster;

use crate::collector::{Collector, Seen};
use crate::support::{eventually, lockkeeper};

/// Three nodes in this process that record what their callers record.
struct Nodes(Cluster);

impl Nodes {
    fn start(collector: &Collector) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let cluster = runtime.block_on(Cluster::start_with(3, |config| {
            config.otlp = Some(OtlpSection { sample_ratio: 0.0, ..OtlpSection::new(collector.endpoint()) });
        }));
        Self(cluster.unwrap())
    }

    fn endpoints(&self) -> String {
        self.0.endpoints().join(",")
    }

    fn command(&self, collector: &Collector, trace: u128) -> Command {
        let mut command = lockkeeper();
        command.args(["--endpoints", &self.endpoints(), "--patience", "20s"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).env("TRACEPARENT", traceparent(trace, CALLER));
        command
    }
}

const CALLER: u64 = 0xb7ad_6b71_6920_3331;

fn traceparent(trace: u128, span: u64) -> String {
    format!("00-{trace:032x}-{span:016x}-01")
}

/// The span of this name below this one, once it is there.
fn only_child(collector: &Collector, trace: u128, parent: &[u8], name: &str) -> Seen {
    let mut found = Vec::new();
    eventually(name, || {
        found = collector.of_trace(trace);
        found.retain(|seen| seen.span.parent_span_id == parent && seen.span.name == name);
        !found.is_empty()
    });
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

const ACQUIRE: &str = "POST /v1/locks/{name}/acquire";

#[test]
fn a_command_under_a_lock_is_one_trace_with_what_the_nodes_do_for_it() {
    let collector = Collector::start();
    let nodes = Nodes::start(&collector);
    let (trace, directory) = (1u128 << 100, tempfile::tempdir().unwrap());
    let given = directory.path().join("given");
    let script = format!("echo $TRACEPARENT > {}", given.display());
    let held = nodes.command(&collector, trace).args(["lock", "a", "--", "sh", "-c", &script]).output().unwrap();
    assert!(held.status.success(), "{held:?}");

    let command = only_child(&collector, trace, &CALLER.to_be_bytes(), "lockkeeper lock");
    let acquire = only_child(&collector, trace, &command.span.span_id, "lockkeeper.acquire");
    let request = only_child(&collector, trace, &acquire.span.span_id, ACQUIRE);
    // Below this, a node's spans are those of every request.
    only_child(&collector, trace, &request.span.span_id, "lockkeeper.propose");
    assert_eq!(acquire.text("lockkeeper.outcome").as_deref(), Some("granted"));
    assert_eq!(acquire.number("lockkeeper.token"), request.number("lockkeeper.token"));
    assert!(acquire.number("lockkeeper.token").is_some());
    assert_eq!(command.number("process.exit.code"), Some(0));
    let span = u64::from_be_bytes(command.span.span_id.try_into().unwrap());
    assert_eq!(std::fs::read_to_string(given).unwrap().trim(), traceparent(trace, span), "what CMD was given");
    let strange = |seen: &&Seen| seen.span.name.contains("keepalive");
    assert_eq!(collector.spans().iter().find(strange).map(|seen| &seen.span.name), None);
}

#[test]
fn commands_that_ask_again_and_again_are_not_traced() {
    let collector = Collector::start();
    for (command, code) in [(&["health"][..], None), (&["ls"], Some(122))] {
        let mut run = lockkeeper();
        run.args(["--endpoints", "http://127.0.0.1:1", "--patience", "100ms"]).args(command);
        let output = run.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).output().unwrap();
        assert!(code.is_none_or(|code| output.status.code() == Some(code)), "{output:?}");
    }
    let names: Vec<String> = collector.spans().into_iter().map(|seen| seen.span.name).collect();
    assert_eq!(names, ["lockkeeper ls"]);
    assert_eq!(collector.spans()[0].number("process.exit.code"), Some(122));
}

#[test]
fn a_collector_that_cannot_be_used_keeps_no_command_from_its_work() {
    let mut command = lockkeeper();
    command.args(["--endpoints", "http://127.0.0.1:1", "--patience", "100ms", "ls"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "no URL");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("lockkeeper: warning:") && text.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{text}");
}
