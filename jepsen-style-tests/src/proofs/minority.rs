//! P10 and P11: the leader is cut off from its peers, alternately by silence and by reset connections.
//!
//! The cut is exact (see [`crate::net::proxy`]), so the check needs no allowance: a request *sent* to the cut-off node
//! after the cut cannot have found a quorum, and must not be acknowledged before the links heal. The lock's holder runs
//! the client library and reaches only that node. It must report that its lock is lost before the other side grants the
//! lock; both moments are read from one monotonic clock.

use uuid::Uuid;

use super::acknowledged;
use super::scenario::hand_over::{HandOverOptions, lost, told_first};
use crate::net::LinkFault;
use crate::proofs::prelude::*;

/// Longer than the holder's session and an election together.
const CUT_FOR: Duration = Duration::from_secs(5);
const HOLDER_TTL_MS: u64 = 2_000;
/// How long a client waits for one answer: short, so that many are attempted while the link is cut.
const PROBE: Duration = Duration::from_millis(500);
const KINDS: [&str; 4] = ["write", "linearizable read", "keepalive", "acquire"];

#[derive(Clone, Debug)]
struct Attempt {
    kind: &'static str,
    sent: Instant,
    received: Instant,
    path: Option<String>,
    failure: Option<String>,
}

type Attempts = Arc<Mutex<Vec<Attempt>>>;

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::behind_proxies(3).await?).await?;
    cluster.make_node("/minority").await?;
    let (mut attempts, mut leads, mut resumed) = (0, Vec::new(), Vec::new());
    for round in 1..=rounds {
        let state = if round % 2 == 1 { LinkFault::Cut } else { LinkFault::Reset };
        let figures =
            one_round(context, &mut cluster, round, state).await.or_broken(format!("round {round} ({state:?})"))?;
        attempts += figures.refused;
        leads.push(figures.lost_before_grant);
        resumed.push(figures.resumed_after);
    }
    let least = leads.iter().min().copied().unwrap_or_default();
    let longest = resumed.iter().max().copied().unwrap_or_default();
    Ok(format!(
        "{rounds} cuts of the leader: {attempts} attempts at it, none acknowledged; the others went on after at most \
         {}; the holder knew at least {} before the next grant; all agreed after healing",
        millis(longest),
        millis(least)
    ))
}

struct Figures {
    refused: usize,
    lost_before_grant: Duration,
    resumed_after: Duration,
}

async fn one_round(context: &Context, cluster: &mut Cluster, round: u32, state: LinkFault) -> Result<Figures, Failed> {
    let (leader, term) = cluster.leader().await?;
    let others = cluster.others(leader);
    let name = format!("round-{round}");
    let ttl_ms = HOLDER_TTL_MS;
    let asked = HandOverOptions { family: "minority", name: &name, ttl_ms, words: "", holder_at: Some(leader) };
    let mut pair = asked.start(context, cluster).await?;

    let (here, there, mut probes) = (Attempts::default(), Attempts::default(), Tasks::default());
    probe(&mut probes, cluster.own_api(leader)?, &format!("/minority/{round}-at-leader-"), &here).await?;
    probe(&mut probes, cluster.own_api(others[1])?, &format!("/minority/{round}-at-other-"), &there).await?;
    acknowledged_of_each_kind(&here, Instant::now()).await?;

    cluster.set_links_of(leader, state).await?;
    let cut = Instant::now();
    context.log.say(format!("round {round}: node {leader} leads term {term} and is cut off now ({state:?})"));
    let granted_us = pair.next_granted_us().await?;
    acknowledged_of_each_kind(&there, cut).await?;
    tokio::time::sleep(CUT_FOR.saturating_sub(cut.elapsed())).await;
    let Some(lost_us) = pair.holder.records()?.iter().find_map(lost) else {
        return broken("the lock went to another and the holder was not told at all");
    };
    let lost_before_grant = told_first(lost_us, granted_us)?;
    let heal = Instant::now();
    cluster.set_links_of(leader, LinkFault::None).await?;
    probes.end().await?;

    let refused = none_acknowledged_in(&here, cut, heal)?;
    let resumed_after = first_acknowledged_after(&there, cut)?;
    cluster.all_ready().await?;
    let (zxid, _) = cluster.agree(Duration::from_secs(30)).await?;
    let made: Vec<String> = [&here, &there].into_iter().flat_map(copy).filter_map(|attempt| attempt.path).collect();
    acknowledged::all_there(cluster, made.iter().map(String::as_str)).await?;
    context.log.say(format!(
        "  {refused} attempts at the cut-off node, none acknowledged; the others acknowledged after {}; holder told {} \
         before the grant; healed, all agree at zxid {zxid}",
        millis(resumed_after),
        millis(lost_before_grant)
    ));
    pair.end().await?;
    Ok(Figures { refused, lost_before_grant, resumed_after })
}

/// Attempts of each kind at one node, one after the other, recorded.
async fn probe(probes: &mut Tasks<()>, api: Api, prefix: &str, attempts: &Attempts) -> Result<(), Failed> {
    let session = api.open_session(60_000, "probe").await;
    let credential = session.map_err(without_fault)?.value.credential;
    let number = Arc::new(AtomicU64::new(0));
    for kind in KINDS {
        let (api, credential, number) = (api.clone(), credential.clone(), Arc::clone(&number));
        let (attempts, prefix) = (Arc::clone(attempts), prefix.to_owned());
        probes.start(|stop| async move {
            while !stop.is_cancelled() {
                let path = format!("{prefix}{}", number.fetch_add(1, Ordering::SeqCst));
                let attempt = one_attempt(&api, kind, &credential, path).await;
                attempts.lock().push(attempt);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    Ok(())
}

async fn one_attempt(api: &Api, kind: &'static str, credential: &str, path: String) -> Attempt {
    let sent = Instant::now();
    let result: Result<Option<String>, Failure> = match kind {
        "write" => api
            .create_within(&path, &Create::default(), Some(credential), PROBE)
            .await
            .map(|answer| Some(answer.value.path)),
        "linearizable read" => api.get("/minority", PROBE).await.map(|_| None),
        "keepalive" => api.keepalive(credential, PROBE).await.map(|_| None),
        _ => {
            let name = path.replace('/', "-");
            let body = Acquire { request_id: Some(Uuid::new_v4()), ..Acquire::default() };
            api.acquire(credential, name.trim_start_matches('-'), &body, PROBE).await.map(|_| None)
        }
    };
    let received = Instant::now();
    match result {
        Ok(path) => Attempt { kind, sent, received, path, failure: None },
        Err(failure) => Attempt { kind, sent, received, path: None, failure: Some(failure.to_string()) },
    }
}

fn copy(attempts: &Attempts) -> Vec<Attempt> {
    attempts.lock().clone()
}

/// Waits until something of each kind was acknowledged that was sent after `since`.
async fn acknowledged_of_each_kind(attempts: &Attempts, since: Instant) -> Result<(), Failed> {
    let wait = Polling::within(Duration::from_secs(20));
    loop {
        let all = copy(attempts);
        let missing = KINDS.iter().find(|kind| {
            !all.iter().any(|attempt| attempt.kind == **kind && attempt.failure.is_none() && attempt.sent >= since)
        });
        let Some(missing) = missing else { return Ok(()) };
        wait.or_broken(|| {
            let last = all.iter().rev().find(|attempt| attempt.kind == *missing);
            format!("no {missing} was acknowledged by a majority within 20 s; the last: {last:?}")
        })
        .await?;
    }
}

/// Counts the attempts made in the window; none of each kind may be missing, none acknowledged.
fn none_acknowledged_in(attempts: &Attempts, cut: Instant, heal: Instant) -> Result<usize, Failed> {
    let all = copy(attempts);
    let within: Vec<_> = all.iter().filter(|attempt| attempt.sent >= cut && attempt.received < heal).collect();
    if let Some(wrong) = within.iter().find(|attempt| attempt.failure.is_none()) {
        return broken(format!(
            "the cut-off leader acknowledged a {} sent {} after the cut",
            wrong.kind,
            millis(wrong.sent - cut)
        ));
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for attempt in &within {
        *counts.entry(attempt.kind).or_default() += 1;
    }
    if let Some(kind) = KINDS.iter().find(|kind| !counts.contains_key(**kind)) {
        return cannot_run(format!("no {kind} was attempted at the cut-off node"));
    }
    Ok(within.len())
}

fn first_acknowledged_after(attempts: &Attempts, cut: Instant) -> Result<Duration, Failed> {
    let all = copy(attempts);
    let writes =
        all.iter().filter(|attempt| attempt.kind == "write" && attempt.sent >= cut && attempt.failure.is_none());
    writes.map(|attempt| attempt.received - cut).min().ok_or_else(|| Failed::Broken("the others did not go on".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(write: (u64, u64, bool)) -> (Attempts, impl Fn(u64) -> Instant) {
        let base = Instant::now();
        let at = move |ms| base + Duration::from_millis(ms);
        let attempt = |kind, (sent, received, acknowledged): (u64, u64, bool)| Attempt {
            kind,
            sent: at(sent),
            received: at(received),
            path: None,
            failure: (!acknowledged).then(|| "no leader".to_owned()),
        };
        let mut all: Vec<Attempt> = KINDS.map(|kind| attempt(kind, (150, 180, false))).to_vec();
        all.push(attempt("write", write));
        (Arc::new(Mutex::new(all)), at)
    }

    #[test]
    fn only_what_was_sent_in_the_cut_and_acknowledged_before_the_healing_is_wrong() {
        let judge = |write| {
            let (attempts, at) = attempts(write);
            none_acknowledged_in(&attempts, at(100), at(200))
        };
        assert_eq!(judge((90, 110, true)).unwrap(), 4, "was on its way at the cut");
        assert_eq!(judge((190, 210, true)).unwrap(), 4, "went through after healing");
        assert_eq!(judge((110, 190, false)).unwrap(), 5);
        assert!(judge((110, 190, true)).unwrap_err().to_string().contains("acknowledged a write"));
    }
}
