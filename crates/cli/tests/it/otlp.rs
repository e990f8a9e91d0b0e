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

/// The spans of this name below this one, once there are so many.
fn children(collector: &Collector, trace: u128, parent: &[u8], name: &str, count: usize) -> Vec<Seen> {
    let mut found = Vec::new();
    eventually(&format!("{count} spans {name}"), || {
        found = collector.of_trace(trace);
        found.retain(|seen| seen.span.parent_span_id == parent && seen.span.name == name);
        found.len() >= count
    });
    found
}

const ACQUIRE: &str = "POST /v1/locks/{name}/acquire";

#[test]
fn a_command_under_a_lock_is_one_trace_with_what_the_nodes_do_for_it() {
    let collector = Collector::start();
    let nodes = Nodes::start(&collector);
    let (first, second) = (1u128 << 100, 2 << 100);
    let directory = tempfile::tempdir().unwrap();
    let (holds, done) = (directory.path().join("holds"), directory.path().join("done"));
    let script = format!(
        "echo $TRACEPARENT > {0}.new && mv {0}.new {0}; until [ -e {1} ]; do sleep 0.02; done",
        holds.display(),
        done.display()
    );
    let mut holder = nodes.command(&collector, first).args(["lock", "a", "--", "sh", "-c", &script]).spawn().unwrap();
    eventually("it holds", || holds.exists());
    let mut waiter = nodes.command(&collector, second).args(["lock", "a", "--", "true"]).spawn().unwrap();
    eventually("it waits", || {
        let shown = lockkeeper().args(["--endpoints", &nodes.endpoints(), "--json", "locks", "a"]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&shown.stdout).is_ok_and(|lock| lock["waiting"] == 1)
    });
    std::fs::write(done, "").unwrap();
    assert!(holder.wait().unwrap().success());
    assert!(waiter.wait().unwrap().success());

    let chain = |trace| {
        let command = children(&collector, trace, &CALLER.to_be_bytes(), "lockkeeper lock", 1).remove(0);
        let acquire = children(&collector, trace, &command.span.span_id, "lockkeeper.acquire", 1).remove(0);
        let request = children(&collector, trace, &acquire.span.span_id, ACQUIRE, 1).remove(0);
        let batch = children(&collector, trace, &request.span.span_id, "lockkeeper.propose", 1).remove(0);
        assert_eq!(acquire.text("lockkeeper.outcome").as_deref(), Some("granted"));
        assert_eq!(acquire.number("lockkeeper.token"), request.number("lockkeeper.token"));
        assert!(acquire.number("lockkeeper.token").is_some());
        (command, request, batch)
    };
    let (command, request, batch) = chain(first);
    assert_eq!(command.number("process.exit.code"), Some(0));
    let span = u64::from_be_bytes(command.span.span_id.try_into().unwrap());
    assert_eq!(std::fs::read_to_string(holds).unwrap().trim(), traceparent(first, span), "what CMD was given");
    for name in ["lockkeeper.append", "lockkeeper.apply"] {
        let mut on: Vec<_> =
            children(&collector, first, &batch.span.span_id, name, 3).iter().filter_map(|seen| seen.node).collect();
        on.sort_unstable();
        assert_eq!(on, [1, 2, 3], "{name}");
    }
    assert_eq!(children(&collector, first, &batch.span.span_id, "lockkeeper.replicate", 1).len(), 1);

    let (_, asked, _) = chain(second);
    let waited = children(&collector, second, &asked.span.span_id, "lockkeeper.wait", 1).remove(0);
    let [link] = &waited.span.links[..] else { panic!("{waited:?}") };
    assert_eq!(link.trace_id, first.to_be_bytes());
    assert_eq!(link.span_id, request.span.span_id);
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
