//! `member`: who belongs to the cluster, and who leads it.

use std::time::Duration;

use clap::{Args, Subcommand};

/// `member`
#[derive(Debug, Args)]
#[command(after_help = "\
A change is made only if the membership is still the one that this command has looked at: of two operators who change
it at the same time, the second one is refused. docs/operate.md has the procedures.

Examples:
  lockkeeper member list
  lockkeeper member add 4 --peer 10.0.0.4:7101 --client 10.0.0.4:7001 > node4.toml
  lockkeeper member promote 4 --wait
  lockkeeper member remove 3
  lockkeeper member transfer 2")]
pub(crate) struct Member {
    #[command(subcommand)]
    pub(crate) command: Option<MemberCommand>,
}

/// The commands of `member`.
#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// List the members, as the leader sees them; the default
    List,
    /// Add a node that does not vote yet, and print the configuration that it needs
    Add(AddMember),
    /// Make a learner that has caught up a voter
    Promote(PromoteMember),
    /// Remove a member, whose id is spent then
    Remove(RemoveMember),
    /// Put a new member in the place of another one: add, promote, remove
    Replace(ReplaceMember),
    /// Hand leadership over
    Transfer {
        /// The next leader [default: the most advanced voter]
        #[arg(value_name = "ID")]
        to: Option<u64>,
    },
}

/// `member add`
#[derive(Debug, Args)]
#[command(after_help = "\
The configuration is printed on standard output, so that it can be redirected to a file. Start the node with it:
  lockkeeper member add 4 --peer 10.0.0.4:7101 --client 10.0.0.4:7001 > node4.toml
  lockkeeper serve --config node4.toml

Repeated for a node that is a member already, this changes the addresses for clients and prints the same again.")]
pub(crate) struct AddMember {
    /// Its id, which no member may have had before
    #[arg(value_name = "ID")]
    pub(crate) node: u64,
    #[command(flatten)]
    pub(crate) addresses: NewAddresses,
    /// A front node: serves clients and never votes
    #[arg(long)]
    pub(crate) front: bool,
}

/// Where a new member is reached.
#[derive(Debug, Args)]
pub(crate) struct NewAddresses {
    /// Where the other members reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer: String,
    /// Where clients reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) client: String,
    /// Where ZooKeeper's clients reach it, if it serves them
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) zookeeper: Option<String>,
}

/// `member promote`
#[derive(Debug, Args)]
pub(crate) struct PromoteMember {
    /// The learner
    #[arg(value_name = "ID")]
    pub(crate) node: u64,
    /// Wait until it runs and has caught up, at most for so long [default: 10m]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m")]
    #[arg(value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
}

/// `member remove`
#[derive(Debug, Args)]
#[command(after_help = "\
A leader hands leadership over first. The last voter is never removed, nor one without which the others have no
majority. Stop the process of the removed node: it serves nobody any more.")]
pub(crate) struct RemoveMember {
    /// The member
    #[arg(value_name = "ID")]
    pub(crate) node: u64,
    /// Confirm that the loss of one more voter may be an outage afterwards
    #[arg(long)]
    pub(crate) force: bool,
}

/// `member replace`
#[derive(Debug, Args)]
#[command(after_help = "\
Adds NEW as a learner unless it is a member already, waits until it has caught up, promotes it, and removes OLD. What
was done before is not done again: repeat an interrupted command to finish it.

Examples:
  lockkeeper member add 4 --peer 10.0.0.4:7101 --client 10.0.0.4:7001 > node4.toml  # start node 4 with it
  lockkeeper member replace 3 4

  lockkeeper member replace 3 4 --peer 10.0.0.4:7101 --client 10.0.0.4:7001         # start node 4 meanwhile")]
pub(crate) struct ReplaceMember {
    /// The member to remove, dead or alive
    #[arg(value_name = "OLD")]
    pub(crate) old: u64,
    /// The member that takes its place
    #[arg(value_name = "NEW")]
    pub(crate) new: u64,
    /// Where the other members reach NEW, if it is not a member yet
    #[arg(long, value_name = "HOST:PORT", requires = "client")]
    pub(crate) peer: Option<String>,
    /// Where clients reach NEW
    #[arg(long, value_name = "HOST:PORT", requires = "peer")]
    pub(crate) client: Option<String>,
    /// Where ZooKeeper's clients reach NEW, if it serves them
    #[arg(long, value_name = "HOST:PORT", requires = "peer")]
    pub(crate) zookeeper: Option<String>,
    /// How long NEW may take to start and to catch up
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    pub(crate) wait: Duration,
}
