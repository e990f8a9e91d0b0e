//! Attempts over ZooKeeper's protocol: connections that must not come about, sessions of others, and operations of
//! clients that have proved nothing, the wrong thing, or to be somebody with rights elsewhere.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use lockkeeper_api::Credential;
use lockkeeper_tls::ClientConfig;
use lockkeeper_zookeeper::request::{
    AddWatchRequest, CreateRequest, PathVersion, PathWatch, SetAclRequest, SetDataRequest,
};
use lockkeeper_zookeeper::{Acl, ConnectRequest, CreateMode, ErrorCode, MultiOp, MultiResult, Reply, Request};
use rand::Rng;

use super::attempts::AttackTally;
use super::certificates::{Certificates, ClientIdentity};
use super::target::{AttackTarget, NODE};
use super::tokens::{PASSWORD, PASSWORD_ELSEWHERE};
use crate::proofs::prelude::*;
use crate::proofs::zookeeper_client::ZooKeeperClient;

const TIMEOUT_MS: i32 = 10_000;
const WRONG_PASSWORD: &str = "keeper:a-guessed-password";
/// Secrets that are guessed at each node.
const GUESSES: u32 = 5;
/// The connection, or the session, does not come about.
const NOT_CONNECTED: &str = "not connected";
const CLOSED: &str = "closed";

/// How a client comes.
struct Login {
    name: String,
    /// Without TLS where there is none.
    tls: Option<Arc<ClientConfig>>,
    digest: Option<&'static str>,
}

/// Reads as the owner at each node: what is tried below would be carried out for somebody with the right to it.
pub(super) async fn owner_may(certificates: &Certificates, nodes: &[(u64, SocketAddr)]) -> Result<(), Failed> {
    let tls = Some(certificates.shared_config(ClientIdentity::Mallory)?);
    let way = Login { name: "the owner".into(), tls, digest: Some(PASSWORD) };
    let read = Request::GetData(PathWatch { path: NODE.into(), watch: false });
    for (node, address) in nodes {
        let answer = async { open(&way, *address).await?.ask(&read).await }.await;
        let refused = match answer {
            Ok(answer) => outcome_of(answer).err(),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = refused {
            return broken(format!("the owner may not read over ZooKeeper's protocol at node {node}: {why}"));
        }
    }
    Ok(())
}

/// All attempts at all nodes.
pub(super) async fn make(
    certificates: &Certificates,
    nodes: &[(u64, SocketAddr)],
    target: &AttackTarget,
    random: &mut impl Rng,
) -> Result<AttackTally, Failed> {
    let way = |identity: ClientIdentity, digest: Option<&'static str>, proves: &str| -> Result<Login, Failed> {
        let name = format!("{}{proves}", identity.name());
        Ok(Login { name, tls: Some(certificates.shared_config(identity)?), digest })
    };
    let mut kept_out = vec![Login { name: "without TLS".into(), tls: None, digest: None }];
    for identity in ClientIdentity::BAD.into_iter().chain([ClientIdentity::None]) {
        kept_out.push(way(identity, None, "")?);
    }
    let let_in = [
        way(ClientIdentity::Mallory, None, ", without addAuth")?,
        way(ClientIdentity::Member, None, ", without addAuth")?,
        way(ClientIdentity::Mallory, Some(WRONG_PASSWORD), ", with a wrong password")?,
        way(ClientIdentity::Mallory, Some(PASSWORD_ELSEWHERE), ", with rights elsewhere")?,
    ];
    let mut tally = AttackTally::default();
    for (node, address) in nodes {
        let new = ConnectRequest::new_session(TIMEOUT_MS);
        let opened = kept_out.iter().map(|way| ZooKeeperClient::connect(*address, way.tls.as_ref(), &new));
        for (way, connected) in kept_out.iter().zip(futures::future::join_all(opened).await) {
            let outcome = connected.map(drop).map_err(|_| NOT_CONNECTED.to_owned());
            tally.count(&format!("open a ZooKeeper session, {}, at node {node}", way.name), outcome, &[NOT_CONNECTED]);
        }
        let with_operations = let_in.iter().map(|way| operate(way, (*node, *address), target));
        for one in futures::future::join_all(with_operations).await {
            tally.add(one);
        }
        let mallory = certificates.shared_config(ClientIdentity::Mallory)?;
        tally.add(steal(&mallory, (*node, *address), target, random).await);
    }
    Ok(tally)
}

/// Every operation in turn. A connection that the node closes is opened again.
async fn operate(way: &Login, (node, address): (u64, SocketAddr), target: &AttackTarget) -> AttackTally {
    const REFUSED: &[&str] = &["NoAuth", "AuthFailed", CLOSED, NOT_CONNECTED];
    let (mut tally, mut client) = (AttackTally::default(), None);
    for (name, request) in operations(target) {
        let connected = match client.take() {
            Some(client) => Ok(client),
            None => open(way, address).await,
        };
        let outcome = match connected {
            Ok(mut connected) => match connected.ask(&request).await {
                Ok(answer) => {
                    client = Some(connected);
                    outcome_of(answer)
                }
                Err(_) => Err(CLOSED.to_owned()),
            },
            Err(_) => Err(NOT_CONNECTED.to_owned()),
        };
        tally.count(&format!("{name} over ZooKeeper's protocol, {}, at node {node}", way.name), outcome, REFUSED);
    }
    tally
}

async fn open(way: &Login, address: SocketAddr) -> io::Result<ZooKeeperClient> {
    let mut client =
        ZooKeeperClient::connect(address, way.tls.as_ref(), &ConnectRequest::new_session(TIMEOUT_MS)).await?;
    if let Some(digest) = way.digest {
        // Whatever it is answered: what follows is what matters.
        let _ = client.add_digest(digest).await?;
    }
    Ok(client)
}

/// Whether an operation was carried out, or the name of its error. A refused multi says so in its results.
fn outcome_of(answer: Result<Reply, i32>) -> Result<(), String> {
    let error = match answer {
        Err(number) => number,
        Ok(Reply::Multi(results)) => {
            let failed = results.iter().find_map(|result| match result {
                MultiResult::Error(number) if *number != 0 => Some(*number),
                _ => None,
            });
            failed.unwrap_or(0)
        }
        Ok(_) => 0,
    };
    match ErrorCode::from_number(error) {
        Some(ErrorCode::Ok) => Ok(()),
        Some(code) => Err(format!("{code:?}")),
        None => Err(error.to_string()),
    }
}

fn operations(target: &AttackTarget) -> Vec<(&'static str, Request)> {
    let text = || Some(Bytes::from_static(b"forged"));
    let create = |path: &str, mode: CreateMode| CreateRequest {
        path: path.into(),
        data: text(),
        acl: vec![Acl::open()],
        flags: mode.number(),
    };
    let at = |path: &str| PathVersion { path: path.into(), version: -1 };
    let watch = |path: &str| PathWatch { path: path.into(), watch: false };
    let set = || SetDataRequest { path: NODE.into(), data: text(), version: -1 };
    let queue = "/locks/watched/held/_c_7d4c2b1a-0000-4000-8000-000000000001-lock-";
    let several = vec![
        MultiOp::Create(create("/watched/forged", CreateMode::Persistent)),
        MultiOp::SetData(set()),
        MultiOp::Delete(at("/watched/other")),
    ];
    vec![
        ("create", Request::Create(create("/watched/forged", CreateMode::Persistent))),
        ("create an ephemeral node", Request::Create2(create("/watched/forged", CreateMode::Ephemeral))),
        ("create a container", Request::CreateContainer(create("/watched/forged", CreateMode::Container))),
        ("forge a request in a queue", Request::Create(create(queue, CreateMode::EphemeralSequential))),
        ("create at the top", Request::Create(create("/forged", CreateMode::Persistent))),
        ("delete", Request::Delete(at("/watched/other"))),
        ("delete a request from a queue", Request::Delete(at(&target.queue_path))),
        ("set", Request::SetData(set())),
        ("several", Request::Multi(several)),
        ("check", Request::Multi(vec![MultiOp::Check(at(NODE))])),
        ("get", Request::GetData(watch(NODE))),
        ("exists", Request::Exists(watch(NODE))),
        ("list the children", Request::GetChildren(watch("/watched"))),
        ("list the children with their stat", Request::GetChildren2(watch("/watched"))),
        ("list a queue", Request::GetChildren(watch("/locks/watched/held"))),
        ("get a list of rights", Request::GetAcl(NODE.into())),
        (
            "set a list of rights",
            Request::SetAcl(SetAclRequest { path: NODE.into(), acl: vec![Acl::open()], version: -1 }),
        ),
        ("watch", Request::AddWatch(AddWatchRequest { path: "/watched".into(), mode: 1 })),
    ]
}

/// Attaches to the owner's session with guessed secrets, and with the right one, and ends it.
async fn steal(
    tls: &Arc<ClientConfig>,
    (node, address): (u64, SocketAddr),
    target: &AttackTarget,
    random: &mut impl Rng,
) -> AttackTally {
    const REFUSED: &[&str] = &["NoAuth", "AuthFailed", "SessionExpired", CLOSED, NOT_CONNECTED];
    let mut secrets: Vec<[u8; 16]> = (0..GUESSES).map(|_| random.random()).collect();
    secrets.extend(target.credential.parse::<Credential>().map(|credential| credential.secret));
    let mut tally = AttackTally::default();
    for secret in secrets {
        let request = ConnectRequest {
            session_id: target.session.cast_signed(),
            password: Bytes::copy_from_slice(&secret),
            ..ConnectRequest::new_session(TIMEOUT_MS)
        };
        let outcome = match ZooKeeperClient::connect(address, Some(tls), &request).await {
            Ok(mut client) => match client.ask(&Request::CloseSession).await {
                Ok(answer) => outcome_of(answer),
                Err(_) => Err(CLOSED.to_owned()),
            },
            Err(_) => Err(NOT_CONNECTED.to_owned()),
        };
        tally.count(&format!("end another's session over ZooKeeper's protocol, at node {node}"), outcome, REFUSED);
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_multi_is_refused_though_its_header_says_otherwise() {
        assert_eq!(outcome_of(Ok(Reply::Empty)), Ok(()));
        assert_eq!(outcome_of(Err(-102)), Err("NoAuth".into()));
        let failed = MultiResult::of_failure(2, 1, ErrorCode::NoAuth);
        assert_eq!(outcome_of(Ok(Reply::Multi(failed))), Err("NoAuth".into()));
        assert_eq!(outcome_of(Ok(Reply::Multi(vec![MultiResult::Delete]))), Ok(()));
    }
}
