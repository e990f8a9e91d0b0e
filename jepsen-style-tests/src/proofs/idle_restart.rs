//! A node of an idle cluster is restarted: the first call after it waits for nothing but the work itself.
//!
//! What the other nodes remember of the process before must not hold up the new one, and a cluster that does nothing
//! has nobody who would notice and begin anew. So nothing is written between the stop of a node and the first call:
//! a change at the restarted node, one at the leader while the third node is down, and a short lease. Then all nodes
//! are restarted in turn while one client makes a call now and then.

use lockkeeper_client::PreferredNode;

use super::lock_cycles::LibraryCycles;
use crate::http::CALL_WITHIN;
use crate::proofs::prelude::*;

/// By so much the first call may be slower than the slowest call of a calm cluster.
const ALLOWED: Duration = Duration::from_millis(100);
const CALM_CALLS: u32 = 20;
const LEASE_MS: u32 = 1_500;
const STOPS_WITHIN: Duration = Duration::from_secs(15);
const AGREE_WITHIN: Duration = Duration::from_secs(20);
/// Between two calls of the one client: most restarts take longer.
const EVERY: Duration = Duration::from_millis(150);

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    cluster.api(1).create("/idle", &Create::default(), None).await.or_broken("a change failed")?;
    let mut trial = IdleRestartTrial { cluster, allowed: Duration::MAX, slowest: Duration::ZERO, calls: 0 };
    for _ in 0..CALM_CALLS {
        for node in trial.cluster.ids() {
            trial.change(node, "in calm").await?;
            trial.lease(node, "in calm").await?;
        }
    }
    let calm = std::mem::take(&mut trial.slowest);
    trial.allowed = ALLOWED + calm;
    trial.calls = 0;
    let (mut alone, mut at_change) = (0, Duration::ZERO);
    for round in 1..=rounds {
        trial.first_calls().await?;
        let (calls, longest) = trial.one_after_the_other().await?;
        alone += calls;
        at_change = at_change.max(longest);
        context.log.say(format!("round {round} of {rounds}: the slowest call so far took {}", millis(trial.slowest)));
    }
    Ok(format!(
        "{} first calls after a restart, {alone} of one client beside restarts: the slowest took {} (calm {}), while \
         the leader changed {}",
        trial.calls,
        millis(trial.slowest),
        millis(calm),
        millis(at_change)
    ))
}

struct IdleRestartTrial {
    cluster: Cluster,
    /// No call may take longer.
    allowed: Duration,
    slowest: Duration,
    calls: u32,
}

impl IdleRestartTrial {
    /// Each follower is restarted three times, with another first call each time.
    async fn first_calls(&mut self) -> Result<(), Failed> {
        let (leader, _) = self.cluster.leader().await?;
        let followers = self.cluster.others(leader);
        for (node, third) in [(followers[0], followers[1]), (followers[1], followers[0])] {
            self.restart(node).await?;
            self.change(node, "at the restarted follower").await?;
            self.restart(node).await?;
            self.lease(node, "at the restarted follower").await?;
            self.restart(node).await?;
            self.cluster.kill(third).await?;
            self.change(leader, "at the leader, which needs the restarted follower").await?;
            self.cluster.start_node(third).await?;
        }
        Ok(())
    }

    /// Stops a node of the idle cluster as a service manager does, and starts it.
    async fn restart(&mut self, node: u64) -> Result<(), Failed> {
        self.cluster.agree(AGREE_WITHIN).await?;
        self.cluster.stop(node, STOPS_WITHIN).await?;
        self.cluster.start_node(node).await
    }

    async fn change(&mut self, at: u64, when: &str) -> Result<(), Failed> {
        let body = Create { sequential: true, ..Create::default() };
        let done = self.cluster.api(at).create("/idle/n-", &body, None).await;
        let done = done.or_broken(format!("a change {when} failed"))?;
        self.judge(done.received - done.sent, &format!("a change {when} (node {at})"))
    }

    /// A lock with a session made for it; most of its time must be left when the answer comes.
    async fn lease(&mut self, at: u64, when: &str) -> Result<(), Failed> {
        let (api, ask) = (self.cluster.api(at), Acquire { ttl_ms: Some(LEASE_MS), ..Acquire::default() });
        let held = api.acquire_in(None, "idle", &ask, CALL_WITHIN).await;
        let held = held.or_broken(format!("a lease {when} failed"))?;
        self.judge(held.received - held.sent, &format!("a lease of {LEASE_MS} ms {when} (node {at})"))?;
        let credential = held.value.credential.unwrap_or_default();
        let released = api.release(&credential, "idle", held.value.token).await;
        released.or_broken(format!("the release of a lease {when} failed"))?;
        api.close_session(&credential).await.or_broken("the end of its session failed")?;
        Ok(())
    }

    fn judge(&mut self, took: Duration, what: &str) -> Result<(), Failed> {
        self.slowest = self.slowest.max(took);
        self.calls += 1;
        if took > self.allowed {
            return broken(format!("{what} took {}; allowed are {}", millis(took), millis(self.allowed)));
        }
        Ok(())
    }

    /// All nodes are restarted under one client, the leader last. How many calls it made, and how long the slowest took
    /// while the leader changed; the others are judged.
    async fn one_after_the_other(&mut self) -> Result<(usize, Duration), Failed> {
        let client = LibraryCycles::start(&self.cluster.endpoints(), &[PreferredNode::default()], EVERY).await?;
        let (leader, _) = self.cluster.leader().await?;
        let followers = self.cluster.others(leader);
        for node in &followers {
            self.restart_under_work(*node).await?;
        }
        let stopped = Instant::now();
        self.cluster.signal(leader, Signal::SIGTERM);
        self.cluster.leader_among(&followers, STOPS_WITHIN).await?;
        let changed = Instant::now();
        self.cluster.ended(leader, STOPS_WITHIN).await?;
        self.cluster.start_node(leader).await?;
        tokio::time::sleep(2 * EVERY).await;
        let calls = client.end().await?;
        let while_it_changes = |(sent, took): &(Instant, Duration)| *sent <= changed && *sent + *took >= stopped;
        let (excused, judged): (Vec<_>, Vec<_>) = calls.into_iter().partition(while_it_changes);
        for (_, took) in &judged {
            self.slowest = self.slowest.max(*took);
            if *took > self.allowed {
                let allowed = millis(self.allowed);
                return broken(format!("a call beside restarts took {}; allowed are {allowed}", millis(*took)));
            }
        }
        Ok((judged.len(), excused.iter().map(|(_, took)| *took).max().unwrap_or_default()))
    }

    async fn restart_under_work(&mut self, node: u64) -> Result<(), Failed> {
        self.cluster.signal(node, Signal::SIGTERM);
        self.cluster.ended(node, STOPS_WITHIN).await?;
        self.cluster.start_node(node).await?;
        tokio::time::sleep(2 * EVERY).await;
        Ok(())
    }
}
