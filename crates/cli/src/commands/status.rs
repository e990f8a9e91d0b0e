//! `lockkeeper status`: the cluster as each endpoint sees it.

use lockkeeper_api::cluster::Status as NodeStatus;
use lockkeeper_client::{Endpoint, Error};
use serde::Serialize;

use super::client;
use crate::args::{Common, Status};
use crate::failure::{EXIT_FAILED, EXIT_UNREACHABLE, Failure};
use crate::output::{number, print_json, print_table, table};

/// One endpoint in `--json`.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Reached {
        endpoint: &'a str,
        #[serde(flatten)]
        status: &'a NodeStatus,
    },
    Unreachable {
        endpoint: &'a str,
        error: String,
    },
}

/// Prints a line for each endpoint.
pub(crate) async fn run(common: &Common, args: &Status) -> Result<(), Failure> {
    let answers = client(common)?.status_of_all(args.checksum, common.patience).await;
    if common.json {
        print_lines(&answers)?
    } else {
        print_people(&answers, args.checksum)?
    }
    let reached = answers.iter().filter_map(|(_, status)| status.as_ref().ok());
    match (reached.clone().count(), reached.filter(|status| status.ready).count()) {
        (0, _) => {
            Err(Failure::new(EXIT_UNREACHABLE, "no endpoint can be reached; check --endpoints, or start the cluster"))
        }
        (_, ready) if ready == answers.len() => Ok(()),
        _ => Err(Failure::silent(EXIT_FAILED)),
    }
}

fn print_lines(answers: &[(Endpoint, Result<NodeStatus, Error>)]) -> Result<(), Failure> {
    let line = |(endpoint, answer): &'_ (Endpoint, Result<NodeStatus, Error>)| match answer {
        Ok(status) => serde_json::to_value(Line::Reached { endpoint: endpoint.as_str(), status }),
        Err(error) => serde_json::to_value(Line::Unreachable { endpoint: endpoint.as_str(), error: why(error) }),
    };
    let lines: Result<Vec<_>, _> = answers.iter().map(line).collect();
    print_json(&lines.map_err(|e| Failure::failed(e.to_string()))?)
}

fn print_people(answers: &[(Endpoint, Result<NodeStatus, Error>)], checksum: bool) -> Result<(), Failure> {
    let mut headings =
        vec!["endpoint", "node", "role", "term", "zxid", "applied", "sessions", "nodes", "waiters", "state"];
    if checksum {
        headings.push("checksum");
    }
    let mut table = table(&headings);
    for (endpoint, answer) in answers {
        let mut row = vec![endpoint.to_string().into()];
        match answer {
            Ok(status) => {
                let state = match &status.not_ready_because {
                    _ if status.ready => "ready".to_owned(),
                    Some(because) => format!("not ready: {because}"),
                    None => "not ready".to_owned(),
                };
                row.extend([
                    number(status.node_id),
                    role(status).into(),
                    number(status.term),
                    number(status.zxid),
                    number(status.applied_index),
                    number(status.sessions),
                    number(status.nodes),
                    number(status.lock_waiters),
                    state.into(),
                ]);
                if checksum {
                    row.push(status.state.as_ref().map_or("-".into(), |s| format!("{}@{}", s.checksum, s.zxid)).into());
                }
            }
            Err(error) => {
                row.extend(std::iter::repeat_n("-".into(), 8));
                row.push(why(error).into());
            }
        }
        table.add_row(row);
    }
    print_table(&table)
}

fn role(status: &NodeStatus) -> String {
    match status.leader {
        _ if status.leading => "leader".into(),
        Some(leader) => format!("follows {leader}"),
        None => "no leader".into(),
    }
}

/// Without the endpoint, which the line begins with.
fn why(error: &Error) -> String {
    match error {
        Error::Unreachable { tried } => tried.iter().map(|t| t.why.as_str()).collect::<Vec<_>>().join("; "),
        other => other.to_string(),
    }
}
