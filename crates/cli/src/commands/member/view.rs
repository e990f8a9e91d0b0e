//! The cluster as its leader sees it.

use std::time::Duration;

use lockkeeper_api::cluster::{Member, Membership, Role, Status};
use lockkeeper_client::{Client, Error};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::doctor::survey::{ONE_CLUSTER, several_clusters};
use crate::failure::{EXIT_UNREACHABLE, Failure};
use crate::output::escaped;

/// A member that runs answers a new leader's first heartbeat.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The status of the leader.
pub(super) struct View {
    pub(super) status: Status,
}

/// `member list --json`
#[derive(Serialize)]
pub(super) struct ListedMember<'a> {
    membership_version: u64,
    leader: Option<u64>,
    failure_tolerance: Option<u64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    joint_voters: &'a [Vec<u64>],
    members: &'a [Member],
}

impl View {
    /// Asks the endpoints and the members until one says that it leads.
    pub(super) async fn of(client: &Client, patience: Duration) -> Result<Self, Failure> {
        let give_up_at = Instant::now() + patience;
        loop {
            let answers = client.status_of_members(false, patience).await;
            let reached = answers.iter().filter_map(|(endpoint, answer)| Some((endpoint, answer.as_ref().ok()?)));
            if let Some(clusters) = several_clusters(reached) {
                return Err(Failure::usage(format!("{clusters}: {ONE_CLUSTER}")));
            }
            let (reached, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, answer)| answer.is_ok());
            let statuses: Vec<Status> = reached.into_iter().filter_map(|(_, answer)| answer.ok()).collect();
            if let Some(leader) = statuses.iter().filter(|status| status.leading).max_by_key(|status| status.term) {
                return Ok(Self { status: leader.clone() });
            }
            if Instant::now() >= give_up_at {
                let errors: Vec<Error> = failed.into_iter().filter_map(|(_, answer)| answer.err()).collect();
                return Err(no_leader(&statuses, errors));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The same once every voter has answered the leader, or one of them does not within a while: a new leader knows
    /// nothing of the others at first.
    pub(super) async fn settled(client: &Client, patience: Duration) -> Result<Self, Failure> {
        let until = Instant::now() + SETTLED_WITHIN;
        loop {
            let view = Self::of(client, patience).await?;
            let silent = view.voters().any(|voter| voter.answered_ms_ago.is_none());
            if !silent || Instant::now() >= until {
                return Ok(view);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn member(&self, node: u64) -> Option<&Member> {
        self.status.members.iter().find(|member| member.node_id == node)
    }

    pub(super) fn voters(&self) -> impl Iterator<Item = &Member> {
        self.status.members.iter().filter(|member| member.role == Role::Voter)
    }

    pub(super) fn membership(&self) -> Membership {
        Membership { members: self.status.members.clone(), membership_version: self.status.membership_version }
    }

    pub(super) fn listed(&self) -> ListedMember<'_> {
        let Status { membership_version, leader, failure_tolerance, ref joint_voters, ref members, .. } = self.status;
        ListedMember { membership_version, leader, failure_tolerance, joint_voters, members }
    }

    /// Refuses to add a voter that is dead: a new start under its id, without its data, would be turned away.
    pub(super) fn check_addition(&self, node: u64) -> Result<(), Failure> {
        let is_dead = |member: &Member| member.role == Role::Voter && member.synced == Some(false);
        if !self.member(node).is_some_and(is_dead) {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "node {node} is a member already, and not in step: start it with the configuration and the data that it \
             has. If its data are lost: `lockkeeper member replace {node} NEW --peer HOST:PORT --client HOST:PORT`, \
             where NEW is an id that was never used"
        )))
    }

    pub(super) fn no_member(&self, node: u64) -> Failure {
        let ids: Vec<String> = self.status.members.iter().map(|member| member.node_id.to_string()).collect();
        Failure::failed(format!("node {node} is not a member; the members are {}", ids.join(", ")))
    }

    /// How many entries of the leader's log a member lacks.
    pub(super) fn lag(&self, member: &Member) -> Option<u64> {
        member.matched_index.map(|matched| self.status.last_log_index.saturating_sub(matched))
    }

    pub(super) fn role(&self, member: &Member) -> &'static str {
        match member.role {
            Role::Voter if member.node_id == self.status.node_id => "leader",
            Role::Voter => "voter",
            Role::Learner => "learner",
            Role::Front => "front",
        }
    }

    pub(super) fn state(&self, member: &Member) -> String {
        match (&member.turned_away, member.synced, member.answered_ms_ago) {
            (Some(why), _, _) => escaped(why),
            (None, Some(true), _) => "in step".into(),
            (None, _, None) => "has not answered".into(),
            (None, _, Some(ms)) if ms >= 1_000 => format!("silent for {} s", ms / 1_000),
            (None, _, Some(_)) => "catching up".into(),
        }
    }

    /// Refuses a removal after which the voters in step are no majority; or, unless it is forced, only just one.
    pub(super) fn check_removal(&self, node: u64, force: bool) -> Result<(), Failure> {
        let member = self.member(node).ok_or_else(|| self.no_member(node))?;
        if member.role != Role::Voter {
            return Ok(());
        }
        let rest: Vec<&Member> = self.voters().filter(|voter| voter.node_id != node).collect();
        if rest.is_empty() {
            return Err(Failure::failed(format!(
                "node {node} is the last voter, and a cluster needs one: add and promote another member first"
            )));
        }
        let in_step = rest.iter().filter(|voter| voter.synced == Some(true)).count();
        let majority = rest.len() / 2 + 1;
        let left =
            format!("of the {} voters that stay, {in_step} are in step, and {majority} are a majority", rest.len());
        if in_step < majority {
            return Err(Failure::failed(format!(
                "node {node} is not removed, because that would be an outage: {left}; first bring the others back or \
                 replace them (`lockkeeper member list`)"
            )));
        }
        if in_step == majority && !force {
            return Err(Failure::failed(format!(
                "node {node} is not removed, because the next loss would be an outage then: {left}; replace it instead \
                 (`lockkeeper member replace`), or confirm with --force"
            )));
        }
        Ok(())
    }
}

fn no_leader(statuses: &[Status], errors: Vec<Error>) -> Failure {
    if !statuses.is_empty() {
        let unknown = statuses.iter().find_map(|status| {
            let leader = status.leader?;
            let member = status.members.iter().find(|member| member.node_id == leader)?;
            Some(match &member.client_address {
                Some(address) => format!("node {leader}, which leads, does not answer at {address}"),
                None => format!("node {leader} leads, and the cluster has no client address of it"),
            })
        });
        let why = unknown.unwrap_or_else(|| {
            "the cluster has no leader at the moment; check that a majority of the voters runs".into()
        });
        return Failure::new(
            EXIT_UNREACHABLE,
            format!(
                "{why}; `lockkeeper status` shows the members, --endpoints \
                                                       names nodes"
            ),
        );
    }
    let refused = errors.iter().position(|error| error.code().is_some()).unwrap_or(0);
    match errors.into_iter().nth(refused) {
        Some(error) => error.into(),
        None => Failure::new(EXIT_UNREACHABLE, "no endpoint can be reached; check --endpoints"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership_summary::tests::status_of;

    fn refusal(voters: &[(u64, bool)], node: u64, force: bool) -> Option<String> {
        let view = View { status: status_of(voters) };
        view.check_removal(node, force).err().map(|failure| format!("{failure:?}"))
    }

    #[test]
    fn a_removal_that_is_an_outage_is_refused_and_one_without_margin_wants_a_confirmation() {
        let five = [(1, true), (2, true), (3, true), (4, true), (5, true)];
        assert_eq!(refusal(&five, 5, false), None);
        assert_eq!(refusal(&five[..4], 4, false), None, "three of three: one may be lost");
        let pair = refusal(&five[..3], 3, false).unwrap();
        assert!(pair.contains("2 voters that stay, 2 are in step") && pair.contains("--force"), "{pair}");
        assert_eq!(refusal(&five[..3], 3, true), None);
        let one_dead = [(1, true), (2, true), (3, false)];
        let outage = refusal(&one_dead, 2, true).unwrap();
        assert!(outage.contains("would be an outage") && !outage.contains("--force"), "{outage}");
        assert_eq!(refusal(&one_dead, 3, true), None, "the dead one may go");
        let last = refusal(&five[..1], 1, true).unwrap();
        assert!(last.contains("node 1 is the last voter"), "{last}");
        let stranger = refusal(&five, 9, false).unwrap();
        assert!(stranger.contains("node 9 is not a member; the members are 1, 2, 3, 4, 5"), "{stranger}");
        assert_eq!(refusal(&[(1, true), (10, false)], 10, false), None, "a learner does not count");
    }
}
