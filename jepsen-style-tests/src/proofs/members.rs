//! A cluster grows from one node to three and to five and shrinks to three, and a voter whose disk is lost is replaced,
//! all under load. Each step is a block of `docs/operate.md`, run as it is printed there, but for the ports. At nodes
//! that stay no request may fail, no pause be longer than after the death of a leader, and tokens must rise throughout.

mod page;

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use lockkeeper_api::cluster::{Role, Status};

use super::lock_cycles::{CycleWork, LockCycles};
use crate::cluster::{agree, leading};
use crate::http::new_client;
use crate::proofs::prelude::*;
use page::{Page, RunningBlock};

/// The load goes on for so long between two steps.
const BETWEEN: Duration = Duration::from_millis(500);
const DONE_WITHIN: Duration = Duration::from_secs(90);
const AGREE_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn run(context: &Context) -> ProofResult {
    let mut growth = Growth::start(context).await?;
    let begun = Instant::now();
    growth.step("### From one node to three", &[2, 3]).await?;
    growth.step("### From three to five", &[4, 5]).await?;
    growth.use_nodes(&[1, 2, 3]).await?;
    growth.step("### From five to three", &[]).await?;
    growth.use_nodes(&[1, 2]).await?;
    growth.lose_disk(3).await?;
    growth.step("### Replace a node", &[6]).await?;
    let took = begun.elapsed();
    let (work, voters) = growth.end().await?;
    work.judge()?;
    Ok(format!(
        "1, 3, 5, 3 nodes and a voter replaced in {:.0} s under {} lock cycles: no request failed at a node that \
         stays, the longest pause was {}, tokens rose; the voters are {voters:?}",
        took.as_secs_f64(),
        work.grants.len(),
        millis(work.longest_pause)
    ))
}

/// The cluster as it grows.
struct Growth<'a> {
    context: &'a Context,
    page: Page,
    directory: PathBuf,
    /// The first node.
    cluster: Cluster,
    /// The steps, whose processes are the other nodes.
    blocks: Vec<RunningBlock>,
    nodes: Vec<u64>,
    load: LockCycles,
}

impl<'a> Growth<'a> {
    async fn start(context: &'a Context) -> Result<Self, Failed> {
        let cluster = Cluster::start(&context.binary, &context.dir, Options { nodes: 1, ..Options::default() }).await?;
        let directory = context.dir.join("joined");
        std::fs::create_dir_all(&directory)?;
        symlink(std::path::absolute(&context.binary)?, directory.join("lockkeeper"))?;
        let page = Page::with_free_ports()?;
        let load = LockCycles::contending(cluster.api(1)).await?;
        Ok(Self { context, page, directory, cluster, blocks: Vec::new(), nodes: vec![1], load })
    }

    fn apis(&self, nodes: &[u64]) -> Result<Vec<(u64, Api)>, Failed> {
        nodes.iter().map(|node| Ok((*node, self.api(*node)?))).collect()
    }

    /// Lets the load use these.
    async fn use_nodes(&self, nodes: &[u64]) -> Result<(), Failed> {
        self.load.use_nodes(self.apis(nodes)?.into_iter().map(|(_, api)| api).collect()).await;
        Ok(())
    }

    fn api(&self, node: u64) -> Result<Api, Failed> {
        match self.page.client_address(node) {
            Some(address) => Ok(Api::at_address(new_client()?, address)),
            None => Ok(self.cluster.api(node)),
        }
    }

    /// Runs a block of the page, which starts these nodes, and lets the load use them.
    async fn step(&mut self, heading: &str, starts: &[u64]) -> Result<(), Failed> {
        self.context.log.say(format!("{heading}, of docs/operate.md"));
        let endpoint = self.cluster.endpoints().remove(0);
        let block = RunningBlock::run(&self.page, heading, (&self.directory, &endpoint), starts, DONE_WITHIN).await?;
        self.blocks.push(block);
        self.nodes.extend(starts);
        let leader = self.status_of_leader().await?;
        let voters = voters(&leader);
        self.nodes.retain(|node| voters.contains(node));
        self.use_nodes(&voters).await?;
        self.context.log.say(format!("the voters are {voters:?}"));
        // Those that were removed are stopped, as the page says.
        self.blocks.iter_mut().for_each(|block| block.stop_all_but(&voters));
        tokio::time::sleep(BETWEEN).await;
        Ok(())
    }

    /// A machine is gone, and its disk with it.
    async fn lose_disk(&mut self, node: u64) -> Result<(), Failed> {
        self.context.log.say(format!("node {node} is killed, and its disk is deleted"));
        self.blocks.iter_mut().for_each(|block| block.stop(node));
        let api = self.api(node)?;
        let wait = Polling::within(DONE_WITHIN).every(POLL);
        while api.ready().await {
            wait.or_broken(|| format!("node {node}, which was killed, still answers")).await?;
        }
        let data: &Path = &self.directory.join(format!("node{node}-data"));
        Ok(std::fs::remove_dir_all(data)?)
    }

    async fn status_of_leader(&self) -> Result<Status, Failed> {
        leading(&self.apis(&self.nodes)?, DONE_WITHIN).await
    }

    /// Ends the load, and waits until all voters have the same contents.
    async fn end(self) -> Result<(CycleWork, Vec<u64>), Failed> {
        let voters = voters(&self.status_of_leader().await?);
        let nodes = self.apis(&voters)?;
        let work = self.load.end().await;
        agree(&nodes, AGREE_WITHIN).await?;
        Ok((work, voters))
    }
}

fn voters(status: &Status) -> Vec<u64> {
    status.members.iter().filter(|member| member.role == Role::Voter).map(|member| member.node_id).collect()
}
