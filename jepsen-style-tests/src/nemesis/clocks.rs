//! Wrong clocks: wall clocks that jump, and clocks that run at another rate. The servers are a build with an injected
//! clock (`LOCKKEEPER_CLOCK_CONTROL`): one with debug assertions, or else a mutant build in which no mutant is active.
//!
//! Wall-clock time must not decide when a session ends, so jumps may be of any size. Rates are bounded above by the
//! drift that the client library allows for: a leader's clock may be 5 % too fast, and as slow as it likes.

use crate::nemesis::prelude::*;

const CONTROL: &str = "LOCKKEEPER_CLOCK_CONTROL";
/// Tells how its clock was put.
const SAID: &str = "the clock was put";
const OBEYED_WITHIN: Duration = Duration::from_secs(15);
const JUMPS_MS: [i64; 5] = [20, 300, 3_000, 30_000, 90_000];
const RATES: [f64; 5] = [0.5, 0.8, 0.95, 1.02, 1.05];

#[derive(Clone, Copy)]
enum How {
    Jump,
    Rate,
}

struct Clocks {
    how: How,
    wrong: Vec<u64>,
    evidence: Vec<String>,
}

/// Both.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    let make = |how| Box::new(Clocks { how, wrong: Vec::new(), evidence: Vec::new() }) as Box<dyn Nemesis>;
    [How::Jump, How::Rate].into_iter().map(make).collect()
}

fn tell(directory: &Path, offset_ms: i64, rate: f64) -> std::io::Result<()> {
    let (file, half) = (directory.join("clock"), directory.join("clock.half"));
    std::fs::write(&half, format!("{offset_ms} {rate}\n"))?;
    std::fs::rename(half, file)
}

/// Puts a clock, and waits until the node says that it has obeyed; gives what it said.
async fn put(directory: &Path, offset_ms: i64, rate: f64) -> Result<String, Failed> {
    let from = observe::log_end(directory);
    tell(directory, offset_ms, rate)?;
    let wait = Polling::within(OBEYED_WITHIN);
    loop {
        if let Some(line) = observe::said(directory, from, &[SAID]) {
            return Ok(line);
        }
        wait.or_broken(|| format!("{} was told and the node does not say that it obeyed", directory.display())).await?;
    }
}

impl Clocks {
    fn draw(&self, rng: &mut StdRng) -> (i64, f64) {
        match self.how {
            How::Jump => {
                let far = *JUMPS_MS.choose(rng).unwrap_or(&JUMPS_MS[0]);
                (if rng.random_bool(0.5) { far } else { -far }, 1.0)
            }
            How::Rate => (0, *RATES.choose(rng).unwrap_or(&RATES[0])),
        }
    }
}

#[async_trait]
impl Nemesis for Clocks {
    fn names(&self) -> (&'static str, &'static str) {
        match self.how {
            How::Jump => ("clock-jump", "wall clocks jump, by milliseconds to a minute and a half, and back"),
            How::Rate => ("clock-rate", "clocks run at rates of their own, from half to a twentieth too fast"),
        }
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        (!test_bed.clocks_obey).then_some(Lack::Machine("the server that was given has no injected clock"))
    }

    fn prepares(&self, options: &mut Options) {
        options.injected_clock = true;
        let named = options.environment.iter().any(|(name, _)| name == CONTROL);
        if !named {
            options.environment.push((CONTROL.into(), "{node}/clock".into()));
        }
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        self.evidence.clear();
        self.wrong.clear();
        let mut nodes = test_bed.cluster.ids();
        nodes.shuffle(rng);
        nodes.truncate(rng.random_range(1..=nodes.len()));
        // The leader's counts most.
        let leader = observe::leader_or_any(test_bed, rng).await?;
        if !nodes.contains(&leader) {
            nodes.push(leader);
        }
        let mut told = Vec::new();
        test_bed.moments.strike();
        for node in nodes {
            let (offset_ms, rate) = self.draw(rng);
            let called = observe::called(&test_bed.cluster, node).await;
            self.wrong.push(node);
            // One that another fault has ended obeys when it starts.
            let runs = test_bed.cluster.process(node).is_some_and(|process| process.ended().is_none());
            if runs {
                let said = put(test_bed.cluster.directory(node), offset_ms, rate).await?;
                self.evidence.push(format!("node {node} said: {said}"));
                told.push(match self.how {
                    How::Jump => format!("the clock of {called} jumped by {offset_ms} ms"),
                    How::Rate => format!("the clock of {called} runs at {rate}"),
                });
            }
        }
        Ok(told.join(", "))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        for node in std::mem::take(&mut self.wrong) {
            // Another fault may have put a new node in its place, or killed it, or stopped it: then it obeys when it
            // goes on.
            if !test_bed.cluster.ids().contains(&node) {
                continue;
            }
            let process = test_bed.cluster.process(node);
            match process.and_then(|process| process.ended().is_none().then(|| process.pid())) {
                Some(pid) if !observe::is_stopped(pid).await => {
                    put(test_bed.cluster.directory(node), 0, 1.0).await.map(drop)?
                }
                _ => tell(test_bed.cluster.directory(node), 0, 1.0)?,
            }
        }
        Ok(std::mem::take(&mut self.evidence))
    }
}
