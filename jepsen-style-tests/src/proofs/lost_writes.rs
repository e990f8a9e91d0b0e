//! P4 under power loss: `kill -9` of all three nodes under a write load, and each starts again from what its disk need have kept.
//!
//! The disks are rebuilt from traces of the nodes' system calls (`disk`): what was synced is there, the rest is lost, or late, or torn,
//! by the draw. What must hold afterwards is what must hold after `kill_all`. Then the same with the test-only switch that leaves the
//! sync out: there acknowledged writes must be seen to be lost, or this shows nothing.

use super::Context;
use super::kill_all::{self, Kept};
use crate::cluster::{Cluster, Options};
use crate::disk::{self, Loss};
use crate::verdict::{Failed, Outcome, broken};

pub(super) const ROUNDS: u32 = 50;
/// The control ends with the first loss; so many rounds without one are a defect of the proof.
const CONTROL_ROUNDS: u32 = 10;

pub(super) async fn run(context: &Context) -> Outcome {
    disk::works(&context.dir).await?;
    let rounds = context.rounds.unwrap_or(ROUNDS);
    let mut cluster = Cluster::start(&context.binary, &context.dir.join("full"), traced()).await?;
    let kept = kill_all::many_rounds(context, &mut cluster, rounds, Some(Loss::Drawn)).await?;
    drop(cluster);
    let (figures, with_losses) = kept.whole()?;
    if with_losses == 0 {
        return Err(Failed::CannotRun(format!(
            "in none of {rounds} rounds did a disk lose anything: nothing is shown"
        )));
    }
    let seen = control(context).await?;
    Ok(format!(
        "{rounds} rounds, in {with_losses} of them disks lost what was not synced, {figures}; with the sync left out {seen}"
    ))
}

fn traced() -> Options {
    let mut options = Options::default();
    disk::prepare(&mut options);
    options
}

/// The same with sled's bare `flush`. A disk that is merely somewhat late leaves a log that is whole and too short; were it later by more, the
/// node would find what it wrote at its start missing, and refuse.
async fn control(context: &Context) -> Result<String, Failed> {
    context.story.say("the same with sled's bare flush (test-only switch): acknowledged writes must be lost");
    let mut options = traced();
    options.environment.push(("LOCKKEEPER_TESTING__FLUSH_ONLY".into(), "true".into()));
    let mut cluster = Cluster::start(&context.binary, &context.dir.join("flush-only"), options).await?;
    match kill_all::many_rounds(context, &mut cluster, CONTROL_ROUNDS, Some(Loss::Latest)).await {
        Ok(Kept::Not(what)) => {
            context.story.say(format!("caught: {what}"));
            Ok(format!("this was seen: {what}"))
        }
        Ok(Kept::Whole { .. }) => {
            broken(format!("nothing was lost in {CONTROL_ROUNDS} rounds without a sync: this proof sees no losses"))
        }
        // It shows nothing: that is no loss of what was acknowledged.
        Err(failed) => Err(Failed::CannotRun(format!("without a sync, something else went wrong: {failed}"))),
    }
}
