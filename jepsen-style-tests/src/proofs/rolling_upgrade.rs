//! A cluster of the release before is upgraded node by node under load, the leader last, as docs/operate.md says. In a
//! mixed cluster no request may fail, and members are changed through both programs. Once all nodes are upgraded, the
//! feature level rises; from then on the old program must refuse the data, and say what to do.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::Context;
use super::lock_load::LockLoad;
use crate::cluster::{Cluster, Options};
use crate::http::Api;
use crate::ports;
use crate::stats::millis;
use crate::verdict::{Failed, ProofResult, broken};

/// The load goes on for so long between two steps.
const BETWEEN: Duration = Duration::from_secs(1);
const STOPS_WITHIN: Duration = Duration::from_secs(15);
const RAISED_WITHIN: Duration = Duration::from_secs(30);
const REFUSES_WITHIN: Duration = Duration::from_secs(30);
const AGREE_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// What the old program says of data that it cannot read.
const REFUSAL: &str = "upgrade this node";

pub(super) async fn run(context: &Context) -> ProofResult {
    let Some(previous) = &context.previous else {
        return Err(Failed::CannotRun("it needs --previous, the program of the release before".into()));
    };
    let mut upgrade = Upgrade::start(context, previous).await?;
    let (leader, _) = upgrade.cluster.leader().await?;
    let followers: Vec<u64> = upgrade.cluster.ids().into_iter().filter(|id| *id != leader).collect();
    upgrade.replace(followers[0], &context.binary).await?;
    upgrade.change_members_through(followers[0]).await?;
    upgrade.replace(followers[1], &context.binary).await?;
    upgrade.is_at_first_level().await?;
    upgrade.replace(leader, &context.binary).await?;
    let raised = upgrade.level_rises().await?;
    upgrade.is_refused(followers[0], previous).await?;
    let work = upgrade.load.end().await;
    upgrade.cluster.agree(AGREE_WITHIN).await?;
    work.judge()?;
    Ok(format!(
        "3 nodes upgraded under {} lock cycles: no request failed, the longest pause was {}, tokens rose; the feature \
         level rose to 2 in {:.1} s; the old program refused",
        work.grants.len(),
        millis(work.longest_pause),
        raised.as_secs_f64()
    ))
}

struct Upgrade<'a> {
    context: &'a Context,
    cluster: Cluster,
    load: LockLoad,
}

impl<'a> Upgrade<'a> {
    async fn start(context: &'a Context, previous: &Path) -> Result<Self, Failed> {
        let cluster = Cluster::start(previous, &context.dir, Options::default()).await?;
        let load = LockLoad::start(cluster.api(1)).await?;
        load.use_nodes(apis_but(&cluster, 0)).await;
        tokio::time::sleep(BETWEEN).await;
        Ok(Self { context, cluster, load })
    }

    /// Stops a node as a service manager does, and starts it with another program. Its clients are elsewhere meanwhile.
    async fn replace(&mut self, node: u64, binary: &Path) -> Result<(), Failed> {
        self.context.log.say(format!("node {node} is upgraded"));
        self.load.use_nodes(apis_but(&self.cluster, node)).await;
        self.stop(node).await?;
        self.cluster.use_binary(binary);
        self.cluster.spawn(node)?;
        self.cluster.ready(node).await?;
        self.load.use_nodes(apis_but(&self.cluster, 0)).await;
        tokio::time::sleep(BETWEEN).await;
        Ok(())
    }

    async fn stop(&mut self, node: u64) -> Result<(), Failed> {
        self.cluster.signal(node, Signal::SIGTERM);
        match self.cluster.ended(node, STOPS_WITHIN).await? {
            Some(0) => Ok(()),
            other => broken(format!("node {node} ended with {other:?} on SIGTERM")),
        }
    }

    /// Members are added and removed at an upgraded node while the leader runs the old program, and the other way
    /// round.
    async fn change_members_through(&self, upgraded: u64) -> Result<(), Failed> {
        let (leader, _) = self.cluster.leader().await?;
        let old = self.cluster.ids().into_iter().find(|id| *id != upgraded && *id != leader);
        let Some(old) = old else { return broken("there is no second node of the old program") };
        self.add_and_remove(upgraded, 7).await?;
        let done = self.cluster.api(old).transfer_leadership(Some(upgraded)).await;
        done.map_err(|failure| Failed::Broken(format!("the leadership does not go to node {upgraded}: {failure}")))?;
        self.add_and_remove(old, 8).await
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

    async fn is_at_first_level(&self) -> Result<(), Failed> {
        for status in self.cluster.statuses(false).await {
            if let Some(level) = status.feature_level.filter(|level| *level != 1) {
                return broken(format!("node {} is at feature level {level} in a mixed cluster", status.node_id));
            }
        }
        Ok(())
    }

    /// Waits until every node is at the second level; returns how long it took.
    async fn level_rises(&self) -> Result<Duration, Failed> {
        let begun = Instant::now();
        loop {
            let statuses = self.cluster.statuses(false).await;
            let levels: Vec<Option<u32>> = statuses.iter().map(|status| status.feature_level).collect();
            if levels.len() == 3 && levels.iter().all(|level| *level == Some(2)) {
                self.context.log.say("the feature level is 2 at every node");
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > RAISED_WITHIN {
                return broken(format!("the feature level does not rise: {levels:?}"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The old program ends instead of serving on the data of the new one, which then goes on with them.
    async fn is_refused(&mut self, node: u64, previous: &Path) -> Result<(), Failed> {
        self.context.log.say(format!("node {node} goes back to the old program"));
        self.load.use_nodes(apis_but(&self.cluster, node)).await;
        self.stop(node).await?;
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
        self.cluster.spawn(node)?;
        self.cluster.ready(node).await?;
        self.load.use_nodes(apis_but(&self.cluster, 0)).await;
        tokio::time::sleep(BETWEEN).await;
        Ok(())
    }
}

fn apis_but(cluster: &Cluster, node: u64) -> Vec<Api> {
    cluster.apis().into_iter().filter(|(id, _)| *id != node).map(|(_, api)| api).collect()
}
