//! P13: no client starves another. One class of greedy clients after the other takes as much as it gets of one thing, from many sockets of one
//! address, while an honest holder at another address keeps its lock and works. The honest one must never lose its lock nor be refused
//! anything, its calls may take three times as long as in calm and no longer, the node must stay within the memory that its budgets
//! state, and all of it must be over a minute after.

mod clients;
mod honest;
pub(super) mod zookeeper;

use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use tokio::process::Command;

use super::Context;
use crate::cluster::{Cluster, Options};
use crate::net::{Door, Place};
use crate::stats::{Summary, millis};
use crate::verdict::{Failed, Outcome, broken};
use clients::{Class, Target};
use honest::{Honest, Window};

/// How long each class tries.
pub(super) const SECONDS: u64 = 60;
/// Calm before each class and after the last.
pub(super) const CALM: Duration = Duration::from_secs(4);
/// The end of a class is looked at as well: what is large ends then.
const AFTERMATH: Duration = Duration::from_secs(2);
/// For so long at most the node may need to be as before.
pub(super) const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// Times as long as in calm that a call may take in 99 of 100 cases.
const TIMES: u32 = 3;
/// Or so much longer: on a busy machine a calm of a few milliseconds says little.
const LONGER: Duration = Duration::from_millis(250);
/// What the allocator may keep, beside a fifth of what there was.
const ALLOCATOR_MIB: u64 = 64;

/// What the configuration below states, in MiB, beyond what a node has in calm.
const REQUESTS_MIB: u64 = 64;
const REPLIES_MIB: u64 = 64;
const STATE_MIB: u64 = 128;
/// 2,048 connections, 100,000 watches, 32,768 waiters at most; figured at what they were seen to take in a debug build.
const TABLES_MIB: u64 = 128;
/// The state is there once, once more on its way to a snapshot, and in the log's tail.
const COPIES_OF_STATE: u64 = 3;

/// Few enough of everything for one process to take it all. Keys that were there before there were shares.
const LIMITS: &str = "[limits]\nconnections = 2048\nin_flight_requests = 512\npeer_connections = 64\n";
/// Those that an older build does not know: it is tried without them.
const SHARES: &str = "request_bytes_in_flight = 67108864\nreply_bytes_in_flight = 67108864\nephemerals_per_session = 10000\nstate_mib = 128\n";

pub(super) async fn run(context: &Context) -> Outcome {
    let seconds = Duration::from_secs(context.seconds.unwrap_or(SECONDS));
    let mut options = Options { extra_config: LIMITS.into(), ..Options::default() };
    for key in SHARES.lines() {
        if knows(context, key).await? {
            options.extra_config.push_str(&format!("{key}\n"));
        } else {
            context.story.say(format!("this build does not know: {key}"));
        }
    }
    let mut cluster = Cluster::start(&context.binary, &context.dir, options).await?;
    let (leader, _) = cluster.leader().await?;
    let pid = cluster.process(leader).map_or(0, |process| process.pid());
    make_large_node(&cluster, leader).await?;
    let honest = Honest::begin(&cluster, leader).await?;
    let calm_mib = rss_mib(pid)?;
    let mut findings = Vec::new();
    let mut told = Vec::new();
    let mut before = calm(&honest).await;
    for class in Class::ALL {
        let tried = try_class(&mut cluster, (leader, pid), &honest, class, seconds).await?;
        let after = calm(&honest).await;
        findings.extend(tried.judge(&before, &after));
        let line = tried.describe(&before);
        context.story.say(&line);
        told.push(line);
        before = after;
    }
    findings.extend(recover(pid, calm_mib).await?);
    findings.extend(honest.end().await);
    if findings.is_empty() { Ok(told.join("; ")) } else { broken(findings.join("; ")) }
}

/// Whether the build under test takes a line of `[limits]`.
async fn knows(context: &Context, line: &str) -> Result<bool, Failed> {
    let file = context.dir.join("probe.toml");
    std::fs::write(&file, format!("[cluster]\nid = \"probe\"\nnode = 1\n[limits]\n{line}\n"))?;
    let asked = Command::new(&context.binary).arg("serve").arg("--config").arg(&file).arg("--check-config").output();
    Ok(asked.await?.status.success())
}

async fn make_large_node(cluster: &Cluster, node: u64) -> Result<(), Failed> {
    let body = serde_json::json!({ "data": { "text": "x".repeat(1_000_000) } });
    let api = cluster.api(node);
    let made = api.client().post(format!("{}/v1/nodes/large", api.base())).json(&body).send().await;
    match made {
        Ok(response) if response.status().is_success() => Ok(()),
        other => broken(format!("a node of a megabyte cannot be made: {other:?}")),
    }
}

async fn calm(honest: &Honest) -> Window {
    honest.window();
    tokio::time::sleep(CALM).await;
    honest.window()
}

/// What was seen while a class tried.
struct Tried {
    class: Class,
    window: Window,
    before_mib: u64,
    most_mib: u64,
}

async fn try_class(
    cluster: &mut Cluster,
    (node, pid): (u64, i32),
    honest: &Honest,
    class: Class,
    time: Duration,
) -> Result<Tried, Failed> {
    let api = cluster.api(node);
    let not_had = |why: crate::http::Failure| Failed::Broken(format!("the greedy get no session in calm: {why}"));
    let session = api.open_session(600_000, "greedy").await.map_err(not_had)?.value;
    let held = Acquire { wait_ms: 10_000, ..Acquire::default() };
    api.acquire(&session.credential, "greedy", &held, Duration::from_secs(15)).await.map_err(not_had)?;
    let address = |id: u64, door: Door| cluster.net().address(Place::Clients, id, door);
    let target = Target {
        client: address(node, Door::Client),
        zookeeper: address(node, Door::ZooKeeper),
        peers: cluster.ids().into_iter().map(|id| cluster.net().listens(id, Door::Peer)).collect(),
        credential: session.credential.clone(),
    };
    let before_mib = rss_mib(pid)?;
    let mut most_mib = before_mib;
    honest.window();
    let greedy = class.begin(&target);
    let began = Instant::now();
    while began.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(200)).await;
        most_mib = most_mib.max(rss_mib(pid)?);
    }
    drop(greedy);
    let closed = api.close_session(&session.credential).await;
    tokio::time::sleep(AFTERMATH).await;
    let window = honest.window();
    closed.map_err(|why| {
        Failed::Broken(format!("the session of the greedy does not end after {}: {why}", class.name()))
    })?;
    Ok(Tried { class, window, before_mib, most_mib })
}

impl Tried {
    fn judge(&self, before: &Window, after: &Window) -> Vec<String> {
        let name = self.class.name();
        let mut findings = Vec::new();
        if let Some(first) = self.window.failures.first() {
            findings.push(format!("{name}: {} calls of the honest failed, first {first}", self.window.failures.len()));
        }
        let calm = before.p99().max(after.p99());
        let most = (calm * TIMES).max(calm + LONGER);
        match self.window.summary() {
            Some(summary) if summary.p99 <= most => {}
            Some(summary) => findings.push(format!(
                "{name}: honest p99 {} where calm had {}, so at most {}",
                millis(summary.p99),
                millis(calm),
                millis(most)
            )),
            None => findings.push(format!("{name}: the honest got nothing done")),
        }
        let stated = self.stated_mib();
        if self.most_mib > self.before_mib + stated {
            findings.push(format!("{name}: {} MiB, {} before and {stated} stated", self.most_mib, self.before_mib));
        }
        findings
    }

    fn stated_mib(&self) -> u64 {
        let state = if self.class == Class::LargeNodes { COPIES_OF_STATE * STATE_MIB } else { 0 };
        REQUESTS_MIB + REPLIES_MIB + TABLES_MIB + state
    }

    fn describe(&self, before: &Window) -> String {
        let summary =
            self.window.summary().map_or_else(|| "nothing".to_owned(), |summary: Summary| summary.to_string());
        format!(
            "{}: honest {summary} (calm p99 {}), {} failed, {} MiB at most, {} before",
            self.class.name(),
            millis(before.p99()),
            self.window.failures.len(),
            self.most_mib,
            self.before_mib
        )
    }
}

/// Waits until the memory is what it was, within a fifth and what the allocator may keep.
async fn recover(pid: i32, calm_mib: u64) -> Result<Option<String>, Failed> {
    let wanted = calm_mib + calm_mib / 5 + ALLOCATOR_MIB;
    let began = Instant::now();
    loop {
        let now = rss_mib(pid)?;
        if now <= wanted {
            return Ok(None);
        }
        if began.elapsed() > RECOVERS_WITHIN {
            return Ok(Some(format!("{now} MiB a minute after, where {calm_mib} were before and {wanted} would do")));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub(super) fn rss_mib(pid: i32) -> Result<u64, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|error| Failed::Broken(format!("the node is gone ({error})")))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(p99_ms: u64, failures: &[&str]) -> Window {
        Window {
            took: vec![Duration::from_millis(p99_ms); 10],
            failures: failures.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    fn tried(window: Window, most_mib: u64) -> Tried {
        Tried { class: Class::Waiters, window, before_mib: 50, most_mib }
    }

    #[test]
    fn judges_failures_times_and_memory() {
        let calm = window(10, &[]);
        assert!(tried(window(200, &[]), 100).judge(&calm, &calm).is_empty());
        assert_eq!(tried(window(300, &[]), 100).judge(&calm, &calm).len(), 1, "too slow");
        assert!(tried(window(300, &[]), 100).judge(&calm, &window(100, &[])).is_empty(), "the machine was busy");
        assert_eq!(tried(window(10, &["refused"]), 100).judge(&calm, &calm).len(), 1);
        assert_eq!(tried(window(10, &[]), 400).judge(&calm, &calm).len(), 1, "465 MB of bodies");
        assert_eq!(tried(Window::default(), 100).judge(&calm, &calm).len(), 1, "nothing done is no pass");
    }
}
