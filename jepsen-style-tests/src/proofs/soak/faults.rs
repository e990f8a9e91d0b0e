//! Carries out the faults of the plan, one at a time, and says when their traces are gone.

use lockkeeper_client::{Client, Options};

use super::plan::{FaultKind, Plan, PlannedFault, Victim};
use super::samples::Lives;
use super::tally::SoakTally;
use crate::log::RunLog;
use crate::proofs::prelude::*;

/// How long a killed node stays down, and a paused one still: longer than an election, shorter than a session lives.
const DOWN_FOR: Duration = Duration::from_secs(1);
const PAUSED_FOR: Duration = Duration::from_secs(3);
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// How many faults there were of each kind, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultCounts {
    pub(super) kills: u32,
    /// Of all faults, those whose victim led.
    pub(super) leaders: u32,
    pub(super) restarts: u32,
    pub(super) pauses: u32,
    /// When a fault was on, until its traces were gone; in seconds.
    pub(super) windows: Vec<(f64, f64)>,
}

impl FaultCounts {
    /// What the plan has and what was never done.
    pub(super) fn missing(&self, plan: Plan) -> Option<&'static str> {
        let planned = |which: fn(&PlannedFault) -> bool| plan.faults().any(|(_, fault)| which(&fault));
        let wanted = [
            ("no node was killed", self.kills, planned(|fault| fault.kind == FaultKind::Kill)),
            ("no node was restarted", self.restarts, planned(|fault| fault.kind == FaultKind::Terminate)),
            ("no node was paused", self.pauses, planned(|fault| fault.kind == FaultKind::Pause)),
            ("no fault was at a leader", self.leaders, planned(|fault| fault.leading)),
        ];
        wanted.into_iter().find(|(_, count, is_planned)| *count == 0 && *is_planned).map(|(what, ..)| what)
    }
}

/// What faults are done to, and who is to know.
pub(super) struct Faults<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) plan: Plan,
    pub(super) began: Instant,
    /// The node that is never ended, and the two others.
    pub(super) victims: [u64; 3],
    pub(super) tally: &'a SoakTally,
    pub(super) lives: &'a Lives,
    pub(super) log: &'a RunLog,
}

impl Faults<'_> {
    /// Carries out the whole plan.
    pub(super) async fn run(&mut self, counts: &mut FaultCounts) -> Result<(), Failed> {
        for (at, fault) in self.plan.faults() {
            // At the end of its interval: calm comes first.
            let at = at + self.plan.interval() / 2;
            tokio::time::sleep((self.began + at).saturating_duration_since(Instant::now())).await;
            let from = self.began.elapsed();
            self.tally.set_fault(true);
            self.carry_out(fault, counts).await?;
            tokio::time::sleep(self.plan.settles_within()).await;
            self.tally.set_fault(false);
            counts.windows.push((from.as_secs_f64(), self.began.elapsed().as_secs_f64()));
        }
        let left = (self.began + self.plan.length()).saturating_duration_since(Instant::now());
        tokio::time::sleep(left).await;
        Ok(())
    }

    async fn carry_out(&mut self, fault: PlannedFault, counts: &mut FaultCounts) -> Result<(), Failed> {
        let node = match fault.victim {
            Victim::Lasting => self.victims[0],
            Victim::First => self.victims[1],
            Victim::Second => self.victims[2],
        };
        if fault.leading {
            self.hand_over_to(node).await?;
        }
        let (leader, term) = self.cluster.leader().await?;
        counts.leaders += u32::from(leader == node);
        let role = if leader == node { "the leader" } else { "a follower" };
        let at = self.began.elapsed().as_secs();
        self.log.say(format!("at {at} s: {:?} of node {node}, {role} of term {term}", fault.kind));
        match fault.kind {
            FaultKind::Kill => {
                counts.kills += 1;
                self.cluster.kill(node).await?;
                tokio::time::sleep(DOWN_FOR).await;
                self.start(node)?;
            }
            FaultKind::Terminate => {
                counts.restarts += 1;
                self.cluster.stop(node, ENDS_WITHIN).await?;
                self.start(node)?;
            }
            FaultKind::Pause => {
                counts.pauses += 1;
                self.cluster.signal(node, Signal::SIGSTOP);
                tokio::time::sleep(PAUSED_FOR).await;
                self.cluster.signal(node, Signal::SIGCONT);
            }
        }
        self.cluster.all_ready().await
    }

    fn start(&mut self, node: u64) -> Result<(), Failed> {
        self.cluster.spawn(node)?;
        if let Some(process) = self.cluster.process(node) {
            self.lives.began(node, process.pid());
        }
        Ok(())
    }

    /// So that leaders die too. An election may come between; then a follower dies, and what is said is true.
    async fn hand_over_to(&self, node: u64) -> Result<(), Failed> {
        if self.cluster.leader().await?.0 == node {
            return Ok(());
        }
        let client = Client::new(self.cluster.endpoints(), Options::default());
        let client = client.map_err(|error| Failed::CannotRun(error.to_string()))?;
        if let Err(error) = client.transfer_leadership(Some(node)).await {
            self.log.say(format!("leadership was not handed to node {node}: {error}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_planned_kind_of_fault_is_wanted() {
        let (long, short) = (Plan::of(Duration::from_secs(3_600)), Plan::of(Duration::from_secs(120)));
        let all = FaultCounts { kills: 1, leaders: 1, restarts: 1, pauses: 1, windows: Vec::new() };
        assert_eq!(all.missing(long), None);
        for (counts, what) in [
            (FaultCounts { kills: 0, ..all.clone() }, "killed"),
            (FaultCounts { restarts: 0, ..all.clone() }, "restarted"),
            (FaultCounts { pauses: 0, ..all.clone() }, "paused"),
            (FaultCounts { leaders: 0, ..all.clone() }, "leader"),
        ] {
            assert!(counts.missing(long).is_some_and(|missing| missing.contains(what)), "{counts:?}");
        }
        assert_eq!(FaultCounts { pauses: 0, ..all }.missing(short), None, "two faults a quarter, and none is a pause");
    }
}
