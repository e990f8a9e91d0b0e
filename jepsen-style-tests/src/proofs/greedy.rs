//! P13: no client starves another. One class of greedy clients after the other takes as much as it can of one resource,
//! from many sockets of one address, while an honest holder at another address keeps its lock and works. The honest
//! client must never lose its lock and never be refused anything, and its calls may take at most three times as long as
//! in calm. The node must stay within the memory that its budgets state, and everything must be back to normal within a
//! minute. Each class must have met its share; otherwise nothing was tried.

pub(super) mod clients;
mod crowd;
mod honest;
mod judge;
mod refusals;

use tokio::process::Command;

use crate::net::{Endpoint, Listener};
use crate::proofs::prelude::*;
use clients::{Class, Target};
use crowd::Crowd;
use honest::{Honest, HonestSamples};
use judge::{CalmBaseline, STATE_MIB, Tried};
use refusals::{RefusalsByKey, counted};

/// What a class takes at most besides.
pub(super) const BESIDES: Duration = Duration::from_secs(RECOVERS_WITHIN.as_secs() + MEETS_WITHIN.as_secs() + 30);
/// Calm before the first class.
const CALM: Duration = Duration::from_secs(5);
/// The end of a class is looked at as well: what is large ends then.
const AFTERMATH: Duration = Duration::from_secs(2);
/// A class goes on for so long at most until it has met its share: the greedy have the lowest priority, which may take
/// them a while.
const MEETS_WITHIN: Duration = Duration::from_secs(30);
/// For so long at most the node may need to be as before.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// It is looked at for so long at a time.
const LOOK: Duration = Duration::from_secs(2);

/// Few enough of everything for one process to take it all. Keys that were there before there were shares.
const LIMITS: &str = "[limits]\nconnections = 2048\nin_flight_requests = 512\npeer_connections = 64\n";
/// Those that an older build does not know: it is tried without them.
const SHARES: &str = "waiting_requests = 512\nwatches = 32\nrequest_bytes_in_flight = 67108864\nreply_bytes_in_flight \
= 67108864\n\
    ephemerals_per_session = 10000\n";
/// The section of the file is written already.
const WATCHES: (&str, &str) = ("LOCKKEEPER_ZOOKEEPER__WATCHES", "100000");

pub(super) fn classes() -> u32 {
    Class::ALL.len() as u32
}

/// See [`crowd`].
pub(super) fn be_greedy(task: &str) -> std::process::ExitCode {
    crowd::be(task)
}

/// Each class tries for so long.
pub(super) async fn run(context: &Context, seconds: Duration) -> ProofResult {
    let classes = chosen(&context.options.only)?;
    let mut cluster = start(context).await?;
    let (leader, _) = cluster.leader().await?;
    let pid = cluster.process(leader).map_or(0, |process| process.pid());
    warm_up(&cluster, leader).await?;
    let honest = Honest::begin(&cluster, leader).await?;
    let calm = CalmBaseline { window: look(&honest, CALM).await, mib: rss_mib(pid)? };
    context.log.say(format!("calm: {}", calm.describe()));
    let mut findings = calm.window.failures.clone();
    let mut told = Vec::new();
    for class in classes {
        let tried = GreedyTrial { cluster: &cluster, node: (leader, pid), honest: &honest };
        let mut tried = tried.try_class(class, seconds).await?;
        let (back, failures) = back(context, &honest, pid, &calm).await?;
        tried.back = back;
        tried.window.failures.extend(failures);
        findings.extend(tried.judge(&calm));
        let line = tried.describe();
        context.log.say(&line);
        told.push(line);
    }
    findings.extend(honest.end().await);
    if findings.is_empty() {
        Ok(format!("calm: {}; {}", calm.describe(), told.join("; ")))
    } else {
        broken(findings.join("; "))
    }
}

fn chosen(only: &[String]) -> Result<Vec<Class>, Failed> {
    if only.is_empty() {
        return Ok(Class::ALL.to_vec());
    }
    let class = |name: &String| {
        let all = Class::ALL.map(Class::chosen_by).join(" ");
        let found = Class::ALL.into_iter().find(|class| class.chosen_by() == *name);
        found.ok_or_else(|| Failed::CannotRun(format!("there is no class '{name}'; --only takes some of: {all}")))
    };
    only.iter().map(class).collect()
}

async fn start(context: &Context) -> Result<Cluster, Failed> {
    let environment = vec![(WATCHES.0.into(), WATCHES.1.into())];
    let mut options = Options { extra_config: LIMITS.into(), environment, ..Options::default() };
    for key in SHARES.lines().chain([format!("state_mib = {STATE_MIB}").as_str()]) {
        if knows(context, key).await? {
            options.extra_config.push_str(&format!("{key}\n"));
        } else {
            context.log.say(format!("this build does not know: {key}"));
        }
    }
    Cluster::start(&context.binary, &context.dir, options).await
}

/// Whether the build under test takes a line of `[limits]`.
async fn knows(context: &Context, line: &str) -> Result<bool, Failed> {
    let file = context.dir.join("probe.toml");
    std::fs::write(&file, format!("[cluster]\nid = \"probe\"\nnode = 1\n[limits]\n{line}\n"))?;
    let asked = Command::new(&context.binary).arg("serve").arg("--config").arg(&file).arg("--check-config").output();
    Ok(asked.await?.status.success())
}

/// Creates the node that is read, and writes enough to fill the caches: memory is compared with that of a node that has
/// been in use. Large entries fill the end of the log that is kept, and many nodes the history of events.
async fn warm_up(cluster: &Cluster, node: u64) -> Result<(), Failed> {
    const WRITES: u32 = 100;
    let body = serde_json::json!({ "data": { "text": "x".repeat(1_000_000) } });
    let api = cluster.api(node);
    let url = format!("{}/v1/nodes/large", api.base());
    let made = api.client().post(&url).json(&body).send().await;
    match made {
        Ok(response) if response.status().is_success() => {}
        other => return broken(format!("a node of a megabyte cannot be made: {other:?}")),
    }
    for _ in 0..WRITES {
        let set = api.client().put(&url).json(&body).send().await;
        set.and_then(reqwest::Response::error_for_status).or_broken("a node of a megabyte cannot be set")?;
    }
    let cannot = "many nodes cannot be made in calm";
    let session = api.open_session(600_000, "warm-up").await.or_broken(cannot)?.value;
    for part in 0..8 {
        let path = |number| format!("/warm-{part}-{number}");
        let create = |number| serde_json::json!({ "op": "create", "path": path(number), "kind": "ephemeral" });
        let operations: Vec<_> = (0..1_000).map(create).collect();
        api.transact(&session.credential, &serde_json::json!({ "operations": operations })).await.or_broken(cannot)?;
    }
    api.close_session(&session.credential).await.or_broken(cannot)?;
    Ok(())
}

async fn look(honest: &Honest, time: Duration) -> HonestSamples {
    honest.restart();
    tokio::time::sleep(time).await;
    honest.window()
}

/// What a class of greedy clients is tried against.
struct GreedyTrial<'a> {
    cluster: &'a Cluster,
    node: (u64, i32),
    honest: &'a Honest,
}

impl GreedyTrial<'_> {
    async fn try_class(&self, class: Class, time: Duration) -> Result<Tried, Failed> {
        let (node, pid) = self.node;
        let api = self.cluster.api(node);
        let not_had = "the greedy get no session in calm";
        let session = api.open_session(600_000, "greedy").await.or_broken(not_had)?.value;
        let lock = format!("greedy-{}", class.chosen_by());
        api.acquire(&session.credential, &lock, &Acquire::default(), CALM).await.or_broken(not_had)?;
        let target = self.target(session.credential.clone(), lock);
        let refused_before = refusals(&api, class).await;
        // By what the node counts, or by what they were told, whichever says more.
        let refused_now = async |told: RefusalsByKey| {
            let mut refused = refusals(&api, class).await;
            for (key, count) in &mut refused {
                *count = count.saturating_sub(refused_before[key]).max(told.get(key).copied().unwrap_or(0));
            }
            refused
        };
        let before_mib = rss_mib(pid)?;
        let mut most_mib = before_mib;
        self.honest.restart();
        let greedy = Crowd::start(class, target)?;
        let began = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            most_mib = most_mib.max(rss_mib(pid)?);
            let late = began.elapsed() >= time + MEETS_WITHIN;
            let is_met = async || refused_now(greedy.refused()).await.values().all(|count| *count > 0);
            if late || began.elapsed() >= time && is_met().await {
                break;
            }
        }
        let told = greedy.end().await?;
        let closed = api.close_session(&session.credential).await;
        tokio::time::sleep(AFTERMATH).await;
        let window = self.honest.window();
        closed.map_err(|why| {
            Failed::Broken(format!("the session of the greedy does not end after {}: {why}", class.name()))
        })?;
        let refused = refused_now(told).await;
        Ok(Tried { class, window, before_mib, most_mib, refused, back: None })
    }

    fn target(&self, credential: String, lock: String) -> Target {
        let net = self.cluster.net();
        let address = |listener: Listener| net.address(Endpoint::Clients, self.node.0, listener);
        Target {
            client: address(Listener::Client),
            zookeeper: address(Listener::ZooKeeper),
            peers: self.cluster.ids().into_iter().map(|id| net.listens(id, Listener::Peer)).collect(),
            credential,
            lock,
        }
    }
}

/// How often the node says that it has refused something because of a share of this class.
async fn refusals(api: &Api, class: Class) -> RefusalsByKey {
    let metrics = api.metrics().await.unwrap_or_default();
    class.shares().iter().map(|key| ((*key).to_owned(), counted(&metrics, key))).collect()
}

/// Waits until the honest and the memory are what they were in calm; how long that took, if it was not too long, and
/// what failed meanwhile.
async fn back(
    context: &Context,
    honest: &Honest,
    pid: i32,
    calm: &CalmBaseline,
) -> Result<(Option<Duration>, Vec<String>), Failed> {
    let (began, mut failures) = (Instant::now(), Vec::new());
    loop {
        let now = CalmBaseline { window: look(honest, LOOK).await, mib: rss_mib(pid)? };
        failures.extend(now.window.failures.iter().cloned());
        if calm.is_back(&now) {
            return Ok((Some(began.elapsed()), failures));
        }
        if began.elapsed() > RECOVERS_WITHIN {
            context.log.say(format!("not back: {}", now.describe()));
            return Ok((None, failures));
        }
    }
}

pub(super) fn rss_mib(pid: i32) -> Result<u64, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|error| Failed::Broken(format!("the node is gone ({error})")))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) / 1024)
}
