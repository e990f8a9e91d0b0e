//! Measures what a lock costs: the same work against Lockkeeper and its peers.
//!
//! Each client follows its system's documented recipe (`system`). `lockkeeper-bench` runs one measurement. The systems
//! take turns, point by point, so that all see the same state of the machine. `table` compares the results with those
//! of one system. This program starts no servers (`scripts/bench` does), never retries silently, and must never write
//! outside of what it created.

mod engine;
mod etcd;
mod etcd_messages;
mod kind;
mod redis;
mod system;
mod table;
mod zookeeper;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use lockkeeper_bench::{BenchError, Edges, LockSystem, Locks, Measurement, PlotError, Security, Workload};
use lockkeeper_bench::{charts, measure};
use lockkeeper_client::{AccessToken, AccessTokenError, Tls, TlsError, TlsFiles};
use serde::Serialize;

use kind::{Kind, name_of};
use system::MeasuredSystem;
use table::{Limits, PointFigures, Row};

/// Measures cycles of acquire and release against several systems, side by side.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "A cycle: acquire a lock, release it, wait for the answer. A hand-over: one whose lock another client \
                  held before.\nExit codes: 0 measured, 1 a point had errors or the machine was too busy, 2 the \
                  measurement failed"
)]
struct CyclesArguments {
    /// A system, given once for each: addresses of its servers, over which clients are spread, and its processes,
    /// whose CPU time is counted with that of their children. KIND is lockkeeper-http, lockkeeper-stream,
    /// lockkeeper-secure-http, lockkeeper-secure-stream, lockkeeper-zookeeper, zookeeper, etcd, redis or redlock; or
    /// engine-NAME with an engine of lockkeeper-engines
    #[arg(long = "system", value_name = "KIND=ADDRESS,…[@PID,…]", required = true)]
    systems: Vec<MeasuredSystem>,
    /// The system that others are compared with [default: zookeeper, or else the first]
    #[arg(long, value_name = "KIND", value_enum)]
    reference: Option<Kind>,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [1, 16, 64, 256, 1024])]
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
    /// Warm-up of each system before the first point, with at most 64 clients: a Java server needs time to compile its
    /// code
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    first_warm_up: Duration,
    /// Measurements per point; the printed values are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The share of the machine's CPU time that programs beside the measured ones may use. A system's point whose
    /// median is above it is not compared
    #[arg(long, value_name = "SHARE", default_value = "0.15", value_parser = share)]
    busy_limit: f64,
    /// Fails if an acquire takes a system more than this times the reference's: the median ratio of the p50
    #[arg(long, value_name = "RATIO")]
    acquire_at_most: Option<f64>,
    /// For the secure kinds: the authority, this client's certificate and key, and the file with its token
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_CA")]
    ca: Option<PathBuf>,
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_CERT", requires = "key")]
    cert: Option<PathBuf>,
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_KEY")]
    key: Option<PathBuf>,
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Write all values, including those of each round, to this file. A round that could not be measured is null
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Plot cycles per second and acquire p50 to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.01..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 0.01 to 3600".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share @ 0.0..=1.0) => Ok(share),
        _ => Err("expected a share from 0 to 1".into()),
    }
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("--reference: {0} is not measured")]
    Reference(Kind),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Token(#[from] AccessTokenError),
    #[error(transparent)]
    Plot(#[from] PlotError),
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
    reference: String,
    busy_limit: f64,
    points: Vec<PointFigures>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = CyclesArguments::parse();
    match run(&arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(trouble) => {
            eprintln!("lockkeeper-cycles: {trouble}");
            ExitCode::from(2)
        }
    }
}

/// Whether every point was measured without an error, on a machine that was not too busy.
async fn run(arguments: &CyclesArguments) -> Result<bool, MeasureError> {
    let kinds: Vec<Kind> = arguments.systems.iter().map(|system| system.kind).collect();
    let security = security(arguments)?;
    let systems: Vec<Arc<dyn LockSystem>> = arguments
        .systems
        .iter()
        .map(|system| Arc::new(MeasuredSystem { security: security.clone(), ..system.clone() }) as Arc<dyn LockSystem>)
        .collect();
    let at = |kind: Kind| kinds.iter().position(|known| *known == kind);
    let reference = match arguments.reference {
        Some(kind) => at(kind).ok_or(MeasureError::Reference(kind))?,
        None => at(Kind::Zookeeper).unwrap_or(0),
    };
    let work = Workload {
        clients: arguments.clients.iter().copied().max().unwrap_or(1).min(64),
        locks: Locks::Own,
        rate: None,
        edges: Edges::Cut,
        warm_up: arguments.warm_up,
        measure: arguments.seconds,
    };
    let limits = Limits { busy: arguments.busy_limit, acquire: arguments.acquire_at_most };
    let numbers = |locks| arguments.clients.iter().map(move |&clients| Workload { locks, clients, ..work });
    let points = arguments.locks.iter().flat_map(|&locks| numbers(locks));
    let mut rows: Vec<Row> = points.map(|work| Row::new(work, &kinds, reference, limits)).collect();

    // Fail before minutes of measuring if a file cannot be written.
    for path in [&arguments.json, &arguments.markdown, &arguments.plot].into_iter().flatten() {
        write(path, String::new())?;
    }
    let work = Workload { measure: arguments.first_warm_up, ..work };
    for system in &systems {
        let measured = measure(system, &work).await?;
        eprintln!("first warm-up, {work}, {system}: {}", in_short(&measured));
    }
    for round in 1..=arguments.rounds {
        for row in &mut rows {
            // Alternate which system is first, so that drift of the machine affects all.
            let mut order: Vec<usize> = (0..systems.len()).collect();
            if round % 2 == 0 {
                order.reverse();
            }
            for at in order {
                match measure(&systems[at], &row.work).await {
                    Ok(measured) => {
                        eprintln!("round {round}, {}, {}: {}", row.work, kinds[at], in_short(&measured));
                        row.add(at, &measured);
                    }
                    Err(trouble) => {
                        eprintln!("round {round}, {}, {}: {trouble}", row.work, kinds[at]);
                        row.add_failure(at, trouble.to_string());
                    }
                }
            }
        }
    }
    show(arguments, kinds[reference], &rows)?;
    Ok(rows.iter().all(|row| row.remarks().is_empty()))
}

fn security(arguments: &CyclesArguments) -> Result<Security, MeasureError> {
    if !arguments.systems.iter().any(|system| system.kind.is_secure()) {
        return Ok(Security::default());
    }
    let files = arguments.cert.clone().zip(arguments.key.clone());
    let identity = files.map(|(certificate, key)| TlsFiles { certificate, key });
    let tls = arguments.ca.as_deref().map(|authority| Tls::from_files(authority, identity.as_ref())).transpose()?;
    let token = arguments.token_file.as_deref().map(AccessToken::from_file).transpose()?;
    Ok(Security { tls, token })
}

fn in_short(measured: &Measurement) -> String {
    let cycles = &measured.result.cycles;
    let errors = match &cycles.first_error {
        Some(first) => format!(", {} errors, the first: {first}", cycles.errors),
        None => String::new(),
    };
    format!("{:.0} cycles/s{errors}", measured.cycles_per_second())
}

fn show(arguments: &CyclesArguments, reference: Kind, rows: &[Row]) -> Result<(), MeasureError> {
    println!("{}", table::for_people(reference, rows));
    for row in rows {
        for remark in row.remarks() {
            println!("! {}: {remark}", row.work);
        }
    }
    if let Some(path) = &arguments.markdown {
        write(path, table::markdown(reference, rows) + "\n")?;
    }
    if let Some(path) = &arguments.plot {
        let figures: Vec<_> = rows.iter().flat_map(Row::plotted).collect();
        write(path, charts(&figures, "clients", "p50")?)?;
    }
    if let Some(path) = &arguments.json {
        let report = Report {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            seconds_per_round: arguments.seconds.as_secs_f64(),
            warm_up_seconds: arguments.warm_up.as_secs_f64(),
            rounds: arguments.rounds,
            reference: name_of(&reference),
            busy_limit: arguments.busy_limit,
            points: rows.iter().map(Row::figures).collect(),
        };
        write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

fn write(path: &Path, text: String) -> Result<(), MeasureError> {
    std::fs::write(path, text).map_err(|source| MeasureError::Write { path: path.to_owned(), source })
}
