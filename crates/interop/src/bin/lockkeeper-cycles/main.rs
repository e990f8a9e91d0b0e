//! Measures the cost of a lock for a ZooKeeper client, against Lockkeeper and against real ZooKeeper.
//!
//! Each client is a session of the crate `zookeeper-client` and follows ZooKeeper's recipe (`client`): create an
//! ephemeral sequential node, list the queue, watch the preceding node, delete. `point` runs one measurement. The two
//! systems take turns, point by point, so that both see the same state of the machine. `table` compares the results.
//! This program starts no servers (`scripts/bench-zookeeper` does), never retries silently, and must never write
//! outside a node that it created.

mod client;
mod point;
mod table;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use lockkeeper_bench::BenchError;
use serde::Serialize;

use point::{Locks, Plan, Point, System};
use table::{PointFigures, Row};

/// Measures cycles of ZooKeeper's lock recipe against Lockkeeper and against real ZooKeeper, side by side.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "A cycle: create an ephemeral sequential node, list the queue, watch the preceding node until it is \
                  deleted, delete the own node.\nExit codes: 0 measured, 1 a point had errors, 2 the measurement failed"
)]
struct Arguments {
    /// Addresses of Lockkeeper's ZooKeeper frontends
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…", required_unless_present = "zookeeper")]
    lockkeeper: Vec<SocketAddr>,
    /// Its processes, whose CPU time is counted
    #[arg(long, value_delimiter = ',', value_name = "PID,…")]
    lockkeeper_pids: Vec<u32>,
    /// Servers of a real ZooKeeper
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    zookeeper: Vec<SocketAddr>,
    /// Its processes, whose CPU time is counted
    #[arg(long, value_delimiter = ',', value_name = "PID,…")]
    zookeeper_pids: Vec<u32>,
    /// Numbers of clients, which are spread over the servers
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [1, 16, 64, 256])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: Vec<u32>,
    /// A separate lock per client, or one lock for all
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Locks::Own, Locks::One])]
    locks: Vec<Locks>,
    /// Duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Warm-up before each measurement
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Warm-up of each system before the first point, with the most clients: a Java server needs time to compile its
    /// code
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    first_warm_up: Duration,
    /// Measurements per point; the printed values are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write all values, including those of each round, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.01..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 0.01 to 3600".into()),
    }
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("{system}: {why}")]
    Connect { system: &'static str, why: String },
    #[error(transparent)]
    Process(#[from] BenchError),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot encode the results as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// All results, as JSON.
#[derive(Serialize)]
struct Report {
    cores: usize,
    seconds_per_round: f64,
    warm_up_seconds: f64,
    rounds: u32,
    points: Vec<PointFigures>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(rows) if rows.iter().all(Row::is_valid) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(trouble) => {
            eprintln!("lockkeeper-cycles: {trouble}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: &Arguments) -> Result<Vec<Row>, MeasureError> {
    let of = |name, addresses: &[SocketAddr], pids: &[u32]| System {
        name,
        addresses: addresses.iter().map(ToString::to_string).collect(),
        pids: pids.to_owned(),
    };
    let mut systems = vec![
        of("Lockkeeper", &arguments.lockkeeper, &arguments.lockkeeper_pids),
        of("ZooKeeper", &arguments.zookeeper, &arguments.zookeeper_pids),
    ];
    systems.retain(|system| !system.addresses.is_empty());
    let points: Vec<Point> = arguments
        .locks
        .iter()
        .flat_map(|&locks| arguments.clients.iter().map(move |&clients| Point { locks, clients }))
        .collect();

    warm_up(arguments, &systems).await?;
    let mut rows: Vec<Row> = points.iter().map(|&point| Row::new(point, systems.len())).collect();
    let plan = Plan { warm_up: arguments.warm_up, measure: arguments.seconds };
    for round in 1..=arguments.rounds {
        for row in &mut rows {
            // Alternate which system is first, so that drift of the machine affects both.
            let mut order: Vec<usize> = (0..systems.len()).collect();
            if round % 2 == 0 {
                order.reverse();
            }
            for at in order {
                let measured = point::measure(&systems[at], row.point, &plan).await?;
                eprintln!("round {round}, {}, {}: {}", row.point, systems[at].name, measured.in_short());
                row.add(at, &measured);
            }
        }
    }
    show(arguments, &systems, &rows)?;
    Ok(rows)
}

async fn warm_up(arguments: &Arguments, systems: &[System]) -> Result<(), MeasureError> {
    let plan = Plan { warm_up: arguments.warm_up, measure: arguments.first_warm_up };
    let clients = arguments.clients.iter().copied().max().unwrap_or(1);
    for system in systems {
        let point = Point { locks: Locks::Own, clients };
        let measured = point::measure(system, point, &plan).await?;
        eprintln!("first warm-up, {point}, {}: {}", system.name, measured.in_short());
    }
    Ok(())
}

fn show(arguments: &Arguments, systems: &[System], rows: &[Row]) -> Result<(), MeasureError> {
    let names: Vec<&str> = systems.iter().map(|system| system.name).collect();
    println!("{}", table::for_people(&names, rows));
    for row in rows {
        for remark in row.remarks(&names) {
            println!("! {}: {remark}", row.point);
        }
    }
    if let Some(path) = &arguments.markdown {
        write(path, table::markdown(&names, rows) + "\n")?;
    }
    if let Some(path) = &arguments.json {
        let report = Report {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            seconds_per_round: arguments.seconds.as_secs_f64(),
            warm_up_seconds: arguments.warm_up.as_secs_f64(),
            rounds: arguments.rounds,
            points: rows.iter().map(|row| row.figures(&names)).collect(),
        };
        write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

fn write(path: &Path, text: String) -> Result<(), MeasureError> {
    std::fs::write(path, text).map_err(|source| MeasureError::Write { path: path.to_owned(), source })
}
