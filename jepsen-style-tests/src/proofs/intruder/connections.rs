//! Attempts over connections that must not come about: without TLS, with a certificate that does not count, or with a
//! client's certificate at the listener for peers. Behind TLS they show the administrator's token: not even that may
//! help.

use lockkeeper_api::access::Resource;
use rand::Rng;
use reqwest::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::actions::Action;
use super::attempts::{NO_ANSWER, WrongAttempt};
use super::callers::random_token;
use super::certificates::{Certificates, ClientIdentity};
use super::target::{AttackTarget, LOCK};
use crate::http::new_client;
use crate::net::Listener;
use crate::proofs::prelude::*;

const REFUSED: &[&str] = &[NO_ANSWER];
/// A listener with TLS says so to a client that speaks without.
const PLAIN: &[&str] = &[NO_ANSWER, "bad_request", "status 400"];
/// The peer listener's own refusals are no problem documents.
const NO_PEER: &[&str] = &[NO_ANSWER, "status 421", "status 404", "status 405"];

/// What is tried over each.
struct ConnectionTrial {
    name: &'static str,
    method: Method,
    target: String,
    body: Option<Value>,
    /// Whether it is a peer's call, by the member that it claims to come from.
    as_member: Option<u64>,
}

/// How a client connects, and how that is refused.
struct ConnectionWay {
    listener: Listener,
    scheme: &'static str,
    name: &'static str,
    client: Client,
    refused: &'static [&'static str],
}

fn trials(target: &AttackTarget) -> Vec<ConnectionTrial> {
    let plain = |name, method, target: String, body| ConnectionTrial { name, method, target, body, as_member: None };
    let break_it = format!("/v1/locks/{LOCK}/holders/{}", target.token);
    let forged = json!({ "data": { "text": "forged" } });
    let peer = |name, member| ConnectionTrial {
        as_member: Some(member),
        ..plain(name, Method::GET, "/peer/v1/calls".into(), None)
    };
    vec![
        plain("create a node", Method::POST, "/v1/nodes/watched/forged".into(), Some(forged)),
        plain("read a node", Method::GET, "/v1/nodes/watched/node".into(), None),
        plain("force the release", Method::DELETE, break_it, None),
        plain("disable access control", Method::POST, "/v1/access".into(), Some(json!({ "disable": {} }))),
        plain("remove a member", Method::DELETE, "/v1/cluster/members/3".into(), None),
        peer("call as member 1", 1),
        peer("call as member 3", 3),
    ]
}

impl ConnectionTrial {
    fn headers(&self, token: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut add = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        add(AUTHORIZATION, &format!("Bearer {token}"));
        if let Some(member) = self.as_member {
            add(CONNECTION, "Upgrade");
            add(UPGRADE, "lockkeeper-peer/1");
            add(HeaderName::from_static("lockkeeper-cluster"), "prove");
            add(HeaderName::from_static("lockkeeper-from"), &member.to_string());
        }
        headers
    }
}

/// All of them, at the nodes' own addresses: what is said without TLS has no secret in it, and what has one is not for
/// the recorder to blame on the cluster.
pub(super) fn attempts(
    cluster: &Cluster,
    certificates: &Certificates,
    target: &AttackTarget,
    administrator: &str,
    random: &mut impl Rng,
) -> Result<Vec<WrongAttempt>, Failed> {
    let client = |identity| -> Result<Client, Failed> {
        let built = certificates.builder(identity)?.build();
        built.or_cannot_run(format!("no client with {}", ClientIdentity::name(identity)))
    };
    let way = |listener, scheme, name, client, refused| ConnectionWay { listener, scheme, name, client, refused };
    let mut ways = Vec::new();
    for listener in [Listener::Client, Listener::Peer] {
        ways.push(way(listener, "http", "without TLS", new_client()?, PLAIN));
        for identity in ClientIdentity::BAD {
            ways.push(way(listener, "https", identity.name(), client(identity)?, REFUSED));
        }
    }
    let nobody = ClientIdentity::None;
    ways.push(way(Listener::Peer, "https", nobody.name(), client(nobody)?, REFUSED));
    for identity in [ClientIdentity::Mallory, ClientIdentity::Reader, ClientIdentity::Member] {
        ways.push(way(Listener::Peer, "https", identity.name(), client(identity)?, NO_PEER));
    }
    let mut all = Vec::new();
    for node in cluster.ids() {
        for way in &ways {
            for trial in trials(target) {
                let token = if way.scheme == "http" { random_token(random) } else { administrator.to_owned() };
                let address = cluster.net().listens(node, way.listener);
                all.push(WrongAttempt {
                    what: format!("{}, {}, at the {:?} listener of node {node}", trial.name, way.name, way.listener),
                    client: way.client.clone(),
                    url: format!("{}://{address}{}", way.scheme, trial.target),
                    headers: trial.headers(&token),
                    refused: way.refused.to_vec(),
                    method: trial.method,
                    body: trial.body,
                });
            }
        }
    }
    Ok(all)
}

/// The actions that do not end the cluster where they are carried out.
pub(super) fn harmless(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|action| action.resource != Resource::Cluster).collect()
}
