//! Faults of the clients themselves: half of their processes killed and replaced, or stopped for longer than their sessions live.

use std::time::Instant;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::{Nemesis, Stage, observe};
use crate::verdict::{Failed, broken};

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    vec![Box::new(Kill::default()), Box::new(Pause::default())]
}

/// Half of the processes, one at least.
fn some(stage: &Stage, rng: &mut StdRng) -> Vec<usize> {
    let mut places: Vec<usize> = (0..stage.workers.len()).collect();
    places.shuffle(rng);
    places.truncate(stage.workers.len().div_ceil(2));
    places
}

fn named(stage: &Stage, places: &[usize]) -> String {
    let names: Vec<&str> = places.iter().map(|at| stage.workers[*at].name()).collect();
    names.join(", ")
}

#[derive(Default)]
struct Kill {
    killed: Vec<usize>,
    evidence: Vec<String>,
}

#[async_trait]
impl Nemesis for Kill {
    fn name(&self) -> &'static str {
        "client-kill"
    }

    fn about(&self) -> &'static str {
        "kill -9 of half of the client processes; others take their place"
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        let places = some(stage, rng);
        self.evidence.clear();
        let told = format!("killed {}", named(stage, &places));
        self.killed.clone_from(&places);
        stage.moments.strike();
        for at in places {
            let worker = &mut stage.workers[at];
            if let Some(early) = worker.ended_early() {
                return broken(early);
            }
            let (name, pid) = (worker.name().to_owned(), worker.pid());
            worker.kill().await?;
            let gone = observe::state_of(pid).is_none();
            self.evidence.extend(gone.then(|| format!("{name}'s process {pid} is gone")));
        }
        Ok(told)
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        for at in std::mem::take(&mut self.killed) {
            stage.replace_worker(at)?;
        }
        stage.moments.lift();
        Ok(std::mem::take(&mut self.evidence))
    }
}

#[derive(Default)]
struct Pause {
    stopped: Vec<(usize, i32, Instant)>,
}

#[async_trait]
impl Nemesis for Pause {
    fn name(&self) -> &'static str {
        "client-pause"
    }

    fn about(&self) -> &'static str {
        "half of the client processes stopped (SIGSTOP) for longer than their sessions live, holders among them"
    }

    fn stops_holders(&self) -> bool {
        true
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        let places = some(stage, rng);
        let told = format!("stopped {}", named(stage, &places));
        self.stopped.clear();
        stage.moments.strike();
        for at in places {
            let worker = &mut stage.workers[at];
            if let Some(early) = worker.ended_early() {
                return broken(early);
            }
            worker.signal(Signal::SIGSTOP);
            self.stopped.push((at, worker.pid(), Instant::now()));
        }
        for (_, pid, _) in &self.stopped {
            observe::stopped(*pid).await?;
        }
        Ok(told)
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        let mut evidence = Vec::new();
        for (at, pid, since) in std::mem::take(&mut self.stopped) {
            let (still, lasted) = (observe::is_stopped(pid).await, since.elapsed());
            let worker = &stage.workers[at];
            worker.signal(Signal::SIGCONT);
            if still && lasted > stage.ttl {
                evidence.push(format!(
                    "{} (process {pid}) was stopped for {} ms, its sessions live {} ms",
                    worker.name(),
                    lasted.as_millis(),
                    stage.ttl.as_millis()
                ));
            }
        }
        Ok(evidence)
    }
}
