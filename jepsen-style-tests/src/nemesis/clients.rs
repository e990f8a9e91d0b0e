//! Faults of the client processes: half of them are killed and replaced, or stopped for longer than their sessions
//! live.

use crate::nemesis::prelude::*;
use crate::process;
use crate::workers::Worker;

/// Half of the processes, one at least.
fn some(test_bed: &TestBed, rng: &mut StdRng) -> Vec<usize> {
    let mut places: Vec<usize> = (0..test_bed.workers.len()).collect();
    places.shuffle(rng);
    places.truncate(test_bed.workers.len().div_ceil(2));
    places
}

fn named(test_bed: &TestBed, places: &[usize]) -> String {
    let names: Vec<&str> = places.iter().map(|at| test_bed.workers[*at].name()).collect();
    names.join(", ")
}

/// A process of clients that is to be struck, which must not have ended by itself.
fn alive(test_bed: &mut TestBed, at: usize) -> Result<&mut Worker, Failed> {
    let worker = &mut test_bed.workers[at];
    worker.ended_early().map_or(Ok(()), broken)?;
    Ok(worker)
}

#[derive(Default)]
pub(super) struct KillClients {
    killed: Vec<usize>,
    evidence: Vec<String>,
}

#[async_trait]
impl Nemesis for KillClients {
    fn names(&self) -> (&'static str, &'static str) {
        ("client-kill", "kill -9 of half of the client processes; others take their place")
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let places = some(test_bed, rng);
        self.evidence.clear();
        let told = format!("killed {}", named(test_bed, &places));
        self.killed.clone_from(&places);
        test_bed.moments.strike();
        for at in places {
            let worker = alive(test_bed, at)?;
            let (name, pid) = (worker.name().to_owned(), worker.pid());
            worker.kill().await?;
            let gone = process::state_of(pid).is_none();
            self.evidence.extend(gone.then(|| format!("{name}'s process {pid} is gone")));
        }
        Ok(told)
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        for at in std::mem::take(&mut self.killed) {
            test_bed.replace_worker(at)?;
        }
        test_bed.moments.lift();
        Ok(std::mem::take(&mut self.evidence))
    }
}

#[derive(Default)]
pub(super) struct PauseClients {
    stopped: Vec<(usize, i32, Instant)>,
}

#[async_trait]
impl Nemesis for PauseClients {
    fn names(&self) -> (&'static str, &'static str) {
        (
            "client-pause",
            "half of the client processes stopped (SIGSTOP) for longer than their sessions live, holders among them",
        )
    }

    fn stops_holders(&self) -> bool {
        true
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let places = some(test_bed, rng);
        let told = format!("stopped {}", named(test_bed, &places));
        self.stopped.clear();
        test_bed.moments.strike();
        for at in places {
            let worker = alive(test_bed, at)?;
            worker.signal(Signal::SIGSTOP);
            self.stopped.push((at, worker.pid(), Instant::now()));
        }
        for (_, pid, _) in &self.stopped {
            observe::stopped(*pid).await?;
        }
        Ok(told)
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let mut evidence = Vec::new();
        for (at, pid, since) in std::mem::take(&mut self.stopped) {
            let (still, lasted) = (observe::is_stopped(pid).await, since.elapsed());
            let worker = &test_bed.workers[at];
            worker.signal(Signal::SIGCONT);
            if still && lasted > test_bed.ttl {
                evidence.push(format!(
                    "{} (process {pid}) was stopped for {} ms, its sessions live {} ms",
                    worker.name(),
                    lasted.as_millis(),
                    test_bed.ttl.as_millis()
                ));
            }
        }
        Ok(evidence)
    }
}
