//! P1 across clusters: a cluster restored from a backup, and one recovered from a survivor, never issue a fencing
//! token, zxid or session id that the cluster before may have issued.
//!
//! A backup is taken by the command under load, the load goes on, all nodes and their data are destroyed, and the
//! backup is restored to new nodes on new ports. Everything that was acknowledged before the command began is there; a
//! holder of before is told that its session is over; whatever is issued is new. Then the same from the data of one of
//! three.

use uuid::Uuid;

use crate::process::run_command;
use crate::proofs::prelude::*;

const WORKERS: usize = 4;
const SESSION_MS: u32 = 60_000;
const CALL: Duration = Duration::from_secs(10);
/// So much is acknowledged before a backup, and again after it.
const WRITES: usize = 120;
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);
const PARENT: &str = "/restore";

/// What a cluster acknowledged and issued.
#[derive(Default)]
struct Issued {
    /// The paths of nodes, with the moment of the acknowledgement.
    written: Mutex<Vec<(String, Instant)>>,
    tokens: Mutex<Vec<u64>>,
    zxids: Mutex<Vec<u64>>,
    /// Credentials.
    sessions: Mutex<Vec<String>>,
    failed: Mutex<Option<String>>,
}

impl Issued {
    fn numbers(&self) -> Vec<(&'static str, Vec<u64>)> {
        let id = |credential: &String| crate::http::session_id(credential).parse().unwrap_or(0);
        vec![
            ("token", self.tokens.lock().clone()),
            ("zxid", self.zxids.lock().clone()),
            ("session id", self.sessions.lock().iter().map(id).collect()),
        ]
    }

    fn highest(&self) -> u64 {
        self.numbers().into_iter().flat_map(|(_, numbers)| numbers).max().unwrap_or(0)
    }
}

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let (mut there, mut gap) = (0, u64::MAX);
    for round in 1..=rounds {
        for trial in [restored_from_a_backup(context, round).await?, recovered_from_a_survivor(context, round).await?] {
            there += trial.there;
            gap = gap.min(trial.gap);
        }
    }
    Ok(format!(
        "{rounds} rounds of a restore and a recovery: all {there} writes acknowledged before are there, the holders of \
         before are told that their sessions are over, and tokens, zxids and session ids begin at least {gap} further \
         on"
    ))
}

/// The figures of one trial.
struct RestoreTrial {
    there: usize,
    gap: u64,
}

async fn restored_from_a_backup(context: &Context, round: u32) -> Result<RestoreTrial, Failed> {
    let dir = context.dir.join(format!("{round}-restore"));
    let mut old = Cluster::start(&context.binary, &dir.join("old"), Options::default()).await?;
    let before = Arc::new(Issued::default());
    let workers = load(&old, &before).await?;
    acknowledged(&before, WRITES).await?;
    let (begun, file) = (Instant::now(), dir.join("backup.lkb"));
    let endpoints = old.endpoints().join(",");
    run_command(&context.binary, &["--endpoints", &endpoints, "snapshot", "save", text(&file)]).await?;
    run_command(&context.binary, &["snapshot", "verify", text(&file)]).await?;
    let so_far = before.written.lock().len();
    acknowledged(&before, so_far + WRITES).await?;
    ended(&before, workers).await?;
    destroy(&mut old, &[1, 2, 3]).await?;
    context.log.say(format!("round {round}: backed up under load; all nodes and their data are gone"));

    let mut new = Cluster::laid_out(&context.binary, &dir.join("new"), Options::default()).await?;
    for id in new.ids() {
        let config = new.directory(id).join("config.toml");
        run_command(&context.binary, &["snapshot", "restore", text(&file), "--config", text(&config)]).await?;
        new.spawn(id)?;
    }
    new.all_ready().await?;
    let must: Vec<String> =
        before.written.lock().iter().filter(|(_, at)| *at < begun).map(|(path, _)| path.clone()).collect();
    let trial = goes_on(&new, &before, &must).await?;
    new.agree(ACKNOWLEDGED_WITHIN).await?;
    context.log.say(format!("round {round}: restored; {} writes are there, the gap is {}", trial.there, trial.gap));
    Ok(trial)
}

async fn recovered_from_a_survivor(context: &Context, round: u32) -> Result<RestoreTrial, Failed> {
    let dir = context.dir.join(format!("{round}-recover"));
    let mut cluster = Cluster::start(&context.binary, &dir, Options::default()).await?;
    let before = Arc::new(Issued::default());
    let workers = load(&cluster, &before).await?;
    acknowledged(&before, 2 * WRITES).await?;
    ended(&before, workers).await?;
    // What the survivor never received is lost with the others.
    cluster.agree(ACKNOWLEDGED_WITHIN).await?;
    let (leader, _) = cluster.leader().await?;
    let survivor = leader % 3 + 1;
    let lost = cluster.others(survivor);
    cluster.kill(survivor).await?;
    destroy(&mut cluster, &lost).await?;
    context.log.say(format!("round {round}: nodes {lost:?}, one of them the leader, and their data are gone"));

    let config = cluster.directory(survivor).join("config.toml");
    let recover = ["recover", "--from-survivor", "--config", text(&config), "--yes-cluster", "prove"];
    if run_command(&context.binary, &recover).await.is_ok() {
        return broken("a node was made the only member although its configuration lists others");
    }
    alone(&config, &lost)?;
    run_command(&context.binary, &recover).await?;
    lost.iter().for_each(|id| cluster.forget_node(*id));
    cluster.spawn(survivor)?;
    cluster.all_ready().await?;
    let must: Vec<String> = before.written.lock().iter().map(|(path, _)| path.clone()).collect();
    let trial = goes_on(&cluster, &before, &must).await?;
    context.log.say(format!("round {round}: recovered; {} writes are there, the gap is {}", trial.there, trial.gap));
    Ok(trial)
}

/// The new cluster has what it must have, knows no session of the old one, and issues nothing twice.
async fn goes_on(cluster: &Cluster, before: &Issued, must: &[String]) -> Result<RestoreTrial, Failed> {
    for (at, path) in must.iter().enumerate() {
        let ids = cluster.ids();
        if let Err(failure) = cluster.api(ids[at % ids.len()]).get(path, CALL).await {
            return broken(format!("{path} was acknowledged and is not on the new cluster: {failure}"));
        }
    }
    let api = cluster.api(cluster.ids()[0]);
    let credentials = before.sessions.lock().clone();
    for credential in &credentials {
        match api.keepalive(credential, CALL).await {
            Err(Failure::Refused(problem)) if problem.code == Code::SessionExpired => {}
            other => return broken(format!("a holder of before is not told that its session is over: {other:?}")),
        }
    }
    let after = Arc::new(Issued::default());
    let workers = load(cluster, &after).await?;
    acknowledged(&after, WRITES).await?;
    ended(&after, workers).await?;
    let highest = before.highest();
    let mut lowest = u64::MAX;
    for (what, numbers) in after.numbers() {
        let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
        let first = distinct.first().copied().unwrap_or(u64::MAX);
        if first <= highest {
            return broken(format!("{what} {first} was issued again: the old cluster had come to {highest}"));
        }
        lowest = lowest.min(first);
    }
    Ok(RestoreTrial { there: must.len(), gap: lowest - highest })
}

/// Starts clients that write and lock until they are told to stop.
async fn load(cluster: &Cluster, issued: &Arc<Issued>) -> Result<Tasks<()>, Failed> {
    let apis = cluster.apis();
    let parent = apis[0].1.create(PARENT, &Create::default(), None).await;
    if let Err(failure) = parent
        && failure.code() != Some(Code::NodeExists)
    {
        return Err(without_fault(failure));
    }
    let mut workers = Tasks::default();
    for number in 0..WORKERS {
        let api = apis[number % apis.len()].1.clone();
        let session = api.open_session(SESSION_MS, &format!("worker {number}")).await;
        let session = session.map_err(without_fault)?;
        let credential = session.value.credential;
        issued.sessions.lock().push(credential.clone());
        let issued = Arc::clone(issued);
        workers.start(|stop| work(api, credential, issued, stop));
    }
    Ok(workers)
}

async fn work(api: Api, credential: String, issued: Arc<Issued>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Err(failure) = one_cycle(&api, &credential, &issued).await {
            issued.failed.lock().get_or_insert(format!("with no fault about: {failure}"));
            return;
        }
    }
}

async fn one_cycle(api: &Api, credential: &str, issued: &Issued) -> Result<(), Failure> {
    let body = Create { sequential: true, ..Create::default() };
    let made = api.create_within(&format!("{PARENT}/n-"), &body, Some(credential), CALL).await?;
    issued.zxids.lock().push(made.value.stat.czxid);
    issued.written.lock().push((made.value.path, made.received));
    let ask = Acquire { wait_ms: 5_000, request_id: Some(Uuid::new_v4()), ..Acquire::default() };
    let granted = api.acquire(credential, "restore", &ask, CALL).await?;
    issued.tokens.lock().push(granted.value.token);
    api.release(credential, "restore", granted.value.token).await.map(drop)
}

/// Waits until so many writes are acknowledged.
async fn acknowledged(issued: &Issued, count: usize) -> Result<(), Failed> {
    let wait = Polling::within(ACKNOWLEDGED_WITHIN);
    while issued.written.lock().len() < count {
        if let Some(failed) = issued.failed.lock().clone() {
            return broken(failed);
        }
        wait.or_broken(|| format!("{count} writes are not acknowledged within {ACKNOWLEDGED_WITHIN:?}")).await?;
    }
    Ok(())
}

async fn ended(issued: &Issued, workers: Tasks<()>) -> Result<(), Failed> {
    workers.end().await?;
    issued.failed.lock().clone().map_or(Ok(()), broken)
}

/// Kills nodes and deletes their data.
async fn destroy(cluster: &mut Cluster, nodes: &[u64]) -> Result<(), Failed> {
    for node in nodes {
        cluster.signal(*node, Signal::SIGKILL);
    }
    for node in nodes {
        cluster.ended(*node, Duration::from_secs(10)).await?;
        std::fs::remove_dir_all(cluster.data(*node)?)?;
    }
    Ok(())
}

/// Takes the lost members out of a configuration.
pub(super) fn alone(config: &Path, lost: &[u64]) -> Result<(), Failed> {
    let text = std::fs::read_to_string(config)?;
    let sections = text
        .split("\n[")
        .enumerate()
        .filter(|(_, section)| !lost.iter().any(|id| section.starts_with(&format!("peers.{id}]"))));
    let kept: Vec<&str> = sections.map(|(_, section)| section).collect();
    Ok(std::fs::write(config, kept.join("\n["))?)
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
