//! P1 across clusters: a client whose endpoints lead to two clusters gets a lock from neither, although the clusters
//! have one name.
//!
//! The second cluster is one of its own, then one that was restored from a backup of the first, then the first one
//! again beside the member that was recovered from it. Each time a client of the first cluster alone holds a lock, and
//! commands and library clients ask for it over the endpoints of both: whoever gets it got it from the second. A
//! session that was opened before the restored cluster began meets it after its own cluster was killed.

use std::process::Output;

use lockkeeper_client::api::Code;
use lockkeeper_client::{Client, Error, Options as ClientOptions, PreferredNode, Session, SessionOptions};
use tokio::process::Command;
use tokio::time::timeout;

use super::restore::{alone, text};
use crate::process::run_command;
use crate::proofs::prelude::*;

const LOCK: &str = "two-clusters";
const WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const PREFERENCES: [&str; 4] = ["spread", "leader", "nearest", "first"];
/// Commands for each preference.
const COMMANDS: usize = 2;
const SHORT_SESSION: Duration = Duration::from_secs(3);
const LONG_SESSION: Duration = Duration::from_secs(20);

pub(super) async fn run(context: &Context) -> ProofResult {
    let start = |name: &'static str, nodes| {
        let (dir, options) = (context.dir.join(name), Options { nodes, ..Options::default() });
        async move { Cluster::start(&context.binary, &dir, options).await }
    };
    let (mut old, staging) = tokio::try_join!(start("old", 3), start("staging", 1))?;
    let first = identity(&old, &[1, 2, 3]).await?;
    let second = identity(&staging, &[1]).await?;
    let mut refused = contend(context, "staging", (&old.endpoints(), &first), (&staging.endpoints(), &second)).await?;
    drop(staging);

    let file = context.dir.join("backup.lkb");
    run_command(&context.binary, &["--endpoints", &old.endpoints().join(","), "snapshot", "save", text(&file)]).await?;
    let options = Options { nodes: 1, ..Options::default() };
    let mut new = Cluster::laid_out(&context.binary, &context.dir.join("new"), options).await?;
    let config = new.directory(1).join("config.toml");
    run_command(&context.binary, &["snapshot", "restore", text(&file), "--config", text(&config)]).await?;
    // None of the new endpoints answers yet.
    let (session, _) = hold(&[old.endpoints(), new.endpoints()].concat(), SHORT_SESSION).await?;
    new.spawn(1)?;
    new.all_ready().await?;
    let restored = identity(&new, &[1]).await?;
    old.kill_all().await?;
    is_told(context, session, [&first, &restored]).await?;
    alone_again(&new).await?;
    old.start_all().await?;
    refused += contend(context, "restored", (&old.endpoints(), &first), (&new.endpoints(), &restored)).await?;
    drop(new);

    old.kill_all().await?;
    let config = old.directory(3).join("config.toml");
    alone(&config, &[1, 2])?;
    let recover = ["recover", "--from-survivor", "--config", text(&config), "--yes-cluster", "prove", "--attempt", "2"];
    run_command(&context.binary, &recover).await?;
    // The lost members come back with their data: a majority of the old cluster.
    old.start_all().await?;
    let (back, recovered) = (identity(&old, &[1, 2]).await?, identity(&old, &[3]).await?);
    if back != first || [&first, &restored].contains(&&recovered) {
        return broken(format!("{first} came back as {back}, was restored as {restored}, recovered as {recovered}"));
    }
    let members = old.endpoints();
    refused += contend(context, "recovered", (&members[..2], &first), (&members[2..], &recovered)).await?;
    Ok(format!(
        "a cluster beside another one, beside one restored from it ({restored}) and beside one recovered from it \
         ({recovered}): no grant of a lock that is held, {refused} clients refused the second cluster by name and \
         uid; status, doctor and top name both; a session of before is told, and its lock goes on alone"
    ))
}

/// Name and uid that these members give, once they do.
async fn identity(cluster: &Cluster, members: &[u64]) -> Result<String, Failed> {
    let wait = Polling::within(WITHIN).every(POLL);
    loop {
        let statuses = cluster.statuses(false).await;
        let of_members = statuses.iter().filter(|status| members.contains(&status.node_id));
        let known: Vec<_> = of_members.filter(|status| status.cluster_uid.is_some()).collect();
        let mut names: Vec<String> = known.iter().map(|status| status.identity().to_string()).collect();
        names.dedup();
        match names.as_slice() {
            [name] if known.len() == members.len() => return Ok(name.clone()),
            [_, _, ..] => return broken(format!("members {members:?} of one cluster name several: {names:?}")),
            _ => wait.or_broken(|| format!("members {members:?} have no uid: {names:?}")).await?,
        }
    }
}

/// Asks for a lock that is held in the first cluster, over the endpoints of both. Gives how many clients refused.
async fn contend(
    context: &Context,
    name: &str,
    (one, first): (&[String], &str),
    (other, second): (&[String], &str),
) -> Result<usize, Failed> {
    let endpoints = [one, other].concat();
    let list = endpoints.join(",");
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&context.binary);
        command.args(["--endpoints", &list]).args(arguments).kill_on_drop(true);
        timeout(WITHIN, async move { command.output().await })
    };
    let names_both = |output: &Output| {
        let told = [&output.stdout[..], &output.stderr[..]].concat();
        let told = String::from_utf8_lossy(&told);
        told.contains(first) && told.contains(second)
    };
    let (holder, token) = hold(one, LONG_SESSION).await?;
    let contenders = PREFERENCES
        .iter()
        .flat_map(|prefer| [*prefer; COMMANDS])
        .map(|prefer| command(&["--prefer", prefer, "lock", LOCK, "--ttl", "3s", "--wait", "1s", "--", "true"]));
    let clients = futures::future::join_all(PREFERENCES.map(|prefer| library_client(&endpoints, prefer)));
    let (commands, clients) = tokio::join!(futures::future::join_all(contenders), clients);
    let (mut refused, mut waited) = (0, 0);
    for output in commands {
        let Ok(output) = output else { return broken(format!("{name}: a command did not end within {WITHIN:?}")) };
        let output = output?;
        match output.status.code() {
            Some(0) => {
                return broken(format!("{name}: {second} granted {LOCK}, which {first} has granted: {output:?}"));
            }
            Some(125) if names_both(&output) => refused += 1,
            // The second cluster did not answer in time: this command is a client of the first.
            Some(120) => waited += 1,
            _ => return broken(format!("{name}: lock ends with neither the wait nor the refusal: {output:?}")),
        }
    }
    for told in clients {
        match told? {
            told if told.contains(first) && told.contains(second) => refused += 1,
            told => return broken(format!("{name}: the refusal does not name {first} and {second}: {told}")),
        }
    }
    if holder.client().verify(LOCK, token).await.is_ok_and(|verified| verified.held) {
        holder.close().await.map_err(without_fault)?;
    } else {
        return broken(format!("{name}: {LOCK} was not held in {first} all the time"));
    }
    for (report, code) in [(&["status"][..], 1), (&["doctor"][..], 1), (&["top", "--once"][..], 0)] {
        let Ok(output) = command(report).await else { return broken(format!("{report:?} did not end")) };
        let output = output?;
        if output.status.code() != Some(code) || !names_both(&output) {
            return broken(format!("{name}: {report:?} does not report {first} and {second}: {output:?}"));
        }
    }
    context.log.say(format!("{name}: {first} and {second}: {refused} clients refused, {waited} met the first in time"));
    Ok(refused)
}

/// A session that holds the lock at these endpoints, and its token.
async fn hold(endpoints: &[String], length: Duration) -> Result<(Session, u64), Failed> {
    let client = client(endpoints, ClientOptions::default())?;
    let hold = async {
        let options = SessionOptions { timeout: length, ..SessionOptions::default() };
        let session = Session::open(&client, &options).await?;
        let guard = session.lock(LOCK).lock().await?;
        let token = guard.token();
        // Held until its session is closed.
        std::mem::forget(guard);
        Ok::<_, Error>((session, token))
    };
    match timeout(WITHIN, hold).await {
        Ok(held) => held.map_err(without_fault),
        Err(_) => broken(format!("{endpoints:?} do not grant {LOCK} within {WITHIN:?}")),
    }
}

/// How a library client is refused, each time that it asks for the lock. It waits for all endpoints.
async fn library_client(endpoints: &[String], prefer: &str) -> Result<String, Failed> {
    let prefer = match prefer {
        "leader" => PreferredNode::Leader,
        "nearest" => PreferredNode::Nearest,
        "first" => PreferredNode::First,
        _ => PreferredNode::Spread,
    };
    let options = ClientOptions { prefer, connect_timeout: WITHIN, patience: WITHIN * 2, ..ClientOptions::default() };
    let client = client(endpoints, options)?;
    let mut told = String::new();
    for _ in 0..2 {
        told = match Session::open(&client, &SessionOptions::default()).await {
            Err(error) if error.code() == Some(Code::OtherCluster) => error.to_string(),
            Err(error) => return broken(format!("a session was refused for another reason: {error}")),
            Ok(session) => {
                let got = timeout(SHORT_SESSION, session.lock(LOCK).lock()).await;
                let got = got.map(|guard| guard.map(|guard| guard.token()));
                return broken(format!("a client of both clusters got a session, and of {LOCK}: {got:?}"));
            }
        };
    }
    Ok(told)
}

fn client(endpoints: &[String], options: ClientOptions) -> Result<Client, Failed> {
    Client::new(endpoints, options).map_err(|error| Failed::Broken(error.to_string()))
}

/// The old cluster is gone: nothing of the new one is taken for its answer.
async fn is_told(context: &Context, session: Session, clusters: [&str; 2]) -> Result<(), Failed> {
    let wait = Polling::within(WITHIN).every(POLL);
    loop {
        match session.client().session(session.id()).await {
            Err(error) if error.code() == Some(Code::OtherCluster) => break,
            Ok(_) => return broken("the new cluster answers for a session of the old one"),
            Err(error) => {
                let what = format!("a session of before is not told of the other cluster: {error}");
                match error.code() {
                    Some(_) => return broken(what),
                    None => wait.or_broken(|| what).await?,
                }
            }
        }
    }
    if let Ok(guard) = session.lock("another").lock().await {
        return broken(format!("a session of the old cluster got token {} of the new one", guard.token()));
    }
    let lost = timeout(WITHIN, session.lost()).await;
    match lost {
        Ok(why) if clusters.iter().all(|cluster| why.contains(cluster)) => {
            context.log.say(format!("a session of before: {why}"));
            Ok(())
        }
        other => broken(format!("the loss of a session of before does not name {clusters:?}: {other:?}")),
    }
}

/// A client that is started now finds one cluster, which grants.
async fn alone_again(new: &Cluster) -> Result<(), Failed> {
    let client = client(&new.endpoints(), ClientOptions::default())?;
    let work = async {
        let session = Session::open(&client, &SessionOptions::default()).await?;
        session.lock(LOCK).lock().await?.release().await?;
        session.close().await
    };
    match timeout(WITHIN, work).await {
        Ok(done) => done.or_broken("a client of the new cluster alone"),
        Err(_) => broken(format!("the new cluster does not grant {LOCK} within {WITHIN:?}")),
    }
}
