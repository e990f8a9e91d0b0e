//! `lockkeeper gates`: list and show gates, and reset one by force.

use lockkeeper_api::gates::{self, Gate, GateState, GateSummary, GateView};
use lockkeeper_client::Paging;

use crate::args::{Common, Gates, GatesCommand, ListGates, ResetGate};
use crate::connect::client;
use crate::failure::{EXIT_INTERNAL, Failure};
use crate::output::{ago, escaped, number, principal, print_json, print_line, print_table, table, until};

/// Most bytes of a result that are printed for people; `--json` has all.
const RESULT_SHOWN: usize = 1_000;

/// Runs the command of `gates`.
pub(crate) async fn run(common: &Common, args: &Gates) -> Result<(), Failure> {
    match &args.command {
        GatesCommand::List(args) => list(common, args).await,
        GatesCommand::Show(args) => {
            let client = client(common)?;
            let view = if args.stale { client.gate_stale(&args.gate).await? } else { client.gate(&args.gate).await? };
            if common.json { print_json(&view) } else { show(&view) }
        }
        GatesCommand::Reset(args) => reset(common, args).await,
    }
}

async fn list(common: &Common, args: &ListGates) -> Result<(), Failure> {
    let client = client(common)?;
    let mut all = gates::Gates { gates: Vec::new(), next: None, zxid: 0 };
    let mut paging = Paging { stale: args.stale, ..Paging::default() };
    loop {
        let page = client.gates(args.prefix.as_deref(), &paging).await?;
        all.gates.extend(page.gates);
        all.zxid = page.zxid;
        match page.next {
            Some(next) => paging.after = Some(next),
            None => break,
        }
    }
    if common.json { print_json(&all) } else { print_gates(&all.gates) }
}

fn print_gates(gates: &[GateSummary]) -> Result<(), Failure> {
    if gates.is_empty() {
        return print_line("no gates are in use");
    }
    let mut table = table(&["gate", "state", "token", "session", "for", "open in", "result", "principal", "worker"]);
    for gate in gates {
        table.add_row(vec![
            escaped(&gate.key).into(),
            match gate.state {
                GateState::InProgress => "in progress",
                GateState::Done => "done",
            }
            .into(),
            number(gate.token),
            number(gate.session_id.map_or("-".into(), |id| id.to_string())),
            ago(gate.since_ms).into(),
            gate.until_ms.map_or("never".into(), until).into(),
            number(gate.result_bytes.map_or("-".into(), |bytes| format!("{bytes} B"))),
            principal(gate.principal.as_deref()).into(),
            escaped(&gate.label).into(),
        ]);
    }
    print_table(&table)
}

fn show(view: &GateView) -> Result<(), Failure> {
    let key = escaped(&view.key);
    match &view.gate {
        // Only `begin` answers this.
        Gate::Proceed { token, .. } => print_line(&format!("{key} is yours under token {token}")),
        Gate::InProgress { token, session_id, label, since_ms, until_ms } => {
            let session = session_id.map_or("without a session".into(), |id| format!("in session {id}"));
            print_line(&format!(
                "{key} is in progress for {}, by {} {session} under token {token}; it opens in {} at the latest",
                ago(*since_ms),
                escaped(label),
                until(*until_ms)
            ))
        }
        Gate::Done { token, result, since_ms, until_ms } => {
            let bytes = result.to_bytes().map_err(|why| Failure::new(EXIT_INTERNAL, why))?;
            print_line(&format!("{key} was done {} ago under token {token}", ago(*since_ms)))?;
            print_line(&match until_ms {
                Some(until_ms) => format!("kept for another {}", until(*until_ms)),
                None => "kept until it is reset".into(),
            })?;
            print_line(&format!("result, {} bytes: {}", bytes.len(), shown(&bytes)))
        }
    }
}

async fn reset(common: &Common, args: &ResetGate) -> Result<(), Failure> {
    let done = client(common)?.gate_reset(&args.gate, args.token).await?;
    if common.json {
        return print_json(&done);
    }
    let (key, token, zxid) = (escaped(&done.key), done.token, done.zxid);
    print_line(&match done.was {
        GateState::Done => format!("forgot the result of {key} under token {token}, at zxid {zxid}"),
        GateState::InProgress => format!(
            "opened {key} at zxid {zxid}; the worker with token {token} may still be running, and its result will be \
             refused"
        ),
    })
}

/// The beginning of a result as text.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(RESULT_SHOWN)]);
    let rest = if bytes.len() > RESULT_SHOWN { " … (--json has all of it)" } else { "" };
    format!("{}{rest}", escaped(text.trim_end()))
}
