//! A node gets SIGTERM while lock requests wait at it, first a follower, then the leader.
//!
//! - A request that nobody can ask for again is answered "not executed" and leaves its queue, and the session that was
//!   made for it ends: locks, several locks together and permits are free for the next client at once.
//! - A request whose caller has chosen its id is answered "unknown", with the id, and keeps its place: the caller finds
//!   it at another node. Clients of the library notice nothing.

use lockkeeper_api::locks::{Acquired, Mode};
use lockkeeper_client::{Client, Options as ClientOptions, PreferredNode, Session, SessionOptions};
use uuid::Uuid;

use crate::http::{Answer, CALL_WITHIN, Called};
use crate::proofs::prelude::*;

/// Of sessions that are made for a request: what a request that is left behind holds the others up for.
const TTL_MS: u32 = 15_000;
/// Longer than a round.
const WAIT_MS: u64 = 60_000;
/// Requests of each kind.
const EACH: usize = 4;
/// The next grant comes within this, not counting while the disk is busy.
const AT_ONCE: Duration = Duration::from_millis(500);
const STOPS_WITHIN: Duration = Duration::from_secs(15);
/// Until requests are seen in their queues.
const SEEN_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let mut slowest = Duration::ZERO;
    for round in 1..=rounds {
        slowest = slowest.max(stop_one(context, &mut cluster, round).await?);
    }
    cluster.agree(Duration::from_secs(20)).await?;
    Ok(format!(
        "{rounds} nodes stopped under {} requests each: those without an id left their queues, the others kept their \
         places; the next client had its lock within {}",
        6 * EACH,
        millis(slowest)
    ))
}

/// Stops a node under waiting requests; returns how long the slowest of the next grants took.
async fn stop_one(context: &Context, cluster: &mut Cluster, round: u32) -> Result<Duration, Failed> {
    let (leader, _) = cluster.leader().await?;
    let is_leader = round.is_multiple_of(2);
    let leaving = if is_leader { leader } else { cluster.ids().into_iter().find(|id| *id != leader).unwrap_or(leader) };
    let Some(other) = cluster.ids().into_iter().find(|id| *id != leaving) else { return broken("there is one node") };
    let (at, api) = (cluster.api(leaving), cluster.api(other));
    let name = |lock: &str| format!("{lock}-{round}");
    let (lost, together, permits, kept) = (name("lost"), name("together"), name("permits"), name("kept"));

    let holder = opened(&api, "holder").await?;
    let permit = Acquire { mode: Mode::Permit, permits: Some(1), ..Acquire::default() };
    let mut held = Vec::new();
    for (lock, body) in [(&lost, Acquire::default()), (&permits, permit.clone()), (&kept, Acquire::default())] {
        held.push((lock.clone(), acquire(&api, lock, Some(holder.clone()), body).await.map_err(failed)?.value.token));
    }

    let made = |body: Acquire| Acquire { wait_ms: WAIT_MS, ttl_ms: Some(TTL_MS), label: Some("made".into()), ..body };
    let mut unclaimable = Vec::new();
    for _ in 0..EACH {
        let bodies = [
            (&lost, made(Acquire::default())),
            (&lost, made(Acquire { also: vec![together.clone()], ..Acquire::default() })),
            (&permits, made(permit.clone())),
        ];
        for (lock, body) in bodies {
            unclaimable.push(waiter(&at, lock, None, body));
        }
        let body = Acquire { wait_ms: WAIT_MS, ..Acquire::default() };
        unclaimable.push(waiter(&at, &lost, Some(opened(&at, "no id").await?), body));
    }
    let mut claimable = Vec::new();
    for _ in 0..EACH {
        claimable.push(tokio::spawn(asked_again(at.clone(), api.clone(), kept.clone())));
        claimable.push(tokio::spawn(by_library(endpoints_from(cluster, leaving), kept.clone())));
    }
    for (lock, waiting) in [(&lost, 3 * EACH), (&permits, EACH), (&kept, 2 * EACH)] {
        let wait = Polling::within(SEEN_WITHIN).every(POLL);
        while waiting_for(&api, lock).await? < waiting {
            wait.or_broken(|| format!("not all of {waiting} requests for {lock} come to wait")).await?;
        }
    }
    unclaimable.push(waiter(&at, &lost, None, made(Acquire { unfair: true, ..Acquire::default() })));
    // It stands in no queue, but its session shows that it has arrived. The node resets what it has not read.
    let wait = Polling::within(SEEN_WITHIN).every(POLL);
    while made_sessions(&api).await? <= 3 * EACH {
        wait.or_broken(|| "the request that stays out of the queue does not arrive").await?;
    }

    context.log.say(format!("node {leaving}, {}, gets SIGTERM", if is_leader { "the leader" } else { "a follower" }));
    cluster.signal(leaving, Signal::SIGTERM);
    for waiting in unclaimable {
        match ended(waiting).await? {
            Err(Failure::NotDone(_)) => {}
            other => return broken(format!("a request that nobody can ask for again was answered {other:?}")),
        }
    }
    match cluster.ended(leaving, STOPS_WITHIN).await? {
        Some(0) => {}
        other => return broken(format!("node {leaving} ended with {other:?} on SIGTERM")),
    }
    let left = made_sessions(&api).await?;
    if left > 0 {
        return broken(format!("{left} sessions that were made for requests are left behind"));
    }
    for (lock, expected) in [(&lost, 0), (&together, 0), (&permits, 0), (&kept, 2 * EACH)] {
        match waiting_for(&api, lock).await? {
            waiting if waiting == expected => {}
            waiting => return broken(format!("{waiting} requests for {lock} wait after the stop, not {expected}")),
        }
    }
    let slowest =
        next_grants(context, &api, (&holder, &held), [(&lost, made(Acquire::default())), (&permits, made(permit))]);
    let slowest = slowest.await?;
    for claimed in claimable {
        ended(claimed).await??;
    }
    cluster.start_node(leaving).await?;
    Ok(slowest)
}

/// Gives back what is held; the next client of each lock is to have it at once.
async fn next_grants(
    context: &Context,
    api: &Api,
    (holder, held): (&str, &[(String, u64)]),
    next: [(&String, Acquire); 2],
) -> Result<Duration, Failed> {
    for (lock, token) in held {
        api.release(holder, lock, *token).await.map_err(failed)?;
    }
    let mut slowest = Duration::ZERO;
    for (lock, body) in next {
        let (disk, from_us) = (DiskLatency::begin(&context.dir)?, boot_us());
        let granted: Answer<Acquired> = acquire(api, lock, None, body).await.map_err(failed)?;
        let (took, busy) = (granted.received - granted.sent, disk.end()?.within(from_us, boot_us()));
        if took.saturating_sub(busy) > AT_ONCE {
            return broken(format!("the next client of {lock} waited for {}", millis(took)));
        }
        slowest = slowest.max(took);
        let credential = granted.value.credential.unwrap_or_default();
        api.close_session(&credential).await.map_err(failed)?;
    }
    Ok(slowest)
}

async fn opened(api: &Api, label: &str) -> Result<String, Failed> {
    Ok(api.open_session(TTL_MS, label).await.map_err(failed)?.value.credential)
}

/// How many sessions there are that were made for requests.
async fn made_sessions(api: &Api) -> Result<usize, Failed> {
    let (sessions, _) = api.all_sessions().await.map_err(failed)?;
    Ok(sessions.iter().filter(|session| session.label == "made").count())
}

async fn waiting_for(api: &Api, lock: &str) -> Result<usize, Failed> {
    Ok(usize::try_from(api.lock(lock).await.map_err(failed)?.value.waiting).unwrap_or(usize::MAX))
}

/// All endpoints, that of `first` first.
fn endpoints_from(cluster: &Cluster, first: u64) -> Vec<String> {
    let mut endpoints: Vec<_> = cluster.ids().into_iter().zip(cluster.endpoints()).collect();
    endpoints.sort_by_key(|(id, _)| *id != first);
    endpoints.into_iter().map(|(_, endpoint)| endpoint).collect()
}

async fn acquire(api: &Api, lock: &str, credential: Option<String>, body: Acquire) -> Called<Acquired> {
    let within = CALL_WITHIN + Duration::from_millis(body.wait_ms);
    api.acquire_in(credential.as_deref(), lock, &body, within).await
}

fn waiter(api: &Api, lock: &str, credential: Option<String>, body: Acquire) -> JoinHandle<Called<Acquired>> {
    let (api, lock) = (api.clone(), lock.to_owned());
    tokio::spawn(async move { acquire(&api, &lock, credential, body).await })
}

/// Asks over HTTP under an id, and again at another node when the first one goes; gives the lock back.
async fn asked_again(leaving: Api, other: Api, lock: String) -> Result<(), Failed> {
    let (credential, id) = (opened(&leaving, "with id").await?, Uuid::new_v4());
    let body = Acquire { wait_ms: WAIT_MS, request_id: Some(id), ..Acquire::default() };
    match acquire(&leaving, &lock, Some(credential.clone()), body.clone()).await {
        Err(Failure::Unknown(why)) if why.contains(&id.to_string()) => {}
        answer => {
            return broken(format!("a request with an id that waits at a node that goes was answered {answer:?}"));
        }
    }
    let granted = acquire(&other, &lock, Some(credential.clone()), body).await.map_err(failed)?;
    other.release(&credential, &lock, granted.value.token).await.map(drop).map_err(failed)
}

async fn by_library(endpoints: Vec<String>, lock: String) -> Result<(), Failed> {
    let options = ClientOptions { prefer: PreferredNode::First, ..ClientOptions::default() };
    let client = Client::new(endpoints, options).map_err(failed)?;
    let session = Session::open(&client, &SessionOptions::default()).await.map_err(failed)?;
    session.lock(&lock).lock().await.map_err(failed)?.release().await.map_err(failed)
}

async fn ended<T>(task: JoinHandle<T>) -> Result<T, Failed> {
    task.await.or_broken("a client broke off")
}

fn failed(why: impl std::fmt::Display) -> Failed {
    Failed::Broken(format!("a call failed: {why}"))
}
