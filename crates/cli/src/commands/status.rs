//! `lockkeeper status`: the state of the cluster as reported by each endpoint and each member.

use std::collections::BTreeSet;

use lockkeeper_api::cluster::{self, Member, Role};
use lockkeeper_client::{Endpoint, Error};
use serde::Serialize;

use crate::args::{Common, Status};
use crate::connect::client;
use crate::doctor::survey::{ONE_CLUSTER, several_clusters};
use crate::failure::{EXIT_FAILED, EXIT_UNREACHABLE, Failure, why};
use crate::membership_summary::summary;
use crate::output::{Tone, escaped, number, print_json_list, print_line, print_table, table};

/// One endpoint in `--json`.
#[derive(Serialize)]
#[serde(untagged)]
enum EndpointStatus<'a> {
    Reached {
        endpoint: &'a str,
        #[serde(flatten)]
        status: &'a cluster::Status,
    },
    Unreachable {
        endpoint: &'a str,
        error: String,
    },
}

/// Prints the state of each endpoint, and of the members that are not among them.
pub(crate) async fn run(common: &Common, args: &Status) -> Result<(), Failure> {
    let client = client(common)?;
    let answers = client.status_of_members(args.checksum, common.patience).await;
    if common.json {
        print_lines(&answers)?
    } else {
        print_people(&answers, args.checksum)?
    }
    if let Some(clusters) = clusters_of(&answers) {
        return Err(Failure::failed(format!("{clusters}: {ONE_CLUSTER}")));
    }
    let reached = answers.iter().filter_map(|(_, status)| status.as_ref().ok());
    let refused = answers.iter().find_map(|(_, status)| status.as_ref().err().filter(|error| is_refusal(error)));
    let ready: BTreeSet<u64> = reached.clone().filter(|status| status.ready).map(|status| status.node_id).collect();
    let endpoints = &answers[..client.endpoints().len().min(answers.len())];
    let endpoints_ready = endpoints.iter().all(|(_, status)| status.as_ref().is_ok_and(|status| status.ready));
    match (reached.clone().count(), latest(&answers)) {
        (0, _) => Err(match refused {
            // The endpoints answer: this caller may not read the cluster, or TLS is set up wrong.
            Some(error) => error.clone().into(),
            None => {
                Failure::new(EXIT_UNREACHABLE, "no endpoint can be reached; check --endpoints or start the cluster")
            }
        }),
        (_, Some(latest)) if endpoints_ready && voters(latest).all(|voter| ready.contains(&voter)) => Ok(()),
        _ => Err(Failure::silent(EXIT_FAILED)),
    }
}

/// The clusters of the endpoints, if there is more than one.
fn clusters_of(answers: &[(Endpoint, Result<cluster::Status, Error>)]) -> Option<String> {
    several_clusters(answers.iter().filter_map(|(endpoint, answer)| Some((endpoint, answer.as_ref().ok()?))))
}

/// Whether the node answered, and would not answer another time either.
fn is_refusal(error: &Error) -> bool {
    error.code().is_some() || matches!(error, Error::Tls { .. })
}

/// The status with the latest membership.
fn latest(answers: &[(Endpoint, Result<cluster::Status, Error>)]) -> Option<&cluster::Status> {
    let statuses = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    statuses.max_by_key(|status| (status.membership_version, status.leading))
}

fn voters(status: &cluster::Status) -> impl Iterator<Item = u64> {
    status.members.iter().filter(|member| member.role == Role::Voter).map(|member| member.node_id)
}

fn term(status: &&cluster::Status) -> u64 {
    status.term
}

fn print_lines(answers: &[(Endpoint, Result<cluster::Status, Error>)]) -> Result<(), Failure> {
    let line = |(endpoint, answer): &'_ (Endpoint, Result<cluster::Status, Error>)| match answer {
        Ok(status) => serde_json::to_value(EndpointStatus::Reached { endpoint: endpoint.as_str(), status }),
        Err(error) => {
            serde_json::to_value(EndpointStatus::Unreachable { endpoint: endpoint.as_str(), error: why(error) })
        }
    };
    let lines: Result<Vec<_>, _> = answers.iter().map(line).collect();
    print_json_list("endpoints", &lines.map_err(|e| Failure::failed(e.to_string()))?)
}

fn print_people(answers: &[(Endpoint, Result<cluster::Status, Error>)], checksum: bool) -> Result<(), Failure> {
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
                row.extend([
                    number(status.node_id),
                    role(status).into(),
                    number(status.term),
                    number(status.zxid),
                    number(status.applied_index),
                    number(status.sessions),
                    number(status.nodes),
                    number(status.lock_waiters),
                    tone(status).cell(state(status)),
                ]);
                if checksum {
                    row.push(status.state.as_ref().map_or("-".into(), |s| format!("{}@{}", s.checksum, s.zxid)).into());
                }
            }
            Err(error) => {
                row.extend(std::iter::repeat_n("-".into(), 8));
                row.push(Tone::Bad.cell(why(error)));
            }
        }
        table.add_row(row);
    }
    print_table(&table)?;
    if clusters_of(answers).is_some() {
        return Ok(());
    }
    match answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).filter(|status| status.leading).max_by_key(term)
    {
        Some(leader) => {
            print_line(&format!("cluster {}", escaped(&leader.identity().to_string())))?;
            summary(leader).iter().try_for_each(|line| print_line(line))?;
        }
        None if latest(answers).is_some_and(|status| status.members.is_empty()) => print_line(
            "the cluster is not formed yet: at its first start every node of [peers] is needed once, not only a majority",
        )?,
        // The refusal says it.
        None if answers.iter().any(|(_, answer)| answer.as_ref().is_err_and(is_refusal)) => {}
        None => {
            print_line("no leader answers: the cluster makes no changes, or the leader cannot be reached from here")?
        }
    }
    for (endpoint, status) in answers.iter().filter_map(|(endpoint, answer)| Some((endpoint, answer.as_ref().ok()?))) {
        status.alarms.iter().for_each(|alarm| eprintln!("alarm at {endpoint}: {alarm}"));
    }
    Ok(())
}

fn role(status: &cluster::Status) -> String {
    match status.leader {
        _ if status.leading => "leader".into(),
        Some(leader) if status.role == Some(Role::Learner) => format!("learner of {leader}"),
        Some(leader) if status.role == Some(Role::Front) => format!("front of {leader}"),
        Some(leader) => format!("follows {leader}"),
        None => "no leader".into(),
    }
}

/// Readiness, and at the leader the members that are not synced.
fn state(status: &cluster::Status) -> String {
    let mut notes = Vec::new();
    match status.role {
        Some(Role::Learner) => notes.push("; does not vote yet".to_owned()),
        Some(Role::Front) => notes.push("; never votes".to_owned()),
        Some(Role::Voter) | None => {}
    }
    let of = |role| numbers(status, |member| status.leading && member.role == role);
    let out_of_step = numbers(status, |member| member.synced == Some(false));
    for (what, who) in [("learners", of(Role::Learner)), ("fronts", of(Role::Front)), ("not in step", out_of_step)] {
        if !who.is_empty() {
            notes.push(format!("; {what}: {}", who.join(", ")));
        }
    }
    notes.extend(status.members.iter().filter_map(|member| member.turned_away.as_ref()).map(|why| format!("; {why}")));
    match &status.not_ready_because {
        _ if status.ready => format!("ready{}", notes.concat()),
        Some(because) => format!("not ready: {because}"),
        None => "not ready".into(),
    }
}

fn tone(status: &cluster::Status) -> Tone {
    match status.members.iter().all(|member| member.synced != Some(false) && member.turned_away.is_none()) {
        _ if !status.ready => Tone::Bad,
        true => Tone::Good,
        false => Tone::Doubtful,
    }
}

fn numbers(status: &cluster::Status, which: impl Fn(&Member) -> bool) -> Vec<String> {
    status.members.iter().filter(|member| which(member)).map(|member| member.node_id.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state_of(ready: bool, because: Option<&str>, synced: &[Option<bool>]) -> String {
        state(&status_of(ready, because, synced))
    }

    fn status_of(ready: bool, because: Option<&str>, synced: &[Option<bool>]) -> cluster::Status {
        let member = |(number, synced): (usize, &Option<bool>)| {
            let node_id = number + 1;
            json!({ "node_id": node_id, "peer_address": "a:1", "role": "voter", "synced": synced })
        };
        let members: Vec<_> = synced.iter().enumerate().map(member).collect();
        let status = json!({
            "cluster": "c", "node_id": 1, "version": "0", "term": 1, "leading": true, "ready": ready,
            "not_ready_because": because, "last_log_index": 1, "applied_index": 1, "zxid": 1, "sessions": 0, "nodes": 0,
            "watches": 0, "lock_waiters": 0, "members": members,
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn members_that_do_not_vote_are_marked() {
        let member = |id: u64, role: &str| json!({ "node_id": id, "peer_address": "a:1", "role": role });
        let told = |own: u64, role_of_own: &str| -> cluster::Status {
            let status = json!({
                "cluster": "c", "node_id": own, "version": "0", "term": 1, "leader": 1, "leading": own == 1,
                "role": role_of_own, "ready": true, "last_log_index": 1, "applied_index": 1, "zxid": 1,
                "sessions": 0, "nodes": 0, "watches": 0, "lock_waiters": 0,
                "members": [member(1, "voter"), member(2, "voter"), member(4, "learner"), member(5, "front")],
            });
            serde_json::from_value(status).unwrap()
        };
        let (leader, follower, learner) = (told(1, "voter"), told(2, "voter"), told(4, "learner"));
        assert_eq!((role(&learner), state(&learner)), ("learner of 1".into(), "ready; does not vote yet".into()));
        let front = told(5, "front");
        assert_eq!((role(&front), state(&front)), ("front of 1".into(), "ready; never votes".into()));
        assert_eq!((role(&follower), state(&follower)), ("follows 1".into(), "ready".into()));
        assert_eq!((role(&leader), state(&leader)), ("leader".into(), "ready; learners: 4; fronts: 5".into()));
    }

    #[test]
    fn the_leader_lists_members_that_are_not_in_step() {
        assert_eq!(state_of(true, None, &[Some(true), Some(true), Some(true)]), "ready");
        assert_eq!(state_of(true, None, &[Some(true), Some(false), Some(false)]), "ready; not in step: 2, 3");
        assert_eq!(state_of(true, None, &[None, None, None]), "ready", "a follower does not know");
        assert_eq!(state_of(false, Some("no leader"), &[None]), "not ready: no leader");
    }

    #[test]
    fn the_colour_says_how_the_member_is() {
        let tone_of = |ready, synced| tone(&status_of(ready, None, synced));
        assert_eq!(tone_of(true, &[Some(true), None]), Tone::Good);
        assert_eq!(tone_of(true, &[Some(true), Some(false)]), Tone::Doubtful);
        assert_eq!(tone_of(false, &[Some(true)]), Tone::Bad);
    }

    #[test]
    fn a_rejected_member_is_listed_with_the_reason() {
        let mut status = status_of(true, None, &[Some(true), Some(false)]);
        status.members[1].turned_away = Some("node 2 is turned away: an older copy".into());
        assert_eq!(state(&status), "ready; not in step: 2; node 2 is turned away: an older copy");
    }
}
