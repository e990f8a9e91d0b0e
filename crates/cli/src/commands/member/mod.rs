//! `lockkeeper member`: who belongs to the cluster, and who leads it.
//!
//! Each change names the version of the membership that it was decided on, so that two operators do not surprise each
//! other. A command of several steps decides each step on the membership that it finds then: repeated, it does what is
//! left.

mod catch_up;
mod newcomer;
mod view;

use std::time::Duration;

use lockkeeper_api::cluster::{self, Membership, Role};
use lockkeeper_client::Client;
use serde::Serialize;

use self::view::View;
use crate::args::{AddMember, Common, Member, MemberCommand, NewAddresses, PromoteMember, RemoveMember, ReplaceMember};
use crate::connect::patient_client;
use crate::failure::{Failure, print_error};
use crate::membership_summary::summary;
use crate::output::{number, print_json, print_line, print_table, table};

/// The longest time that a node takes for a change.
const LONGEST_CHANGE: Duration = Duration::from_secs(12);

/// Runs the command of `member`.
pub(crate) async fn run(common: &Common, args: &Member) -> Result<(), Failure> {
    let operator = Operator { common, client: patient_client(common, LONGEST_CHANGE)? };
    match &args.command {
        None | Some(MemberCommand::List) => operator.list().await,
        Some(MemberCommand::Add(add)) => operator.add(add).await,
        Some(MemberCommand::Promote(promote)) => operator.promote(promote).await,
        Some(MemberCommand::Remove(remove)) => operator.remove(remove).await,
        Some(MemberCommand::Replace(replace)) => operator.replace(replace).await,
        Some(MemberCommand::Transfer { to }) => operator.transfer(*to).await,
    }
}

/// Makes the changes of one command.
struct Operator<'a> {
    common: &'a Common,
    client: Client,
}

/// `member add --json`
#[derive(Serialize)]
struct Added<'a> {
    #[serde(flatten)]
    membership: &'a Membership,
    /// For `lockkeeper serve --config`.
    configuration: String,
}

impl Operator<'_> {
    async fn view(&self) -> Result<View, Failure> {
        View::of(&self.client, self.common.patience).await
    }

    async fn settled_view(&self) -> Result<View, Failure> {
        View::settled(&self.client, self.common.patience).await
    }

    async fn list(&self) -> Result<(), Failure> {
        let view = self.settled_view().await?;
        if self.common.json {
            return print_json(&view.listed());
        }
        let mut table = table(&["id", "role", "peer address", "client address", "zookeeper address", "lag", "state"]);
        for member in &view.status.members {
            let lag = view.lag(member).map_or("-".into(), number);
            let mut row = vec![number(member.node_id), view.role(member).into()];
            row.extend(addresses(member).map(Into::into));
            row.extend([lag, view.state(member).into()]);
            table.add_row(row);
        }
        print_table(&table)?;
        summary(&view.status).iter().try_for_each(|line| print_line(line))
    }

    async fn add(&self, args: &AddMember) -> Result<(), Failure> {
        let view = self.settled_view().await?;
        view.check_addition(args.node)?;
        let addresses = &args.addresses;
        let addition = cluster::AddMember {
            node_id: args.node,
            role: args.front.then_some(Role::Front),
            peer_address: addresses.peer.clone(),
            client_address: Some(addresses.client.clone()),
            zookeeper_address: addresses.zookeeper.clone(),
            if_version: Some(view.status.membership_version),
        };
        let membership = self.client.add_member(&addition).await?;
        let added = membership.members.iter().find(|member| member.node_id == args.node);
        let added = added.ok_or_else(|| Failure::failed(format!("node {} was removed meanwhile", args.node)))?;
        let configuration = newcomer::configuration(&view.status.cluster, added, &membership, self.over_tls());
        if self.common.json {
            return print_json(&Added { membership: &membership, configuration });
        }
        let kind = match added.role {
            Role::Voter => "a voter",
            Role::Learner => "a learner",
            Role::Front => "a front node",
        };
        note(&format!("node {} is {kind}; start it with the configuration on standard output", args.node));
        print_line(configuration.trim_end())
    }

    fn over_tls(&self) -> bool {
        self.client.endpoints().iter().any(lockkeeper_client::Endpoint::is_tls)
    }

    async fn promote(&self, args: &PromoteMember) -> Result<(), Failure> {
        let view = match args.wait {
            Some(within) => catch_up::wait(self, args.node, within).await?,
            None => self.view().await?,
        };
        let membership = self.client.promote_member(args.node, Some(view.status.membership_version)).await?;
        self.done(&membership, &format!("node {} is a voter", args.node))
    }

    async fn remove(&self, args: &RemoveMember) -> Result<(), Failure> {
        let view = self.settled_view().await?;
        view.check_removal(args.node, args.force)?;
        let membership = self.remove_checked(view, args.node).await?;
        self.done(&membership, &format!("node {} is removed, and its id is spent; stop its process", args.node))
    }

    /// Removes a member; a leader hands over first.
    async fn remove_checked(&self, view: View, node: u64) -> Result<Membership, Failure> {
        let view = if view.status.node_id == node && view.voters().count() > 1 {
            let leader = self.client.transfer_leadership(None).await?.leader;
            note(&format!("node {node} led; node {leader} leads now"));
            self.view().await?
        } else {
            view
        };
        Ok(self.client.remove_member(node, Some(view.status.membership_version)).await?)
    }

    async fn replace(&self, args: &ReplaceMember) -> Result<(), Failure> {
        let view = self.view().await?;
        let (old, new) = (view.member(args.old), view.member(args.new));
        match (old, new.map(|member| member.role)) {
            _ if args.old == args.new => {
                return Err(Failure::usage(
                    "a node cannot replace itself: give the new node an id that was never used",
                ));
            }
            (None, Some(Role::Voter)) => {
                let done = format!("node {} has replaced node {} already", args.new, args.old);
                return self.done(&view.membership(), &done);
            }
            (None, _) => return Err(view.no_member(args.old)),
            (_, Some(Role::Front)) => {
                let why = format!("node {} is a front node, which never votes: name an ordinary member", args.new);
                return Err(Failure::failed(why));
            }
            (Some(old), None) => self.add_for(args, old.role).await?,
            (Some(_), Some(_)) => {}
        }
        let view = catch_up::wait(self, args.new, args.wait).await?;
        if view.member(args.new).is_some_and(|member| member.role == Role::Learner) {
            self.client.promote_member(args.new, Some(view.status.membership_version)).await?;
            note(&format!("node {} is a voter", args.new));
        }
        let view = self.settled_view().await?;
        view.check_removal(args.old, true)?;
        let membership = self.remove_checked(view, args.old).await?;
        let done = format!("node {} has replaced node {}, whose id is spent", args.new, args.old);
        self.done(&membership, &done)
    }

    /// The first step of `replace`.
    async fn add_for(&self, args: &ReplaceMember, old: Role) -> Result<(), Failure> {
        let (Some(peer), Some(client)) = (&args.peer, &args.client) else {
            return Err(Failure::usage(format!(
                "node {0} is not a member yet: add it with `lockkeeper member add {0}`, or give --peer and --client",
                args.new
            )));
        };
        if old == Role::Front {
            return Err(Failure::failed(format!(
                "node {} is a front node: add another one with `lockkeeper member add {} --front`, and remove it",
                args.old, args.new
            )));
        }
        let zookeeper = args.zookeeper.clone();
        let addresses = NewAddresses { peer: peer.clone(), client: client.clone(), zookeeper };
        self.add(&AddMember { node: args.new, addresses, front: false }).await
    }

    async fn transfer(&self, to: Option<u64>) -> Result<(), Failure> {
        let transferred = self.client.transfer_leadership(to).await?;
        match self.common.json {
            true => print_json(&transferred),
            false => print_line(&format!("node {} leads", transferred.leader)),
        }
    }

    fn done(&self, membership: &Membership, done: &str) -> Result<(), Failure> {
        if self.common.json { print_json(membership) } else { print_line(done) }
    }
}

fn addresses(member: &cluster::Member) -> [String; 3] {
    let or_none = |address: &Option<String>| address.clone().unwrap_or_else(|| "-".into());
    [member.peer_address.clone(), or_none(&member.client_address), or_none(&member.zookeeper_address)]
}

/// Says on standard error what was done, while standard output is for a result.
fn note(line: &str) {
    print_error(&format!("lockkeeper member: {line}"));
}
