//! `lockkeeper sessions`.

use std::time::Duration;

use lockkeeper_api::sessions::Sessions;
use lockkeeper_client::Paging;

use crate::args::{self, Common};
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{ago, escaped, number, principal, print_json, print_line, print_table, rough, table};

/// Prints all open sessions.
pub(crate) async fn run(common: &Common, args: &args::Sessions) -> Result<(), Failure> {
    let client = client(common)?;
    let mut all = Sessions { sessions: Vec::new(), next: None, zxid: 0 };
    let mut paging = Paging { stale: args.stale, ..Paging::default() };
    loop {
        let page = client.sessions(&paging).await?;
        all.sessions.extend(page.sessions);
        all.zxid = page.zxid;
        match page.next {
            Some(next) => paging.after = Some(next.to_string()),
            None => break,
        }
    }
    if common.json {
        return print_json(&all);
    }
    if all.sessions.is_empty() {
        return print_line("no sessions are open");
    }
    let mut table = table(&["session", "timeout", "opened", "silent", "left", "ephemerals", "principal", "label"]);
    for session in &all.sessions {
        table.add_row(vec![
            number(session.session_id),
            humantime::format_duration(Duration::from_millis(session.timeout_ms.into())).to_string().into(),
            ago(session.opened_ms).into(),
            time(session.silent_ms).into(),
            time(session.remaining_ms).into(),
            number(session.ephemeral_count),
            principal(session.principal.as_deref()).into(),
            escaped(&session.label).into(),
        ]);
    }
    print_table(&table)
}

fn time(known_ms: Option<u64>) -> String {
    known_ms.map_or("-".into(), |ms| rough(Duration::from_millis(ms)))
}
