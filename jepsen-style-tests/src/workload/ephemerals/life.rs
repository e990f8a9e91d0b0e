//! One session, from its opening to its end of one of three kinds.

use lockkeeper_client::api::Call;
use lockkeeper_client::api::nodes::{Changed, Deleted, Kind, VersionQuery};
use lockkeeper_client::recipes::Membership;

use super::{CLOSE, CREATE, DELETE, DIRECTORIES, GONE, GROUP, Owned, SessionGone, list};
use crate::http::{Api, Failure, HttpCall};
use crate::workload::client_kit::{ATTEMPT, end, sure_once, sure_recipe};
use crate::workload::lock_client;
use crate::workload::prelude::*;

/// How long a silent session is looked at.
const LOOK: Duration = Duration::from_secs(12);

/// Whose hands a session is in.
enum Keeper {
    /// The library's.
    Library(Session),
    /// Kept alive by hand through that node and no other.
    Pinned { node: Api, credential: String },
}

struct SessionWithNodes {
    id: u64,
    keeper: Keeper,
    paths: Vec<String>,
    membership: Option<Membership>,
}

/// One session from beginning to end.
pub(super) async fn live(kit: &mut ClientKit, by_library: bool) {
    let opened = if by_library { open_library(kit).await } else { open_pinned(kit).await };
    let Some(mut life) = opened else {
        kit.think(50..100).await;
        return;
    };
    for number in 0..kit.rng.random_range(2..5_usize) {
        life.create(kit, number).await;
    }
    life.join(kit).await;
    let turns = kit.rng.random_range(1..6);
    for _ in 0..turns {
        if !life.keep(kit).await {
            break;
        }
        if kit.chance(20) {
            life.delete(kit).await;
        }
        let directory = DIRECTORIES[kit.rng.random_range(0..DIRECTORIES.len())];
        list(kit, directory).await;
    }
    match kit.rng.random_range(0..100) {
        0..40 => life.close(kit).await,
        40..80 => life.fall_silent(kit).await,
        _ => life.vanish(kit),
    }
}

async fn open_library(kit: &mut ClientKit) -> Option<SessionWithNodes> {
    let session = kit.session().await?;
    lock_client::follow(&session, &kit.context.recorder);
    Some(SessionWithNodes { id: session.id(), keeper: Keeper::Library(session), paths: Vec::new(), membership: None })
}

async fn open_pinned(kit: &mut ClientKit) -> Option<SessionWithNodes> {
    let node = kit.any();
    let sent_us = boot_us();
    let ttl_ms = u32::try_from(kit.context.ttl.as_millis()).unwrap_or(u32::MAX);
    let opened = node.open_session(ttl_ms, &format!("client {}", kit.context.client)).await.ok()?.value;
    tell_sure(&kit.context.recorder, opened.session_id, sent_us, opened.timeout_ms);
    let keeper = Keeper::Pinned { node, credential: opened.credential };
    Some(SessionWithNodes { id: opened.session_id, keeper, paths: Vec::new(), membership: None })
}

fn tell_sure(recorder: &Recorder, session: u64, sent_us: u64, timeout_ms: u32) {
    // Rounded down: a part of a millisecond is nobody's promise.
    let until_ms = sent_us / 1_000 + u64::from(timeout_ms);
    recorder.note(ops::SURE, &AliveUntil { session, until_ms }, None);
}

impl SessionWithNodes {
    fn owned(&self, path: &str) -> Owned {
        Owned { session: self.id, path: path.to_owned() }
    }

    async fn create(&mut self, kit: &mut ClientKit, number: usize) {
        let path = format!("{}/s{}-{number}", DIRECTORIES[number % 2], self.id);
        let begun = kit.context.recorder.begin(CREATE, &self.owned(&path));
        self.paths.push(path.clone());
        let create = Create { kind: Kind::Ephemeral, data: Data::from_bytes(b"here"), ..Create::default() };
        match &self.keeper {
            Keeper::Library(session) => {
                let made = session.client().create(&path, &create).await;
                end(begun, made.map(|made| ((), Some(made.zxid))), sure);
            }
            Keeper::Pinned { node, credential } => {
                let call = self.call(credential, Call::CreateNode { path: path.clone(), body: create });
                let made = node.send::<Changed>(&call).await;
                end(begun, made.map(|made| ((), Some(made.value.zxid))), sure_once);
            }
        }
    }

    fn call(&self, credential: &str, call: Call) -> HttpCall {
        let (credential, request_id) = (Some(credential.to_owned()), Some(Uuid::new_v4()));
        HttpCall { call, credential, request_id, within: ATTEMPT }
    }

    /// The recipe's way into the group.
    async fn join(&mut self, kit: &mut ClientKit) {
        let Keeper::Library(session) = &self.keeper else { return self.create_member(kit).await };
        let Ok(group) = session.group(GROUP) else { return };
        let name = format!("s{}-m", self.id);
        let path = format!("{GROUP}/{name}");
        let begun = kit.context.recorder.begin(CREATE, &self.owned(&path));
        match group.join(&name, b"here").await {
            Ok(membership) => {
                self.paths.push(path);
                begun.ok(&(), None);
                self.membership = Some(membership);
            }
            Err(error) => {
                // It removes what it may have made, in the background.
                sure_recipe(&error).end(begun, &error.to_string());
                self.tell_that_it_may_go(kit, &path);
            }
        }
    }

    async fn create_member(&mut self, kit: &mut ClientKit) {
        let path = format!("{GROUP}/s{}-m", self.id);
        let Keeper::Pinned { node, credential } = &self.keeper else { return };
        let begun = kit.context.recorder.begin(CREATE, &self.owned(&path));
        let create = Create { kind: Kind::Ephemeral, ..Create::default() };
        let call = self.call(credential, Call::CreateNode { path: path.clone(), body: create });
        let made = node.send::<Changed>(&call).await;
        end(begun, made.map(|made| ((), Some(made.value.zxid))), sure_once);
        self.paths.push(path);
    }

    /// What a recipe does in the background is a deletion that somebody asked for.
    fn tell_that_it_may_go(&self, kit: &ClientKit, path: &str) {
        kit.context.recorder.begin(DELETE, &self.owned(path)).info("left to the background");
    }

    /// Deletes one of its nodes before its time.
    async fn delete(&mut self, kit: &mut ClientKit) {
        let Some(path) = self.paths.first().filter(|path| !path.starts_with(GROUP)).cloned() else { return };
        let begun = kit.context.recorder.begin(DELETE, &self.owned(&path));
        match &self.keeper {
            Keeper::Library(session) => {
                let gone = session.client().delete(&path, None).await;
                end(begun, gone.map(|gone| ((), Some(gone.zxid))), sure);
            }
            Keeper::Pinned { node, credential } => {
                let call = Call::DeleteNode { path: path.clone(), query: VersionQuery::default() };
                let gone = node.send::<Deleted>(&self.call(credential, call)).await;
                end(begun, gone.map(|gone| ((), Some(gone.value.zxid))), sure_once);
            }
        }
        self.paths.remove(0);
    }

    /// Some time goes by in which it is kept alive; false if it is over, or cannot be kept alive any more.
    async fn keep(&self, kit: &mut ClientKit) -> bool {
        let pause_ms = u64::try_from(kit.context.ttl.as_millis() / 4).unwrap_or(500).max(2);
        let goes_on = kit.think(pause_ms / 2..pause_ms).await;
        match &self.keeper {
            Keeper::Library(session) => goes_on && !session.left().is_zero(),
            Keeper::Pinned { node, credential } => {
                let sent_us = boot_us();
                match node.keepalive(credential, ATTEMPT).await {
                    Ok(kept) => {
                        tell_sure(&kit.context.recorder, self.id, sent_us, kept.value.timeout_ms);
                        goes_on
                    }
                    Err(Failure::Refused(problem)) => {
                        let node = node.clone();
                        self.look_after(kit, &node, &problem.code.to_string(), boot_us()).await;
                        false
                    }
                    Err(_) => goes_on,
                }
            }
        }
    }

    async fn close(mut self, kit: &mut ClientKit) {
        let begun = kit.context.recorder.begin(CLOSE, &SessionRef { session: self.id });
        match &self.keeper {
            Keeper::Library(session) => {
                let closed = session.close().await;
                end(begun, closed.map(|()| ((), None)), sure);
            }
            Keeper::Pinned { node, credential } => {
                let (node, closed) = (node.clone(), node.close_session(credential).await);
                let came = closed.as_ref().map(|_| boot_us()).ok();
                end(begun, closed.map(|closed| ((), closed.zxid)), sure_once);
                if let Some(said_us) = came {
                    self.look_after(kit, &node, "closed", said_us).await;
                }
            }
        }
        // Only now: while the session lived, this would have left the group.
        self.membership = None;
    }

    /// Nobody keeps it alive any more; looks at it until a node says that it is gone.
    async fn fall_silent(mut self, kit: &mut ClientKit) {
        self.let_membership_go(kit);
        kit.context.recorder.note(ops::ABANDONED, &SessionRef { session: self.id }, None);
        let credential = match &self.keeper {
            Keeper::Library(session) => session.credential().to_string(),
            Keeper::Pinned { credential, .. } => credential.clone(),
        };
        let node = kit.any();
        // The library's keeper stops with the last handle.
        self.keeper = Keeper::Pinned { node: node.clone(), credential };
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < LOOK && kit.think(10..30).await {
            let looked = tokio::time::timeout(ATTEMPT, node.session(self.id)).await;
            if let Ok(Err(Failure::Refused(problem))) = looked
                && problem.code == Code::NotFound
            {
                return self.look_after(kit, &node, "not_found", boot_us()).await;
            }
        }
    }

    /// As if its process had been killed.
    fn vanish(mut self, kit: &ClientKit) {
        self.let_membership_go(kit);
        kit.context.recorder.note(ops::ABANDONED, &SessionRef { session: self.id }, None);
    }

    fn let_membership_go(&mut self, kit: &ClientKit) {
        if self.membership.take().is_some() {
            let path = format!("{GROUP}/s{}-m", self.id);
            self.tell_that_it_may_go(kit, &path);
        }
    }

    /// A node said that the session is over: asks that very node, as its replica stands, for what it had owned.
    async fn look_after(&self, kit: &ClientKit, node: &Api, how: &str, said_us: u64) {
        let (mut standing, mut asked) = (Vec::new(), 0);
        for path in &self.paths {
            match tokio::time::timeout(ATTEMPT, node.get_stale(path)).await {
                Ok(Ok(found)) => {
                    asked += 1;
                    if found.value.stat.ephemeral_owner == Some(self.id) {
                        standing.push(path.clone());
                    }
                }
                Ok(Err(Failure::Refused(_))) => asked += 1,
                _ => {}
            }
        }
        let revived = match &self.keeper {
            Keeper::Pinned { credential, .. } => node.keepalive(credential, ATTEMPT).await.is_ok(),
            Keeper::Library(_) => false,
        };
        let gone = SessionGone {
            session: self.id,
            at: node.base().to_owned(),
            how: how.to_owned(),
            said_us,
            asked,
            standing,
            revived,
        };
        kit.context.recorder.note(GONE, &gone, None);
    }
}
