//! Who is let in by a node: a caller for each pair of a certificate and a trust, at the listener for clients and, as a
//! member, at that for peers. What a node trusts and which certificate it serves shows in this and nowhere else.

use std::fmt;

use futures::future::join_all;
use lockkeeper_tls::{causes, tls_failure};
use reqwest::{RequestBuilder, Response};

use super::authorities::{Authorities, Issuer, TlsState, Trust};
use crate::http::client_builder;
use crate::net::Listener;
use crate::proofs::prelude::*;
use crate::proofs::tls_cluster::CLUSTER;

const WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A connection that broke, for no reason of TLS, is tried again so often.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);
/// The code of a peer listener's refusal, and the one that blames the certificate.
const CODE_HEADER: &str = "lockkeeper-code";
const WRONG_CERTIFICATE: &str = "wrong_certificate";

/// What became of a handshake.
#[derive(Clone, Debug)]
pub(super) enum HandshakeOutcome {
    LetIn,
    /// One end refused the other's certificate.
    TurnedAway(String),
    /// The connection failed otherwise.
    Unclear(String),
}

/// What a node must be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) stage: &'static str,
    pub(super) node: u64,
    pub(super) state: TlsState,
}

/// One handshake.
#[derive(Clone, Debug)]
pub(super) struct HandshakeSeen {
    pub(super) of: Expected,
    pub(super) listener: Listener,
    pub(super) caller: TlsState,
    pub(super) outcome: HandshakeOutcome,
}

impl HandshakeSeen {
    pub(super) fn must_be_let_in(&self) -> bool {
        self.of.state.accepts(self.caller)
    }

    pub(super) fn is_as_expected(&self) -> bool {
        match self.outcome {
            HandshakeOutcome::LetIn => self.must_be_let_in(),
            HandshakeOutcome::TurnedAway(_) => !self.must_be_let_in(),
            HandshakeOutcome::Unclear(_) => false,
        }
    }
}

impl fmt::Display for HandshakeSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expected { stage, node, .. } = self.of;
        let (shows, trusts) = (self.caller.shows.name(), self.caller.trusts.name());
        let must = if self.must_be_let_in() { "let in" } else { "turned away" };
        let was = match &self.outcome {
            HandshakeOutcome::LetIn => "was let in".to_owned(),
            HandshakeOutcome::TurnedAway(why) => format!("was turned away ({why})"),
            HandshakeOutcome::Unclear(why) => format!("failed ({why})"),
        };
        write!(
            f,
            "{stage}: at the {:?} listener of node {node} a caller with a certificate of the {shows} authority that \
             trusts {trusts} must be {must} and {was}",
            self.listener
        )
    }
}

/// Makes all handshakes with a node until each has the expected outcome, or the time is over. Gives the latest of each,
/// and how long it took.
pub(super) async fn look_until(
    cluster: &Cluster,
    authorities: &Authorities,
    expected: Expected,
    within: Duration,
) -> Result<(Vec<HandshakeSeen>, Duration), Failed> {
    let begun = Instant::now();
    loop {
        let seen = look(cluster, authorities, expected).await?;
        let took = begun.elapsed();
        if took > within || seen.iter().all(HandshakeSeen::is_as_expected) {
            return Ok((seen, took));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(cluster: &Cluster, authorities: &Authorities, of: Expected) -> Result<Vec<HandshakeSeen>, Failed> {
    let mut handshakes = Vec::new();
    for listener in [Listener::Client, Listener::Peer] {
        for shows in Issuer::ALL {
            for trusts in Trust::ALL {
                let caller = TlsState { trusts, shows };
                let request = request(cluster, authorities, (of.node, listener), caller)?;
                handshakes.push(async move {
                    let outcome = shake_hands(&request).await;
                    HandshakeSeen { of, listener, caller, outcome }
                });
            }
        }
    }
    Ok(join_all(handshakes).await)
}

/// A request over a connection of its own.
fn request(
    cluster: &Cluster,
    authorities: &Authorities,
    (node, listener): (u64, Listener),
    caller: TlsState,
) -> Result<RequestBuilder, Failed> {
    let member = node % 3 + 1;
    let config = match listener {
        Listener::Peer => authorities.member(member, caller)?,
        Listener::Client | Listener::ZooKeeper => authorities.client(caller)?,
    };
    let client = client_builder().use_preconfigured_tls(config).build().or_cannot_run("no client")?;
    let base = format!("https://{}", cluster.net().listens(node, listener));
    let request = match listener {
        // Without the id of its directory this is refused, but only after the certificate was found to be the member's.
        Listener::Peer => client
            .get(format!("{base}/peer/v1/calls"))
            .header("lockkeeper-cluster", CLUSTER)
            .header("lockkeeper-from", member.to_string()),
        Listener::Client | Listener::ZooKeeper => client.get(format!("{base}/healthz")),
    };
    Ok(request.timeout(WITHIN))
}

async fn shake_hands(request: &RequestBuilder) -> HandshakeOutcome {
    let mut outcome = HandshakeOutcome::Unclear("nothing was sent".into());
    for _ in 0..TRIES {
        let Some(again) = request.try_clone() else { break };
        outcome = match again.send().await {
            Ok(response) => answered(&response),
            Err(error) => match tls_failure(&error) {
                Some(why) => HandshakeOutcome::TurnedAway(why),
                None => HandshakeOutcome::Unclear(
                    causes(&error).map(|cause| cause.to_string()).collect::<Vec<_>>().join(": "),
                ),
            },
        };
        if !matches!(outcome, HandshakeOutcome::Unclear(_)) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    outcome
}

fn answered(response: &Response) -> HandshakeOutcome {
    let code = response.headers().get(CODE_HEADER).and_then(|code| code.to_str().ok());
    if code == Some(WRONG_CERTIFICATE) {
        HandshakeOutcome::TurnedAway(WRONG_CERTIFICATE.into())
    } else {
        HandshakeOutcome::LetIn
    }
}
