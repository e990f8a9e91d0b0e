//! Asks every member of a cluster for its status and its metrics: the endpoints that were named, then the members that
//! these name and that have not answered yet.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use lockkeeper_api::cluster::{ClusterIdentity, Member, Status};
use lockkeeper_client::{Client, Endpoint, Error};

use crate::scrape::Metrics;

/// The remedy where endpoints belong to several clusters.
pub(crate) const ONE_CLUSTER: &str = "name the endpoints of one cluster; stop nodes of a cluster that was replaced";
/// More members than this are not asked.
const MOST_MEMBERS: usize = 64;

/// What one endpoint answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) endpoint: Endpoint,
    /// Whether it was named on the command line.
    pub(crate) is_named: bool,
    pub(crate) status: Result<Status, Error>,
    /// Empty if it did not answer.
    pub(crate) metrics: Metrics,
    /// This machine's wall clock at the time of the metrics, in seconds since 1970.
    pub(crate) asked_unix_s: f64,
}

impl Answer {
    pub(crate) fn node(&self) -> Option<u64> {
        self.status.as_ref().ok().map(|status| status.node_id)
    }
}

/// What all of them answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) answers: Vec<Answer>,
}

impl Survey {
    /// Asks. An endpoint that does not answer within `limit` counts as unreachable.
    pub(crate) async fn take(client: &Client, limit: Duration) -> Self {
        let named = client.endpoints().iter().map(|endpoint| ask(client, endpoint.clone(), true, limit));
        let mut answers = join_all(named).await;
        let others: Vec<Endpoint> = Self { answers: answers.clone() }.not_asked();
        let others = others.into_iter().map(|endpoint| ask(client, endpoint, false, limit));
        answers.extend(join_all(others).await);
        Self { answers }
    }

    /// The members that answered, each once, by node id.
    pub(crate) fn statuses(&self) -> BTreeMap<u64, &Status> {
        let statuses = self.answers.iter().filter_map(|answer| answer.status.as_ref().ok());
        let mut by_node = BTreeMap::new();
        statuses.for_each(|status| {
            by_node.entry(status.node_id).or_insert(status);
        });
        by_node
    }

    /// An answer of each member that answered.
    pub(crate) fn members(&self) -> BTreeMap<u64, &Answer> {
        let mut by_node = BTreeMap::new();
        for answer in &self.answers {
            if let Some(node) = answer.node() {
                by_node.entry(node).or_insert(answer);
            }
        }
        by_node
    }

    /// The answer of the member that knows most: the leader of the latest term, or else the one that has applied most.
    pub(crate) fn best(&self) -> Option<&Status> {
        self.statuses().into_values().max_by_key(|status| (status.leading, status.term, status.applied_index))
    }

    /// See [`several_clusters`].
    pub(crate) fn several_clusters(&self) -> Option<String> {
        several_clusters(self.answers.iter().filter_map(|it| Some((&it.endpoint, it.status.as_ref().ok()?))))
    }

    /// The addresses of members that have not answered under another one.
    fn not_asked(&self) -> Vec<Endpoint> {
        let (answered, mut found) = (self.members(), BTreeMap::<u64, Endpoint>::new());
        for answer in &self.answers {
            let Ok(status) = &answer.status else { continue };
            let missing = status.members.iter().filter(|member| !answered.contains_key(&member.node_id));
            for (node, endpoint) in missing.filter_map(|member| endpoint_of(member, &answer.endpoint)) {
                if !self.answers.iter().any(|answer| answer.endpoint == endpoint) {
                    found.entry(node).or_insert(endpoint);
                }
            }
        }
        found.into_values().take(MOST_MEMBERS).collect()
    }
}

/// The clusters of these nodes with their endpoints, if there is more than one.
pub(crate) fn several_clusters<'a>(nodes: impl IntoIterator<Item = (&'a Endpoint, &'a Status)>) -> Option<String> {
    let nodes: Vec<(&Endpoint, &Status)> = nodes.into_iter().collect();
    let (mut clusters, mut unclear) = (BTreeMap::<ClusterIdentity, Vec<&str>>::new(), Vec::new());
    for (endpoint, status) in &nodes {
        match status.cluster_uid.is_none() && nodes.iter().any(|(_, known)| may_learn_uid(status, known)) {
            true => unclear.push(endpoint.as_str()),
            false => clusters.entry(status.identity()).or_default().push(endpoint.as_str()),
        }
    }
    if clusters.len() < 2 {
        return None;
    }
    let named = clusters.iter().map(|(cluster, endpoints)| {
        let without = if cluster.uid.is_none() { " without a uid" } else { "" };
        format!("{cluster}{without} ({})", endpoints.join(", "))
    });
    let named: Vec<String> = named.collect();
    let unclear = if unclear.is_empty() { String::new() } else { format!("; no uid yet: {}", unclear.join(", ")) };
    Some(format!("the endpoints belong to {} clusters: {}{unclear}", named.len(), named.join("; ")))
}

/// Whether a node without a uid may learn that of the other's cluster: it is in no cluster yet, or they share a member.
fn may_learn_uid(status: &Status, known: &Status) -> bool {
    let is_known = |member: &Member| {
        let mut known = known.members.iter();
        known.any(|known| (known.node_id, &known.peer_address) == (member.node_id, &member.peer_address))
    };
    known.cluster_uid.is_some()
        && known.cluster == status.cluster
        && (status.members.is_empty() || status.members.iter().any(is_known))
}

/// The endpoint of a member, with TLS if the one that named the member has it.
fn endpoint_of(member: &Member, named_by: &Endpoint) -> Option<(u64, Endpoint)> {
    let scheme = if named_by.is_tls() { "https" } else { "http" };
    let endpoint = Endpoint::parse(&format!("{scheme}://{}", member.client_address.as_ref()?)).ok()?;
    Some((member.node_id, endpoint))
}

async fn ask(client: &Client, endpoint: Endpoint, is_named: bool, limit: Duration) -> Answer {
    let metrics = async {
        let before = unix_s();
        let text = client.metrics_of(&endpoint, limit).await;
        (text, f64::midpoint(before, unix_s()))
    };
    let (status, (metrics, asked_unix_s)) = futures::join!(client.status_of(&endpoint, false, limit), metrics);
    let metrics = metrics.map(|text| Metrics::parse(&text)).unwrap_or_default();
    Answer { endpoint, is_named, status, metrics, asked_unix_s }
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64())
}
