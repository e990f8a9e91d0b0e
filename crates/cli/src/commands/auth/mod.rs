//! `lockkeeper auth`: access control. Asks who may do what, and changes roles, grants and tokens.
//!
//! A new token is on standard output and nowhere else, or in a file that only its owner can read (`stored_token`). It
//! must never be in a message.

mod stored_token;

use lockkeeper_api::access::{
    Access, AccessAnswer, AccessChange, AccessChanged, AccessQuestion, AccessRole, Grant, Rule,
};
use lockkeeper_api::access::{TokenInfo, WhoAmI};

use lockkeeper_client::Error;
use stored_token::StoredToken;

use crate::args::TokenFileArgs;
use crate::args::{AccessCheck, Auth, AuthCommand, Common, EnableAccess, NewToken, RolesCommand, TokensCommand};
use crate::connect::client;
use crate::failure::{EXIT_FAILED, Failure, print_error};
use crate::output::{
    ago, count, escaped, hours_since, number, of_hours, print_json, print_json_list, print_line, print_table, table,
    until,
};

const NOT_ENFORCED: &str = "access control is not enforced: everybody may do everything";

/// Runs the command of `auth`.
pub(crate) async fn run(common: &Common, args: &Auth) -> Result<(), Failure> {
    match &args.command {
        AuthCommand::Enable(args) => enable(common, args).await,
        AuthCommand::Disable => change(common, AccessChange::Disable {}, NOT_ENFORCED.into()).await,
        AuthCommand::Status => status(common).await,
        AuthCommand::Whoami => whoami(common).await,
        AuthCommand::CanI(args) => can_i(common, args).await,
        AuthCommand::Role(roles) => role(common, &roles.command).await,
        AuthCommand::Grant(args) => {
            let (principal, role) = (args.principal.clone(), args.role.clone());
            let done = format!("{} has the role {}", escaped(&principal), escaped(&role));
            change(common, AccessChange::Grant { principal, role }, done).await
        }
        AuthCommand::Revoke(args) => {
            let (principal, role) = (args.principal.clone(), args.role.clone());
            let done = format!("{} does not have the role {} any more", escaped(&principal), escaped(&role));
            change(common, AccessChange::Revoke { principal, role }, done).await
        }
        AuthCommand::Token(tokens) => token(common, &tokens.command).await,
    }
}

/// Makes a change and says that it is done.
async fn change(common: &Common, change: AccessChange, done: String) -> Result<(), Failure> {
    let changed = client(common)?.change_access(&change).await?;
    if common.json { print_json(&changed) } else { print_line(&done) }
}

async fn enable(common: &Common, args: &EnableAccess) -> Result<(), Failure> {
    let changed = |made: &AccessChanged| {
        let made = match &made.token_id {
            Some(id) => format!("; nobody else could administer it, so token {id} of the principal admin was made"),
            None => String::new(),
        };
        format!("access control is enforced{made}")
    };
    let change = |hash| AccessChange::Enable { token_hash: Some(hash) };
    make_token(common, &args.file, change, changed).await
}

async fn create_token(common: &Common, args: &NewToken) -> Result<(), Failure> {
    let (principal, ttl_s) = (args.principal.clone(), args.ttl.map(|ttl| ttl.as_secs()));
    let made = |made: &AccessChanged| {
        format!("made token {} of {}", made.token_id.as_deref().unwrap_or("-"), escaped(&args.principal))
    };
    let change = |hash| AccessChange::CreateToken { principal, ttl_s, token_hash: Some(hash) };
    make_token(common, &args.file, change, made).await
}

/// Draws a token, stores it, and has the cluster make the change that takes its hash. Says on standard error what was
/// done. Without a file, the token is alone on standard output.
async fn make_token(
    common: &Common,
    args: &TokenFileArgs,
    change: impl FnOnce(String) -> AccessChange,
    done: impl FnOnce(&AccessChanged) -> String,
) -> Result<(), Failure> {
    let client = client(common)?;
    let stored = StoredToken::prepare(args)?;
    match client.change_access(&change(stored.token.hash())).await {
        Ok(changed) => {
            if !common.json {
                print_error(&done(&changed));
            }
            match changed.token_id {
                Some(_) => stored.hand_over(common, &changed),
                None if common.json => print_json(&changed),
                None => Ok(()),
            }
        }
        Err(error @ (Error::UnknownOutcome(_) | Error::NotLockkeeper { .. })) => stored.keep(&error),
        Err(error) => Err(error.into()),
    }
}

async fn status(common: &Common) -> Result<(), Failure> {
    let access = client(common)?.access().await?;
    if common.json {
        return print_json(&access);
    }
    print_line(if access.enabled { "access control is enforced" } else { NOT_ENFORCED })?;
    print_line(&format!("{}, {}", count(access.roles.len(), "role"), count(access.tokens.len(), "token")))?;
    if access.anonymous_sessions > 0 && !access.enabled {
        print_line(&format!(
            "{} of no principal; those that own anything end when access control is enabled",
            count(access.anonymous_sessions, "session")
        ))?;
    }
    if access.grants.is_empty() {
        return print_line("no principal has a role");
    }
    let mut table = table(&["principal", "roles"]);
    for Grant { principal, roles } in &access.grants {
        table.add_row(vec![escaped(principal), escaped(&roles.join(", "))]);
    }
    print_table(&table)
}

async fn whoami(common: &Common) -> Result<(), Failure> {
    let me = client(common)?.who_am_i().await?;
    if common.json {
        return print_json(&me);
    }
    let WhoAmI { enabled, principals, roles } = me;
    let list = |names: &[String], none: &str| if names.is_empty() { none.into() } else { escaped(&names.join(", ")) };
    print_line(&format!("principals  {}", list(&principals, "none: you are unknown to the cluster")))?;
    print_line(&format!("roles       {}", list(&roles, "none")))?;
    if enabled { Ok(()) } else { print_line(NOT_ENFORCED) }
}

async fn can_i(common: &Common, args: &AccessCheck) -> Result<(), Failure> {
    let question = AccessQuestion {
        resource: args.resource,
        name: args.name.clone().unwrap_or_default(),
        right: args.right,
        principal: args.principal.clone(),
        consistency: None,
    };
    let answer = client(common)?.check_access(&question).await?;
    if common.json {
        print_json(&answer)?;
    } else {
        print_line(&answered(&answer))?;
    }
    if answer.allowed { Ok(()) } else { Err(Failure::silent(EXIT_FAILED)) }
}

fn answered(answer: &AccessAnswer) -> String {
    match (answer.allowed, &answer.role, &answer.rule) {
        (false, ..) => "no".into(),
        (true, Some(role), Some(rule)) => format!("yes, by the role {}: {}", escaped(role), rule_text(rule)),
        (true, ..) => "yes".into(),
    }
}

async fn role(common: &Common, command: &RolesCommand) -> Result<(), Failure> {
    match command {
        RolesCommand::List => list_roles(common).await,
        RolesCommand::Show(args) => show_role(common, &args.role).await,
        RolesCommand::Put(args) => {
            let done = format!("the role {} has {}", escaped(&args.role), count(args.rules.len(), "rule"));
            let (name, rules) = (args.role.clone(), args.rules.clone());
            change(common, AccessChange::PutRole { name, rules, version: args.if_version }, done).await
        }
        RolesCommand::Delete(args) => {
            let done = format!("deleted the role {} and its grants", escaped(&args.role));
            change(common, AccessChange::DeleteRole { name: args.role.clone() }, done).await
        }
    }
}

async fn list_roles(common: &Common) -> Result<(), Failure> {
    let Access { roles, .. } = client(common)?.access().await?;
    if common.json {
        return print_json_list("roles", &roles);
    }
    if roles.is_empty() {
        return print_line("there are no roles");
    }
    let mut table = table(&["role", "version", "rules"]);
    for AccessRole { name, rules, version } in &roles {
        let rules: Vec<String> = rules.iter().map(rule_text).collect();
        table.add_row(vec![escaped(name).into(), number(version), rules.join("  ").into()]);
    }
    print_table(&table)
}

async fn show_role(common: &Common, name: &str) -> Result<(), Failure> {
    let Access { roles, grants, .. } = client(common)?.access().await?;
    let Some(role) = roles.into_iter().find(|role| role.name == name) else {
        let missing = format!("there is no role {}; `lockkeeper auth role list` lists the roles", escaped(name));
        return Err(Failure::failed(missing));
    };
    if common.json {
        return print_json(&role);
    }
    print_line(&format!("role {}, version {}", escaped(&role.name), role.version))?;
    for rule in &role.rules {
        print_line(&format!("  {}", rule_text(rule)))?;
    }
    let owners = grants.iter().filter(|grant| grant.roles.contains(&role.name));
    let owners: Vec<String> = owners.map(|grant| escaped(&grant.principal)).collect();
    print_line(&if owners.is_empty() { "nobody has it".into() } else { format!("granted to {}", owners.join(", ")) })
}

/// A rule as `role put` takes it.
fn rule_text(rule: &Rule) -> String {
    let prefix = if rule.prefix.is_empty() { String::new() } else { format!(":{}", escaped(&rule.prefix)) };
    let rights: Vec<String> = rule.rights.iter().map(ToString::to_string).collect();
    format!("{}{prefix}={}", rule.resource, rights.join(","))
}

async fn token(common: &Common, command: &TokensCommand) -> Result<(), Failure> {
    match command {
        TokensCommand::Create(args) => create_token(common, args).await,
        TokensCommand::List => list_tokens(common).await,
        TokensCommand::Revoke(args) => {
            let done = format!("revoked token {}; its sessions end", escaped(&args.id));
            change(common, AccessChange::RevokeToken { id: args.id.clone() }, done).await
        }
    }
}

async fn list_tokens(common: &Common) -> Result<(), Failure> {
    let Access { tokens, .. } = client(common)?.access().await?;
    if common.json {
        return print_json_list("tokens", &tokens);
    }
    if tokens.is_empty() {
        return print_line("there are no tokens");
    }
    let mut table = table(&["token", "principal", "made", "expires", "last used"]);
    for TokenInfo { id, principal, created_ms, expires_ms, last_used_ms } in &tokens {
        let expires = expires_ms.map_or("never".into(), |at| format!("in {}", until(at)));
        let (made, used) = (format!("{} ago", ago(*created_ms)), last_used(*last_used_ms));
        table.add_row(vec![escaped(id), escaped(principal), made, expires, used]);
    }
    print_table(&table)
}

/// When a token was last used, in whole hours: the cluster knows no more.
fn last_used(hour_began_ms: Option<u64>) -> String {
    match hour_began_ms.map(hours_since) {
        None => "never".into(),
        Some(0) => "within the hour".into(),
        Some(hours) => format!("{} ago", of_hours(hours)),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::access::{Resource, Right};

    use super::*;

    #[test]
    fn a_rule_is_printed_as_it_is_written() {
        let rule =
            Rule { resource: Resource::Locks, prefix: "a\x1b".into(), rights: vec![Right::Acquire, Right::Read] };
        assert_eq!(rule_text(&rule), "locks:a\\u{1b}=acquire,read");
        let everywhere = Rule { resource: Resource::Cluster, prefix: String::new(), rights: vec![Right::Admin] };
        assert_eq!(rule_text(&everywhere), "cluster=admin");
        let answer = AccessAnswer { allowed: true, role: Some("ops".into()), rule: Some(everywhere) };
        assert_eq!(answered(&answer), "yes, by the role ops: cluster=admin");
        assert_eq!(answered(&AccessAnswer { allowed: false, role: None, rule: None }), "no");
        assert_eq!(answered(&AccessAnswer { allowed: true, role: None, rule: None }), "yes", "it is not enforced");
    }
}
