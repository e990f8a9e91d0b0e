//! Compares everything that can be read of the state with the model.

use lockkeeper_checkers::name::{is_kept_place, parse};
use lockkeeper_core::*;

use super::access;
use super::bounds;
use super::naive::Model;

/// Removes the texts of refusals: the model says what is refused, not in which words.
pub(crate) fn without_words(outcome: &mut Outcome) {
    if let Err(refusal) = &mut outcome.reply {
        silence(refusal);
    }
}

fn silence(refusal: &mut Refusal) {
    match refusal {
        Refusal::BadArguments(words)
        | Refusal::InvalidAcl(words)
        | Refusal::Forbidden(words)
        | Refusal::NotThere(words)
        | Refusal::LockMismatch { detail: words, .. }
        | Refusal::ForeignNames { detail: words, .. } => {
            *words = "".into();
        }
        Refusal::MultiFailed { cause, .. } => silence(cause),
        _ => {}
    }
}

pub(crate) fn states(state: &State, model: &Model) {
    assert_eq!(state.zxid().0, model.zxid);
    assert_eq!(state.clock_ms(), model.clock);
    assert_eq!(state.feature_level().0, model.level);
    assert_eq!(state.cluster_uid(), model.cluster_uid);
    assert_eq!(state.bytes(), bounds::size(model));
    assert_eq!(state.node_count(), model.nodes.len());
    let namespaces: Vec<_> = state.namespaces().collect();
    let expected = model.namespaces.iter().map(|(name, namespace)| (&**name, namespace, bounds::usage(model, name)));
    assert_eq!(namespaces, expected.collect::<Vec<_>>());
    assert_eq!(state.ephemeral_count(), model.nodes.values().filter(|n| n.owner.is_some()).count());
    for (path, node) in &model.nodes {
        let at = NodePath::parse(path).unwrap();
        let view = state.get(&at).unwrap_or_else(|| panic!("{path} is not there"));
        assert_eq!(
            (view.data.bytes(), view.stat, view.kind),
            (node.data.as_deref(), model.stat(path), node.kind),
            "{path}"
        );
        assert_eq!(view.acl, &node.acl[..], "{path}");
        readers(view.acl, path);
        let children: Vec<String> = state.children(&at).unwrap().map(|name| name.to_string()).collect();
        assert_eq!(children, model.children(path), "{path}");
        standing(state, model, &at);
    }
    sessions(state, model);
    locks(state, model);
    reapable(state, model);
    gates(state, model);
    for (node, (incarnation, applied)) in &model.origins {
        let recent = state.batches_applied(NodeId(*node));
        assert_eq!(recent.len(), applied.len().min(8));
        for (kept, (sequence, outcomes)) in recent.iter().rev().zip(applied.iter().rev()) {
            assert_eq!((kept.origin.incarnation, kept.origin.sequence), (*incarnation, *sequence));
            let mut kept = kept.outcomes.to_vec();
            kept.iter_mut().for_each(without_words);
            assert_eq!(&kept, outcomes);
        }
    }
}

/// Who may look at a node, and at its list: that is asked by those who show it.
fn readers(acl: &[AclEntry], path: &str) {
    if acl == [AclEntry::open()] && path != "/" {
        return; // most are, and one of them is enough
    }
    for number in 0..access::CALLERS {
        let who = access::caller(number);
        for wanted in [1, 2, 4, 8, 16, 17, 0].map(Permissions) {
            assert_eq!(who.may(wanted, acl), access::may(&who, wanted, acl), "{path}: {who:?} {wanted:?} {acl:?}");
        }
    }
}

fn standing(state: &State, model: &Model, at: &NodePath) {
    let expected = match parse(at.name()) {
        None => Standing::Gone,
        Some(_) => match model.blocker(at.as_str()) {
            Some(blocker) => Standing::Waits { blocker: NodePath::parse(&blocker).unwrap() },
            None => Standing::Holds { token: FencingToken(model.nodes[at.as_str()].czxid) },
        },
    };
    assert_eq!(state.standing(at), expected, "{at}");
}

fn sessions(state: &State, model: &Model) {
    let ids: Vec<u64> = state.sessions().map(|(id, _)| id.0).collect();
    assert_eq!(ids, model.sessions.keys().copied().collect::<Vec<_>>());
    for (id, expected) in &model.sessions {
        let session = state.session(SessionId(*id)).unwrap();
        assert_eq!(session.timeout_ms, expected.timeout_ms);
        assert_eq!(*session.label, *expected.label);
        assert_eq!(session.secret_hash, expected.secret_hash);
        assert_eq!(session.opened_ms, expected.opened_ms);
        assert_eq!((session.acted.0, session.attachment.0), (expected.acted, expected.attachment));
        let own: Vec<String> = session.ephemerals().map(|path| path.to_string()).collect();
        assert_eq!(own, model.owned(*id));
        let memory = model.memory.get(id).map_or(&[][..], |memory| memory);
        assert_eq!(session.remembered_count(), memory.len());
        for (request, _, answer) in memory {
            let mut kept = state.remembered_reply(SessionId(*id), *request).unwrap().clone();
            let mut expected = answer.clone();
            for answer in [&mut kept, &mut expected] {
                answer.as_mut().err().into_iter().for_each(silence);
            }
            assert_eq!(kept, expected);
        }
        let held = state.held_by(SessionId(*id)).map(|request| request.path.to_string());
        let own = model.owned(*id).into_iter().filter(|path| path.starts_with("/locks/"));
        let own = own.filter(|path| path.matches('/').count() > 2 && parse(path).is_some());
        let expected = own.filter(|path| model.blocker(path).is_none());
        assert_eq!(held.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

fn locks(state: &State, model: &Model) {
    let mut expected = Vec::new();
    for directory in model.nodes.keys().filter(|path| path.starts_with("/locks/")) {
        let lock = LockName::parse(&directory["/locks/".len()..]).unwrap();
        let queue = model.queue(directory);
        let requests: Vec<LockRequest> = state.lock(&lock).unwrap().requests().collect();
        assert_eq!(requests.len(), queue.len());
        let mut holders = 0;
        for (request, (child, name)) in requests.iter().zip(&queue) {
            let path = format!("{directory}/{child}");
            let node = &model.nodes[&path];
            assert_eq!(request.path.as_str(), path);
            let permits = name.mode.permits();
            assert_eq!((request.sequence, request.mode.is_exclusive()), (name.sequence, name.mode.is_exclusive()));
            assert_eq!((request.permits, request.mode.permits()), (permits, permits));
            let until_ms = is_kept_place(child).then(|| model.due_at(&path).unwrap());
            assert_eq!(request.delayed_until_ms, until_ms);
            assert!(until_ms.is_some() || request.delay_ms == name.delay_ms);
            assert_eq!((request.token.0, request.since_ms), (node.czxid, node.ctime));
            assert_eq!(request.session.map(|s| s.0), node.owner);
            assert_eq!(request.label.as_bytes(), node.data.as_deref().unwrap_or_default());
            assert_eq!(request.standing, state.standing(&request.path));
            let holds = model.blocker(&path).is_none();
            assert_eq!(state.verify(&lock, request.token), holds && until_ms.is_none());
            assert_eq!(request.holds, model.holds.get(&path).copied().unwrap_or(1));
            holders += usize::from(holds);
        }
        if !queue.is_empty() {
            expected.push(LockSummary { name: lock, holders, waiters: queue.len() - holders });
        }
    }
    assert_eq!(state.locks("", None, usize::MAX), expected);
    for (at, lock) in expected.iter().enumerate() {
        let after = state.locks("l", Some(&lock.name), 1);
        let next = expected[at + 1..].iter().find(|other| other.name.as_str().starts_with('l'));
        assert_eq!(after.first(), next);
    }
}

fn gates(state: &State, model: &Model) {
    for at in model.nodes.keys().filter_map(|path| path.strip_prefix("/gates/")) {
        let key = GateKey::parse(at).unwrap();
        let mut standing = state.gate(&key);
        standing.as_mut().err().into_iter().for_each(silence);
        assert_eq!(standing, model.gate(&key), "{key}");
    }
}

fn reapable(state: &State, model: &Model) {
    for now in [model.clock, model.clock + 3_000, model.clock + 20_000] {
        let mut expected: Vec<(u64, &String)> = model
            .nodes
            .keys()
            .filter_map(|path| Some((model.due_at(path)?, path)))
            .filter(|(at, _)| *at <= now)
            .collect();
        expected.sort();
        let expected: Vec<&str> = expected.iter().map(|(_, path)| path.as_str()).collect();
        let got = state.reapable(now, usize::MAX);
        assert_eq!(got.iter().map(NodePath::as_str).collect::<Vec<_>>(), expected);
    }
    let delays = model.nodes.keys().filter(|path| is_kept_place(path.rsplit('/').next().unwrap()));
    assert_eq!(state.next_delay_end_ms(), delays.filter_map(|path| model.due_at(path)).min());
}
