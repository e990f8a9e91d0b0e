//! The authority of a cluster's certificates is replaced under load: at all nodes, one after the other, first both
//! authorities are trusted, then each certificate and its key become ones of the new authority, then the new authority
//! alone is trusted. No request of an honest client may fail, no session end and no leader be elected; after each step
//! every node lets in exactly those that it must. Half a certificate in between changes nothing but a metric. At the
//! end all connections between peers are broken: the new ones have nothing but the new certificates.
//!
//! All nodes but one are told by SIGHUP. That one has to find out by itself that its files have changed.

mod authorities;
mod handshakes;
mod honest;
mod judge;

use std::io;

use crate::http::{client_builder, metric_sum};
use crate::net::{Endpoint, LinkFault};
use crate::proofs::prelude::*;
use authorities::{Authorities, Issuer, TlsState, Trust};
use handshakes::{Expected, HandshakeSeen, look_until};
use honest::HonestClients;
use judge::{LISTENERS, PeersReconnected, ReloadFailed, RotationResult};

/// New files must be in use so soon after SIGHUP, and so soon after a change alone: a node looks at them every 5 s, and
/// the first look may find a certificate without its key.
const BY_SIGNAL: Duration = Duration::from_secs(5);
const BY_CHANGE: Duration = Duration::from_secs(12);
/// The honest clients work undisturbed for so long before and after, and between the steps.
const CALM: Duration = Duration::from_millis(500);
/// Connections between peers are reset for so long.
const RESET_FOR: Duration = Duration::from_millis(100);
/// Then the cluster must be well again within this.
const WELL_WITHIN: Duration = Duration::from_secs(15);
const CHANGE_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);
const RELOAD_FAILED: &str = "lockkeeper_tls_reload_failed";

pub(super) async fn run(context: &Context) -> ProofResult {
    let mut rotation = Rotation::start(context).await?;
    let honest = HonestClients::start(&rotation.cluster, &rotation.authorities, TlsState::BEFORE).await?;
    let (_, term) = rotation.cluster.leader().await?;
    rotation.look_at_all("before", TlsState::BEFORE).await?;
    tokio::time::sleep(CALM).await;
    let reload_failed = rotation.replace_all(context, &honest).await?;
    let statuses = rotation.cluster.statuses(false).await;
    let honest = honest.end(&rotation.cluster.api(1)).await;
    context.log.say("the honest clients have ended; now all connections between peers are broken");
    let judged = RotationResult {
        honest,
        term,
        terms_after: statuses.into_iter().map(|status| (status.node_id, status.term)).collect(),
        reload_failed,
        peers: rotation.reconnect_peers().await?,
        handshakes: rotation.handshakes,
        by_signal: rotation.by_signal,
        by_change: rotation.by_change,
    };
    context.log.note(format!("{judged:?}"));
    let findings = judged.findings();
    if findings.is_empty() { Ok(judged.describe()) } else { broken(findings.join("; ")) }
}

/// The cluster, and what was seen of it.
struct Rotation {
    cluster: Cluster,
    authorities: Authorities,
    /// The node that gets no SIGHUP.
    untold: u64,
    handshakes: Vec<HandshakeSeen>,
    by_signal: Duration,
    by_change: Duration,
}

/// The harness's own client.
fn client(authorities: &Authorities, state: TlsState) -> Result<reqwest::Client, Failed> {
    client_builder().use_preconfigured_tls(authorities.client(state)?).build().or_cannot_run("no client")
}

impl Rotation {
    async fn start(context: &Context) -> Result<Self, Failed> {
        let authorities = Authorities::make(&context.binary, &context.dir).await?;
        let options = Options {
            environment: Authorities::environment(),
            tls_client: Some(client(&authorities, TlsState::BEFORE)?),
            ..Options::behind_proxies(3).await?
        };
        let cluster = Cluster::start(&context.binary, &context.dir, options).await?;
        let untold = context.random(1).random_range(1..=3);
        context.log.say(format!("node {untold} gets no SIGHUP"));
        let (by_signal, by_change) = (Duration::ZERO, Duration::ZERO);
        Ok(Self { cluster, authorities, untold, handshakes: Vec::new(), by_signal, by_change })
    }

    /// All steps, and half a certificate in between.
    async fn replace_all(&mut self, context: &Context, honest: &HonestClients) -> Result<ReloadFailed, Failed> {
        self.replace("with both authorities", TlsState::BUNDLED, |files, node| files.give_authority(node, Trust::Both))
            .await?;
        self.restart_clients(honest, TlsState::BUNDLED).await?;
        context.log.say("all nodes and clients trust both authorities");

        let during = self.half_a_certificate().await?;
        context.log.say(format!("half a certificate: {RELOAD_FAILED} counts {during} listeners"));

        let reissue = |files: &Authorities, node| files.give_certificate(node, Issuer::New);
        self.replace("with new certificates", TlsState::REISSUED, reissue).await?;
        self.restart_clients(honest, TlsState::REISSUED).await?;
        let mut after = 0;
        for node in self.cluster.ids() {
            after += self.listeners_with_bad_files(node, 0).await?;
        }
        context.log.say("all nodes and clients have certificates of the new authority");

        self.replace("with the new authority alone", TlsState::AFTER, |files, node| {
            files.give_authority(node, Trust::New)
        })
        .await?;
        self.restart_clients(honest, TlsState::AFTER).await?;
        let (by_signal, by_change) = (millis(self.by_signal), millis(self.by_change));
        context.log.say(format!(
            "all nodes and clients trust the new authority alone; new files were in use {by_signal} after SIGHUP and \
             {by_change} after a change alone"
        ));
        Ok(ReloadFailed { during, after })
    }

    /// Replaces files at one node after the other. The next one has its turn when the handshakes show that they are in
    /// use, or should be.
    async fn replace(
        &mut self,
        stage: &'static str,
        state: TlsState,
        give: impl Fn(&Authorities, u64) -> io::Result<()>,
    ) -> Result<(), Failed> {
        for node in self.cluster.ids() {
            give(&self.authorities, node)?;
            let expected = Expected { stage, node, state };
            if node == self.untold {
                let took = self.look(expected, BY_CHANGE).await?;
                self.by_change = self.by_change.max(took);
            } else {
                self.cluster.signal(node, Signal::SIGHUP);
                let took = self.look(expected, BY_SIGNAL).await?;
                self.by_signal = self.by_signal.max(took);
            }
        }
        Ok(())
    }

    /// Replaces the files of all clients, the harness's own included.
    async fn restart_clients(&mut self, honest: &HonestClients, state: TlsState) -> Result<(), Failed> {
        honest.restart(&self.cluster, &self.authorities, state).await?;
        self.cluster.ask_with(&client(&self.authorities, state)?);
        tokio::time::sleep(CALM).await;
        Ok(())
    }

    /// Half a certificate at a node, which must go on with the old one. Gives how many listeners it blames it for.
    async fn half_a_certificate(&mut self) -> Result<u64, Failed> {
        let told = self.cluster.ids().into_iter().find(|node| *node != self.untold);
        let Some(node) = told else { return broken("there are no nodes") };
        self.authorities.give_half_certificate(node)?;
        self.cluster.signal(node, Signal::SIGHUP);
        let listeners = self.listeners_with_bad_files(node, LISTENERS).await?;
        let expected = Expected { stage: "with half a certificate", node, state: TlsState::BUNDLED };
        self.look(expected, BY_SIGNAL).await?;
        Ok(listeners)
    }

    /// How many listeners of a node cannot use a file, as soon as it is so many, or else when the time is over.
    async fn listeners_with_bad_files(&self, node: u64, expected: u64) -> Result<u64, Failed> {
        let begun = Instant::now();
        loop {
            let text = self.cluster.api(node).metrics().await.or_broken(format!("node {node} gives no metrics"))?;
            let Some(failed) = metric_sum(&text, RELOAD_FAILED) else {
                return broken(format!("node {node} has no metric {RELOAD_FAILED}"));
            };
            let failed = failed as u64;
            if failed == expected || begun.elapsed() > BY_SIGNAL {
                return Ok(failed);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn look(&mut self, expected: Expected, within: Duration) -> Result<Duration, Failed> {
        let (seen, took) = look_until(&self.cluster, &self.authorities, expected, within).await?;
        self.handshakes.extend(seen);
        Ok(took)
    }

    async fn look_at_all(&mut self, stage: &'static str, state: TlsState) -> Result<(), Failed> {
        for node in self.cluster.ids() {
            self.look(Expected { stage, node, state }, BY_SIGNAL).await?;
        }
        Ok(())
    }

    /// Breaks all connections between peers, and waits until each node has taken a change and all have the same state.
    /// An election is allowed now: for a moment nobody reaches anybody.
    async fn reconnect_peers(&self) -> Result<PeersReconnected, Failed> {
        let before = self.broken_connections().await;
        for node in self.cluster.ids() {
            self.cluster.set_links_of(node, LinkFault::Reset).await?;
        }
        tokio::time::sleep(RESET_FOR).await;
        self.cluster.net().heal().await?;
        let begun = Instant::now();
        let mut failures = Vec::new();
        for node in self.cluster.ids() {
            if let Err(why) = self.takes_a_change(node, begun).await {
                failures.push(format!("node {node} takes no change: {why}"));
            }
        }
        if let Err(failed) = self.cluster.agree(WELL_WITHIN).await {
            failures.push(failed.to_string());
        }
        let (broken, took) = (self.broken_connections().await - before, begun.elapsed());
        Ok(PeersReconnected { broken, took, failures })
    }

    async fn broken_connections(&self) -> u64 {
        let mut sum = 0;
        for from in self.cluster.ids() {
            for to in self.cluster.ids() {
                sum += self.cluster.net().passed(Endpoint::Node(from), to).await.reset;
            }
        }
        sum
    }

    /// Tries it at this node until it succeeds.
    async fn takes_a_change(&self, node: u64, begun: Instant) -> Result<(), String> {
        let api = self.cluster.api(node);
        for attempt in 1_u32.. {
            let path = format!("/rotated-{node}-{attempt}");
            match api.create_within(&path, &Create::default(), None, CHANGE_WITHIN).await {
                Ok(_) => break,
                Err(failure) if begun.elapsed() > WELL_WITHIN => return Err(failure.to_string()),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
        Ok(())
    }
}
