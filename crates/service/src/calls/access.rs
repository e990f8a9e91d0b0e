//! Calls of access control: show it, change it, say who the caller is and what it may do.

use std::sync::Arc;

use lockkeeper_api::Code;
use lockkeeper_api::access::{
    Access, AccessAnswer, AccessChange, AccessChanged, AccessQuestion, AccessRole, Grant, Right, Rule, TokenInfo,
    WhoAmI,
};
use lockkeeper_api::call::ReadQuery;
use lockkeeper_core::access::{ANYONE, AccessOp, Need, Rights, TOKEN_ID_DIGITS};
use lockkeeper_core::limits::{MAX_ACCESS_NAME_BYTES, MAX_PATH_BYTES, MAX_RULES};
use lockkeeper_core::{Actor, Principals, Refusal, Reply as Outcome, Session, State, Zxid, access};
use lockkeeper_node::{Consistency, NodeError};

pub(super) use super::namespaces::list_namespaces;
use super::{CallScope, level, namespaces, record, unexpected};
use crate::audit::{AuditEvent, AuthenticationMethod};
use crate::failure::Failure;
use crate::principals::{TOKEN_BYTES, hash_of_token, token_text};
use crate::reply::{Answered, Reply};
use crate::rights::{RIGHTS, resource_in, rights_in, rule_in, rule_out};

/// Digits of the hash of a token.
const TOKEN_HASH_DIGITS: usize = 64;
/// Longest life of a token: a hundred years.
const MAX_TOKEN_TTL_S: u64 = 100 * 366 * 24 * 3_600;

/// A token that a change makes.
struct NewToken {
    /// The token, if this node has drawn it, and not the caller.
    text: Option<String>,
    hash: String,
}

impl NewToken {
    /// The caller's, or one that is drawn here.
    fn new(hash: Option<String>) -> Result<Self, Failure> {
        let Some(hash) = hash else { return Ok(Self::draw()) };
        if hash.len() != TOKEN_HASH_DIGITS || !hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            let detail = format!(
                "'token_hash' is the SHA-256 of a token, {TOKEN_HASH_DIGITS} hexadecimal digits in lower case; the \
                 token itself stays with the caller"
            );
            return Err(Failure::bad_request(detail));
        }
        Ok(Self { text: None, hash })
    }

    fn draw() -> Self {
        let mut secret = [0; TOKEN_BYTES];
        rand::fill(&mut secret);
        let text = token_text(&secret);
        let hash = hash_of_token(&text);
        Self { text: Some(text), hash }
    }
}

/// The operation of a change, and the token that it makes.
fn operation(change: AccessChange) -> Result<(AccessOp, Option<NewToken>), Failure> {
    let op = match change {
        AccessChange::Enable { token_hash } => {
            let made = NewToken::new(token_hash)?;
            return Ok((AccessOp::Enable { first: Some(made.hash.as_str().into()) }, Some(made)));
        }
        AccessChange::Disable {} => AccessOp::Disable,
        AccessChange::PutRole { name, rules, version } => AccessOp::PutRole {
            name: name.into(),
            rules: rules.into_iter().map(rule_in).collect(),
            version: version.map(Zxid),
        },
        AccessChange::DeleteRole { name } => AccessOp::DeleteRole { name: name.into() },
        AccessChange::Grant { principal, role } => AccessOp::Grant { principal: principal.into(), role: role.into() },
        AccessChange::Revoke { principal, role } => AccessOp::Revoke { principal: principal.into(), role: role.into() },
        AccessChange::CreateToken { principal, ttl_s, token_hash } => {
            if ttl_s.is_some_and(|ttl_s| !(1..=MAX_TOKEN_TTL_S).contains(&ttl_s)) {
                return Err(Failure::bad_request(format!(
                    "'ttl_s' is from 1 to {MAX_TOKEN_TTL_S}; leave it out for ever"
                )));
            }
            let made = NewToken::new(token_hash)?;
            let ttl_ms = ttl_s.map(|ttl_s| ttl_s * 1_000);
            let op = AccessOp::CreateToken { hash: made.hash.as_str().into(), principal: principal.into(), ttl_ms };
            return Ok((op, Some(made)));
        }
        AccessChange::RevokeToken { id } => AccessOp::RevokeToken { id: id.into() },
        AccessChange::PutNamespace { name, owner, limits, version } => {
            namespaces::put(name, owner, &limits, version.map(Zxid))?
        }
        AccessChange::DeleteNamespace { name } => AccessOp::DeleteNamespace { name: name.into() },
    };
    Ok((op, None))
}

/// Changes access control, with an audit record.
pub(super) async fn change_access(scope: CallScope, change: AccessChange) -> Answered<AccessChanged> {
    check_lengths(&change)?;
    let (op, made) = operation(change.clone())?;
    let requester = scope.requester();
    let context = scope.context.clone();
    if !may_change(&scope, &op).await? {
        context.audit.authentication_failed(requester, AuthenticationMethod::AccessSetup);
        let detail = format!(
            "access control is off, and who sets it up first administers the cluster: only callers on a node's own \
             machine may, or with a token whose role has admin on cluster, and this one is at {}; ask there, or set \
             admin.access_setup_from = \"anywhere\" at this node",
            scope.from.address.ip().to_canonical()
        );
        return Err(Failure::new(Code::Forbidden, detail));
    }
    let answered = carry_out(scope, op, made).await;
    let change = without_hashes(change);
    let token_id = match &answered {
        Ok(Reply { body: made, .. }) => made.token_id.clone(),
        _ => None,
    };
    record(&context, AuditEvent::AccessChanged { change, token_id }, requester, &answered);
    answered
}

/// Whether the caller may make the change where access control is off and the state refuses nothing: otherwise whoever
/// reaches the node could be the administrator once it is on, and lock the others out.
async fn may_change(scope: &CallScope, op: &AccessOp) -> Result<bool, Failure> {
    let is_of_namespace = matches!(op, AccessOp::PutNamespace { .. } | AccessOp::DeleteNamespace { .. });
    if is_of_namespace || scope.context.admin.access_setup_from.allows(scope.from.is_local) {
        return Ok(true);
    }
    let principals = &scope.caller.principals;
    let may = |state: &State| may_set_up(state, principals, op);
    Ok(scope.context.node.read(Consistency::Linearizable, may).await?.value.map_err(NodeError::Refused)?)
}

/// Whether a caller on another machine may make the change, by one state: by the rights that it has there if they were
/// enforced, whether they are or not. Access control may be off by the time at which the change is applied.
fn may_set_up(state: &State, principals: &Principals, op: &AccessOp) -> Result<bool, Refusal> {
    let known = state.access();
    if known.would_allow(principals, state.clock_ms(), &cluster(Rights::ADMIN)) {
        return Ok(true);
    }
    // Where it is enforced, this is the refusal; but a caller without an answer may repeat how it was enabled.
    state.authorise(&Actor { principals: principals.clone(), ..Actor::default() }, &op.clone().into())?;
    Ok(known.is_enabled())
}

/// Bounds what is recorded, and proposed, whoever asks for it. The state checks the rest.
fn check_lengths(change: &AccessChange) -> Result<(), Failure> {
    let names: [&str; 2] = match change {
        AccessChange::Enable { token_hash } => [token_hash.as_deref().unwrap_or_default(), ""],
        AccessChange::Disable {} => ["", ""],
        AccessChange::PutRole { name, .. } | AccessChange::DeleteRole { name } => [name, ""],
        AccessChange::Grant { principal, role } | AccessChange::Revoke { principal, role } => [principal, role],
        AccessChange::CreateToken { principal, token_hash, .. } => {
            [principal, token_hash.as_deref().unwrap_or_default()]
        }
        AccessChange::RevokeToken { id } => [id, ""],
        AccessChange::PutNamespace { name, owner, .. } => [name, owner.as_deref().unwrap_or_default()],
        AccessChange::DeleteNamespace { name } => [name, ""],
    };
    let rules = match change {
        AccessChange::PutRole { rules, .. } => &rules[..],
        _ => &[],
    };
    if names.iter().any(|name| name.len() > MAX_ACCESS_NAME_BYTES) {
        return Err(Failure::bad_request(format!("a name is at most {MAX_ACCESS_NAME_BYTES} bytes long")));
    }
    let is_over = |rule: &Rule| rule.prefix.len() > MAX_PATH_BYTES || rule.rights.len() > RIGHTS.len();
    if rules.len() > MAX_RULES || rules.iter().any(is_over) {
        let detail = format!(
            "a role has at most {MAX_RULES} rules, with prefixes of at most {MAX_PATH_BYTES} bytes and each right once"
        );
        return Err(Failure::bad_request(detail));
    }
    Ok(())
}

/// The change as the audit log may have it.
fn without_hashes(change: AccessChange) -> AccessChange {
    let shown = |principal: String| access::without_hash(&principal).to_owned();
    match change {
        AccessChange::Grant { principal, role } => AccessChange::Grant { principal: shown(principal), role },
        AccessChange::Revoke { principal, role } => AccessChange::Revoke { principal: shown(principal), role },
        AccessChange::PutNamespace { name, owner, limits, version } => {
            AccessChange::PutNamespace { name, owner: owner.map(shown), limits, version }
        }
        AccessChange::Enable { .. } => AccessChange::Enable { token_hash: None },
        AccessChange::CreateToken { principal, ttl_s, .. } => {
            AccessChange::CreateToken { principal, ttl_s, token_hash: None }
        }
        other => other,
    }
}

async fn carry_out(scope: CallScope, op: AccessOp, made: Option<NewToken>) -> Answered<AccessChanged> {
    let (context, caller) = (scope.context, scope.caller);
    let done = context.node.execute(caller, op).await?;
    let Outcome::AccessChanged = done.value else { return Err(unexpected(&done.value)) };
    // To enable makes a token only where nobody could change access control otherwise. This replica has applied the
    // change.
    let made =
        made.filter(|made| context.node.look(|state| state.access().has_token_with_hash(&made.hash, state.clock_ms())));
    let body = match made {
        Some(NewToken { text, hash }) => {
            AccessChanged { token: text, token_id: Some(hash[..TOKEN_ID_DIGITS].to_owned()) }
        }
        None => AccessChanged::default(),
    };
    Ok(Reply::ok(done.zxid, body))
}

fn cluster(rights: Rights) -> Need<'static> {
    Need::of(access::Resource::Cluster, "", rights)
}

/// Whether a session goes on once access control is enforced, whatever it owns by then.
fn would_live(state: &State, session: &Session) -> bool {
    state.access().would_live(session.identity.as_ref(), false, state.clock_ms())
}

/// Shows all of access control.
pub(super) async fn get_access(scope: CallScope, query: ReadQuery) -> Answered<Access> {
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(query.consistency), move |state| {
            state.check_right(&principals, &cluster(Rights::READ.and(Rights::ADMIN)))?;
            Ok(state.clone())
        })
        .await?;
    // A clone of the state, which is cheap, is looked at outside of its lock.
    let state = read.value.map_err(NodeError::Refused)?;
    let known = state.access();
    let role = |(name, role): (&str, &lockkeeper_core::state::Role)| AccessRole {
        name: name.to_owned(),
        rules: role.rules.iter().map(rule_out).collect(),
        version: role.version.0,
    };
    let token = |(id, token): (&str, &lockkeeper_core::state::Token)| TokenInfo {
        id: id.to_owned(),
        principal: token.principal.to_string(),
        created_ms: token.created_ms,
        expires_ms: token.expires_ms,
        last_used_ms: token.last_used_ms,
    };
    let body = Access {
        enabled: known.is_enabled(),
        roles: known.roles().map(role).collect(),
        grants: known
            .grants()
            .map(|(principal, roles)| Grant {
                principal: principal.to_owned(),
                roles: roles.iter().map(|role: &Arc<str>| role.to_string()).collect(),
            })
            .collect(),
        tokens: known.tokens().map(token).collect(),
        anonymous_sessions: state.sessions().filter(|(_, session)| !would_live(&state, session)).count() as u64,
    };
    Ok(Reply::ok(read.zxid, body))
}

/// Tells the caller who it is.
pub(super) async fn who_am_i(scope: CallScope, query: ReadQuery) -> Answered<WhoAmI> {
    let (node, who) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(query.consistency), move |state| {
            let known = state.access();
            let mut principals: Vec<String> =
                known.principals_of(&who, state.clock_ms()).map(|principal| principal.into_owned()).collect();
            principals.dedup();
            let all = principals.iter().map(String::as_str).chain([ANYONE]);
            let mut roles: Vec<String> = all.flat_map(|one| known.roles_of(one)).map(ToString::to_string).collect();
            roles.sort();
            roles.dedup();
            WhoAmI { enabled: known.is_enabled(), principals, roles }
        })
        .await?;
    Ok(Reply::ok(read.zxid, read.value))
}

/// Says whether a caller may do something, and by which rule.
pub(super) async fn check_access(scope: CallScope, question: AccessQuestion) -> Answered<AccessAnswer> {
    if question.name.len() > lockkeeper_core::limits::MAX_PATH_BYTES {
        return Err(Failure::new(Code::BadRequest, "'name' is longer than any name can be"));
    }
    let (node, who) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(question.consistency), move |state| {
            let known = state.access();
            let about = match &question.principal {
                Some(other) => {
                    state.check_right(&who, &cluster(Rights::READ.and(Rights::ADMIN)))?;
                    vec![other.clone()]
                }
                None => known.principals_of(&who, state.clock_ms()).map(|principal| principal.into_owned()).collect(),
            };
            let rights = match question.right {
                Right::Backup => Rights::TO_BACK_UP,
                right => rights_in(&[right]),
            };
            let need = Need::of(resource_in(question.resource), &question.name, rights);
            let rule = about.iter().map(String::as_str).chain([ANYONE]).find_map(|one| known.rule_for(one, &need));
            let is_super = question.principal.is_none() && who.is_super();
            Ok(AccessAnswer {
                allowed: rule.is_some() || is_super || !known.is_enabled(),
                role: rule.map(|(role, _)| role.to_owned()),
                rule: rule.map(|(_, rule)| rule_out(rule)),
            })
        })
        .await?;
    Ok(Reply::ok(read.zxid, read.value.map_err(NodeError::Refused)?))
}

#[cfg(test)]
mod tests {
    use lockkeeper_config::AdminFrom;
    use lockkeeper_core::{Batch, Command, Identity, NodeId, Origin, Term};

    use super::*;

    /// Access control may be disabled between the look at the state and the change, so that it is enforced at the look
    /// is no check of the change.
    #[test]
    fn a_caller_on_another_machine_needs_the_right_whether_it_is_enforced_or_not() {
        let mut state = State::new();
        let mut sequence = 0;
        let mut apply = |state: &mut State, who: &Principals, op: AccessOp| {
            sequence += 1;
            let origin = Origin { node: NodeId(1), incarnation: 1, sequence };
            let actor = Actor { principals: who.clone(), ..Actor::default() };
            let command = Command::Do { actor, op: op.into() };
            state.apply(Term(1), &Batch::consecutive(origin, 1, vec![command])).remove(0).reply.unwrap();
        };
        let hash = hash_of_token("lk_first");
        let enable = |hash: &str| AccessOp::Enable { first: Some(hash.into()) };
        let (nobody, mut admin) = (Principals::default(), Principals::default());
        admin.identities.push(Identity { scheme: access::TOKEN.into(), id: hash.as_str().into() });
        let grant = AccessOp::Grant { principal: ANYONE.into(), role: "admin".into() };
        for op in [enable(&hash), grant.clone()] {
            assert_eq!(may_set_up(&state, &nobody, &op), Ok(false), "{op:?}");
        }
        apply(&mut state, &nobody, enable(&hash));
        for op in [enable(&hash_of_token("lk_other")), grant.clone(), AccessOp::Disable] {
            assert!(may_set_up(&state, &nobody, &op).is_err(), "{op:?}");
            assert_eq!(may_set_up(&state, &admin, &op), Ok(true), "{op:?}");
        }
        assert_eq!(may_set_up(&state, &nobody, &enable(&hash)), Ok(true), "the answer was lost");
        apply(&mut state, &admin, AccessOp::Disable);
        assert_eq!(may_set_up(&state, &nobody, &enable(&hash)), Ok(false));
        assert_eq!(may_set_up(&state, &admin, &grant), Ok(true));
        assert!(AdminFrom::Local.allows(true) && !AdminFrom::Local.allows(false) && AdminFrom::Anywhere.allows(false));
    }

    #[test]
    fn tokens_are_drawn_anew_and_known_by_their_hash() {
        let (one, other) = (NewToken::draw(), NewToken::draw());
        assert_ne!(one.hash, other.hash);
        let text = one.text.unwrap();
        assert_eq!(text.len(), 46);
        assert_eq!(one.hash, hash_of_token(&text));
        assert!(NewToken::new(Some(one.hash)).is_ok_and(|made| made.text.is_none()));
    }

    #[test]
    fn what_is_no_hash_of_a_token_is_refused() {
        let hash = hash_of_token("lk_");
        for wrong in ["", "00ff", &hash[1..], &hash.to_uppercase(), &format!("{hash}0"), &hash.replace('0', "g")] {
            assert!(NewToken::new(Some(wrong.into())).is_err(), "{wrong}");
        }
    }
}
