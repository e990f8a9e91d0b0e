//! P4 under power loss: `kill -9` of all three nodes under a write load. Each starts again from the minimum that its
//! disk must have kept.
//!
//! The disks are rebuilt from traces of the nodes' system calls (`disk`): what was synced is there; the rest is lost,
//! late or torn, at random. Afterwards everything must hold that must hold after `kill_all`. Then the same runs with
//! the test-only switch that leaves the sync out. There acknowledged writes must be seen to be lost; otherwise the
//! proof shows nothing.

use super::kill_all::{self, Durability};
use crate::disk::{self, Loss};
use crate::proofs::prelude::*;

/// The control ends with the first loss that is seen. So many clusters without one are a defect of the proof.
const CONTROL_TRIES: u32 = 10;
const CONTROL_ROUNDS: u32 = 3;

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    disk::works(&context.dir).await?;
    let mut cluster = Cluster::start(&context.binary, &context.dir.join("full"), traced()).await?;
    let kept = kill_all::many_rounds(context, &mut cluster, rounds, Some(Loss::Drawn), 1).await?;
    drop(cluster);
    let (figures, with_losses) = kept.whole()?;
    if with_losses == 0 {
        return cannot_run(format!("in none of {rounds} rounds did a disk lose anything: nothing is shown"));
    }
    let seen = control(context).await?;
    Ok(format!(
        "{rounds} rounds, in {with_losses} of them disks lost what was not synced, {figures}; with the sync left out \
         {seen}"
    ))
}

fn traced() -> Options {
    let mut options = Options::default();
    disk::prepare(&mut options);
    options
}

/// The same with no sync but sled's own. A disk that is a little late leaves a log that is whole and too short. Without
/// a sync other things go wrong too: a node misses what it wrote at its start and refuses to run, or a session is gone.
/// Those are not what the control looks for; it then tries a fresh cluster.
async fn control(context: &Context) -> Result<String, Failed> {
    context.log.say("the same without syncs (test-only switch): acknowledged writes must be lost");
    for number in 1..=CONTROL_TRIES {
        let mut options = traced();
        options.environment.push(("LOCKKEEPER_TESTING__FLUSH_ONLY".into(), "true".into()));
        let dir = context.dir.join(format!("flush-only-{number}"));
        let mut cluster = Cluster::start(&context.binary, &dir, options).await?;
        let chance = 1 + u64::from(number);
        match kill_all::many_rounds(context, &mut cluster, CONTROL_ROUNDS, Some(Loss::Latest), chance).await {
            Ok(Durability::Not(what)) => {
                context.log.say(format!("caught: {what}"));
                return Ok(format!("this was seen (cluster {number}): {what}"));
            }
            Ok(Durability::Whole { .. }) => {
                context.log.say(format!("cluster {number}: nothing that was acknowledged is gone"))
            }
            Err(failed) => context.log.say(format!("cluster {number}: not what is looked for: {failed}")),
        }
    }
    broken(format!("nothing was seen to be lost in {CONTROL_TRIES} clusters without a sync: this proof sees no losses"))
}
