//! `zk-ephemerals`: the same through ZooKeeper's protocol. Sessions are closed, fall silent, move to another node by
//! their id and password, or vanish; half of them use one node and no other. After a session fell silent, a client
//! polls one node until the session's nodes are gone: from then on none of them may be there, and that node must not
//! let the session in again.

use rand::seq::IndexedRandom as _;
use tokio::time::Instant;
use zookeeper_client::{Client, Error, SessionInfo};

use super::{CLOSE, CREATE, DELETE, DIRECTORIES, GONE, GROUP, LIST, Listed, Owned, SessionGone, check};
use crate::workload::client_kit::end;
use crate::workload::prelude::*;
use crate::workload::zookeeper::visit::{EPHEMERAL, Leave, PERSISTENT, SessionOver, Visit, sure, zxid};

/// How long a silent session is looked at.
const LOOK: Duration = Duration::from_secs(12);

/// The workload.
#[derive(Debug)]
pub(in crate::workload) struct ZooKeeperEphemeralsWorkload;

#[async_trait]
impl Workload for ZooKeeperEphemeralsWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "zk-ephemerals",
            about: "sessions of ZooKeeper's clients that are closed, move, fall silent or are killed, and the \
                ephemeral nodes they owned",
            promises: "P5 P6 P7 P10",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut kit = ClientKit::new(context)?;
        let mut lookouts = Lookouts::default();
        while !kit.context.stop.is_cancelled() {
            live(&mut kit, &mut lookouts).await;
        }
        for visit in lookouts.0.into_values() {
            visit.close().await;
        }
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let mut kit = ClientKit::new(context)?;
        for directory in DIRECTORIES {
            super::list(&mut kit, directory).await;
        }
        Ok(())
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        check::all(run)
    }
}

/// Sessions that only look, one at each node: what a node says is known to come from it.
#[derive(Default)]
struct Lookouts(BTreeMap<String, Visit>);

impl Lookouts {
    async fn at(&mut self, kit: &mut ClientKit, node: &str) -> Option<&Client> {
        if self.0.get(node).is_none_or(Visit::is_over) {
            let visit = Visit::begin(kit, &[node.to_owned()], Leave::Closes).await?;
            self.0.insert(node.to_owned(), visit);
        }
        self.0.get(node).map(|visit| &visit.client)
    }
}

/// What a session comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionFate {
    Closed,
    /// Taken up at another node, and then closed.
    Moved,
    Silent,
    Vanished,
}

struct ZooKeeperSession {
    visit: Visit,
    /// What it has been told that it has.
    paths: Vec<String>,
}

/// One session from beginning to end.
async fn live(kit: &mut ClientKit, lookouts: &mut Lookouts) {
    let all = kit.context.zookeepers.clone();
    let Some(one) = all.choose(&mut kit.rng).cloned() else { return };
    let nodes = if kit.chance(50) { vec![one.clone()] } else { all };
    let fate = match kit.rng.random_range(0..100) {
        0..30 => SessionFate::Closed,
        30..45 => SessionFate::Moved,
        45..80 => SessionFate::Silent,
        _ => SessionFate::Vanished,
    };
    let leave = if fate == SessionFate::Closed { Leave::Closes } else { Leave::Dies };
    let Some(visit) = Visit::begin(kit, &nodes, leave).await else { return };
    let mut life = ZooKeeperSession { visit, paths: Vec::new() };
    life.furnish(kit).await;
    for _ in 0..kit.rng.random_range(1..6) {
        if !life.keep(kit).await {
            break;
        }
        if kit.chance(20) {
            life.delete(kit).await;
        }
        life.list(kit).await;
    }
    match fate {
        _ if life.visit.is_over() => {}
        SessionFate::Closed => life.close(kit, lookouts, (nodes.len() == 1).then_some(one)).await,
        SessionFate::Moved => life.go_on(kit).await,
        SessionFate::Silent => life.fall_silent(kit, lookouts, one).await,
        SessionFate::Vanished => drop(life.visit.end().await),
    }
}

impl ZooKeeperSession {
    fn owned(&self, path: &str) -> Owned {
        Owned { session: self.visit.session, path: path.to_owned() }
    }

    /// Makes what it owns.
    async fn furnish(&mut self, kit: &mut ClientKit) {
        for directory in DIRECTORIES {
            while self.visit.client.mkdir(directory, &PERSISTENT).await.is_err() {
                if self.visit.is_over() || !kit.think(20..50).await {
                    return;
                }
            }
        }
        for number in 0..kit.rng.random_range(2..5_usize) {
            self.create(kit, format!("{}/s{}-{number}", DIRECTORIES[number % 2], self.visit.session)).await;
        }
        self.create(kit, format!("{GROUP}/s{}-m", self.visit.session)).await;
    }

    async fn create(&mut self, kit: &ClientKit, path: String) {
        let begun = kit.context.recorder.begin(CREATE, &self.owned(&path));
        let sent_us = boot_us();
        let made = self.visit.client.create(&path, b"here", &EPHEMERAL).await;
        if end(begun, made.map(|(stat, _)| ((), Some(zxid(stat.czxid)))), sure).is_some() {
            self.visit.acknowledged(sent_us);
            self.paths.push(path);
        }
    }

    /// Deletes one of its nodes before its time.
    async fn delete(&mut self, kit: &ClientKit) {
        if self.paths.len() < 2 {
            return;
        }
        let path = self.paths.remove(0);
        let begun = kit.context.recorder.begin(DELETE, &self.owned(&path));
        let sent_us = boot_us();
        if end(begun, self.visit.client.delete(&path, None).await.map(|()| ((), None)), sure).is_some() {
            self.visit.acknowledged(sent_us);
        }
    }

    /// Some time goes by, and something is written; false if the session is over, or the client is to end.
    async fn keep(&self, kit: &mut ClientKit) -> bool {
        let pause_ms = u64::try_from(kit.context.ttl.as_millis() / 4).unwrap_or(500).max(2);
        let goes_on = kit.think(pause_ms / 2..pause_ms).await;
        self.touch().await;
        goes_on && !self.visit.is_over()
    }

    /// A write, and when it was acknowledged, its zxid.
    async fn touch(&self) -> Option<u64> {
        let sent_us = boot_us();
        let stat = self.visit.client.set_data(self.paths.last()?, b"still", None).await.ok()?;
        self.visit.acknowledged(sent_us);
        Some(zxid(stat.mzxid))
    }

    /// Who is there, right after a write: what is read is at least as new, and as new as the list's own last change.
    async fn list(&self, kit: &mut ClientKit) {
        let directory = DIRECTORIES[kit.rng.random_range(0..DIRECTORIES.len())];
        let begun = kit.context.recorder.begin(LIST, &directory);
        let Some(written) = self.touch().await else { return begun.info("what comes before it was not acknowledged") };
        let came = self.visit.client.get_children(directory).await;
        let came = came.map(|(names, stat)| (Listed { names }, Some(zxid(stat.pzxid).max(written))));
        end(begun, came, sure);
    }

    /// Closes its session; at the node that said so nothing of it may be left.
    async fn close(self, kit: &mut ClientKit, lookouts: &mut Lookouts, node: Option<String>) {
        let Self { visit, paths } = self;
        if let Some(node) = &node {
            // So that a look does not begin with a write, after which it would not be the node as it was.
            lookouts.at(kit, node).await;
        }
        let (session, info) = (visit.session, visit.client.session().clone());
        let begun = kit.context.recorder.begin(CLOSE, &SessionRef { session });
        match visit.close().await {
            SessionOver::Closed => begun.ok(&(), None),
            SessionOver::Expired => return begun.info("it is over, and nobody knows by what"),
            SessionOver::Unknown => return begun.info("no answer"),
        }
        if let Some(node) = node {
            let said = SessionEndNotice { session, how: "closed", said_us: boot_us() };
            look_after(kit, lookouts, &node, info, &said, &paths).await;
        }
    }

    /// Falls silent, but not for so long that it ends; then goes on at any node, and is closed there.
    async fn go_on(self, kit: &mut ClientKit) {
        let Self { visit, paths } = self;
        let info = visit.client.session().clone();
        drop(visit);
        let most_ms = u64::try_from(kit.context.ttl.as_millis() / 2).unwrap_or(500).max(2);
        kit.think(1..most_ms).await;
        let nodes = kit.context.zookeepers.clone();
        let session = info.id().0.cast_unsigned();
        let visit = match Visit::resume(kit, &nodes, Leave::Closes, info).await {
            Ok(visit) => visit,
            Err(Error::SessionExpired) => {
                let (at, how, said_us) = ("a node".to_owned(), "session_expired".to_owned(), boot_us());
                let gone = SessionGone { session, at, how, said_us, asked: 0, standing: Vec::new(), revived: false };
                return kit.context.recorder.note(GONE, &gone, None);
            }
            Err(_) => return,
        };
        let mut life = Self { visit, paths };
        let number = life.paths.len() + 10;
        let path = format!("{}/s{}-{number}", DIRECTORIES[number % 2], life.visit.session);
        life.create(kit, path).await;
        life.list(kit).await;
        let begun = kit.context.recorder.begin(CLOSE, &SessionRef { session: life.visit.session });
        match life.visit.close().await {
            SessionOver::Closed => begun.ok(&(), None),
            SessionOver::Expired => begun.info("it is over, and nobody knows by what"),
            SessionOver::Unknown => begun.info("no answer"),
        }
    }

    /// Its process dies, as far as anybody can see. Looks for it at a node until it is not there any more.
    async fn fall_silent(self, kit: &mut ClientKit, lookouts: &mut Lookouts, node: String) {
        let Self { visit, paths } = self;
        lookouts.at(kit, &node).await;
        let (session, info) = (visit.session, visit.client.session().clone());
        visit.end().await;
        let Some(first) = paths.first() else { return };
        let (begun, mut is_behind) = (Instant::now(), true);
        while begun.elapsed() < LOOK && kit.think(10..30).await {
            let Some(lookout) = lookouts.at(kit, &node).await else { return };
            // What a node does not have yet it cannot have removed.
            is_behind = is_behind && lookout.sync(first).await.is_err();
            if !is_behind && matches!(lookout.check_stat(first).await, Ok(None)) {
                let said = SessionEndNotice { session, how: "not there", said_us: boot_us() };
                return look_after(kit, lookouts, &node, info, &said, &paths).await;
            }
        }
    }
}

/// That a session is over.
struct SessionEndNotice {
    session: u64,
    how: &'static str,
    said_us: u64,
}

/// A node said that a session is over: asks that node for what it had owned, and to let it in again, which it must not.
async fn look_after(
    kit: &mut ClientKit,
    lookouts: &mut Lookouts,
    node: &str,
    info: SessionInfo,
    said: &SessionEndNotice,
    paths: &[String],
) {
    let Some(lookout) = lookouts.at(kit, node).await else { return };
    let (mut standing, mut asked) = (Vec::new(), 0);
    for path in paths {
        match lookout.check_stat(path).await {
            Ok(Some(stat)) => {
                asked += 1;
                if stat.ephemeral_owner.cast_unsigned() == said.session {
                    standing.push(path.clone());
                }
            }
            Ok(None) => asked += 1,
            Err(_) => {}
        }
    }
    let revived = Visit::resume(kit, &[node.to_owned()], Leave::Dies, info).await.is_ok();
    let (at, how) = (node.to_owned(), said.how.to_owned());
    let gone = SessionGone { session: said.session, at, how, said_us: said.said_us, asked, standing, revived };
    kit.context.recorder.note(GONE, &gone, None);
}
