//! Measures what a lock costs a ZooKeeper client: the same program against Lockkeeper and against real ZooKeeper.
//!
//! Each client is a session of the crate `zookeeper-client` and follows ZooKeeper's recipe (`client`): create a sequential ephemeral
//! node, list the queue, watch the one before, delete. `point` measures so many clients for so long; here the two systems take turns,
//! point by point, so that both see the same machine. `table` lays the figures side by side. It starts no servers
//! (`scripts/bench-zookeeper` does), asks nothing twice in silence, and must never write outside a node that it made.

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
    after_help = "A cycle is: create an ephemeral sequential node, list the queue, watch the node before and wait until it goes, \
                  delete the own one.\nExit codes: 0 measured, 1 a point had errors, 2 it could not be measured"
)]
struct Arguments {
    /// Doors for ZooKeeper's clients of a Lockkeeper
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…", required_unless_present = "zookeeper")]
    lockkeeper: Vec<SocketAddr>,
    /// Its processes, whose processor time is counted
    #[arg(long, value_delimiter = ',', value_name = "PID,…")]
    lockkeeper_pids: Vec<u32>,
    /// Servers of a real ZooKeeper
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    zookeeper: Vec<SocketAddr>,
    /// Its processes, whose processor time is counted
    #[arg(long, value_delimiter = ',', value_name = "PID,…")]
    zookeeper_pids: Vec<u32>,
    /// How many clients, spread over the servers
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [1, 16, 64, 256], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: Vec<u32>,
    /// Whether each client takes a lock of its own, or all the same
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Locks::Own, Locks::One])]
    locks: Vec<Locks>,
    /// Measured for each point and round
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Not measured, before that
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Before the first point, each system's turn with most clients: a Java server is slow until it has compiled itself
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    first_warm_up: Duration,
    /// How often each point is measured; each figure that is printed is the median of the rounds'
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write the figures there, those of each round too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table there, as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.01..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.01 to 3600 is expected".into()),
    }
}

/// Why it could not be measured.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{system}: {why}")]
    Connect { system: &'static str, why: String },
    #[error(transparent)]
    Process(#[from] BenchError),
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the figures cannot be put down as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// The whole of a run, for programs.
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
        Ok(rows) if rows.iter().all(Row::is_sound) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(trouble) => {
            eprintln!("lockkeeper-cycles: {trouble}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: &Arguments) -> Result<Vec<Row>, Trouble> {
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
            // Who comes first changes from round to round: whatever grows on the machine in the meantime hits both.
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

async fn warm_up(arguments: &Arguments, systems: &[System]) -> Result<(), Trouble> {
    let plan = Plan { warm_up: arguments.warm_up, measure: arguments.first_warm_up };
    let clients = arguments.clients.iter().copied().max().unwrap_or(1);
    for system in systems {
        let point = Point { locks: Locks::Own, clients };
        let measured = point::measure(system, point, &plan).await?;
        eprintln!("first warm-up, {point}, {}: {}", system.name, measured.in_short());
    }
    Ok(())
}

fn show(arguments: &Arguments, systems: &[System], rows: &[Row]) -> Result<(), Trouble> {
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

fn write(path: &Path, text: String) -> Result<(), Trouble> {
    std::fs::write(path, text).map_err(|source| Trouble::Write { path: path.to_owned(), source })
}
