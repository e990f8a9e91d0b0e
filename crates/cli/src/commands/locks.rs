//! `lockkeeper locks`: who holds, who waits, since when.

use lockkeeper_api::locks::{Lock, LockSummary, Locks as Page, Mode, Request};
use lockkeeper_client::Paging;

use super::client;
use crate::args::{Common, Locks};
use crate::failure::Failure;
use crate::output::{ago, number, print_json, print_line, print_table, shown, table};

/// Prints one lock with its queue, or all of them.
pub(crate) async fn run(common: &Common, args: &Locks) -> Result<(), Failure> {
    let client = client(common)?;
    if let Some(name) = &args.name {
        let lock = client.lock(name).await?;
        return if common.json { print_json(&lock) } else { print_queue(&lock) };
    }
    let mut all = Page { locks: Vec::new(), next: None, zxid: 0 };
    let mut paging = Paging::default();
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
        return print_line("nobody holds a lock");
    }
    let mut table = table(&["lock", "holding", "waiting", "token", "session", "since", "holder"]);
    for lock in locks {
        let holder = lock.holder.as_ref();
        table.add_row(vec![
            shown(&lock.lock).into(),
            number(lock.holding),
            number(lock.waiting),
            number(holder.map_or("-".into(), |h| h.token.to_string())),
            number(holder.map_or("-".into(), session)),
            holder.map_or("-".into(), |h| ago(h.since_ms)).into(),
            holder.map_or("-".into(), |h| shown(&h.label)).into(),
        ]);
    }
    print_table(&table)
}

fn print_queue(lock: &Lock) -> Result<(), Failure> {
    if lock.holders.is_empty() && lock.queue.is_empty() {
        return print_line(&format!("nobody holds {} or waits for it", shown(&lock.lock)));
    }
    let mut table = table(&["place", "mode", "token", "session", "since", "who"]);
    let holders = lock.holders.iter().map(|request| ("holds".to_owned(), request));
    let queue = lock.queue.iter().enumerate().map(|(place, request)| (format!("waits {}", place + 1), request));
    for (place, request) in holders.chain(queue) {
        table.add_row(vec![
            place.into(),
            mode(request.mode).into(),
            number(request.token),
            number(session(request)),
            ago(request.since_ms).into(),
            shown(&request.label).into(),
        ]);
    }
    print_table(&table)?;
    let untold = lock.waiting.saturating_sub(lock.queue.len() as u64);
    if untold > 0 { print_line(&format!("… and {untold} more wait")) } else { Ok(()) }
}

fn session(request: &Request) -> String {
    request.session_id.map_or("-".into(), |id| id.to_string())
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Write => "write",
        Mode::Permit => "permit",
    }
}
