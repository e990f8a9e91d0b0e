//! `lockkeeper bench`.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use lockkeeper_bench::{BenchError, GatesMeasured, IdleMeasured, IdlePlan, Locks, Measured, Plan, Security, Transport};
use lockkeeper_bench::{run_gates, run_idle, run_with, svg};
use tokio::runtime::Runtime;

use crate::args::{Bench, BenchLocks, BenchTransport, Common};
use crate::connect::{client, tls, token};
use crate::failure::{EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE, Failure, print_error};
use crate::output::{number, print_json, print_json_list, print_line, print_table, table};
use crate::runtime::runtime;

/// Runs all measurements and prints the results.
pub(crate) fn run(common: &Common, args: &Bench) -> Result<u8, Failure> {
    let security = Security { tls: tls(common)?, token: token(common)? };
    let endpoints: Vec<String> = client(common)?.endpoints().iter().map(ToString::to_string).collect();
    if let Some(sessions) = args.idle_sessions {
        return idle(common, args, endpoints, sessions, security);
    }
    let kinds: &[Locks] = match args.locks {
        // Each operation has a gate of its own.
        _ if args.gates => &[Locks::Own],
        BenchLocks::Own => &[Locks::Own],
        BenchLocks::One => &[Locks::One],
        BenchLocks::Both => &[Locks::Own, Locks::One],
    };
    let transports: &[Transport] = match args.transport {
        BenchTransport::Http => &[Transport::Http],
        BenchTransport::Stream => &[Transport::Stream],
        BenchTransport::Library => &[Transport::Library],
        BenchTransport::All => &[Transport::Http, Transport::Stream, Transport::Library],
    };
    // Fail before minutes of measuring if the file cannot be created.
    let plot = match args.plot.as_deref().filter(|_| !args.gates) {
        Some(path) => Some((path, File::create(path).map_err(|e| plot_failure(path, &e))?)),
        None => None,
    };
    let runtime = runtime()?;
    let mut results = Vec::new();
    for &locks in kinds {
        for &clients in &args.clients {
            for &transport in transports {
                let plan = Plan {
                    endpoints: endpoints.clone(),
                    clients,
                    locks,
                    transport,
                    rate: None,
                    warm_up: Duration::from_secs(args.warm_up.into()),
                    measure: Duration::from_secs(args.seconds.into()),
                    server_pids: args.server_pids.clone(),
                };
                results.extend(ramp(&runtime, args, &plan, &security)?);
            }
        }
    }
    if let Some((path, mut file)) = plot {
        let document = svg(&results).map_err(|e| Failure::new(EXIT_FAILED, e.to_string()))?;
        file.write_all(document.as_bytes()).map_err(|e| plot_failure(path, &e))?;
    }
    match (common.json, args.gates) {
        (true, true) => {
            let gates: Vec<GatesMeasured> = results.iter().cloned().map(GatesMeasured::of).collect();
            print_json_list("measurements", &gates)?
        }
        (true, false) => print_json_list("measurements", &results)?,
        (false, true) => print_gates(&results)?,
        (false, false) => print(&results)?,
    }
    let are_valid = results.iter().all(is_valid);
    Ok(if are_valid { EXIT_OK } else { EXIT_FAILED })
}

fn print_gates(results: &[Measured]) -> Result<(), Failure> {
    let mut table = table(&[
        "over",
        "clients",
        "due/s",
        "cycles/s",
        "begin + finish mean",
        "p50",
        "p99",
        "p99.9",
        "begin mean",
        "p50",
        "p99",
        "server CPU/cycle",
        "client CPU/cycle",
        "errors",
    ]);
    for m in results {
        table.add_row(vec![
            transport_name(m.transport).into(),
            number(m.clients),
            number(m.rate.map_or("-".into(), |rate| rate.to_string())),
            number(format!("{:.0}", m.cycles_per_second)),
            number(format!("{:.2} ms", m.cycle.mean_us / 1e3)),
            number(millis(m.cycle.p50_us)),
            number(millis(m.cycle.p99_us)),
            number(millis(m.cycle.p99_9_us)),
            number(format!("{:.2} ms", m.acquire.mean_us / 1e3)),
            number(millis(m.acquire.p50_us)),
            number(millis(m.acquire.p99_us)),
            number(per_cycle(m.server_cpu_us_per_cycle)),
            number(per_cycle(m.client_cpu_us_per_cycle)),
            number(m.errors),
        ]);
    }
    print_table(&table)?;
    if results.iter().any(|m| m.transport == Transport::Library) {
        print_line("library: the clients are tasks that share one session and stream per endpoint.")?;
    }
    Ok(())
}

/// Measures idle sessions and prints the result.
fn idle(
    common: &Common,
    args: &Bench,
    endpoints: Vec<String>,
    sessions: u32,
    security: Security,
) -> Result<u8, Failure> {
    let plan = IdlePlan {
        endpoints,
        sessions,
        warm_up: Duration::from_secs(args.warm_up.into()),
        measure: Duration::from_secs(args.seconds.into()),
        server_pids: args.server_pids.clone(),
        security,
    };
    print_error(&format!("{sessions} idle sessions …"));
    let measured = runtime()?.block_on(run_idle(&plan)).map_err(failure)?;
    if common.json {
        print_json(&measured)?
    } else {
        print_idle(&measured)?
    }
    if let Some(error) = &measured.first_error {
        print_error(&format!("{} streams were lost; the first: {error}", measured.lost));
    }
    Ok(if measured.lost == 0 { EXIT_OK } else { EXIT_FAILED })
}

fn print_idle(measured: &IdleMeasured) -> Result<(), Failure> {
    print_line(&format!(
        "{} sessions, opened within {:.1} s; {:.0} keepalives a second",
        measured.sessions,
        measured.opening_seconds,
        measured.keepalives as f64 / measured.seconds
    ))?;
    let mut table = table(&["server", "cores", "resident", "per session"]);
    for server in &measured.servers {
        table.add_row(vec![
            number(server.pid),
            number(format!("{:.3}", server.cores)),
            number(format!("{:.1} MB", server.resident_bytes as f64 / 1e6)),
            number(format!("{:.0} B", server.resident_bytes_per_session)),
        ]);
    }
    if measured.servers.is_empty() { Ok(()) } else { print_table(&table) }
}

/// Measures at each rate until one is not kept; one closed loop without rates.
fn ramp(runtime: &Runtime, args: &Bench, plan: &Plan, security: &Security) -> Result<Vec<Measured>, Failure> {
    let rates = if args.rate.is_empty() { vec![None] } else { args.rate.iter().copied().map(Some).collect() };
    let what = if args.gates { "gates".to_owned() } else { plan.locks.to_string() };
    let mut results = Vec::new();
    for rate in rates {
        let at = rate.map(|rate| format!(", {rate} cycles/s")).unwrap_or_default();
        let over = transport_name(plan.transport);
        print_error(&format!("{} clients, {what}, {over}{at} …", plan.clients));
        let plan = Plan { rate, ..plan.clone() };
        let measured = match args.gates {
            true => runtime.block_on(run_gates(&plan, security)),
            false => runtime.block_on(run_with(&plan, security)),
        };
        let measured = measured.map_err(failure)?;
        let is_kept = measured.kept_rate();
        results.push(measured);
        if !is_kept {
            break;
        }
    }
    Ok(results)
}

fn failure(error: BenchError) -> Failure {
    let code = match &error {
        BenchError::Endpoint { .. } => EXIT_UNREACHABLE,
        BenchError::Process { .. } => EXIT_USAGE,
        BenchError::NothingWorked(_) => EXIT_FAILED,
    };
    Failure::new(code, error.to_string())
}

fn plot_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(EXIT_USAGE, format!("--plot {}: {error}", path.display()))
}

/// Whether every cycle succeeded, and every token rose; says what did not.
fn is_valid(m: &Measured) -> bool {
    if let Some(error) = &m.first_error {
        print_error(&format!("{} clients: {} cycles failed; first error: {error}", m.clients, m.errors));
    }
    if m.tokens_not_rising > 0 {
        print_error(&format!("{} clients: {} tokens did not rise", m.clients, m.tokens_not_rising));
    }
    m.errors == 0 && m.tokens_not_rising == 0
}

fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Http => "http",
        Transport::Stream => "stream",
        Transport::Library => "library",
    }
}

fn print(results: &[Measured]) -> Result<(), Failure> {
    let mut table = table(&[
        "locks",
        "over",
        "clients",
        "due/s",
        "cycles/s",
        "cycle p50",
        "p99",
        "p99.9",
        "acquire p50",
        "p99",
        "p99.9",
        "server CPU/cycle",
        "client CPU/cycle",
        "errors",
    ]);
    for m in results {
        table.add_row(vec![
            m.locks.to_string().into(),
            transport_name(m.transport).into(),
            number(m.clients),
            number(m.rate.map_or("-".into(), |rate| rate.to_string())),
            number(format!("{:.0}", m.cycles_per_second)),
            number(millis(m.cycle.p50_us)),
            number(millis(m.cycle.p99_us)),
            number(millis(m.cycle.p99_9_us)),
            number(millis(m.acquire.p50_us)),
            number(millis(m.acquire.p99_us)),
            number(millis(m.acquire.p99_9_us)),
            number(per_cycle(m.server_cpu_us_per_cycle)),
            number(per_cycle(m.client_cpu_us_per_cycle)),
            number(m.errors),
        ]);
    }
    print_table(&table)?;
    let mut http = None;
    for measured in results {
        if let Some(rate) = measured.rate.filter(|_| !measured.kept_rate()) {
            print_line(&format!(
                "{} clients, {}, {}: {rate} cycles/s were not kept: cycles queued",
                measured.clients,
                measured.locks,
                transport_name(measured.transport)
            ))?;
        }
        if measured.rate.is_some() {
            continue;
        }
        match (measured.transport, http) {
            (Transport::Http, _) => http = Some(measured),
            (_, Some(http)) => print_line(&ratio(http, measured))?,
            (_, None) => {}
        }
    }
    if results.iter().any(|m| m.transport == Transport::Stream) {
        print_line(
            "stream: one per client; a release is sent together with the next acquire, as for a dropped guard.",
        )?;
    }
    if results.iter().any(|m| m.transport == Transport::Library) {
        print_line("library: the clients are tasks that share one session and stream per endpoint.")?;
    }
    Ok(())
}

/// Ratios of another transport to HTTP.
fn ratio(http: &Measured, stream: &Measured) -> String {
    let of = |stream: Option<f64>, http: Option<f64>| match (stream, http) {
        (Some(stream), Some(http)) if http > 0.0 => format!("{:.2}", stream / http),
        _ => "-".into(),
    };
    format!(
        "{} clients, {}: {} / http = {} cycles/s, {} server CPU per cycle, {} client CPU per cycle",
        stream.clients,
        stream.locks,
        transport_name(stream.transport),
        of(Some(stream.cycles_per_second), Some(http.cycles_per_second)),
        of(stream.server_cpu_us_per_cycle, http.server_cpu_us_per_cycle),
        of(stream.client_cpu_us_per_cycle, http.client_cpu_us_per_cycle),
    )
}

fn per_cycle(us: Option<f64>) -> String {
    us.map_or("-".into(), |us| format!("{us:.0} µs"))
}

fn millis(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1e3)
}
