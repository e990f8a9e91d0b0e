//! Replies, events and state as text.

use std::fmt::Write as _;

use lockkeeper_core::*;

pub(crate) fn outcome(outcome: &Outcome) -> String {
    let mut text = match &outcome.reply {
        Ok(reply) => format!("  zxid {}: {}\n", outcome.zxid, self::reply(reply)),
        Err(refusal) => format!("  zxid {}: refused: {refusal}\n", outcome.zxid),
    };
    for event in &outcome.events {
        writeln!(text, "    {}", self::event(event)).unwrap();
    }
    text
}

pub(crate) fn reply(reply: &Reply) -> String {
    match reply {
        Reply::SessionOpened { session, timeout_ms } => format!("session {session} opened, timeout {timeout_ms} ms"),
        Reply::SessionClosed => "session closed".into(),
        Reply::Added(sum) => format!("the number is {sum}"),
        Reply::PermitsTaken { granted, leased, available, wait_ms } => {
            format!("{granted} requests granted, {leased} permits leased, {available} left, wait {wait_ms} ms")
        }
        Reply::SessionsExpired(sessions) => format!("sessions expired: {}", join(sessions)),
        Reply::Reaped(paths) => format!("reaped: {}", join(paths)),
        Reply::Created { path, stat } => format!("created {path}: {}", self::stat(stat)),
        Reply::Deleted => "deleted".into(),
        Reply::DataSet(stat) => format!("data set: {}", self::stat(stat)),
        Reply::AclSet(stat) => format!("ACL set: {}", self::stat(stat)),
        Reply::Checked => "checked".into(),
        Reply::Multi(replies) => {
            let parts: Vec<String> = replies.iter().map(|r| format!("\n    - {}", self::reply(r))).collect();
            format!("all done:{}", parts.concat())
        }
        Reply::Queued { paths, token, held } => {
            format!("{} with token {token} as {}", if *held { "holds" } else { "waits" }, join(paths))
        }
        Reply::Claimed { versions } => format!("claimed, versions {}", join(versions)),
        Reply::Downgraded { path } => format!("downgraded to {path}"),
        Reply::Gate(standing) => gate(standing),
        Reply::GateSettled => "gate settled".into(),
        Reply::GateReset { token, was_done } => {
            format!("gate reset, which was {} with token {token}", if *was_done { "done" } else { "in progress" })
        }
        Reply::AccessChanged => "access control changed".into(),
        Reply::FeatureLevel(level) => format!("feature level {level}"),
        Reply::ClusterUid(uid) => format!("the cluster is {uid}"),
        Reply::SessionAttached { attachment, timeout_ms } => {
            format!("attached as {attachment}, timeout {timeout_ms} ms")
        }
        Reply::Withdrawn => "withdrawn".into(),
        Reply::HeldInstead => "holds instead".into(),
        Reply::Released => "released".into(),
        Reply::Reentered { path, token, holds } => format!("re-entered {path}, token {token}: held {holds} times"),
        Reply::StillHeld { holds } => format!("released once, still held {holds} times"),
        Reply::ForceReleased { holder } => format!("taken from session {holder}"),
    }
}

pub(crate) fn gate(standing: &GateStanding) -> String {
    match standing {
        GateStanding::Proceed { token, until_ms } => format!("proceed with token {token} until {until_ms}"),
        GateStanding::InProgress { token, session, label, since_ms, until_ms } => {
            let session = session.map_or("nobody's session".into(), |session| format!("session {session}"));
            format!("in progress with token {token} of {session} {label:?} since {since_ms} until {until_ms}")
        }
        GateStanding::Done { token, result, since_ms, until_ms } => {
            let result = String::from_utf8_lossy(result);
            let until = if *until_ms == gate::FOREVER_MS { "for ever".into() } else { format!("until {until_ms}") };
            format!("done with token {token}: {result:?} since {since_ms} {until}")
        }
    }
}

pub(crate) fn event(event: &Event) -> String {
    match event {
        Event::Node { zxid, kind, path, .. } => {
            let what = match kind {
                NodeEventKind::Created => "created",
                NodeEventKind::Deleted => "deleted",
                NodeEventKind::DataChanged => "data changed",
                NodeEventKind::ChildrenChanged => "children changed",
            };
            format!("@{zxid} {what} {path}")
        }
        Event::ForcedDeletion { zxid, path, token } => format!("@{zxid} taken by force: {path} with token {token}"),
        Event::SessionOpened { zxid, session, timeout_ms } => {
            format!("@{zxid} session {session} opened, {timeout_ms} ms")
        }
        Event::SessionAttached { zxid, session } => format!("@{zxid} session {session} attached"),
        Event::SessionEnded { zxid, session, cause } => format!("@{zxid} session {session} ended: {cause:?}"),
    }
}

pub(crate) fn stat(stat: &Stat) -> String {
    let owner = stat.ephemeral_owner.map_or(String::new(), |owner| format!(" owner {owner}"));
    format!(
        "c{} m{} p{} v{}.{}.{} ctime {} mtime {} bytes {} children {}{owner}",
        stat.czxid,
        stat.mzxid,
        stat.pzxid,
        stat.version,
        stat.cversion,
        stat.aversion,
        stat.ctime_ms,
        stat.mtime_ms,
        stat.data_length,
        stat.num_children
    )
}

/// The namespaces with limits, and what each uses.
pub(crate) fn namespaces(state: &State) -> String {
    let shown = |limit: Option<u64>| limit.map_or("any".into(), |limit| limit.to_string());
    let line = |(name, namespace, used): (&str, &Namespace, NamespaceUsage)| {
        let Namespace { owner, limits, version } = namespace;
        let owner = owner.as_ref().map_or(String::new(), |owner| format!(" of {owner}"));
        format!(
            "  {name}{owner} v{version}: {} of {} sessions, {} of {} lock requests, {} of {} nodes, {} of {} bytes\n",
            used.sessions,
            shown(limits.sessions),
            used.lock_requests,
            shown(limits.lock_requests),
            used.nodes,
            shown(limits.nodes),
            used.bytes,
            shown(limits.bytes)
        )
    };
    state.namespaces().map(line).collect()
}

/// The tree from a path down, one line a node.
pub(crate) fn tree(state: &State, path: &NodePath) -> String {
    let Some(node) = state.get(path) else { return format!("  {path}: no node\n") };
    let kind = match node.kind {
        NodeKind::Persistent => String::new(),
        NodeKind::Ephemeral => " ephemeral".into(),
        NodeKind::Container => " container".into(),
        NodeKind::Ttl { ttl_ms } => format!(" ttl {ttl_ms}"),
    };
    let data = node.data.bytes().map(String::from_utf8_lossy);
    let data = data.map_or("null".into(), |data| format!("{data:?}"));
    let mut text = format!("  {path}{kind} {data} {}\n", stat(&node.stat));
    for name in state.children(path).unwrap() {
        text.push_str(&tree(state, &path.child(name).unwrap()));
    }
    text
}

pub(crate) fn lock(state: &State, name: &LockName) -> String {
    let Some(view) = state.lock(name) else { return format!("  no lock {name}\n") };
    let mut text = format!("  {} of {} hold\n", view.holders(), view.len());
    for request in view.requests() {
        let LockRequest { path, token, sequence, mode, permits, delay_ms, delayed_until_ms, .. } = request;
        let LockRequest { session, label, since_ms, standing, holds, .. } = request;
        assert_eq!(state.standing(&path), standing);
        let is_held = matches!(standing, Standing::Holds { .. }) && delayed_until_ms.is_none();
        assert_eq!(state.verify(name, token), is_held);
        assert_eq!(mode.permits(), permits);
        let delay = match (delay_ms, delayed_until_ms) {
            (0, _) => String::new(),
            (_, None) => format!(" delay {delay_ms}"),
            (_, Some(until_ms)) => format!(" delayed until {until_ms}"),
        };
        let standing = match standing {
            Standing::Holds { token } if holds > 1 => format!("holds {holds} times with {token}"),
            Standing::Holds { token } => format!("holds with {token}"),
            Standing::Waits { blocker } => format!("waits for {}", blocker.name()),
            Standing::Gone => "gone".into(),
        };
        let session = session.map_or("nobody".into(), |s| format!("session {s}"));
        writeln!(text, "  {sequence} {mode:?} token {token} {session} {label:?}{delay} since {since_ms}: {standing}")
            .unwrap();
    }
    text
}

pub(crate) fn join<T: std::fmt::Display>(things: &[T]) -> String {
    let things: Vec<String> = things.iter().map(T::to_string).collect();
    if things.is_empty() { "none".into() } else { things.join(" ") }
}
