//! P14 when rights are taken away: a token is revoked while its holder works by every way, at every node. Nothing that
//! is begun later than a second afterwards may succeed, its sessions end, its lock is free, and another principal goes
//! on undisturbed. The same holds for an identity of ZooKeeper's digest scheme whose role is taken away. Before that,
//! access control goes off and on again, which a prepared client must not notice.

mod attempt_log;
mod holder;

use lockkeeper_api::access::{AccessChange, Resource, Right};

use super::access::{Administrator, TokenMade, enable, rule, with_token};
use super::lock_cycles::LockCycles;
use crate::http::client_builder;
use crate::proofs::prelude::*;
use attempt_log::{AttemptLog, Latest};
use holder::{DIGEST, Holder};

/// After a revocation nothing that begins later than this succeeds, and sessions end within it.
const PROMISED: Duration = Duration::from_secs(1);
/// What the end of a session may take longer here: others load this machine, and it is asked for over HTTP.
const MARGIN: Duration = Duration::from_secs(1);
/// The holder works for so long before, and goes on trying for so long after.
const BEFORE: Duration = Duration::from_millis(1_500);
const AFTER: Duration = Duration::from_secs(3);
/// The bystander may wait no longer from one cycle to the next.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How often access control goes off and on again, and how long it stays so.
const SWITCHES: u32 = 2;
const SWITCHED: Duration = Duration::from_millis(500);
const SESSION_TIMEOUT_MS: u32 = 30_000;
const ROLE: &str = "worker";

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    enable(&mut cluster, || Ok(client_builder())).await?;
    let administrator = Administrator::at(cluster.api(1));
    roles(&administrator).await?;
    prepare(&cluster).await?;
    let bystander = Bystander::start(&cluster, &administrator).await?;
    switch_off_and_on(&cluster, &administrator).await?;
    let (mut latest, mut ends) = (Latest::default(), Vec::new());
    for round in 1..=rounds {
        let one = one_round(context, &cluster, &administrator, round).await;
        let (of_round, longest_end) = one.or_broken(format!("round {round}"))?;
        latest.merge(of_round);
        ends.push(longest_end);
    }
    let bystander = bystander.end().await?;
    let longest = ends.into_iter().max().unwrap_or_default();
    Ok(format!(
        "{SWITCHES} times off and on again; {rounds} revocations; latest success, begun after it: {latest}; all \
         sessions had ended and locks were free after at most {}; {bystander}",
        millis(longest)
    ))
}

/// Access control goes off and on again while the bystander works, which has a token and must not notice. A caller
/// without a token shows that it went off and on.
async fn switch_off_and_on(cluster: &Cluster, administrator: &Administrator) -> Result<(), Failed> {
    let client = client_builder().build().or_cannot_run("no client")?;
    for _ in 0..SWITCHES {
        for (change, gets_in) in [(AccessChange::Disable {}, true), (AccessChange::Enable { token_hash: None }, false)]
        {
            administrator.change(change).await?;
            for (node, api) in cluster.apis() {
                let stranger = Api::at(client.clone(), api.base());
                let opened = stranger.open_session(SESSION_TIMEOUT_MS, "stranger").await;
                if opened.is_ok() != gets_in {
                    let (is_in, must) = (if gets_in { "out" } else { "in" }, if gets_in { "off" } else { "on" });
                    return broken(format!("node {node} lets strangers {is_in} although access control is {must}"));
                }
            }
            tokio::time::sleep(SWITCHED).await;
        }
    }
    Ok(())
}

async fn roles(administrator: &Administrator) -> Result<(), Failed> {
    use Resource::{Locks, Nodes};
    use Right::{Acquire, Read, Write};
    let works = vec![rule(Locks, ROLE, &[Acquire, Read]), rule(Nodes, "/worker", &[Read, Write])];
    administrator.role(ROLE, works, &[]).await?;
    let goes_on = vec![rule(Locks, "bystander", &[Acquire, Read]), rule(Nodes, "/bystander", &[Read, Write])];
    administrator.role("bystander", goes_on, &["bystander"]).await
}

/// The nodes that are written to.
async fn prepare(cluster: &Cluster) -> Result<(), Failed> {
    let api = cluster.api(1);
    for path in ["/worker", "/worker/zookeeper", "/worker/http-1", "/worker/http-2", "/worker/http-3", "/bystander"] {
        api.create(path, &Create::default(), None)
            .await
            .or_broken(format!("the administrator cannot create {path}"))?;
    }
    Ok(())
}

/// The APIs of all nodes for the holder of a token.
fn apis(cluster: &Cluster, token: &TokenMade) -> Result<Vec<(u64, Api)>, Failed> {
    let client = with_token(client_builder(), &token.token)?;
    Ok(cluster.apis().into_iter().map(|(node, api)| (node, Api::at(client.clone(), api.base()))).collect())
}

/// Gives when which way succeeded last, and how long the slowest end of a session, or of a hold, took.
async fn one_round(
    context: &Context,
    cluster: &Cluster,
    administrator: &Administrator,
    round: u32,
) -> Result<(Latest, Duration), Failed> {
    let principal = format!("worker-{round}");
    for name in [principal.as_str(), DIGEST] {
        administrator.change(AccessChange::Grant { principal: name.into(), role: ROLE.into() }).await?;
    }
    let token = administrator.token(&principal, None).await?;
    let log = AttemptLog::default();
    let holder = Holder::start(cluster, &token, &log, round).await?;
    tokio::time::sleep(BEFORE).await;
    holder.still_holds(&cluster.api(1)).await?;

    administrator.revoke_token(&token).await?;
    let revoked = Instant::now();
    let role = AccessChange::Revoke { principal: DIGEST.into(), role: ROLE.into() };
    administrator.change(role).await?;
    let taken_away = Instant::now();

    let ended = holder.until_ended(cluster, (revoked, taken_away), PROMISED + MARGIN).await;
    tokio::time::sleep_until((taken_away + AFTER).into()).await;
    let stopped = holder.stop().await;
    let ended = ended?;
    stopped?;
    let latest = log.judge(|way| if way == holder::ZOOKEEPER { taken_away } else { revoked }, PROMISED)?;
    context.log.say(format!("round {round}: {latest}; the last session had ended after {}", millis(ended)));
    Ok((latest, ended))
}

/// Another principal, over HTTP at all nodes and over a stream.
struct Bystander {
    cycles: LockCycles,
    log: AttemptLog,
    stream: Tasks<bool>,
}

impl Bystander {
    async fn start(cluster: &Cluster, administrator: &Administrator) -> Result<Self, Failed> {
        let token = administrator.token("bystander", None).await?;
        let apis = apis(cluster, &token)?;
        let Some((_, first)) = apis.first() else { return broken("there are no nodes") };
        let opened =
            first.open_session(SESSION_TIMEOUT_MS, "bystander").await.or_broken("the bystander gets no session")?.value;
        let streaming =
            first.open_session(SESSION_TIMEOUT_MS, "bystander").await.or_broken("the bystander gets no session")?.value;
        let (log, mut stream) = (AttemptLog::default(), Tasks::default());
        let work = holder::StreamWork {
            node: 1,
            address: holder::client_address(cluster, 1),
            session: streaming.session_id,
            credential: streaming.credential,
            token: token.token,
            path: "/bystander".into(),
        };
        stream.start(|stop| work.work(log.clone(), stop));
        let apis = apis.into_iter().map(|(_, api)| api).collect();
        Ok(Self { cycles: LockCycles::start(apis, opened.credential, "bystander"), log, stream })
    }

    /// What it did; every failure breaks the promise.
    async fn end(self) -> ProofResult {
        let work = self.cycles.end().await;
        let is_open = self.stream.end().await?.contains(&true);
        let (succeeded, failures) = self.log.of_somebody_undisturbed();
        let closed = (!is_open).then(|| "its stream is not open at the end".to_owned());
        let failures: Vec<String> = work.failures.into_iter().chain(failures).chain(closed).collect();
        if !failures.is_empty() {
            let quoted: Vec<&str> = failures.iter().take(5).map(String::as_str).collect();
            return broken(format!("the bystander failed {} times, such as: {}", failures.len(), quoted.join(", ")));
        }
        if work.cycles == 0 || succeeded == 0 || work.longest_pause > LONGEST_PAUSE {
            return broken(format!(
                "the bystander did not go on: {} cycles, {succeeded} calls of its stream, longest pause {}, of {} \
                 allowed",
                work.cycles,
                millis(work.longest_pause),
                millis(LONGEST_PAUSE)
            ));
        }
        Ok(format!(
            "another principal did {} cycles and {succeeded} calls of its stream meanwhile, none failed, longest pause \
             {}",
            work.cycles,
            millis(work.longest_pause)
        ))
    }
}
