//! Judges what the members of a cluster answered.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_api::cluster::{Member, Role, Status};

use super::local::{judge_expiry, left};
use super::survey::{Answer, ONE_CLUSTER, Survey};
use super::{Check, Verdict};
use crate::failure::why;
use crate::membership_summary::summary;

/// A wall clock that is off by more is wrong, as in the alert LockkeeperClockSkew.
const MOST_SKEW_MS: f64 = 10_000.0;

/// Everything but the agreement of the members. With no answer at all, one problem that says why.
pub(crate) fn judge(survey: &Survey) -> Vec<Check> {
    let Some(best) = survey.best() else { return vec![nobody(survey)] };
    if let Some(found) = survey.several_clusters() {
        return vec![Check::problem("endpoints", found, ONE_CLUSTER)];
    }
    if best.members.is_empty() {
        return vec![endpoints(survey), not_formed(survey)];
    }
    vec![
        endpoints(survey),
        members(survey, best),
        alike("versions", survey, |answer| Some(answer.status.as_ref().ok()?.version.clone())),
        alike("builds", survey, |answer| answer.metrics.labels("lockkeeper_build_info").map(str::to_owned)),
        ready(survey),
        leader(survey),
        quorum(survey, best),
        in_step(best),
        turned_away(survey),
        alarms(survey),
        clocks(survey),
        own_clock(survey),
        certificates(survey),
        reloads(survey),
    ]
}

fn failures(survey: &Survey, of_named: bool) -> Vec<String> {
    let failed = survey.answers.iter().filter(|answer| answer.is_named == of_named);
    failed.filter_map(|answer| Some(format!("{}: {}", answer.endpoint, why(answer.status.as_ref().err()?)))).collect()
}

fn nobody(survey: &Survey) -> Check {
    let is_refused = survey.answers.iter().any(|answer| answer.status.as_ref().is_err_and(|e| e.code().is_some()));
    let remedy = if is_refused {
        "show a token with the right to read the cluster (--token-file; `lockkeeper auth can-i read cluster`)"
    } else {
        "check --endpoints and, for TLS, --ca; start the nodes that do not run, and look at the last line of their logs"
    };
    Check::problem("endpoints", format!("none answers: {}", failures(survey, true).join("; ")), remedy)
}

fn endpoints(survey: &Survey) -> Check {
    let failed = failures(survey, true);
    if failed.is_empty() {
        let named = survey.answers.iter().filter(|answer| answer.is_named).count();
        return Check::ok("endpoints", format!("all {named} answer"));
    }
    let remedy = "start the node there, or leave the endpoint out";
    Check::warning("endpoints", failed.join("; "), remedy)
}

/// No node that answers is in a cluster.
fn not_formed(survey: &Survey) -> Check {
    let waiting: Vec<String> = survey.statuses().into_iter().map(|(node, status)| waits(node, status)).collect();
    let remedy = "at its first start a new cluster needs every node of [peers] once, not only a majority: start those \
                  that do not run, and mend what keeps the others apart (docs/deploy.md)";
    Check::problem("members", waiting.join("; "), remedy)
}

/// What a node that is in no cluster waits for.
fn waits(node: u64, status: &Status) -> String {
    format!("node {node}: {}", status.not_ready_because.as_deref().unwrap_or("in no cluster yet"))
}

/// Every member that the membership names must answer.
fn members(survey: &Survey, best: &Status) -> Check {
    let (name, answered) = ("members", survey.members());
    let missing: Vec<String> = best
        .members
        .iter()
        .filter(|member| !answered.contains_key(&member.node_id))
        .map(|member| match &member.client_address {
            Some(address) => format!("node {} at {address} does not answer", member.node_id),
            None => format!("node {} has no known client address", member.node_id),
        })
        .collect();
    let strangers = || answered.iter().filter(|(node, _)| best.members.iter().all(|member| member.node_id != **node));
    if !missing.is_empty() {
        let remedy =
            "start it, or repair the network to it; if its data are lost, replace it (docs/operate.md#replace-a-node)";
        return Check::problem(name, missing.join("; "), remedy);
    }
    // A node that was never a member knows none.
    let new = strangers().filter_map(|(node, answer)| Some((*node, answer.status.as_ref().ok()?)));
    let new: Vec<String> =
        new.filter(|(_, status)| status.members.is_empty()).map(|(node, status)| waits(node, status)).collect();
    if !new.is_empty() {
        let remedy = "a node joins once it was added (`lockkeeper member add`) and reaches the members";
        return Check::warning(name, new.join("; "), remedy);
    }
    let removed: Vec<String> = strangers().map(|(node, _)| node.to_string()).collect();
    if !removed.is_empty() {
        let remedy = "stop a node that was removed from the cluster";
        return Check::warning(name, format!("node {} answers and is no member", removed.join(", ")), remedy);
    }
    Check::ok(name, format!("all {} answer", best.members.len()))
}

/// Whether all members say the same.
fn alike(name: &'static str, survey: &Survey, of: impl Fn(&Answer) -> Option<String>) -> Check {
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node, answer) in survey.members() {
        if let Some(value) = of(answer) {
            nodes.entry(value).or_default().push(node.to_string());
        }
    }
    let all: Vec<&String> = nodes.keys().collect();
    match all.as_slice() {
        [] => Check::skipped(name, "no member tells it"),
        [one] => Check::ok(name, format!("all members have {one}")),
        _ => {
            let parts = nodes.iter().map(|(value, nodes)| format!("{value} at node {}", nodes.join(", ")));
            let remedy = "finish the upgrade; members of different builds should not stay together for long";
            Check::warning(name, parts.collect::<Vec<_>>().join("; "), remedy)
        }
    }
}

fn ready(survey: &Survey) -> Check {
    let not_ready: Vec<String> = survey
        .statuses()
        .into_iter()
        .filter(|(_, status)| !status.ready)
        .map(|(node, status)| format!("node {node}: {}", status.not_ready_because.as_deref().unwrap_or("not ready")))
        .collect();
    if not_ready.is_empty() {
        return Check::ok("readiness", "every member that answers is ready");
    }
    let remedy = "wait if it has just started; else look at its log (docs/monitoring.md#lockkeepermembernotready)";
    Check::problem("readiness", not_ready.join("; "), remedy)
}

fn leader(survey: &Survey) -> Check {
    let statuses = survey.statuses();
    let leading: Vec<(&u64, u64)> =
        statuses.iter().filter(|(_, status)| status.leading).map(|(node, status)| (node, status.term)).collect();
    let Some((leader, term)) = leading.iter().max_by_key(|(_, term)| *term) else {
        let remedy = "start members until a majority runs, and check the network between their peer addresses \
                      (docs/monitoring.md#lockkeepernoleader)";
        return Check::problem("leader", "no member that answers leads", remedy);
    };
    let others: Vec<String> = statuses
        .iter()
        .filter(|(_, status)| status.leader != Some(**leader))
        .map(|(node, status)| match status.leader {
            Some(other) => format!("node {node} follows {other}"),
            None => format!("node {node} knows no leader"),
        })
        .collect();
    if others.is_empty() {
        return Check::ok("leader", format!("node {leader} leads in term {term}"));
    }
    let found = format!("node {leader} leads in term {term}, but {}", others.join(", "));
    Check::warning("leader", found, "look again after an election; if it stays, check the network between the members")
}

/// How many voters may still be lost, as the leader says.
fn quorum(survey: &Survey, best: &Status) -> Check {
    let name = "quorum";
    let voters: Vec<u64> = voters(best).map(|member| member.node_id).collect();
    if !best.leading {
        let answered = survey.members();
        let answering = voters.iter().filter(|voter| answered.contains_key(*voter)).count();
        let found = format!(
            "only the leader knows, and it does not answer; {answering} of {} voters answer, {} are needed",
            voters.len(),
            majority(&voters)
        );
        return Check::skipped(name, found);
    }
    let spare = match best.failure_tolerance {
        Some(spare @ 1..) => spare,
        // The leader also says 0 when there is no majority any more, and nothing if its version is an older one.
        other => match counted_spare(best, &voters) {
            Ok(counted) => other.unwrap_or(counted),
            Err(found) => {
                let remedy = "start the missing voters (docs/monitoring.md#lockkeepernoquorum)";
                return Check::problem(name, found, remedy);
            }
        },
    };
    let mut lines = summary(&Status { failure_tolerance: Some(spare), ..best.clone() }).into_iter();
    let found = lines.next().unwrap_or_default();
    if let Some(half_done) = lines.next() {
        let (what, remedy) = half_done.split_once(": ").unwrap_or((half_done.as_str(), "finish it or take it back"));
        return Check::warning(name, format!("{found}; {what}"), remedy);
    }
    match spare {
        0 if voters.len() <= 2 => Check::warning(name, found, "run three voters, or five"),
        0 => {
            let remedy = "bring back the missing voter (docs/monitoring.md#lockkeepernextlossisanoutage)";
            Check::warning(name, found, remedy)
        }
        _ => Check::ok(name, found),
    }
}

fn voters(status: &Status) -> impl Iterator<Item = &Member> {
    status.members.iter().filter(|member| member.role == Role::Voter)
}

fn majority(voters: &[u64]) -> usize {
    voters.len() / 2 + 1
}

/// How many voters in step there are beyond a majority; or that there is none. While a change of the voters is half
/// done, those before it and those after it need one each.
fn counted_spare(leader: &Status, voters: &[u64]) -> Result<u64, String> {
    let in_step: BTreeSet<u64> =
        leader.members.iter().filter(|member| member.synced == Some(true)).map(|member| member.node_id).collect();
    let spare_of = |voters: &[u64]| {
        let (present, needed) = (voters.iter().filter(|voter| in_step.contains(*voter)).count(), majority(voters));
        match present.checked_sub(needed) {
            Some(spare) => Ok(spare as u64),
            None => Err(format!("{present} of {} voters are in step, {needed} are needed", voters.len())),
        }
    };
    let sets: Vec<&[u64]> = match leader.joint_voters.as_slice() {
        [] => vec![voters],
        joint => joint.iter().map(Vec::as_slice).collect(),
    };
    let spares: Vec<u64> = sets.into_iter().map(spare_of).collect::<Result<_, String>>()?;
    Ok(spares.into_iter().min().unwrap_or_default())
}

fn in_step(best: &Status) -> Check {
    if !best.leading {
        return Check::skipped("followers", "only the leader knows, and it does not answer");
    }
    let behind: Vec<String> = best
        .members
        .iter()
        .filter(|member| member.synced == Some(false))
        .map(|member| {
            let lacks = best.last_log_index.saturating_sub(member.matched_index.unwrap_or_default());
            match member.answered_ms_ago {
                Some(ago_ms) => format!("node {} lacks {lacks} entries, answered {ago_ms} ms ago", member.node_id),
                None => format!("node {} lacks {lacks} entries, has not answered", member.node_id),
            }
        })
        .collect();
    if behind.is_empty() {
        return Check::ok("followers", "all are in step with the leader");
    }
    let remedy = "start it; one that catches up needs no help (docs/monitoring.md#lockkeepermemberbehind)";
    Check::warning("followers", behind.join("; "), remedy)
}

fn turned_away(survey: &Survey) -> Check {
    let members = survey.statuses().into_values().flat_map(|status| status.members.iter());
    let why: BTreeSet<&str> = members.filter_map(|member| member.turned_away.as_deref()).collect();
    if why.is_empty() {
        return Check::ok("data of members", "no member is turned away");
    }
    let remedy = "replace the member under a new id (docs/monitoring.md#lockkeepermemberturnedaway)";
    Check::problem("data of members", why.into_iter().collect::<Vec<_>>().join("; "), remedy)
}

fn alarms(survey: &Survey) -> Check {
    let alarms: Vec<String> = survey
        .statuses()
        .into_iter()
        .flat_map(|(node, status)| status.alarms.iter().map(move |alarm| format!("node {node}: {alarm}")))
        .collect();
    if alarms.is_empty() {
        return Check::ok("alarms", "none");
    }
    Check::warning("alarms", alarms.join("; "), "each alarm names its remedy")
}

fn clocks(survey: &Survey) -> Check {
    let skews: Vec<(u64, f64)> = survey
        .members()
        .into_iter()
        .filter_map(|(node, answer)| Some((node, answer.metrics.largest("lockkeeper_clock_skew_ms")?)))
        .collect();
    let Some(worst) = skews.iter().map(|(_, skew)| skew.abs()).reduce(f64::max) else {
        return Check::skipped("clocks", "no member tells how far its clock is off");
    };
    let off: Vec<String> = skews
        .iter()
        .filter(|(_, skew)| skew.abs() > MOST_SKEW_MS)
        .map(|(node, skew)| format!("node {node} is {:+.1} s off", skew / 1000.0))
        .collect();
    if off.is_empty() {
        return Check::ok(
            "clocks",
            format!("the members' wall clocks are within {worst:.0} ms of the cluster's clock"),
        );
    }
    let remedy = "set the clock of that machine by NTP (docs/monitoring.md#lockkeeperclockskew)";
    Check::warning("clocks", off.join("; "), remedy)
}

fn own_clock(survey: &Survey) -> Check {
    let name = "clock of this machine";
    let skew = survey.answers.iter().find_map(|answer| {
        let cluster_s = answer.metrics.largest("lockkeeper_cluster_clock_seconds").filter(|clock| *clock > 0.0)?;
        Some(answer.asked_unix_s - cluster_s)
    });
    let Some(skew_s) = skew else { return Check::skipped(name, "no member tells the cluster's clock") };
    let found = format!("{skew_s:+.1} s against the cluster's clock");
    if skew_s.abs() * 1000.0 > MOST_SKEW_MS {
        return Check::warning(
            name,
            found,
            "set this machine's clock by NTP; times that commands print are wrong by this",
        );
    }
    Check::ok(name, found)
}

/// The certificates that the members use now.
fn certificates(survey: &Survey) -> Check {
    let name = "certificates in use";
    let soonest = survey.members().into_iter().filter_map(|(node, answer)| {
        let (labels, left_s) = answer.metrics.smallest("lockkeeper_certificate_expiry_seconds")?;
        Some((node, labels.to_owned(), left_s as i64))
    });
    let Some((node, labels, left_s)) = soonest.min_by_key(|(_, _, left_s)| *left_s) else {
        return Check::skipped(name, "no member has TLS");
    };
    let found = format!("the first to expire is at node {node} ({labels}): {}", left(left_s));
    let renew = "renew it (docs/security.md#renewing-a-certificate)";
    match judge_expiry(left_s) {
        Verdict::Problem => Check::problem(name, found, renew),
        Verdict::Warning => Check::warning(name, found, renew),
        Verdict::Ok | Verdict::Skipped => Check::ok(name, found),
    }
}

/// Files that a member cannot use, while it goes on with what it read before.
fn reloads(survey: &Survey) -> Check {
    let failed: Vec<String> = survey
        .members()
        .into_iter()
        .filter(|(_, answer)| {
            let is_set = |metric| answer.metrics.largest(metric).is_some_and(|value| value > 0.0);
            is_set("lockkeeper_tls_reload_failed") || is_set("lockkeeper_jwt_keys_failed")
        })
        .map(|(node, _)| node.to_string())
        .collect();
    if failed.is_empty() {
        return Check::ok("replaced files", "no member has a certificate or key that it cannot use");
    }
    let found = format!("node {} cannot use a new certificate, key or authority", failed.join(", "));
    Check::warning("replaced files", found, "its log names the file and the cause")
}
