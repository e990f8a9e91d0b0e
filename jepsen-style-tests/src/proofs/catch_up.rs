//! A cluster with 100,000 nodes in its tree takes in a new learner again and again. The leader sends it the snapshot,
//! since its log is cut, and two voters encode the same state for a backup meanwhile. Steady clients take and give back
//! locks at all voters. By their 99th percentile, the acquires until the learner is in step and the backups are there
//! may take at most half as long again as in the calm before, and none may fail. The learner and the commands that save
//! backups run at nice 19: they stand for other machines.

use super::lock_cycles::{CycleWork, LockCycles};
use crate::net::{Endpoint, Listener};
use crate::process::run_command;
use crate::proofs::prelude::*;

const NODES: usize = 100_000;
/// Nodes made in one transaction.
const AT_ONCE: usize = 500;
/// Bytes of each node's data.
const DATA_BYTES: usize = 200;
/// Of a write that fills the log.
const FILLER_BYTES: usize = 256 * 1024;
/// The calm before each learner.
const WINDOW: Duration = Duration::from_secs(6);
const SYNCED_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const MOST_TIMES: f64 = 1.5;
/// Of fewer acquires, the 99th percentile says nothing.
const LEAST_ACQUIRES: usize = 300;
const OTHER_MACHINE: [&str; 3] = ["nice", "-n", "19"];
const TREE: &str = "/catch-up";

/// A learner joins in each round.
pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    // Nothing of the log stays behind a snapshot.
    let options = Options { extra_config: "keep_entries = 1\n".into(), ..Options::default() };
    let mut cluster = Cluster::start(&context.binary, &context.dir, options).await?;
    let voters: Vec<Api> = cluster.apis().into_iter().map(|(_, api)| api).collect();
    fill(&voters[0]).await?;
    let cut = log_is_cut(&voters).await?;
    let steady = LockCycles::steady(&voters, "steady").await?;
    steady.window(WINDOW).await;
    let (mut calm, mut joining) = (Vec::new(), CycleWork::default());
    let mut joined = Vec::new();
    for round in 0..rounds {
        let before = steady.window(WINDOW).await;
        calm.extend(before.took);
        joining.failures.extend(before.failures);
        let (took, meanwhile) = join(context, &mut cluster, (&steady, cut)).await?;
        joining.took.extend(meanwhile.took);
        joining.failures.extend(meanwhile.failures);
        context.log.say(format!("learner {} was in step after {}", round + 1, millis(took)));
        joined.push(took);
    }
    joining.failures.extend(steady.end().await.failures);
    judge(&calm, &joining, &joined)
}

fn judge(calm: &[Duration], joining: &CycleWork, joined: &[Duration]) -> ProofResult {
    if let Some(first) = joining.failures.first() {
        return broken(format!("{} requests failed, the first one: {first}", joining.failures.len()));
    }
    let (Some(before), Some(during)) = (Summary::of(calm), Summary::of(&joining.took)) else {
        return broken("no lock was taken: there was no load");
    };
    if during.count < LEAST_ACQUIRES {
        return broken(format!("only {} acquires while learners joined: too few to judge", during.count));
    }
    let longest = joined.iter().max().copied().unwrap_or_default();
    let figures = format!(
        "acquires in calm {before}, while {} learners join and backups are taken ({} acquires): {during}, p99 {:.2} \
         times; a learner was in step within {}",
        joined.len(),
        during.count,
        during.times(&before),
        millis(longest)
    );
    match during.p99 <= before.p99.mul_f64(MOST_TIMES) {
        true => Ok(figures),
        false => broken(figures),
    }
}

/// Makes the tree.
async fn fill(api: &Api) -> Result<(), Failed> {
    let setup = "the tree cannot be made";
    let session = api.open_session(60_000, "fill").await.or_broken(setup)?.value;
    api.create(TREE, &Create::default(), None).await.or_broken(setup)?;
    let data = "x".repeat(DATA_BYTES);
    for from in (0..NODES).step_by(AT_ONCE) {
        let create = |node: usize| {
            let path = format!("{TREE}/{node}");
            serde_json::json!({ "op": "create", "path": path, "data": { "text": data } })
        };
        let operations: Vec<_> = (from..from + AT_ONCE).map(create).collect();
        api.transact(&session.credential, &serde_json::json!({ "operations": operations })).await.or_broken(setup)?;
    }
    api.close_session(&session.credential).await.or_broken(setup).map(drop)
}

/// Writes until every voter has a snapshot of the whole tree and has cut its log; returns up to where all have. A
/// snapshot is taken after as much log as the last one is large.
async fn log_is_cut(voters: &[Api]) -> Result<u64, Failed> {
    let failed = "the log cannot be filled";
    let filled = voters[0].status(false).await.or_broken(failed)?.value.last_log_index;
    let session = voters[0].open_session(60_000, "fill").await.or_broken(failed)?.value;
    let set = |bytes: usize| serde_json::json!({ "op": "set", "path": TREE, "data": { "text": "x".repeat(bytes) } });
    let write = async |bytes| {
        voters[0].transact(&session.credential, &serde_json::json!({ "operations": [set(bytes)] })).await.map(drop)
    };
    let begun = Instant::now();
    let mut cut = 0;
    while cut < filled {
        if begun.elapsed() > SYNCED_WITHIN {
            return broken(format!("the log has {filled} entries of the tree, and is cut up to {cut} only"));
        }
        write(FILLER_BYTES).await.or_broken(failed)?;
        cut = u64::MAX;
        for voter in voters {
            cut = cut.min(voter.status(false).await.or_broken(failed)?.value.purged_index.unwrap_or(0));
        }
    }
    write(0).await.or_broken(failed)?;
    voters[0].close_session(&session.credential).await.or_broken(failed)?;
    Ok(cut)
}

/// A learner with an empty directory joins until it is in step, and two voters give a backup; then it is removed. How
/// long it took to be in step, and what the clients saw until all was done.
async fn join(
    context: &Context,
    cluster: &mut Cluster,
    (steady, cut): (&LockCycles, u64),
) -> Result<(Duration, CycleWork), Failed> {
    let failed = "the members cannot be changed";
    let learner = cluster.prepare_node(None).await?;
    let (leader, _) = cluster.leader_among(&[1, 2, 3], SYNCED_WITHIN).await?;
    let follower = (1..=3).find(|node| *node != leader).unwrap_or(leader);
    let address = cluster.net().address(Endpoint::Node(leader), learner, Listener::Peer).to_string();
    let (leading, other) = (cluster.api(leader), cluster.api(follower));
    cluster.wrap(&OTHER_MACHINE);
    cluster.spawn(learner)?;
    cluster.wrap(&[]);
    steady.take();
    let begun = Instant::now();
    leading.add_member(learner, &address).await.or_broken(failed)?;
    let (took, first, second) =
        tokio::join!(synced(&leading, learner, begun), save(context, leading.base()), save(context, other.base()));
    let meanwhile = steady.take();
    let took = took.and_then(|took| first.and(second).map(|()| took))?;
    let installed = cluster.api(learner).status(false).await.or_broken(failed)?.value.snapshot_index;
    if installed.is_none_or(|installed| installed < cut) {
        return broken(format!("the learner has no snapshot of the tree: {installed:?}, the log is cut up to {cut}"));
    }
    leading.remove_member(learner).await.or_broken(failed)?;
    cluster.kill(learner).await?;
    cluster.forget_node(learner);
    Ok((took, meanwhile))
}

/// Has a node give a backup, to standard output: on other machines, files do not share the nodes' disk.
async fn save(context: &Context, endpoint: &str) -> Result<(), Failed> {
    let binary = context.binary.display().to_string();
    let command = [&binary, "--endpoints", endpoint, "snapshot", "save", "-"];
    run_command(Path::new(OTHER_MACHINE[0]), &[&OTHER_MACHINE[1..], &command].concat()).await
}

/// Waits until the leader counts a member as synced; returns how long it took.
async fn synced(leader: &Api, node: u64, begun: Instant) -> Result<Duration, Failed> {
    while begun.elapsed() < SYNCED_WITHIN {
        if let Ok(status) = leader.status(false).await {
            let known = status.value.members.iter().find(|member| member.node_id == node);
            if known.is_some_and(|member| member.synced == Some(true)) {
                return Ok(begun.elapsed());
            }
        }
        tokio::time::sleep(POLL).await;
    }
    broken(format!("learner {node} is not in step within {SYNCED_WITHIN:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_and_a_higher_percentile_break_it() {
        let ms = |n: u64| vec![Duration::from_millis(n); LEAST_ACQUIRES];
        let samples = |n, failures: &[&str]| CycleWork {
            took: ms(n),
            failures: failures.iter().map(|failure| (*failure).to_owned()).collect(),
            ..CycleWork::default()
        };
        judge(&ms(10), &samples(15, &[]), &[]).unwrap();
        for bad in [samples(16, &[]), samples(10, &["release"]), CycleWork::default()] {
            judge(&ms(10), &bad, &[]).unwrap_err();
        }
    }
}
