//! A cluster of the release before is upgraded node by node under load, the leader last, as docs/operate.md says. In a
//! mixed cluster no request may fail, members are changed through both programs, and the feature level stays where it
//! is. Once all nodes are upgraded it rises to that of the new program. If that is a higher one, the old program must
//! refuse the data from then on, and say what to do; if it is not, the old program must serve on them again.
//!
//! Two kinds of clients: some ask each node themselves, and leave a node before it is stopped; others use the client
//! library with all endpoints, and nobody tells them anything.

use lockkeeper_api::cluster::Status;
use lockkeeper_client::PreferredNode;

use super::lock_cycles::{LibraryCycles, LockCycles};
use crate::ports;
use crate::proofs::prelude::*;

/// The load goes on for so long between two steps.
const BETWEEN: Duration = Duration::from_secs(1);
/// The leader waits for 5 s, and compares each second.
const STAYS_FOR: Duration = Duration::from_secs(9);
const LIBRARY_EVERY: Duration = Duration::from_millis(5);
const STOPS_WITHIN: Duration = Duration::from_secs(15);
const RAISED_WITHIN: Duration = Duration::from_secs(30);
/// The highest feature level of the new program.
const LEVEL: u32 = lockkeeper_core::FeatureLevel::LATEST.0;
const REFUSES_WITHIN: Duration = Duration::from_secs(30);
const AGREE_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// What the old program says of data that it cannot read.
const REFUSAL: &str = "upgrade this node";

pub(super) async fn run(context: &Context) -> ProofResult {
    let Some(previous) = &context.previous else {
        return cannot_run("it needs --previous, the program of the release before");
    };
    let mut upgrade = Upgrade::start(context, previous).await?;
    let old_level = upgrade.level_of_old_program().await?;
    let (leader, _) = upgrade.cluster.leader().await?;
    let followers = upgrade.cluster.others(leader);
    upgrade.replace(followers[0], &context.binary).await?;
    upgrade.change_members_through(followers[0]).await?;
    upgrade.replace(followers[1], &context.binary).await?;
    upgrade.level_stays(leader, old_level).await?;
    upgrade.hand_over(leader).await?;
    upgrade.replace(leader, &context.binary).await?;
    let raised = upgrade.level_rises().await?;
    let back = match old_level < LEVEL {
        true => upgrade.is_refused(followers[0], previous).await?,
        false => upgrade.goes_back(followers[0], previous).await?,
    };
    let (work, calls) = (upgrade.load.end().await, upgrade.library.end().await?);
    // Each cycle is two.
    let cycles = calls.len() / 2;
    upgrade.cluster.agree(AGREE_WITHIN).await?;
    work.judge()?;
    Ok(format!(
        "3 nodes upgraded under {} lock cycles and {cycles} of the client library: no request failed, the longest \
         pause was {}, tokens rose; the feature level stayed at {old_level} beside an old node and was {LEVEL} in \
         {:.1} s; the old program {back}",
        work.grants.len(),
        millis(work.longest_pause),
        raised.as_secs_f64()
    ))
}

struct Upgrade<'a> {
    context: &'a Context,
    cluster: Cluster,
    load: LockCycles,
    library: LibraryCycles,
}

impl<'a> Upgrade<'a> {
    async fn start(context: &'a Context, previous: &Path) -> Result<Self, Failed> {
        let cluster = Cluster::start(previous, &context.dir, Options::default()).await?;
        let load = LockCycles::contending(cluster.api(1)).await?;
        load.use_nodes(apis_but(&cluster, 0)).await;
        let preferences = [PreferredNode::Leader, PreferredNode::First, PreferredNode::Spread];
        let library = LibraryCycles::start(&cluster.endpoints(), &preferences, LIBRARY_EVERY).await?;
        tokio::time::sleep(BETWEEN).await;
        Ok(Self { context, cluster, load, library })
    }

    /// The level at which the old cluster is.
    async fn level_of_old_program(&self) -> Result<u32, Failed> {
        let statuses = self.cluster.statuses(false).await;
        match statuses.iter().find_map(|status| status.feature_level) {
            Some(level @ 1..=LEVEL) => Ok(level),
            other => broken(format!("the release before is at feature level {other:?}, and this one at {LEVEL}")),
        }
    }

    /// Stops a node as a service manager does, and starts it with another program.
    async fn replace(&mut self, node: u64, binary: &Path) -> Result<(), Failed> {
        self.context.log.say(format!("node {node} is upgraded"));
        self.load.use_nodes(apis_but(&self.cluster, node)).await;
        self.cluster.stop(node, STOPS_WITHIN).await?;
        self.cluster.use_binary(binary);
        self.cluster.start_node(node).await?;
        self.load.use_nodes(apis_but(&self.cluster, 0)).await;
        tokio::time::sleep(BETWEEN).await;
        Ok(())
    }

    /// Members are added and removed at an upgraded node while the leader runs the old program, and the other way
    /// round.
    async fn change_members_through(&self, upgraded: u64) -> Result<(), Failed> {
        let (leader, _) = self.cluster.leader().await?;
        let old = self.cluster.ids().into_iter().find(|id| *id != upgraded && *id != leader);
        let Some(old) = old else { return broken("there is no second node of the old program") };
        self.add_and_remove(upgraded, 7).await?;
        self.hand_over(upgraded).await?;
        self.add_and_remove(old, 8).await?;
        self.hand_over(leader).await
    }

    /// Has a node lead.
    async fn hand_over(&self, node: u64) -> Result<(), Failed> {
        let (leader, _) = self.cluster.leader().await?;
        if leader != node {
            let done = self.cluster.api(leader).transfer_leadership(Some(node)).await;
            done.or_broken(format!("the leadership does not go to node {node}"))?;
        }
        match self.cluster.leader().await? {
            (now, _) if now == node => Ok(()),
            (other, _) => broken(format!("node {other} leads, and not node {node}, to which it was handed over")),
        }
    }

    /// Adds a learner that never runs, and removes it.
    async fn add_and_remove(&self, at: u64, learner: u64) -> Result<(), Failed> {
        let address = format!("127.0.0.1:{}", ports::free(1)?[0]);
        let api = self.cluster.api(at);
        let failed =
            |what: &str, failure| Failed::Broken(format!("node {learner} was not {what} at node {at}: {failure}"));
        api.add_member(learner, &address).await.map_err(|failure| failed("added", failure))?;
        api.remove_member(learner).await.map_err(|failure| failed("removed", failure))?;
        self.context.log.say(format!("a learner was added and removed at node {at}"));
        Ok(())
    }

    /// One node still runs the old program, an upgraded one leads, and all are in step for longer than it takes to
    /// raise the level: it must stay.
    async fn level_stays(&self, old: u64, old_level: u32) -> Result<(), Failed> {
        let Some(upgraded) = self.cluster.ids().into_iter().find(|id| *id != old) else { return Ok(()) };
        self.hand_over(upgraded).await?;
        let (begun, mut in_step) = (Instant::now(), 0_u32);
        while begun.elapsed() < STAYS_FOR {
            let statuses = self.cluster.statuses(false).await;
            let levels: Vec<Option<u32>> = statuses.iter().map(|status| status.feature_level).collect();
            if levels.iter().any(|level| level.is_some_and(|level| level != old_level)) {
                return broken(format!("the feature level rose beside an old node: {levels:?}"));
            }
            let all_synced = |status: &Status| status.members.iter().all(|member| member.synced == Some(true));
            let leads =
                statuses.iter().any(|status| status.node_id == upgraded && status.leading && all_synced(status));
            in_step += u32::from(leads && levels.len() == 3 && levels.iter().all(Option::is_some));
            tokio::time::sleep(POLL).await;
        }
        match in_step {
            0 => broken("the upgraded leader was never in step with all members, so nothing was tried"),
            _ => Ok(()),
        }
    }

    /// Waits until every node is at the level of the new program; returns how long it took.
    async fn level_rises(&self) -> Result<Duration, Failed> {
        let wait = Polling::within(RAISED_WITHIN).every(POLL);
        loop {
            let statuses = self.cluster.statuses(false).await;
            let levels: Vec<Option<u32>> = statuses.iter().map(|status| status.feature_level).collect();
            if levels.len() == 3 && levels.iter().all(|level| *level == Some(LEVEL)) {
                self.context.log.say(format!("the feature level is {LEVEL} at every node"));
                return Ok(wait.elapsed());
            }
            wait.or_broken(|| format!("the feature level does not rise: {levels:?}")).await?;
        }
    }

    /// The old program serves beside the new one on what that has written, and the new one goes on after it.
    async fn goes_back(&mut self, node: u64, previous: &Path) -> Result<&'static str, Failed> {
        self.replace(node, previous).await?;
        self.replace(node, &self.context.binary).await?;
        Ok("served on its data again")
    }

    /// The old program ends instead of serving on the data of the new one, which then goes on with them.
    async fn is_refused(&mut self, node: u64, previous: &Path) -> Result<&'static str, Failed> {
        self.context.log.say(format!("node {node} goes back to the old program"));
        self.load.use_nodes(apis_but(&self.cluster, node)).await;
        self.cluster.stop(node, STOPS_WITHIN).await?;
        let log = self.cluster.directory(node).join("server.log");
        let before = std::fs::read_to_string(&log)?.len();
        self.cluster.use_binary(previous);
        self.cluster.spawn(node)?;
        match self.cluster.ended(node, REFUSES_WITHIN).await? {
            Some(0) => return broken("the old program ended without an error"),
            Some(_) => {}
            None => return broken("the old program was killed by a signal"),
        }
        let said = std::fs::read_to_string(&log)?.split_off(before);
        if !said.contains(REFUSAL) {
            return broken(format!("the old program does not say {REFUSAL:?}: {said}"));
        }
        self.cluster.use_binary(&self.context.binary);
        self.cluster.start_node(node).await?;
        self.load.use_nodes(apis_but(&self.cluster, 0)).await;
        tokio::time::sleep(BETWEEN).await;
        Ok("refused")
    }
}

fn apis_but(cluster: &Cluster, node: u64) -> Vec<Api> {
    cluster.apis().into_iter().filter(|(id, _)| *id != node).map(|(_, api)| api).collect()
}
