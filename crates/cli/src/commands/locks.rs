//! `lockkeeper locks` and `lockkeeper unlock`: show holders and waiters, and release a lock by force.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::Cell;
use lockkeeper_api::Code;
use lockkeeper_api::locks::{self, Lock, LockSummary, Mode, Request};
use lockkeeper_client::{Client, Paging};

use crate::args::{Common, Locks, Unlock};
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{ago, escaped, number, principal, print_json, print_line, print_table, table, until};

/// Prints one lock with its queue, or all locks.
pub(crate) async fn run(common: &Common, args: &Locks) -> Result<(), Failure> {
    let client = client(common)?;
    if let Some(name) = &args.name {
        let lock = if args.stale { client.lock_stale(name).await? } else { client.lock(name).await? };
        return if common.json { print_json(&lock) } else { print_queue(&lock) };
    }
    let mut all = locks::Locks { locks: Vec::new(), next: None, zxid: 0 };
    let mut paging = Paging { stale: args.stale, ..Paging::default() };
    loop {
        let page = client.locks(args.prefix.as_deref(), &paging).await?;
        all.locks.extend(page.locks);
        all.zxid = page.zxid;
        match page.next {
            Some(next) => paging.after = Some(next),
            None => break,
        }
    }
    if common.json { print_json(&all) } else { print_locks(&all.locks) }
}

fn print_locks(locks: &[LockSummary]) -> Result<(), Failure> {
    if locks.is_empty() {
        return print_line("no locks are held");
    }
    let together = together(locks);
    let mut headings = vec!["lock", "mode", "holding", "waiting", "token", "session", "queued", "principal", "holder"];
    // Show the column only if some locks are held together.
    if !together.is_empty() {
        headings.insert(5, "together with");
    }
    let mut table = table(&headings);
    for lock in locks {
        let holder = lock.holder.as_ref();
        let mut row: Vec<Cell> = vec![
            escaped(&lock.lock).into(),
            holder.map_or("-".into(), mode).into(),
            number(lock.holding),
            number(lock.waiting),
            number(holder.map_or("-".into(), |h| h.token.to_string())),
            number(holder.map_or("-".into(), session)),
            holder.map_or("-".into(), |h| ago(h.since_ms)).into(),
            principal(holder.and_then(|h| h.principal.as_deref())).into(),
            holder.map_or("-".into(), |h| escaped(&h.label)).into(),
        ];
        if !together.is_empty() {
            let others = holder.and_then(|h| together.get(&h.token));
            let others = others.map(|all| all.iter().filter(|name| **name != lock.lock).map(|name| escaped(name)));
            row.insert(5, others.map_or("-".into(), |others| others.collect::<Vec<_>>().join(", ")).into());
        }
        table.add_row(row);
    }
    print_table(&table)
}

/// Locks that were acquired together, by their common token. Such locks are exclusive, so the first holder has it.
fn together(locks: &[LockSummary]) -> BTreeMap<u64, Vec<&str>> {
    let mut names: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for lock in locks {
        if let Some(holder) = &lock.holder {
            names.entry(holder.token).or_default().push(&lock.lock);
        }
    }
    names.retain(|_, names| names.len() > 1);
    names
}

fn print_queue(lock: &Lock) -> Result<(), Failure> {
    if lock.holders.is_empty() && lock.queue.is_empty() {
        return print_line(&format!("nobody holds {} or waits for it", escaped(&lock.lock)));
    }
    let mut table = table(&["place", "mode", "token", "session", "queued", "principal", "who"]);
    let holders = lock.holders.iter().map(|request| (held(request), request));
    let queue = lock.queue.iter().enumerate().map(|(place, request)| (format!("waits {}", place + 1), request));
    for (place, request) in holders.chain(queue) {
        table.add_row(vec![
            place.into(),
            mode(request).into(),
            number(request.token),
            number(session(request)),
            ago(request.since_ms).into(),
            principal(request.principal.as_deref()).into(),
            escaped(&request.label).into(),
        ]);
    }
    print_table(&table)?;
    let hidden = lock.waiting.saturating_sub(lock.queue.len() as u64);
    if hidden > 0 { print_line(&format!("… and {hidden} more wait")) } else { Ok(()) }
}

/// A holder, or the delay that a dead holder left.
fn held(request: &Request) -> String {
    match request.delayed_until_ms {
        Some(until_ms) => format!("closed for another {}", until(until_ms)),
        None if request.holds > 1 => format!("holds {} times", request.holds),
        None => "holds".into(),
    }
}

fn session(request: &Request) -> String {
    request.session_id.map_or("-".into(), |id| id.to_string())
}

fn mode(request: &Request) -> String {
    let mode = match (request.mode, request.permits) {
        (Mode::Exclusive, _) => "exclusive".into(),
        (Mode::Shared, _) => "shared".into(),
        (Mode::Write, _) => "write".into(),
        (Mode::Permit, Some(permits)) => format!("permit, {permits} in all"),
        (Mode::Permit, None) => "permit".into(),
    };
    match request.delay_ms {
        0 => mode,
        delay_ms => format!("{mode}, delay {}", humantime::format_duration(Duration::from_millis(delay_ms.into()))),
    }
}

/// Releases a lock by force, if `--force` is given.
pub(crate) async fn unlock(common: &Common, args: &Unlock) -> Result<(), Failure> {
    if !args.force {
        return Err(Failure::usage(format!(
            "the holder of {} may still be working, and unless the resource checks tokens, two clients would use it at \
             once. Make sure that the holder is dead, then repeat with --force",
            escaped(&args.name)
        )));
    }
    let client = client(common)?;
    // Only for the message; after the release it cannot be seen any more.
    let delayed = is_delay(&client, args).await;
    let released = client.force_release(&args.name, args.token).await.map_err(|error| match error.code() {
        Some(Code::NotHeld) => {
            Failure::from(error).with_remedy(&format!("; see `lockkeeper locks {}`", escaped(&args.name)))
        }
        _ => error.into(),
    })?;
    if common.json {
        return print_json(&released);
    }
    let (name, token, zxid) = (escaped(&args.name), args.token, released.zxid);
    print_line(&match delayed {
        true => format!("ended the delay of {name} left by the dead holder of token {token}, at zxid {zxid}"),
        false => format!("took {name} from the holder of token {token} at zxid {zxid}"),
    })
}

/// Whether the token belongs to a delay that a dead holder left.
async fn is_delay(client: &Client, args: &Unlock) -> bool {
    let Ok(view) = client.lock(&args.name).await else { return false };
    view.holders.iter().any(|request| request.token == args.token && request.delayed_until_ms.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(lock: &str, token: u64) -> LockSummary {
        let request = Request {
            token,
            sequence: 0,
            mode: Mode::Exclusive,
            permits: None,
            delay_ms: 0,
            delayed_until_ms: None,
            session_id: Some(1),
            principal: None,
            label: String::new(),
            since_ms: 0,
            path: format!("/locks/{lock}/x"),
            waits_for: None,
            holds: 1,
        };
        LockSummary { lock: lock.into(), holding: 1, waiting: 0, waiting_since_ms: None, holder: Some(request) }
    }

    #[test]
    fn locks_acquired_together_have_a_common_token() {
        let locks = [summary("a", 1), summary("b", 2), summary("c", 1)];
        assert_eq!(together(&locks), BTreeMap::from([(1, vec!["a", "c"])]));
        assert!(together(&locks[..2]).is_empty());
    }

    #[test]
    fn modes_in_words() {
        let mut request = summary("a", 1).holder.unwrap();
        assert_eq!(mode(&request), "exclusive");
        (request.mode, request.permits, request.delay_ms) = (Mode::Permit, Some(5), 60_000);
        assert_eq!(mode(&request), "permit, 5 in all, delay 1m");
    }
}
