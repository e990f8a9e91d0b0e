//! P12: a data directory that was restored from an older copy, cloned or wiped is not accepted as the original.
//!
//! Copies are taken of frozen processes, as a snapshot of the file system would take them. At the end of each trial
//! every node whose directory is not in order has either exited, with a sentence in its log that says so, or caught up
//! with the rest. At no time may two nodes that report to be ready hold different contents at one zxid. What nobody can
//! notice is not tried: two of three nodes that are restored to one point while the third is down are what they were
//! then. The trial begins when the third comes back.

use std::path::PathBuf;

use lockkeeper_api::cluster::Status;

use crate::http::CALL_WITHIN;
use crate::net::Listener;
use crate::ports;
use crate::process::Process;
use crate::proofs::prelude::*;

const WRITES: u32 = 30;
/// Within this, whoever is to be turned away is, or whatever is to heal has.
const FOUND_OUT_WITHIN: Duration = Duration::from_secs(20);
/// For so long two nodes with empty directories try to form a cluster in vain.
const ALONE_FOR: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(50);
/// What the log of a node says that was turned away.
const SENTENCES: [&str; 3] =
    ["does not accept this node", "the log names start", "a majority of the cluster has lost what it acknowledged"];

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut slowest = Duration::ZERO;
    for round in 1..=rounds {
        let mut trials = Trials { context, round, slowest: &mut slowest };
        trials.one_while_the_leader_runs(false).await?;
        trials.one_while_the_leader_runs(true).await?;
        trials.the_leader().await?;
        trials.two_while_the_third_is_down().await?;
        trials.two_while_the_third_has_seen_nothing_of_it().await?;
        trials.clones().await?;
        trials.wiped_majority().await?;
        trials.intact().await?;
    }
    Ok(format!(
        "{rounds} rounds of: a follower put back (over a later start, and within one), the leader put back, two put \
         back while the third was down (the one that had led, and one that had not), two clones at once, a wiped \
         majority, and intact restarts; the former all turned away, after at most {}, and the latter none; no two \
         ready nodes differed at one zxid",
        millis(slowest)
    ))
}

struct Trials<'a> {
    context: &'a Context,
    round: u32,
    slowest: &'a mut Duration,
}

impl Trials<'_> {
    async fn cluster(&self, name: &str) -> Result<Cluster, Failed> {
        self.context.log.say(format!("round {}: {name}", self.round));
        let dir = self.context.dir.join(format!("{}-{name}", self.round));
        let cluster = Cluster::start(&self.context.binary, &dir, Options::default()).await?;
        cluster.make_node("/rollback").await?;
        write(&cluster, 1, "before").await?;
        Ok(cluster)
    }

    fn copy_of(&self, name: &str) -> PathBuf {
        self.context.dir.join(format!("{}-{name}-copy", self.round))
    }

    /// A follower comes back as it was before the last writes.
    async fn one_while_the_leader_runs(&mut self, over_a_later_start: bool) -> Result<(), Failed> {
        let name = if over_a_later_start { "one-over-a-later-start" } else { "one-within-a-start" };
        let mut cluster = self.cluster(name).await?;
        let (leader, _) = cluster.leader().await?;
        let node = cluster.others(leader)[0];
        let copy = self.copy_of(name);
        copy_frozen(&cluster, node, &copy)?;
        let copied = last_index(&cluster, leader).await?;
        if over_a_later_start {
            cluster.kill(node).await?;
            cluster.start_node(node).await?;
        }
        write(&cluster, leader, "after").await?;
        cluster.agree(FOUND_OUT_WITHIN).await?;
        written_down(&cluster, leader, &[node], copied).await?;
        cluster.kill(node).await?;
        put_back(&cluster, node, &copy)?;
        cluster.spawn(node)?;
        self.all_turned_away(&mut cluster, &[node], name).await?;
        said_by_a_peer(&cluster, leader, node).await?;
        rejoin(&mut cluster, leader, node).await
    }

    /// The leader does.
    async fn the_leader(&mut self) -> Result<(), Failed> {
        let mut cluster = self.cluster("leader").await?;
        let (leader, _) = cluster.leader().await?;
        let copy = self.copy_of("leader");
        copy_frozen(&cluster, leader, &copy)?;
        let copied = last_index(&cluster, leader).await?;
        write(&cluster, leader, "after").await?;
        cluster.agree(FOUND_OUT_WITHIN).await?;
        for node in cluster.others(leader) {
            written_down(&cluster, node, &[leader], copied).await?;
        }
        cluster.kill(leader).await?;
        put_back(&cluster, leader, &copy)?;
        cluster.spawn(leader)?;
        self.all_turned_away(&mut cluster, &[leader], "leader").await
    }

    /// Two of three are restored and go on from there; then the third returns with what they have lost. It was their
    /// leader: a follower does not know what another has acknowledged.
    async fn two_while_the_third_is_down(&mut self) -> Result<(), Failed> {
        let mut cluster = self.cluster("two").await?;
        let (leader, _) = cluster.leader().await?;
        let two = cluster.others(leader);
        let copies: Vec<(u64, PathBuf)> =
            two.iter().map(|node| (*node, self.copy_of(&format!("two-{node}")))).collect();
        for (node, copy) in &copies {
            copy_frozen(&cluster, *node, copy)?;
        }
        let copied = last_index(&cluster, leader).await?;
        write(&cluster, leader, "after").await?;
        cluster.agree(FOUND_OUT_WITHIN).await?;
        written_down(&cluster, leader, &two, copied).await?;
        cluster.kill_all().await?;
        for (node, copy) in &copies {
            put_back(&cluster, *node, copy)?;
            cluster.spawn(*node)?;
        }
        let went_on = match write_when_led(&mut cluster, &two).await? {
            true => "went on by themselves until then",
            false => "were not let in even so",
        };
        self.context.log.say(format!("the two {went_on}"));
        cluster.spawn(leader)?;
        self.all_turned_away(&mut cluster, &two, "two").await
    }

    /// All are in step. What was acknowledged before the copies were put back may be gone only if the two went on
    /// without it.
    async fn one_history_is_left(
        &self,
        cluster: &Cluster,
        third: u64,
        went_on: bool,
        name: &str,
    ) -> Result<(), Failed> {
        let (after, other) = (has(cluster, third, "after-0").await?, has(cluster, third, "other-0").await?);
        match (after, other) {
            (true, false) => self.context.log.say("the two have taken what the third had"),
            (false, true) if went_on => {
                self.context.log.say("the third did not know that what it had was committed, and follows the two")
            }
            _ => return broken(format!("{name}: in step, with after: {after}, other: {other}, went on: {went_on}")),
        }
        Ok(())
    }

    /// The same where the third was a follower. It may know too little to refuse both; then it exits before it accepts
    /// another history, and says so. After a kill it may not even know that the entries of its log were committed: then
    /// it follows the two.
    async fn two_while_the_third_has_seen_nothing_of_it(&mut self) -> Result<(), Failed> {
        let name = "two-of-a-follower";
        let mut cluster = self.cluster(name).await?;
        let (leader, _) = cluster.leader().await?;
        let third = cluster.others(leader)[0];
        let two = cluster.others(third);
        let copies: Vec<(u64, PathBuf)> =
            two.iter().map(|node| (*node, self.copy_of(&format!("{name}-{node}")))).collect();
        for (node, copy) in &copies {
            copy_frozen(&cluster, *node, copy)?;
        }
        write(&cluster, leader, "after").await?;
        cluster.agree(FOUND_OUT_WITHIN).await?;
        cluster.kill_all().await?;
        for (node, copy) in &copies {
            put_back(&cluster, *node, copy)?;
            cluster.spawn(*node)?;
        }
        let went_on = write_when_led(&mut cluster, &two).await?;
        cluster.spawn(third)?;
        let wait = Polling::within(FOUND_OUT_WITHIN).every(POLL);
        loop {
            no_ready_difference(&cluster).await?;
            let mut gone = |id: u64| cluster.process(id).is_some_and(|process| process.ended().is_some());
            if gone(third) || two.iter().all(|id| gone(*id)) {
                break;
            }
            if in_step(&cluster).await {
                return self.one_history_is_left(&cluster, third, went_on, name).await;
            }
            wait.or_broken(|| {
                format!("{name}: nodes {two:?}, put back, and node {third} all run after {FOUND_OUT_WITHIN:?}")
            })
            .await?;
        }
        no_ready_difference(&cluster).await?;
        let logs: Vec<PathBuf> = cluster.ids().iter().map(|id| cluster.directory(*id).join("server.log")).collect();
        if !logs.iter().any(|log| says_why(log)) {
            return broken(format!("{name}: no node says why it has ended"));
        }
        Ok(())
    }

    /// A copy runs beside its original, first one of an earlier start, then one with a start of the same number.
    async fn clones(&mut self) -> Result<(), Failed> {
        let mut cluster = self.cluster("clones").await?;
        let (leader, _) = cluster.leader().await?;
        let node = cluster.others(leader)[0];
        let copy = self.copy_of("clones");
        cluster.kill(node).await?;
        copy_directory(&cluster.data(node)?, &copy.join("data"))?;
        cluster.start_node(node).await?;
        let mut clone = spawn_clone(self.context, &cluster, node, &copy)?;
        let wait = Polling::within(FOUND_OUT_WITHIN).every(POLL);
        loop {
            no_ready_difference(&cluster).await?;
            let original_gone = cluster.process(node).and_then(Process::ended).is_some();
            if clone.ended().is_some() || original_gone {
                break;
            }
            wait.or_broken(|| format!("node {node} and its clone both run after {FOUND_OUT_WITHIN:?}")).await?;
        }
        *self.slowest = (*self.slowest).max(wait.elapsed());
        let logs = [copy.join("server.log"), cluster.directory(node).join("server.log")];
        if !logs.iter().any(|log| says_why(log)) {
            return broken(format!("neither node {node} nor its clone says why it was turned away"));
        }
        Ok(())
    }

    /// Two of three have lost everything.
    async fn wiped_majority(&mut self) -> Result<(), Failed> {
        let mut cluster = self.cluster("wiped").await?;
        cluster.agree(FOUND_OUT_WITHIN).await?;
        cluster.kill_all().await?;
        for node in [1, 2] {
            std::fs::remove_dir_all(cluster.data(node)?)?;
            cluster.spawn(node)?;
        }
        let begun = Instant::now();
        while begun.elapsed() < ALONE_FOR {
            for node in [1, 2] {
                if cluster.api(node).ready().await {
                    return broken(format!("node {node}, wiped, is ready with nothing in it"));
                }
            }
            tokio::time::sleep(POLL).await;
        }
        cluster.spawn(3)?;
        self.all_turned_away(&mut cluster, &[1, 2], "wiped").await
    }

    /// Nobody is turned away who has lost nothing.
    async fn intact(&mut self) -> Result<(), Failed> {
        let mut cluster = self.cluster("intact").await?;
        for node in cluster.ids() {
            cluster.kill(node).await?;
            cluster.start_node(node).await?;
        }
        cluster.kill_all().await?;
        for node in [1, 2] {
            cluster.spawn(node)?;
        }
        for node in [1, 2] {
            cluster.ready(node).await?;
        }
        cluster.spawn(3)?;
        cluster.all_ready().await?;
        cluster.agree(FOUND_OUT_WITHIN).await.map(drop)
    }

    /// Waits until each of `nodes` has ended with a reason in its log.
    async fn all_turned_away(&mut self, cluster: &mut Cluster, nodes: &[u64], name: &str) -> Result<(), Failed> {
        let begun = Instant::now();
        let mut left: Vec<u64> = nodes.to_vec();
        while !left.is_empty() {
            no_ready_difference(cluster).await?;
            left.retain(|node| cluster.process(*node).is_some_and(|process| process.ended().is_none()));
            if begun.elapsed() > FOUND_OUT_WITHIN {
                let all = cluster.statuses(true).await;
                let seen: Vec<_> = all.iter().map(|s| (s.node_id, s.ready, s.zxid)).collect();
                return broken(format!(
                    "{name}: {left:?} with directories put back still run after {FOUND_OUT_WITHIN:?}; (node, ready, \
                     zxid): {seen:?}"
                ));
            }
            tokio::time::sleep(POLL).await;
        }
        *self.slowest = (*self.slowest).max(begun.elapsed());
        for node in nodes {
            if !says_why(&cluster.directory(*node).join("server.log")) {
                return broken(format!("{name}: node {node} has ended and does not say that it was turned away"));
            }
        }
        no_ready_difference(cluster).await
    }
}

fn says_why(log: &Path) -> bool {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    SENTENCES.iter().any(|sentence| log.contains(sentence))
}

async fn last_index(cluster: &Cluster, node: u64) -> Result<u64, Failed> {
    let status = cluster.api(node).status(false).await;
    Ok(status.map_err(without_fault)?.value.last_log_index)
}

/// Waits until a node has written down (file `peers`: node, directory, start, term, index) that the peers have more
/// than this.
async fn written_down(cluster: &Cluster, node: u64, peers: &[u64], copied: u64) -> Result<(), Failed> {
    let (file, wait) = (cluster.data(node)?.join("peers"), Polling::within(FOUND_OUT_WITHIN).every(POLL));
    loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let knows = |peer: &u64| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
                fields.first().is_some_and(|id| *id == peer.to_string())
                    && fields.last().and_then(|index| index.parse::<u64>().ok()).is_some_and(|index| index > copied)
            })
        };
        if peers.iter().all(knows) {
            return Ok(());
        }
        let late = || format!("node {node} does not write down what nodes {peers:?} have acknowledged: {text:?}");
        wait.or_broken(late).await?;
    }
}

async fn write(cluster: &Cluster, at: u64, name: &str) -> Result<(), Failed> {
    for number in 0..WRITES {
        let made = cluster.api(at).create(&format!("/rollback/{name}-{number}"), &Create::default(), None).await;
        made.or_broken("a write while nothing is wrong")?;
    }
    Ok(())
}

/// Whether a write of that name is there.
async fn has(cluster: &Cluster, at: u64, name: &str) -> Result<bool, Failed> {
    match cluster.api(at).get(&format!("/rollback/{name}"), CALL_WITHIN).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.code() == Some(Code::NoNode) => Ok(false),
        Err(failure) => broken(format!("a read while all are ready: {failure}")),
    }
}

/// Whether the nodes acknowledge a write of their own before one of them ends, or too much time has passed.
async fn write_when_led(cluster: &mut Cluster, among: &[u64]) -> Result<bool, Failed> {
    let begun = Instant::now();
    while begun.elapsed() < FOUND_OUT_WITHIN / 2 {
        for id in among {
            if cluster.process(*id).and_then(Process::ended).is_some() {
                return Ok(false);
            }
            if cluster.api(*id).create("/rollback/another-history", &Create::default(), None).await.is_ok() {
                write(cluster, *id, "other").await?;
                return Ok(true);
            }
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
}

/// Whether all nodes are ready and have the same contents.
async fn in_step(cluster: &Cluster) -> bool {
    let all = cluster.statuses(true).await;
    let state = |status: &Status| status.state.as_ref().map(|state| (state.zxid, state.checksum.clone()));
    let first = all.first().and_then(state);
    all.len() == cluster.ids().len()
        && first.is_some()
        && all.iter().all(|status| status.ready && state(status) == first)
}

/// Of the nodes that say they are ready, no two differ at one zxid.
async fn no_ready_difference(cluster: &Cluster) -> Result<(), Failed> {
    let mut seen: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for status in cluster.statuses(true).await.into_iter().filter(|status| status.ready) {
        let Some(state) = status.state else { continue };
        let (other, checksum) = seen.entry(state.zxid).or_insert_with(|| (status.node_id, state.checksum.clone()));
        if *checksum != state.checksum {
            let (zxid, node) = (state.zxid, status.node_id);
            return broken(format!("nodes {other} and {node} are both ready and differ at zxid {zxid}"));
        }
    }
    Ok(())
}

/// The member that refused the node reports it, and the leader does not count the node. The node exits at the first
/// refusal, from whichever member; the leader notices with its next message.
async fn said_by_a_peer(cluster: &Cluster, leader: u64, node: u64) -> Result<(), Failed> {
    let begun = Instant::now();
    loop {
        let (mut said, mut counted) = (false, true);
        for peer in cluster.others(node) {
            let Ok(status) = cluster.api(peer).status(false).await else { continue };
            let Some(member) = status.value.members.into_iter().find(|member| member.node_id == node) else { continue };
            if peer == leader {
                counted = member.synced == Some(true);
            }
            let metrics = cluster.api(peer).metrics().await.unwrap_or_default();
            said |= member.turned_away.is_some() && metrics.contains("lockkeeper_peers_turned_away 1");
        }
        match (said, counted) {
            (true, false) => return Ok(()),
            _ if begun.elapsed() < FOUND_OUT_WITHIN => tokio::time::sleep(POLL).await,
            (_, true) => return broken(format!("the leader counts node {node} as synced, or gives no status")),
            (false, _) => {
                return broken(format!(
                    "no peer says, in its status and its metrics, that node {node} was turned away"
                ));
            }
        }
    }
}

/// The remedy: the node leaves, and its machine joins under a new id.
async fn rejoin(cluster: &mut Cluster, leader: u64, node: u64) -> Result<(), Failed> {
    let api = cluster.api(leader);
    let failed = |failure: Failure| Failed::Broken(format!("the remedy: {failure}"));
    api.remove_member(node).await.map_err(failed)?;
    let new = cluster.prepare_node(Some(node)).await?;
    cluster.spawn(new)?;
    let address = cluster.net().address(crate::net::Endpoint::Node(leader), new, Listener::Peer).to_string();
    api.add_member(new, &address).await.map_err(failed)?;
    let wait = Polling::within(FOUND_OUT_WITHIN).every(POLL);
    while let Err(failure) = api.promote_member(new).await {
        wait.or_broken(|| format!("the remedy: {failure}")).await?;
    }
    cluster.ready(new).await?;
    cluster.agree(FOUND_OUT_WITHIN).await.map(drop)
}

/// As a snapshot of the file system: everything of one moment.
fn copy_frozen(cluster: &Cluster, node: u64, copy: &Path) -> Result<(), Failed> {
    cluster.signal(node, Signal::SIGSTOP);
    let copied = copy_directory(&cluster.data(node)?, copy);
    cluster.signal(node, Signal::SIGCONT);
    Ok(copied?)
}

fn put_back(cluster: &Cluster, node: u64, copy: &Path) -> Result<(), Failed> {
    let data = cluster.data(node)?;
    std::fs::remove_dir_all(&data)?;
    Ok(copy_directory(copy, &data)?)
}

fn copy_directory(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// A second process with the identity of `node` and a copy of its directory, at ports of its own.
fn spawn_clone(context: &Context, cluster: &Cluster, node: u64, copy: &Path) -> Result<Process, Failed> {
    let mut config = std::fs::read_to_string(cluster.directory(node).join("config.toml"))?;
    let listeners = [Listener::Client, Listener::Peer, Listener::ZooKeeper];
    for (listener, port) in listeners.into_iter().zip(ports::free(listeners.len())?) {
        config = config.replace(&cluster.net().listens(node, listener).to_string(), &format!("127.0.0.1:{port}"));
    }
    let (data, own) = (cluster.data(node)?.display().to_string(), copy.join("data").display().to_string());
    let config = config.replace(&cluster.directory(node).join("data").display().to_string(), &own).replace(&data, &own);
    let file = copy.join("config.toml");
    std::fs::write(&file, config)?;
    let argv = [context.binary.display().to_string(), "serve".into(), "--config".into(), file.display().to_string()];
    Ok(Process::start(&argv, &[], &copy.join("server.log"))?)
}
