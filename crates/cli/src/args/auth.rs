//! `auth`: the commands of access control.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockkeeper_api::access::{Resource, Right, Rule};

use super::duration;

/// `auth`
#[derive(Debug, Args)]
#[command(after_help = "\
Access control is off until it is enabled; until then everybody may do everything. A principal is who a caller has
proved to be: by a token, or by the name in a client certificate. Roles give principals rights. See docs/security.md.

Example: enforce it, and let billing acquire the locks below orders
  lockkeeper auth enable --out admin.token
  export LOCKKEEPER_TOKEN_FILE=admin.token
  lockkeeper auth role put orders locks:orders=acquire,read
  lockkeeper auth grant billing orders
  lockkeeper auth token create billing --ttl 90d --out billing.token
  lockkeeper auth can-i acquire locks orders/42 --principal billing")]
pub(crate) struct Auth {
    #[command(subcommand)]
    pub(crate) command: AuthCommand,
}

/// The commands of `auth`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuthCommand {
    /// Enforce access control
    Enable(EnableAccess),
    /// Stop enforcing access control; roles, grants and tokens stay
    Disable,
    /// Show whether access control is enforced, and which roles principals have
    Status,
    /// Show who you are to the cluster, and your roles
    Whoami,
    /// Ask whether you may do something: exit code 0 for yes, 1 for no
    CanI(AccessCheck),
    /// Show and change roles
    Role(Roles),
    /// Give a principal a role
    Grant(RoleOfPrincipal),
    /// Take a role from a principal
    Revoke(RoleOfPrincipal),
    /// Make, list and withdraw tokens
    Token(Tokens),
}

/// `auth enable`
#[derive(Debug, Args)]
#[command(after_help = "\
If no principal could administer access control, this makes a role `admin` with every right, a principal `admin`, and a
token for it, which is shown this once: alone on standard output, or in the new file of --out. Keep it: without it, only
the super user of the nodes' configuration (admin.super_digest) can get in again.

The token is drawn here, and the cluster gets only its hash. It is in FILE before the cluster is asked, so that it is
not lost with the answer. FILE is removed again if no token was made.")]
pub(crate) struct EnableAccess {
    #[command(flatten)]
    pub(crate) file: TokenFileArgs,
}

/// Where a new token is stored.
#[derive(Debug, Args)]
pub(crate) struct TokenFileArgs {
    /// Write the token to this new file, readable by you only
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace FILE, once the cluster has taken the new token
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Repeat a call whose outcome is unknown: take the token that FILE has
    #[arg(long, requires = "out", conflicts_with = "force")]
    pub(crate) reuse: bool,
}

/// `auth can-i`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the role and the rule that allow it. Failures have exit code 1 too, and a message on standard error.

Examples:
  lockkeeper auth can-i acquire locks orders/42
  lockkeeper auth can-i admin cluster --principal ops    # needs the right to read the cluster")]
pub(crate) struct AccessCheck {
    /// read, acquire, write, force, admin or backup
    pub(crate) right: Right,
    /// locks, nodes, gates, rates, sessions or cluster
    pub(crate) resource: Resource,
    /// The lock, the node's path or the gate's key [default: all]
    pub(crate) name: Option<String>,
    /// Ask about this principal
    #[arg(long, value_name = "P")]
    pub(crate) principal: Option<String>,
}

/// `auth role`
#[derive(Debug, Args)]
pub(crate) struct Roles {
    #[command(subcommand)]
    pub(crate) command: RolesCommand,
}

/// The commands of `auth role`.
#[derive(Debug, Subcommand)]
pub(crate) enum RolesCommand {
    /// List the roles with their rules
    List,
    /// Show a role, and who has it
    Show(RoleName),
    /// Make a role, or replace all its rules
    Put(RoleUpdate),
    /// Delete a role and its grants
    Delete(RoleName),
}

/// The name of a role.
#[derive(Debug, Args)]
pub(crate) struct RoleName {
    /// The role
    #[arg(value_name = "NAME")]
    pub(crate) role: String,
}

/// `auth role put`
#[derive(Debug, Args)]
#[command(after_help = "\
A rule is RESOURCE[:PREFIX]=RIGHT[,RIGHT...].
  RESOURCE  locks, nodes, gates, rates, sessions or cluster; sessions and cluster have no names and take no PREFIX
  PREFIX    the first parts of a name: orders stands for orders and orders/42, but not for orders2. Without it, the rule
            is about every name. Paths of nodes begin with a slash
  RIGHT     read     read, list, verify and watch
            acquire  acquire locks; begin and finish gates
            write    create, set and delete nodes
            force    take from other sessions what belongs to them
            admin    change members and access control
            backup   take a backup of the cluster; admin may too
No right includes another.

Examples:
  lockkeeper auth role put orders locks:orders=acquire,read
  lockkeeper auth role put operators locks=read,force sessions=read cluster=read --if-version 0")]
pub(crate) struct RoleUpdate {
    /// The role
    #[arg(value_name = "NAME")]
    pub(crate) role: String,
    /// All its rules, such as locks:orders=acquire,read
    #[arg(value_name = "RULE", required = true, value_parser = rule)]
    pub(crate) rules: Vec<Rule>,
    /// Only if the role has this version; 0 only if there is no such role
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
}

/// `auth grant` and `auth revoke`
#[derive(Debug, Args)]
pub(crate) struct RoleOfPrincipal {
    /// The principal; `anyone` for every caller, known or not
    pub(crate) principal: String,
    /// The role
    pub(crate) role: String,
}

/// `auth token`
#[derive(Debug, Args)]
pub(crate) struct Tokens {
    #[command(subcommand)]
    pub(crate) command: TokensCommand,
}

/// The commands of `auth token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokensCommand {
    /// Make a token; it is shown this once
    Create(NewToken),
    /// List the tokens, without their secrets
    List,
    /// Withdraw a token; its sessions end
    Revoke(TokenId),
}

/// `auth token create`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the token alone on standard output. It cannot be shown again: it is drawn here, and the cluster gets only its
hash. With --out it is in FILE before the cluster is asked. FILE is removed again if the cluster refuses.

Example:
  lockkeeper auth token create billing --ttl 90d --out billing.token
  lockkeeper --token-file billing.token auth whoami")]
pub(crate) struct NewToken {
    /// The principal that it proves
    pub(crate) principal: String,
    /// How long it counts, such as 30d; at least 1s [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) file: TokenFileArgs,
}

/// The id of a token.
#[derive(Debug, Args)]
pub(crate) struct TokenId {
    /// The token's id, which `lockkeeper auth token list` shows
    pub(crate) id: String,
}

/// The cluster counts seconds.
fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        given if given < Duration::from_secs(1) => Err("must be at least 1s".into()),
        given => Ok(given),
    }
}

/// Parses `RESOURCE[:PREFIX]=RIGHT[,RIGHT...]`. A prefix may contain `=` and `:`.
fn rule(text: &str) -> Result<Rule, String> {
    let (on, rights) = text.rsplit_once('=').ok_or("a rule is written RESOURCE[:PREFIX]=RIGHT[,RIGHT...]")?;
    let (resource, prefix) = match on.split_once(':') {
        Some((_, "")) => return Err("the prefix is empty; leave out the colon for every name".into()),
        Some((resource, prefix)) => (resource, prefix),
        None => (on, ""),
    };
    let rights = rights.split(',').map(str::parse::<Right>).collect::<Result<Vec<_>, _>>()?;
    Ok(Rule { resource: resource.parse()?, prefix: prefix.to_owned(), rights })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed() {
        let of = |resource, prefix: &str, rights: &[Right]| Rule {
            resource,
            prefix: prefix.into(),
            rights: rights.to_vec(),
        };
        for (text, expected) in [
            ("locks:orders=acquire,read", of(Resource::Locks, "orders", &[Right::Acquire, Right::Read])),
            ("nodes:/a=b:c=write", of(Resource::Nodes, "/a=b:c", &[Right::Write])),
            ("cluster=admin", of(Resource::Cluster, "", &[Right::Admin])),
        ] {
            assert_eq!(rule(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_error_in_a_rule_names_its_cause() {
        for (text, cause) in [
            ("locks", "RESOURCE[:PREFIX]=RIGHT"),
            ("lock:a=read", "a resource is one of locks nodes"),
            ("locks:a=", "a right is one of read acquire"),
            ("locks:a=read,", "a right is one of"),
            ("locks:a=read, acquire", "and not ' acquire'"),
            ("locks:=read", "leave out the colon"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }

    #[test]
    fn a_token_counts_for_a_second_at_least() {
        assert_eq!(ttl("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert!(ttl("0").is_err() && ttl("500ms").is_err() && ttl("soon").is_err());
    }
}
