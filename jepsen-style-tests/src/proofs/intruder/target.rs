//! What is attacked: a lock that somebody holds, a gate under way, nodes, and the session that has them.

use lockkeeper_api::access::TokenInfo;
use lockkeeper_api::gates::{Begin, Gate, GateView};
use lockkeeper_api::{Call, Data};

use super::secrets::Secrets;
use crate::http::HttpCall;
use crate::proofs::prelude::*;

/// Far longer than a run.
const TIMEOUT_MS: u32 = 600_000;
const WITHIN: Duration = Duration::from_secs(10);
/// The lock that is held, and the gate under way, as one part of a URL.
pub(super) const LOCK: &str = "watched%2Fheld";
pub(super) const GATE: &str = "watched%2Fgate";
/// The node with data.
pub(super) const NODE: &str = "/watched/node";
const LOCK_NAME: &str = "watched/held";
const GATE_NAME: &str = "watched/gate";
/// What changes all the time belongs to the honest client, or to ZooKeeper's own nodes.
const NOT_WATCHED: [&str; 2] = ["/locks/honest", "/zookeeper"];

/// See the module's text.
pub(super) struct AttackTarget {
    /// The credential of the session.
    pub(super) credential: String,
    pub(super) session: u64,
    /// The token of the grant.
    pub(super) token: u64,
    /// The node of the lock request.
    pub(super) queue_path: String,
    /// The token of the gate.
    pub(super) gate_token: u64,
}

fn not_had(failure: Failure) -> Failed {
    Failed::Broken(format!("the owner of what is attacked cannot set it up: {failure}"))
}

impl AttackTarget {
    /// Sets it up, as its owner.
    pub(super) async fn set_up(owner: &Api, secrets: &Secrets) -> Result<Self, Failed> {
        let opened = owner.open_session(TIMEOUT_MS, "owner").await.map_err(not_had)?.value;
        let credential = opened.credential;
        secrets.add_credential(&credential);
        for (path, text) in [("/watched", "top"), (NODE, "data of the owner"), ("/watched/other", "more")] {
            let body = Create { data: Data::Text(text.into()), ..Create::default() };
            owner.create(path, &body, Some(&credential)).await.map_err(not_had)?;
        }
        let held = owner.acquire(&credential, LOCK_NAME, &Acquire::default(), WITHIN).await.map_err(not_had)?.value;
        let body = Begin { fingerprint: "owner".into(), pending_ms: Some(TIMEOUT_MS.into()), ..Begin::default() };
        let call = Call::BeginGate { key: GATE_NAME.into(), body };
        let begin = HttpCall { call, credential: Some(credential.clone()), request_id: None, within: WITHIN };
        let gate: GateView = owner.send(&begin).await.map_err(not_had)?.value;
        let Gate::Proceed { token: gate_token, .. } = gate.gate else {
            return broken(format!("a new gate does not let its owner proceed: {gate:?}"));
        };
        let (session, token, queue_path) = (opened.session_id, held.token, held.path);
        Ok(Self { credential, session, token, queue_path, gate_token })
    }
}

/// All that must not change, as the administrator sees it: one line for each thing, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VisibleState(BTreeMap<String, String>);

impl VisibleState {
    /// Looks at it. The node that is asked must have applied everything that was answered before.
    pub(super) async fn look(administrator: &Api, target: &AttackTarget) -> Result<Self, Failed> {
        let unseen = |failure: Failure| Failed::Broken(format!("the state cannot be read: {failure}"));
        let mut lines = BTreeMap::new();
        let mut left = vec!["/".to_owned()];
        while let Some(path) = left.pop() {
            let node = match administrator.get(&path, WITHIN).await {
                Ok(node) => node.value,
                // An empty directory of a lock, or something of the honest client.
                Err(failure) if failure.code() == Some(Code::NoNode) => continue,
                Err(failure) => return Err(unseen(failure)),
            };
            let (stat, data, acl) = (node.stat, node.data, node.acl);
            let (created, changed, owner) = (stat.czxid, stat.mzxid, stat.ephemeral_owner);
            let line = format!("{:?} {data:?} {acl:?} {created} {changed} {owner:?}", node.kind);
            lines.insert(format!("node {path}"), line);
            let (names, _) = administrator.children_stale(&path).await.map_err(unseen)?;
            let below = names.iter().map(|name| format!("{}/{name}", path.trim_end_matches('/')));
            left.extend(below.filter(|path| !NOT_WATCHED.iter().any(|skipped| path.starts_with(skipped))));
        }
        let members = administrator.status(false).await.map_err(unseen)?.value.members;
        for member in members {
            let (peer, client, role) = (member.peer_address, member.client_address, member.role);
            lines.insert(format!("member {}", member.node_id), format!("{peer} {client:?} {role:?}"));
        }
        match administrator.access().await.map(|answer| answer.value) {
            Ok(access) => {
                // The hour of a token's last use is recorded a while after it was shown, also by refused callers.
                let tokens = access.tokens.into_iter().map(|token| TokenInfo { last_used_ms: None, ..token });
                let tokens: Vec<TokenInfo> = tokens.collect();
                let (enabled, roles, grants) = (access.enabled, access.roles, access.grants);
                lines.insert("access".into(), format!("{enabled} {roles:?} {grants:?} {tokens:?}"));
            }
            Err(failure) => return Err(unseen(failure)),
        }
        let held = match administrator.verify(LOCK_NAME, target.token, WITHIN).await {
            Ok(verified) => verified.value.held,
            Err(Failure::Refused(_)) => false,
            Err(failure) => return Err(unseen(failure)),
        };
        lines.insert(format!("lock {LOCK_NAME}"), format!("held with token {}: {held}", target.token));
        let open = match administrator.session(target.session).await {
            Ok(_) => true,
            Err(Failure::Refused(_)) => false,
            Err(failure) => return Err(unseen(failure)),
        };
        lines.insert(format!("session {}", target.session), format!("open: {open}"));
        Ok(Self(lines))
    }

    /// How many things there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// What is not as it was.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<String> {
        let now = |name: &String| self.0.get(name).map_or("gone", String::as_str);
        let changed = before.0.iter().filter(|(name, was)| now(name) != was.as_str());
        let mut changed: Vec<String> =
            changed.map(|(name, was)| format!("{name} was {was} and is {}", now(name))).collect();
        let new = self.0.iter().filter(|(name, _)| !before.0.contains_key(*name));
        changed.extend(new.map(|(name, line)| format!("{name} is new: {line}")));
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(lines: &[(&str, &str)]) -> VisibleState {
        VisibleState(lines.iter().map(|(name, line)| ((*name).to_owned(), (*line).to_owned())).collect())
    }

    #[test]
    fn what_is_new_gone_or_different_is_told() {
        let before = visible(&[("node /a", "1"), ("node /b", "1"), ("member 3", "x")]);
        assert!(before.changed_since(&before).is_empty());
        let after = visible(&[("node /a", "1"), ("node /b", "2"), ("node /c", "1")]);
        let changed = after.changed_since(&before);
        assert_eq!(changed.len(), 3, "{changed:?}");
        assert!(changed.iter().any(|line| line == "member 3 was x and is gone"), "{changed:?}");
        assert!(changed.iter().any(|line| line == "node /c is new: 1"), "{changed:?}");
    }
}
