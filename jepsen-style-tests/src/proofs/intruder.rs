//! P14: nobody acts beyond their rights, whichever listener they come through. An intruder tries thousands of things at
//! every listener of every node of a cluster with TLS and access control, each with its expected refusal, while an
//! honest client works. Nothing may be carried out, by the answers and by the state before and after; no secret may
//! stand in a file of a node, in its metrics, in a refusal, or in what passes on the network.
//!
//! The control, a cluster without either, must let some of it through and show secrets: otherwise nothing was looked
//! at.

mod actions;
mod attempts;
mod callers;
mod certificates;
mod connections;
mod recorder;
mod secrets;
mod target;
mod tokens;
mod zookeeper;

use std::net::SocketAddr;

use reqwest::ClientBuilder;

use super::access::{TokenMade, enable, with_token};
use super::lock_cycles::{CycleWork, LockCycles};
use crate::http::client_builder;
use crate::net::Listener;
use crate::proofs::prelude::*;
use attempts::AttackTally;
use callers::{Intruder, ShownCredentials};
use certificates::{Certificates, ClientIdentity};
use recorder::RecordingProxy;
use secrets::Secrets;
use target::{AttackTarget, VisibleState};
use tokens::IssuedTokens;

/// Fewer have tried nothing.
const LEAST: usize = 2_000;
/// The honest client may wait no longer from one cycle to the next.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
const HONEST_TIMEOUT_MS: u32 = 10_000;
/// Findings of a kind that are quoted.
const QUOTED: usize = 5;
const MIB: u64 = 1024 * 1024;

pub(super) async fn run(context: &Context) -> ProofResult {
    let control = control(context).await?;
    context.log.say(format!("control: {control}"));
    let attacked = AttackedCluster::start(context).await?;
    let honest = attacked.honest().await?;
    let administrator = attacked.cluster.api(1);
    zookeeper::owner_may(&attacked.certificates, &attacked.zookeepers()).await?;
    let before = VisibleState::look(&administrator, &attacked.target).await?;
    let tally = attacked.attack(context).await;
    let after = VisibleState::look(&administrator, &attacked.target).await;
    let honest = honest.end().await;
    let judged = AttackResult {
        tally: tally?,
        changed: after?.changed_since(&before),
        honest,
        found: attacked.look_for_secrets().await?,
    };
    context.log.note(format!("{judged:?}"));
    let findings = judged.findings();
    if findings.is_empty() {
        let unchanged = before.count();
        Ok(format!("{}; {unchanged} nodes, members and settings as before; {control}", judged.describe()))
    } else {
        broken(findings.join("; "))
    }
}

/// A recorder in front of each of these listeners, by node.
async fn recorders(cluster: &Cluster, listener: Listener) -> Result<Vec<(u64, RecordingProxy)>, Failed> {
    let mut all = Vec::new();
    for node in cluster.ids() {
        all.push((node, RecordingProxy::start(cluster.net().listens(node, listener)).await?));
    }
    Ok(all)
}

/// How many secrets passed the recorders, and how many bytes.
fn recorded<'a>(recorders: impl Iterator<Item = &'a (u64, RecordingProxy)>, secrets: &Secrets) -> (usize, u64) {
    let directions = recorders.flat_map(|(_, recorder)| recorder.recorded());
    directions.fold((0, 0), |(found, bytes), passed| (found + secrets.found_in(&passed), bytes + passed.len() as u64))
}

/// The same without TLS and access control, at one node, by somebody who shows nothing.
async fn control(context: &Context) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir.join("control"), Options::default()).await?;
    let recorders = recorders(&cluster, Listener::Client).await?;
    let secrets = Secrets::default();
    let Some((node, recorder)) = recorders.first() else { return broken("there are no nodes") };
    let base = format!("http://{}", recorder.address());
    let client = client_builder().build().or_cannot_run("no client")?;
    let owner = Api::at(client.clone(), &base);
    let target = AttackTarget::set_up(&owner, &secrets).await?;
    let before = VisibleState::look(&owner, &target).await?;
    let nobody = Intruder {
        name: "nobody",
        client,
        shows: ShownCredentials::Nothing,
        session: None,
        may_read: false,
        has_role: false,
        refused: &[],
    };
    let mut random = context.random(1);
    let actions = connections::harmless(actions::actions(&target, "none"));
    let attempts = attempts::attempts(&nobody, &actions, (*node, base.as_str()), &target, &mut random);
    let tally = attempts::make(attempts, &secrets, &mut random).await;
    let changed = VisibleState::look(&owner, &target).await?.changed_since(&before).len();
    let (found, _) = recorded(recorders.iter(), &secrets);
    let (tried, carried_out) = (tally.attempts, tally.carried_out.len());
    if carried_out == 0 || changed == 0 || found == 0 {
        return broken(format!(
            "the control finds too little, so nothing is looked at: without access control and TLS {carried_out} of \
             {tried} attempts were carried out, {changed} things changed, and {found} secrets passed"
        ));
    }
    Ok(format!(
        "without access control and TLS {carried_out} of {tried} were carried out, {changed} things changed, {found} \
         secrets passed"
    ))
}

/// The cluster under attack.
struct AttackedCluster {
    cluster: Cluster,
    certificates: Certificates,
    tokens: IssuedTokens,
    secrets: Secrets,
    recorders: Vec<(u64, RecordingProxy)>,
    zookeeper_recorders: Vec<(u64, RecordingProxy)>,
    target: AttackTarget,
}

impl AttackedCluster {
    async fn start(context: &Context) -> Result<Self, Failed> {
        let directory = context.dir.join("secured");
        let certificates = Certificates::make(&context.binary, &directory).await?;
        let nobody = || certificates.builder(ClientIdentity::None);
        let client = nobody()?.build().or_cannot_run("no client")?;
        let options =
            Options { environment: certificates.environment(), tls_client: Some(client), ..Options::default() };
        let mut cluster = Cluster::start(&context.binary, &directory, options).await?;
        let secrets = Secrets::default();
        let zookeeper_recorders = recorders(&cluster, Listener::ZooKeeper).await?;
        let recorders = recorders(&cluster, Listener::Client).await?;
        let administrator = enable(&mut cluster, nobody).await?;
        let first = recorders.first().map_or_else(|| cluster.api(1).base().to_owned(), |(_, one)| secured(one));
        let tokens = make_tokens(&first, &administrator, nobody, &secrets).await?;
        let owner = Api::at(with_token(nobody()?, &tokens.owner.token)?, &first);
        let target = AttackTarget::set_up(&owner, &secrets).await?;
        Ok(Self { cluster, certificates, tokens, secrets, recorders, zookeeper_recorders, target })
    }

    /// The APIs of all nodes through the recorders, for somebody with this token.
    fn apis(&self, token: &str) -> Result<Vec<Api>, Failed> {
        let client = with_token(self.certificates.builder(ClientIdentity::None)?, token)?;
        Ok(self.recorders.iter().map(|(_, recorder)| Api::at(client.clone(), &secured(recorder))).collect())
    }

    /// The honest client, which begins to work.
    async fn honest(&self) -> Result<LockCycles, Failed> {
        let apis = self.apis(&self.tokens.honest)?;
        let Some(first) = apis.first() else { return broken("there are no nodes") };
        let opened = first.open_session(HONEST_TIMEOUT_MS, "honest").await;
        let credential = opened.or_broken("the honest client gets no session")?.value.credential;
        self.secrets.add_credential(&credential);
        Ok(LockCycles::start(apis, credential, "honest"))
    }

    /// The addresses for ZooKeeper's clients, through the recorders.
    fn zookeepers(&self) -> Vec<(u64, SocketAddr)> {
        self.zookeeper_recorders.iter().map(|(node, recorder)| (*node, recorder.address())).collect()
    }

    async fn attack(&self, context: &Context) -> Result<AttackTally, Failed> {
        let mut random = context.random(2);
        let actions = actions::actions(&self.target, &self.tokens.owner.id);
        let administrator = &self.tokens.administrator;
        let mut attempts =
            connections::attempts(&self.cluster, &self.certificates, &self.target, administrator, &mut random)?;
        for caller in callers::callers(&self.certificates, &self.tokens)? {
            for (node, recorder) in &self.recorders {
                let base = secured(recorder);
                let at = (*node, base.as_str());
                attempts.extend(attempts::attempts(&caller, &actions, at, &self.target, &mut random));
            }
        }
        context.log.say(format!("{} attempts over HTTP and at the peer listeners", attempts.len()));
        let mut tally = attempts::make(attempts, &self.secrets, &mut random).await;
        let nodes = self.zookeepers();
        let zookeeper = zookeeper::make(&self.certificates, &nodes, &self.target, &mut random).await?;
        context.log.say(format!("{} attempts over ZooKeeper's protocol", zookeeper.attempts));
        tally.add(zookeeper);
        Ok(tally)
    }

    async fn look_for_secrets(&self) -> Result<SecretsFound, Failed> {
        let mut found = SecretsFound { known: self.secrets.count(), ..SecretsFound::default() };
        for (node, api) in self.cluster.apis() {
            let (in_files, bytes) = self.secrets.found_below(self.cluster.directory(node))?;
            let metrics = api.metrics().await.or_broken(format!("node {node} gives no metrics"))?;
            found.in_files += in_files;
            found.in_metrics += self.secrets.found_in(metrics.as_bytes());
            found.bytes_of_nodes += bytes + metrics.len() as u64;
        }
        (found.on_the_network, found.bytes_recorded) =
            recorded(self.recorders.iter().chain(&self.zookeeper_recorders), &self.secrets);
        Ok(found)
    }
}

fn secured(recorder: &RecordingProxy) -> String {
    format!("https://{}", recorder.address())
}

async fn make_tokens(
    base: &str,
    administrator: &TokenMade,
    nobody: impl Fn() -> Result<ClientBuilder, Failed>,
    secrets: &Secrets,
) -> Result<IssuedTokens, Failed> {
    let api = Api::at(with_token(nobody()?, &administrator.token)?, base);
    IssuedTokens::make((&api, administrator), nobody, secrets).await
}

/// Where secrets turned up, and in how much.
#[derive(Debug, Default)]
struct SecretsFound {
    known: usize,
    in_files: usize,
    in_metrics: usize,
    on_the_network: usize,
    bytes_of_nodes: u64,
    bytes_recorded: u64,
}

/// All that is judged.
#[derive(Debug)]
struct AttackResult {
    tally: AttackTally,
    changed: Vec<String>,
    honest: CycleWork,
    found: SecretsFound,
}

impl AttackResult {
    fn findings(&self) -> Vec<String> {
        let (tally, honest, found) = (&self.tally, &self.honest, &self.found);
        let mut findings = Vec::new();
        for (what, those) in [
            ("attempts were carried out", &tally.carried_out),
            ("things changed", &self.changed),
            ("attempts were refused in another way than expected", &tally.unexpected),
            ("calls of the honest client failed", &honest.failures),
        ] {
            if !those.is_empty() {
                let quoted: Vec<&str> = those.iter().take(QUOTED).map(String::as_str).collect();
                findings.push(format!("{} {what}, such as: {}", those.len(), quoted.join(", ")));
            }
        }
        for (place, count) in [
            ("files of the nodes", found.in_files),
            ("metrics", found.in_metrics),
            ("refusals", tally.told_secrets),
            ("what passed on the network", found.on_the_network),
        ] {
            if count > 0 {
                findings.push(format!("secrets stand {count} times in {place}"));
            }
        }
        if honest.longest_pause > LONGEST_PAUSE {
            let (longest, bound) = (millis(honest.longest_pause), millis(LONGEST_PAUSE));
            findings.push(format!("the honest client paused for {longest}; {bound} are allowed"));
        }
        if tally.attempts < LEAST || honest.cycles == 0 || found.bytes_recorded == 0 || found.bytes_of_nodes == 0 {
            let tried = (tally.attempts, honest.cycles, found.bytes_recorded, found.bytes_of_nodes);
            findings.push(format!(
                "too little was tried (attempts, honest cycles, bytes recorded, bytes of the nodes): {tried:?}"
            ));
        }
        findings
    }

    fn describe(&self) -> String {
        let (honest, found) = (&self.honest, &self.found);
        let (of_nodes, passed) = (found.bytes_of_nodes.div_ceil(MIB), found.bytes_recorded.div_ceil(MIB));
        format!(
            "{} attempts at 3 nodes, 0 carried out; {} honest cycles, none failed, longest pause {}; none of {} \
             secrets in {of_nodes} MiB of the nodes and {passed} MiB of the network",
            self.tally.attempts,
            honest.cycles,
            millis(honest.longest_pause),
            found.known,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged() -> AttackResult {
        let tally = AttackTally { attempts: LEAST, ..AttackTally::default() };
        let honest = CycleWork { cycles: 1, ..CycleWork::default() };
        let found = SecretsFound { bytes_of_nodes: 1, bytes_recorded: 1, ..SecretsFound::default() };
        AttackResult { tally, changed: Vec::new(), honest, found }
    }

    #[test]
    fn each_kind_of_finding_breaks_the_promise() {
        assert!(judged().findings().is_empty());
        let spoil: [fn(&mut AttackResult); 11] = [
            |judged| judged.tally.carried_out.push("create".into()),
            |judged| judged.tally.unexpected.push("create".into()),
            |judged| judged.tally.attempts -= 1,
            |judged| judged.tally.told_secrets += 1,
            |judged| judged.changed.push("node /a is gone".into()),
            |judged| judged.honest.failures.push("no leader".into()),
            |judged| judged.honest.longest_pause = LONGEST_PAUSE * 2,
            |judged| judged.honest.cycles = 0,
            |judged| judged.found.in_files = 1,
            |judged| judged.found.in_metrics = 1,
            |judged| judged.found.on_the_network = 1,
        ];
        for (number, spoil) in spoil.iter().enumerate() {
            let mut judged = judged();
            spoil(&mut judged);
            assert_eq!(judged.findings().len(), 1, "{number}: {:?}", judged.findings());
        }
    }
}
