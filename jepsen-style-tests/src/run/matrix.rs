//! Runs every workload under every nemesis, in short runs, one or a few at a time, each on a cluster of its own; or a
//! slice of these cells.
//!
//! The order gives each workload and each nemesis an early turn, so a bound in minutes leaves cells out evenly. No cell
//! is tried twice, and one that could not be run is not a pass.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::cluster::Options;
use crate::nemesis;
use crate::report::matrix::{Cell, CellResult, Matrix, Ran};
use crate::report::{self, Outcome};
use crate::verdict::{Failed, OrFailed as _, cannot_run};

use super::plan::Manner;
use super::programs::Programs;
use super::screen::Screen;
use super::settings::{self, Arguments, Settings};
use super::{RunEnd, provenance, test_bed};

/// Time under load in each cell: one turn of its fault, longer than the sessions live, between two calm phases.
pub const CELL_TIME: Duration = Duration::from_secs(8);

/// No cell takes longer.
const CELL_WITHIN: Duration = Duration::from_secs(240);

/// What is to be run.
#[derive(Debug)]
pub struct MatrixPlan {
    /// The rest of each cell's settings.
    pub like: Settings,
    /// The columns.
    pub workloads: Vec<String>,
    /// The rows; `none` may be among them.
    pub nemeses: Vec<String>,
    /// Only so many cells that each workload and each nemesis is there.
    pub slice: bool,
    /// Nemeses that the slice does without, because a cluster of this size cannot have them.
    pub excluded: Vec<&'static str>,
    /// After this no cell is begun.
    pub within: Duration,
    /// So many cells run at a time.
    pub jobs: usize,
    /// What does it again.
    pub command: String,
}

impl Arguments {
    /// The table that was asked for, like these runs. Without names it has all of them.
    pub fn matrix_plan(&self, runs: &[Settings]) -> Result<MatrixPlan, String> {
        let like = runs.first().ok_or("there is no workload")?;
        let all = ["all".to_owned()];
        let given = |of: &[String], left_out: &str| if of == [left_out] { all.to_vec() } else { of.to_vec() };
        let workloads = settings::workloads(&given(&self.workload, "fenced-lock"))?;
        let (mut nemeses, _) = settings::nemeses(&given(&self.nemesis, "all"))?;
        if given(&self.nemesis, "all").iter().any(|name| name == "all" || name == "none") {
            nemeses.insert(0, "none".into());
        }
        let all_asked = given(&self.nemesis, "all").iter().any(|name| name == "all");
        let excluded: &[&str] = if self.slice && self.nodes < 5 && all_asked { &nemesis::NEED_FIVE_NODES } else { &[] };
        let minutes = self.minutes.unwrap_or(if self.slice { 10 } else { 120 });
        let kind = if self.slice { "--slice" } else { "--matrix" };
        let command =
            format!("scripts/jepsen {kind} --nodes {} --net {} --seed {}", self.nodes, self.net.name(), like.seed);
        Ok(MatrixPlan {
            like: Settings { time: CELL_TIME, ..like.clone() },
            workloads,
            nemeses,
            slice: self.slice,
            excluded: excluded.to_vec(),
            within: Duration::from_secs(minutes * 60),
            jobs: usize::from(self.jobs),
            command,
        })
    }
}

/// Cells that no slice leaves out: what shows that the faults do harm where nothing is done against it, power loss, and
/// what makes ZooKeeper's clients reconnect while much happens.
const PINNED: [(&str, &str); 4] = [
    ("unfenced-lock", "client-pause"),
    ("register", "lost-writes"),
    ("zk-lock", "pause-leader"),
    ("zk-watches", "pause-one"),
];

/// The places of those in the plan.
fn pinned(plan: &MatrixPlan) -> Vec<(usize, usize)> {
    let place = |of: &[String], name: &str| of.iter().position(|other| other == name);
    let places = |(workload, nemesis)| Some((place(&plan.workloads, workload)?, place(&plan.nemeses, nemesis)?));
    PINNED.into_iter().filter_map(places).collect()
}

/// The cells in their order, by workload and nemesis. The first of them, as many as the longer side has, are a slice.
fn order(workloads: usize, nemeses: usize) -> Vec<(usize, usize)> {
    if workloads == 0 || nemeses == 0 {
        return Vec::new();
    }
    let longer = workloads.max(nemeses);
    let mut seen = std::collections::BTreeSet::new();
    let turns = (0..longer).flat_map(|shift| (0..longer).map(move |at| (at % workloads, (at + shift) % nemeses)));
    let every = (0..workloads).flat_map(|workload| (0..nemeses).map(move |nemesis| (workload, nemesis)));
    turns.chain(every).filter(|cell| seen.insert(*cell)).collect()
}

/// The cells to run. In a slice the next cells of the order take the place of those with an excluded nemesis.
fn cells(plan: &MatrixPlan) -> Vec<(usize, usize)> {
    let mut cells = order(plan.workloads.len(), plan.nemeses.len());
    if plan.slice {
        cells.retain(|&(_, nemesis)| !plan.excluded.contains(&plan.nemeses[nemesis].as_str()));
        cells.truncate(plan.workloads.len().max(plan.nemeses.len()));
        let missing: Vec<_> = pinned(plan).into_iter().filter(|cell| !cells.contains(cell)).collect();
        cells.extend(missing);
    }
    cells
}

/// Runs the cells; after each the table is written anew.
///
/// # Errors
/// A server cannot be built, or the table cannot be written. What a cell came to is in the table.
pub async fn run(plan: &MatrixPlan, programs: &Programs, dir: &Path, screen: &Screen) -> Result<Matrix, Failed> {
    let mut options = Options::default();
    for nemesis in settings::made(&plan.nemeses) {
        nemesis.prepares(&mut options);
    }
    // A build takes minutes, which are not the cells'.
    test_bed::server(&options, programs)?;
    let cells = cells(plan);
    let mut matrix = Matrix {
        made: provenance::provenance(&programs.server),
        command: plan.command.clone(),
        seed: plan.like.seed,
        workloads: plan.workloads.clone(),
        nemeses: plan.nemeses.clone(),
        cells: Vec::new(),
        seconds: 0,
        nodes: plan.like.nodes,
        net: plan.like.net.name().into(),
        slice: plan.slice,
    };
    let count = cells.len();
    let runner = Arc::new(Runner {
        programs: programs.clone(),
        dir: dir.to_owned(),
        screen: screen.clone(),
        begun: Instant::now(),
        within: plan.within,
        lacking: Mutex::default(),
    });
    let running = cells.into_iter().enumerate().map(|(at, (workload, nemesis))| {
        let (workload, nemesis) = (plan.workloads[workload].clone(), plan.nemeses[nemesis].clone());
        let (runner, settings) = (runner.clone(), cell(plan, &workload, &nemesis, at));
        async move {
            // A task of its own: while one cell is judged, the faults and clients of another go on.
            let task = tokio::spawn(async move {
                let fate = runner.fate(&settings, &nemesis).await;
                Cell { workload, nemesis, fate }
            });
            let _ended_with_us = EndTask(task.abort_handle());
            task.await.or_cannot_run("a cell")
        }
    });
    let mut running = stream::iter(running).buffered(plan.jobs);
    while let Some(cell) = running.next().await {
        let cell = cell?;
        matrix.seconds = runner.begun.elapsed().as_secs();
        if cell.fate != CellResult::NotReached {
            let at = matrix.cells.len() + 1;
            screen.print(&format!("[{at}/{count}, {} min] {}", matrix.seconds / 60, cell.line()));
        }
        matrix.cells.push(cell);
        report::matrix::write(dir, &matrix)?;
    }
    Ok(matrix)
}

/// Ends a cell with the matrix.
struct EndTask(AbortHandle);

impl Drop for EndTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs cells.
struct Runner {
    programs: Programs,
    dir: PathBuf,
    screen: Screen,
    begun: Instant,
    within: Duration,
    /// Nemeses that cannot be had here, and why.
    lacking: Mutex<BTreeMap<String, CellResult>>,
}

impl Runner {
    async fn fate(&self, settings: &Settings, nemesis: &str) -> CellResult {
        let lacking = || self.lacking.lock();
        if let Some(skipped) = lacking().get(nemesis) {
            return skipped.clone();
        }
        if self.begun.elapsed() > self.within {
            return CellResult::NotReached;
        }
        self.screen.phase(&format!("{} under {nemesis}", settings.workload));
        let fate = one(settings, &self.programs, &self.dir, &self.screen).await;
        if matches!(fate, CellResult::Skipped(_) | CellResult::Excluded(_)) {
            lacking().insert(nemesis.to_owned(), fate.clone());
        }
        fate
    }
}

fn cell(plan: &MatrixPlan, workload: &str, nemesis: &str, at: usize) -> Settings {
    Settings {
        workload: workload.to_owned(),
        nemeses: if nemesis == "none" { Vec::new() } else { vec![nemesis.to_owned()] },
        manner: Manner::InTurn,
        // Each cell has chance of its own, and can be run again by its own seed.
        seed: plan.like.seed.wrapping_add(at as u64),
        ..plan.like.clone()
    }
}

async fn one(settings: &Settings, programs: &Programs, dir: &Path, screen: &Screen) -> CellResult {
    let begun = Instant::now();
    let name = settings.short_name();
    let directory = dir.join(&name);
    let ran = tokio::time::timeout(CELL_WITHIN, super::run(settings, programs, &directory, screen)).await;
    let ran = ran.unwrap_or_else(|_| cannot_run(format!("not at an end after {CELL_WITHIN:?}")));
    match ran {
        Ok(RunEnd::Reported(report)) => CellResult::Ran(Box::new(Ran::of(&report, &name, begun.elapsed()))),
        Ok(RunEnd::Lacking(skipped)) => {
            let why = skipped.iter().map(|skipped| skipped.why.as_str()).collect::<Vec<_>>().join("; ");
            let by_settings = skipped.iter().all(|skipped| skipped.by_settings);
            if by_settings { CellResult::Excluded(why) } else { CellResult::Skipped(why) }
        }
        Err(failed) => CellResult::CouldNotRun(failed.to_string()),
    }
}

/// Whether every cell came out as it must. One that was not reached did not, nor did one for which this machine lacks
/// something.
pub fn passes(matrix: &Matrix) -> bool {
    matrix.cells.iter().all(|cell| match &cell.fate {
        CellResult::Ran(ran) => Outcome::passes(ran.outcome),
        CellResult::Excluded(_) => true,
        CellResult::Skipped(_) | CellResult::CouldNotRun(_) | CellResult::NotReached => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_cell_once_and_early_turns_for_all() {
        for (workloads, nemeses) in [(13, 24), (3, 2), (1, 5), (4, 4), (6, 4)] {
            let all = order(workloads, nemeses);
            let different: BTreeSet<_> = all.iter().collect();
            assert_eq!((all.len(), different.len()), (workloads * nemeses, workloads * nemeses));
            let slice = &all[..workloads.max(nemeses)];
            assert_eq!(slice.iter().map(|cell| cell.0).collect::<BTreeSet<_>>().len(), workloads);
            assert_eq!(slice.iter().map(|cell| cell.1).collect::<BTreeSet<_>>().len(), nemeses);
        }
        assert!(order(0, 3).is_empty());
    }
    #[test]
    fn only_what_settings_leave_out_may_be_skipped() {
        let passes_with = |fate| {
            let cell = Cell { workload: "lock".into(), nemesis: "slow-links".into(), fate };
            passes(&Matrix {
                made: report::Provenance::default(),
                command: String::new(),
                seed: 1,
                workloads: vec!["lock".into()],
                nemeses: vec!["slow-links".into()],
                cells: vec![cell],
                seconds: 1,
                nodes: 3,
                net: "netns".into(),
                slice: false,
            })
        };
        assert!(passes_with(CellResult::Excluded("only the proxy backend can delay".into())));
        assert!(!passes_with(CellResult::Skipped("it takes strace".into())));
        assert!(!passes_with(CellResult::CouldNotRun(String::new())));
        assert!(!passes_with(CellResult::NotReached));
    }
}
