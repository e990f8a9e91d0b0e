//! P1, P4 and P6 under `kill -9` of all three nodes at random moments of a write load, and sometimes again while they
//! start.
//!
//! Each client records what was *acknowledged*; a write of unknown outcome may be there or not. Afterwards every
//! acknowledged node exists with its data and creating zxid, no token was repeated or went back, and the three replicas
//! are the same at the same zxid. Power loss is a claim of its own: see `synced`.

use futures::StreamExt as _;
use lockkeeper_api::Data;
use lockkeeper_api::nodes::Kind;
use rand::seq::SliceRandom as _;
use uuid::Uuid;

use super::acknowledged;
use crate::disk::{self, Loss};
use crate::proofs::prelude::*;
use crate::tokens::{self, TokenGrant};

const CREATORS: u64 = 6;
const LOCKERS: u64 = 6;
const LOCKS: u64 = 3;
const SESSION_MS: u32 = 60_000;
const CALL: Duration = Duration::from_secs(10);
const HOLD: Duration = Duration::from_millis(5);

/// What was acknowledged.
#[derive(Clone, Debug)]
struct WrittenNode {
    path: String,
    data: String,
    czxid: u64,
    owner: Option<u64>,
}

#[derive(Default)]
struct RoundObservations {
    written: Mutex<Vec<WrittenNode>>,
    grants: Mutex<Vec<TokenGrant>>,
    unknown: Mutex<u64>,
    surprise: Mutex<Option<String>>,
}

impl RoundObservations {
    fn surprised(&self, what: String) {
        self.surprise.lock().get_or_insert(what);
    }

    fn failed(&self, doing: &str, failure: &Failure) {
        match failure {
            Failure::NotDone(_) => {}
            Failure::Unknown(_) => *self.unknown.lock() += 1,
            Failure::Refused(problem) => self.surprised(format!("{doing} was refused: {problem}")),
        }
    }
}

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let figures = many_rounds(context, &mut cluster, rounds, None, 1).await?.whole()?.0;
    Ok(format!("{rounds} rounds, {figures}"))
}

/// What became of what was acknowledged.
pub(super) enum Durability {
    /// All of it is there: figures, and the rounds in which a disk lost something that was not synced.
    Whole { figures: String, rounds_with_losses: u32 },
    /// This is not.
    Not(String),
}

impl Durability {
    /// The figures, and in how many rounds a disk lost something.
    pub(super) fn whole(self) -> Result<(String, u32), Failed> {
        match self {
            Self::Whole { figures, rounds_with_losses } => Ok((figures, rounds_with_losses)),
            Self::Not(what) => broken(what),
        }
    }
}

/// Kills all nodes in every round; with a `power_cut`, their disks also lose what that says. `chance` is the stream of
/// random numbers.
pub(super) async fn many_rounds(
    context: &Context,
    cluster: &mut Cluster,
    rounds: u32,
    power_cut: Option<Loss>,
    chance: u64,
) -> Result<Durability, Failed> {
    let mut random = context.random(chance);
    let mut all = Totals::default();
    let mut rounds_with_losses = 0;
    let sessions = open_sessions(cluster).await?;
    create_parent(cluster, "/kill-all").await?;
    for round in 1..=rounds {
        let (seen, blow) = match one_round(cluster, round, &sessions, &mut random, power_cut).await? {
            Round::Ended(seen, blow) => (seen, blow),
            Round::VotesForgotten(what) => return Ok(Durability::Not(format!("round {round}: {what}"))),
        };
        rounds_with_losses += u32::from(blow.lost_something);
        if let Some(surprise) = seen.surprise.lock().take() {
            return broken(format!("round {round}: {surprise}"));
        }
        let (zxid, _) = cluster.agree(Duration::from_secs(30)).await?;
        let written = std::mem::take(&mut *seen.written.lock());
        all.take(&seen, &written);
        let gone = match verify(cluster, &written).await? {
            Some(what) => Some(what),
            None => {
                let gone = acknowledged::missing(cluster, all.names.iter().map(String::as_str)).await?;
                gone.or(tokens::check(&all.grants).err())
            }
        };
        if let Some(what) = gone {
            return Ok(Durability::Not(format!("round {round}: {what}")));
        }
        context.log.say(format!(
            "round {round} of {rounds}: {}; {} acknowledged writes are there, {} unknown, {} grants rising, replicas \
             agree at zxid {zxid}",
            blow.told,
            written.len(),
            seen.unknown.lock(),
            all.grants.len()
        ));
    }
    let figures = format!(
        "{} acknowledged writes all there, {} unknown outcomes, {} grants with rising tokens, replicas agreed every \
         time",
        all.names.len(),
        all.unknown,
        all.grants.len()
    );
    Ok(Durability::Whole { figures, rounds_with_losses })
}

#[derive(Default)]
struct Totals {
    names: BTreeSet<String>,
    grants: Vec<TokenGrant>,
    unknown: u64,
}

impl Totals {
    fn take(&mut self, seen: &RoundObservations, written: &[WrittenNode]) {
        self.names.extend(written.iter().map(|written| written.path.clone()));
        self.grants.append(&mut seen.grants.lock());
        self.unknown += *seen.unknown.lock();
    }
}

/// Long sessions that outlive the kills: a new leader restarts their timers, and their requests keep them alive.
async fn open_sessions(cluster: &Cluster) -> Result<Vec<String>, Failed> {
    let mut credentials = Vec::new();
    for number in 0..CREATORS + LOCKERS {
        let session = cluster.api(1).open_session(SESSION_MS, &format!("worker {number}")).await.map_err(healthy)?;
        credentials.push(session.value.credential);
    }
    Ok(credentials)
}

async fn create_parent(cluster: &Cluster, path: &str) -> Result<(), Failed> {
    cluster.api(1).create(path, &Create::default(), None).await.map_err(healthy).map(drop)
}

enum Round {
    Ended(Arc<RoundObservations>, Blow),
    VotesForgotten(String),
}

/// How the nodes were killed.
#[derive(Default)]
struct Blow {
    told: String,
    lost_something: bool,
}

async fn one_round(
    cluster: &mut Cluster,
    round: u32,
    sessions: &[String],
    random: &mut StdRng,
    power_cut: Option<Loss>,
) -> Result<Round, Failed> {
    let parent = format!("/kill-all/round-{round}");
    create_parent(cluster, &parent).await?;
    let seen = Arc::new(RoundObservations::default());
    let apis = cluster.apis();
    let mut clients = Tasks::default();
    for (number, credential) in (0..).zip(sessions) {
        let (_, api) = apis[usize::try_from(number).unwrap_or(0) % apis.len()].clone();
        let (seen, credential) = (Arc::clone(&seen), credential.clone());
        if number < CREATORS {
            let parent = parent.clone();
            clients.start(|stop| create_forever(api, parent, number, credential, seen, stop));
        } else {
            let name = format!("kill-all-{}", number % LOCKS);
            clients.start(|stop| lock_forever(api, name, credential, seen, stop));
        }
    }
    tokio::time::sleep(Duration::from_millis(random.random_range(200..1_500))).await;
    let term = cluster.leader().await?.1;
    let blow = kill_everyone(cluster, random, power_cut).await?;
    cluster.all_ready().await?;
    let next = cluster.leader().await?.1;
    if next <= term {
        let what = format!("term {term} was over, and now a leader has term {next}: votes were forgotten");
        return Ok(Round::VotesForgotten(what));
    }
    // The load must find the cluster again before it ends: writes go on after the kill.
    let (before, wait) = (seen.written.lock().len(), Polling::within(Duration::from_secs(30)));
    while seen.written.lock().len() < before + 20 && seen.surprise.lock().is_none() {
        wait.or_broken(|| format!("round {round}: no writes were acknowledged within 30 s after the restart")).await?;
    }
    clients.end_within(CALL * 3).await?;
    Ok(Round::Ended(seen, blow))
}

async fn kill_everyone(cluster: &mut Cluster, random: &mut StdRng, power_cut: Option<Loss>) -> Result<Blow, Failed> {
    let mut ids = cluster.ids();
    ids.shuffle(random);
    let together = random.random_bool(0.5);
    for id in &ids {
        cluster.signal(*id, Signal::SIGKILL);
        if !together {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        }
    }
    for id in &ids {
        cluster.ended(*id, Duration::from_secs(10)).await?;
    }
    let told = format!("killed {ids:?} {}", if together { "together" } else { "one after the other" });
    let mut blow = Blow { told, lost_something: false };
    for id in &ids {
        fail_power(cluster, *id, random, power_cut, &mut blow).await?;
    }
    for id in &ids {
        cluster.spawn(*id)?;
    }
    if random.random_bool(0.25) {
        let pause = Duration::from_millis(random.random_range(0..600));
        tokio::time::sleep(pause).await;
        for id in &ids {
            cluster.kill(*id).await?;
            fail_power(cluster, *id, random, power_cut, &mut blow).await?;
            cluster.spawn(*id)?;
        }
        blow.told.push_str(&format!("; and again {} ms into the start", pause.as_millis()));
    }
    Ok(blow)
}

/// What a node that was killed has on its disk, if its power failed with it.
async fn fail_power(
    cluster: &Cluster,
    id: u64,
    random: &mut StdRng,
    power_cut: Option<Loss>,
    blow: &mut Blow,
) -> Result<(), Failed> {
    let Some(loss) = power_cut else { return Ok(()) };
    let lost = disk::lose(cluster.directory(id), random, loss).await?;
    blow.lost_something |= lost.anything();
    blow.told.push_str(&format!("; node {id}: {lost}"));
    Ok(())
}

async fn create_forever(
    api: Api,
    parent: String,
    worker: u64,
    credential: String,
    seen: Arc<RoundObservations>,
    stop: CancellationToken,
) {
    let owner = crate::http::session_id(&credential).parse::<u64>().ok();
    for number in 0u64.. {
        if stop.is_cancelled() {
            return;
        }
        let kind = if number % 5 == 4 { Kind::Ephemeral } else { Kind::Persistent };
        let sequential = number % 2 == 1;
        // Up to several sectors of a disk, so that a write can tear.
        let data = format!("{worker}:{number}:{}", "x".repeat(number as usize % 5 * 900));
        let body = Create { data: Data::from_bytes(data.as_bytes()), kind, sequential, ..Create::default() };
        let path = format!("{parent}/{worker}-{number}-");
        match api.create_within(&path, &body, Some(&credential), CALL).await {
            Ok(answer) => {
                let owner = owner.filter(|_| kind == Kind::Ephemeral);
                let written = WrittenNode { path: answer.value.path, data, czxid: answer.value.stat.czxid, owner };
                seen.written.lock().push(written);
            }
            Err(failure) => pause_after(&seen, "create", &failure).await,
        }
    }
}

async fn lock_forever(
    api: Api,
    name: String,
    credential: String,
    seen: Arc<RoundObservations>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        // The same request id until its fate is known: a retry must find its own place again.
        let body = Acquire { wait_ms: 2_000, request_id: Some(Uuid::new_v4()), ..Acquire::default() };
        let asked = Instant::now();
        let token = loop {
            match api.acquire(&credential, &name, &body, CALL).await {
                Ok(answer) => break Some((answer.value.token, answer.received)),
                Err(Failure::Refused(problem)) if problem.status == 423 => break None,
                // A lost reply of a wait that timed out: the request is no longer in the queue.
                Err(Failure::Refused(problem)) if problem.code == Code::NotQueued => break None,
                Err(failure) => pause_after(&seen, "acquire", &failure).await,
            }
            if seen.surprise.lock().is_some() {
                return;
            }
        };
        let Some((token, granted)) = token else { continue };
        // Held for a while: of holders that hold for no time, no two could be seen to overlap.
        tokio::time::sleep(HOLD).await;
        let grant = TokenGrant { lock: name.clone(), token, asked, granted, released: Some(Instant::now()) };
        seen.grants.lock().push(grant);
        loop {
            match api.release(&credential, &name, token).await {
                Ok(_) => break,
                // The release whose answer was lost took place.
                Err(Failure::Refused(problem)) if problem.code == Code::NotHeld => break,
                Err(failure) => pause_after(&seen, "release", &failure).await,
            }
            if seen.surprise.lock().is_some() {
                return;
            }
        }
    }
}

async fn pause_after(seen: &RoundObservations, doing: &str, failure: &Failure) {
    seen.failed(doing, failure);
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Reads every acknowledged write of the round with its data, zxid and owner, a third of them on each node. Returns the
/// first that is missing or differs.
async fn verify(cluster: &Cluster, written: &[WrittenNode]) -> Result<Option<String>, Failed> {
    let apis = cluster.apis();
    let checks = written.iter().enumerate().map(|(at, written)| {
        let (id, api) = apis[at % apis.len()].clone();
        async move {
            let node = match api.get_stale(&written.path).await {
                Ok(answer) => answer.value,
                Err(failure) if failure.code() == Some(Code::NoNode) => {
                    return Ok(Some(format!("{} was acknowledged and is not on node {id}", written.path)));
                }
                Err(failure) => return Err(healthy(failure)),
            };
            let data = node.data.to_bytes().unwrap_or_default();
            if data != written.data.as_bytes()
                || node.stat.czxid != written.czxid
                || node.stat.ephemeral_owner != written.owner
            {
                return Ok(Some(format!("{} is on node {id} as {node:?}, acknowledged was {written:?}", written.path)));
            }
            Ok(None)
        }
    });
    let gone: Vec<Result<Option<String>, Failed>> = futures::stream::iter(checks).buffer_unordered(64).collect().await;
    Ok(gone.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().next())
}

fn healthy(failure: Failure) -> Failed {
    Failed::Broken(format!("with all nodes ready: {failure}"))
}
