//! `lockkeeper doctor`: prints what is wrong with a node's machine and with the cluster, and what to do.

use lockkeeper_server::Config;
use serde::Serialize;

use crate::args::{Common, Doctor};
use crate::connect::client;
use crate::doctor::survey::Survey;
use crate::doctor::{Check, Verdict, agreement, cluster, local};
use crate::failure::{EXIT_FAILED, Failure};
use crate::output::{escaped, has_colours, print_json, print_line};

/// The result in `--json`.
#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    /// Of the machine and the configuration; empty without `--config`.
    local: Vec<Check>,
    /// Of the cluster; empty with `--local`.
    cluster: Vec<Check>,
}

/// Runs all checks that the options ask for.
pub(crate) async fn run(common: &Common, args: &Doctor) -> Result<(), Failure> {
    let local = match args.config.clone() {
        Some(file) => tokio::task::spawn_blocking(move || local::examine(&file))
            .await
            .map_err(|error| Failure::failed(format!("the checks of this machine broke off: {error}")))?,
        None => Vec::new(),
    };
    let cluster = if args.local { Vec::new() } else { examine_cluster(&with_endpoints_of(common, args)).await? };
    let worst = local.iter().chain(&cluster).map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    let report = Report { verdict: worst.max(Verdict::Ok), local, cluster };
    if common.json {
        print_json(&report)?
    } else {
        print_people(&report)?
    }
    if worst == Verdict::Problem { Err(Failure::silent(EXIT_FAILED)) } else { Ok(()) }
}

async fn examine_cluster(common: &Common) -> Result<Vec<Check>, Failure> {
    let client = client(common)?;
    let survey = Survey::take(&client, common.patience).await;
    let mut checks = cluster::judge(&survey);
    if checks.len() > 1 {
        checks.push(agreement::check(&client, &survey).await);
    }
    Ok(checks)
}

/// Without `--endpoints`, the client addresses that the configuration names.
fn with_endpoints_of(common: &Common, args: &Doctor) -> Common {
    let mut common = common.clone();
    if common.has_default_endpoints()
        && let Some(config) = args.config.as_ref().and_then(|file| Config::read(file).ok())
    {
        let of_peers: Vec<String> = config.peers.values().filter_map(|peer| peer.client.clone()).collect();
        common.endpoints = if of_peers.is_empty() { vec![config.listen.client] } else { of_peers };
    }
    common
}

fn print_people(report: &Report) -> Result<(), Failure> {
    for (title, checks) in [("this machine", &report.local), ("the cluster", &report.cluster)] {
        if checks.is_empty() {
            continue;
        }
        print_line(title)?;
        let width = checks.iter().map(|check| check.check.len()).max().unwrap_or_default();
        for check in checks {
            let verdict = check.verdict.tone().text(&format!("{:<8}", check.verdict.as_str()), has_colours());
            print_line(&format!("  {verdict} {:<width$}  {}", check.check, escaped(&check.found)))?;
            if let Some(remedy) = &check.remedy {
                print_line(&format!("  {:<8} {:<width$}  → {}", "", "", escaped(remedy)))?;
            }
        }
    }
    let count = |verdict| report.local.iter().chain(&report.cluster).filter(|check| check.verdict == verdict).count();
    let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warning));
    print_line(&format!("ok: {}, warnings: {warnings}, problems: {problems}", count(Verdict::Ok)))
}
