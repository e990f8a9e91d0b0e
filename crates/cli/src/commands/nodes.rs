//! `lockkeeper ls`, `get`, `set`, `create`, `delete`: read and change nodes.

use std::io::Read;

use futures::StreamExt;
use lockkeeper_api::Data;
use lockkeeper_api::nodes::{self, Kind, Node, SetData};
use lockkeeper_client::{Client, Error, Reading};

use crate::args::{Common, Create, Delete, Get, Ls, NodeKind, Set};
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{ago, escaped, number, print_bytes, print_json, print_json_list, print_line, print_table, table};

/// Most data read from standard input; a node's limit is lower.
const MAX_INPUT_BYTES: u64 = 8 << 20;
/// Children that `ls --long` reads concurrently.
const PARALLEL_READS: usize = 16;

pub(crate) async fn ls(common: &Common, args: &Ls) -> Result<(), Failure> {
    let client = client(common)?;
    let mut reading = Reading { children: true, stale: args.stale, ..Reading::default() };
    let mut names = Vec::new();
    loop {
        let page = client.node(&args.path, &reading).await?;
        names.extend(page.children.unwrap_or_default());
        match page.next_children {
            Some(next) => reading.children_after = Some(next),
            None => break,
        }
    }
    if args.long {
        let children = read_children(&client, args, names).await?;
        return if common.json { print_json_list("children", &children) } else { print_long(&children) };
    }
    if common.json {
        return print_json_list("children", &names);
    }
    for name in names {
        print_line(&escaped(&name))?;
    }
    Ok(())
}

/// Reads all children, without those deleted meanwhile.
async fn read_children(client: &Client, args: &Ls, names: Vec<String>) -> Result<Vec<Node>, Failure> {
    let parent = args.path.trim_end_matches('/');
    let reading = Reading { stale: args.stale, ..Reading::default() };
    let reads = names.into_iter().map(|name| {
        let path = format!("{parent}/{name}");
        let reading = &reading;
        async move { client.node(&path, reading).await }
    });
    let answers: Vec<Result<Node, Error>> = futures::stream::iter(reads).buffered(PARALLEL_READS).collect().await;
    let mut children = Vec::new();
    for answer in answers {
        match answer {
            Ok(node) => children.push(node),
            Err(error) if error.code() == Some(lockkeeper_api::Code::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(children)
}

fn print_long(children: &[Node]) -> Result<(), Failure> {
    let mut table = table(&["name", "kind", "bytes", "version", "children", "owner", "changed"]);
    for node in children {
        table.add_row(vec![
            escaped(node.path.rsplit('/').next().unwrap_or_default()).into(),
            kind(node.kind).into(),
            number(node.stat.data_length),
            number(node.stat.version),
            number(node.stat.num_children),
            number(node.stat.ephemeral_owner.map_or("-".into(), |owner| owner.to_string())),
            format!("{} ago", ago(node.stat.mtime_ms)).into(),
        ]);
    }
    print_table(&table)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Persistent => "persistent",
        Kind::Ephemeral => "ephemeral",
        Kind::Container => "container",
        Kind::Ttl => "ttl",
    }
}

pub(crate) async fn get(common: &Common, args: &Get) -> Result<(), Failure> {
    let reading = Reading { stale: args.stale, ..Reading::default() };
    let node = client(common)?.node(&args.path, &reading).await?;
    if common.json {
        return print_json(&node);
    }
    let bytes = node.data.to_bytes().map_err(Failure::failed)?;
    print_bytes(&bytes)?;
    // On a terminal, end the line before the prompt; a pipe gets exactly the bytes.
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) && !bytes.is_empty() && !bytes.ends_with(b"\n") {
        print_line("")?;
    }
    Ok(())
}

pub(crate) async fn set(common: &Common, args: &Set) -> Result<(), Failure> {
    let body = SetData { data: data(&args.data)? };
    let changed = client(common)?.set(&args.path, &body, args.version).await?;
    if common.json {
        return print_json(&changed);
    }
    print_line(&format!("set {} to version {} at zxid {}", escaped(&changed.path), changed.stat.version, changed.zxid))
}

pub(crate) async fn create(common: &Common, args: &Create) -> Result<(), Failure> {
    let ttl_ms = args.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    if ttl_ms.is_some() && args.kind != NodeKind::Ttl {
        return Err(Failure::usage("--ttl needs --kind ttl"));
    }
    let kind = match args.kind {
        NodeKind::Persistent => Kind::Persistent,
        NodeKind::Container => Kind::Container,
        NodeKind::Ttl => Kind::Ttl,
    };
    let body = nodes::Create { data: data(&args.data)?, kind, ttl_ms, sequential: args.sequential, acl: None };
    let created = client(common)?.create(&args.path, &body).await?;
    if common.json {
        return print_json(&created);
    }
    print_line(&format!("created {} at zxid {}", escaped(&created.path), created.zxid))
}

pub(crate) async fn delete(common: &Common, args: &Delete) -> Result<(), Failure> {
    let deleted = client(common)?.delete(&args.path, args.version).await?;
    if common.json {
        return print_json(&deleted);
    }
    print_line(&format!("deleted {} at zxid {}", escaped(&deleted.path), deleted.zxid))
}

fn data(argument: &str) -> Result<Data, Failure> {
    if argument != "-" {
        return Ok(Data::from_bytes(argument.as_bytes()));
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| Failure::failed(format!("cannot read standard input: {e}")))?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(Failure::usage(format!(
            "standard input has more than {MAX_INPUT_BYTES} bytes, which is more than a node can hold"
        )));
    }
    Ok(Data::from_bytes(&bytes))
}
