//! Processes of nodes killed (`kill -9`; healing starts them again) or stopped (SIGSTOP): one, the leader, a minority,
//! a majority, all. A node that was stopped finds the world changed and must not act on what it knew.

use crate::nemesis::prelude::*;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    One,
    Leader,
    Minority,
    Majority,
    All,
}

impl Which {
    /// The nodes meant.
    pub(super) async fn of(self, test_bed: &TestBed, rng: &mut StdRng) -> Result<Vec<u64>, Failed> {
        let mut nodes = test_bed.cluster.ids();
        nodes.shuffle(rng);
        match self {
            Self::One => nodes.truncate(1),
            Self::Leader => nodes = vec![observe::leader_or_any(test_bed, rng).await?],
            Self::Minority => nodes.truncate(minority(nodes.len())),
            Self::Majority => nodes.truncate(nodes.len() / 2 + 1),
            Self::All => {}
        }
        Ok(nodes)
    }
}

/// The most nodes that can be missed.
pub(super) fn minority(nodes: usize) -> usize {
    nodes.saturating_sub(1) / 2
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessFault {
    Kill,
    Pause,
}

type FaultRow = (ProcessFault, Which, &'static str, &'static str);

const TABLE: [FaultRow; 10] = [
    (ProcessFault::Kill, Which::One, "kill-one", "kill -9 of one node"),
    (ProcessFault::Kill, Which::Leader, "kill-leader", "kill -9 of the leader"),
    (ProcessFault::Kill, Which::Minority, "kill-minority", "kill -9 of as many nodes at once as can be missed"),
    (ProcessFault::Kill, Which::Majority, "kill-majority", "kill -9 of a majority at once"),
    (ProcessFault::Kill, Which::All, "kill-all", "kill -9 of all nodes at once"),
    (ProcessFault::Pause, Which::One, "pause-one", "one node stopped (SIGSTOP) for longer than sessions live"),
    (ProcessFault::Pause, Which::Leader, "pause-leader", "the leader stopped for longer than sessions live"),
    (
        ProcessFault::Pause,
        Which::Minority,
        "pause-minority",
        "as many nodes as can be missed stopped for longer than sessions live",
    ),
    (ProcessFault::Pause, Which::Majority, "pause-majority", "a majority stopped for longer than sessions live"),
    (ProcessFault::Pause, Which::All, "pause-all", "all nodes stopped for longer than sessions live"),
];

struct NodeProcesses {
    row: FaultRow,
    killed: Vec<u64>,
    /// With their processes, and since when.
    stopped: Vec<(u64, i32, Instant)>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    TABLE.into_iter().map(of).collect()
}

fn of(row: FaultRow) -> Box<dyn Nemesis> {
    Box::new(NodeProcesses { row, killed: Vec::new(), stopped: Vec::new(), lead: None, evidence: Vec::new() })
}

impl NodeProcesses {
    async fn start_again(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let nodes = std::mem::take(&mut self.killed);
        let mut evidence = std::mem::take(&mut self.evidence);
        evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        for node in &nodes {
            test_bed.cluster.spawn(*node)?;
        }
        test_bed.moments.lift();
        let back = observe::back(&mut test_bed.cluster, &nodes).await?;
        if !evidence.is_empty() {
            evidence.push(back);
        }
        Ok(evidence)
    }

    async fn wake(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let stopped = std::mem::take(&mut self.stopped);
        let nodes: Vec<u64> = stopped.iter().map(|(node, ..)| *node).collect();
        let mut evidence = Vec::new();
        for (node, pid, since) in &stopped {
            // Stopped all the while: nobody else wakes it.
            let (still, lasted) = (observe::is_stopped(*pid).await, since.elapsed());
            if still && lasted > test_bed.ttl {
                evidence.push(format!(
                    "node {node}'s process {pid} was stopped for {} ms, sessions live {} ms",
                    lasted.as_millis(),
                    test_bed.ttl.as_millis()
                ));
            }
        }
        if evidence.is_empty() {
            self.lead = None;
        }
        evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        for node in &nodes {
            test_bed.cluster.signal(*node, Signal::SIGCONT);
        }
        test_bed.moments.lift();
        for node in &nodes {
            if let Some(status) = test_bed.cluster.process(*node).and_then(Process::ended) {
                return broken(format!("node {node} ended ({status}) instead of going on"));
            }
        }
        observe::back(&mut test_bed.cluster, &nodes).await?;
        Ok(evidence)
    }
}

#[async_trait]
impl Nemesis for NodeProcesses {
    fn names(&self) -> (&'static str, &'static str) {
        (self.row.2, self.row.3)
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        let lacks = self.row.1 == Which::Minority && minority(test_bed.cluster.ids().len()) < 2;
        lacks.then_some(Lack::Settings("of fewer than five nodes no more than one can be missed"))
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let (fault, which, ..) = self.row;
        let victims = which.of(test_bed, rng).await?;
        self.lead = observe::lead(&test_bed.cluster, Duration::ZERO).await;
        let mut named = Vec::new();
        for victim in &victims {
            named.push(observe::called(&test_bed.cluster, *victim).await);
        }
        let named = named.join(", ");
        self.evidence.clear();
        self.stopped.clear();
        test_bed.moments.strike();
        // All at once, then one after the other to see what became of them.
        if fault == ProcessFault::Kill {
            self.killed.clone_from(&victims);
            for victim in &victims {
                test_bed.cluster.signal(*victim, Signal::SIGKILL);
            }
            for victim in &victims {
                self.evidence.extend(observe::kill(&mut test_bed.cluster, *victim).await?);
            }
            return Ok(format!("killed {named}"));
        }
        for victim in victims {
            test_bed.cluster.signal(victim, Signal::SIGSTOP);
            if let Some(pid) = test_bed.cluster.process(victim).map(|process| process.pid()) {
                self.stopped.push((victim, pid, Instant::now()));
            }
        }
        for (_, pid, _) in &self.stopped {
            observe::stopped(*pid).await?;
        }
        Ok(format!("stopped {named}"))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        match self.row.0 {
            ProcessFault::Kill => self.start_again(test_bed).await,
            ProcessFault::Pause => self.wake(test_bed).await,
        }
    }
}
