//! `lockkeeper namespaces`: limits of namespaces, and what they use.

use lockkeeper_api::access::{AccessChange, Namespace, NamespaceLimits};

use crate::args::{Common, NamespaceUpdate, Namespaces, NamespacesCommand};
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{escaped, print_json, print_line, print_table, table};

/// Runs the command of `namespaces`.
pub(crate) async fn run(common: &Common, args: &Namespaces) -> Result<(), Failure> {
    match &args.command {
        None | Some(NamespacesCommand::List) => list(common).await,
        Some(NamespacesCommand::Put(update)) => put(common, update).await,
        Some(NamespacesCommand::Delete(args)) => {
            let done = format!("namespace {} has no limits any more", escaped(&args.namespace));
            change(common, AccessChange::DeleteNamespace { name: args.namespace.clone() }, &done).await
        }
    }
}

async fn put(common: &Common, update: &NamespaceUpdate) -> Result<(), Failure> {
    let (limits, version) = (update.limits(), update.if_version);
    let (name, owner) = (update.namespace.clone(), update.owner.clone());
    let done = match limits == NamespaceLimits::default() {
        true => format!("namespace {} is counted and has no limits", escaped(&name)),
        false => format!("set the limits of namespace {}", escaped(&name)),
    };
    change(common, AccessChange::PutNamespace { name, owner, limits, version }, &done).await
}

async fn change(common: &Common, change: AccessChange, done: &str) -> Result<(), Failure> {
    let changed = client(common)?.change_access(&change).await?;
    if common.json { print_json(&changed) } else { print_line(done) }
}

async fn list(common: &Common) -> Result<(), Failure> {
    let all = client(common)?.namespaces().await?;
    if common.json {
        return print_json(&all);
    }
    if all.namespaces.is_empty() {
        return print_line("no namespace has limits");
    }
    let mut table =
        table(&["namespace", "owner", "sessions", "lock requests", "nodes", "bytes", "requests/s", "version"]);
    for namespace in &all.namespaces {
        table.add_row(row(namespace));
    }
    print_table(&table)
}

/// What is used, and of how much.
fn row(Namespace { name, owner, limits, usage, version }: &Namespace) -> Vec<String> {
    let of = |used: u64, limit: Option<u64>| limit.map_or(used.to_string(), |limit| format!("{used} of {limit}"));
    vec![
        escaped(name),
        owner.as_deref().map_or("-".into(), escaped),
        of(usage.sessions, limits.sessions),
        of(usage.lock_requests, limits.lock_requests),
        of(usage.nodes, limits.nodes),
        of(usage.bytes, limits.bytes),
        limits.requests_per_s.map_or("-".into(), |rate| rate.to_string()),
        version.to_string(),
    ]
}
