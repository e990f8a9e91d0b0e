//! `lockkeeper schedules`: shows the jobs that workers of `lockkeeper cron` do, and the history of one.

use lockkeeper_client::recipes::{EndedTick, OpenTick, RecipeError, ScheduleState, TickOutcome};
use lockkeeper_client::{Client, Reading};
use serde::Serialize;

use crate::args::{Common, Schedules};
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{ago, escaped, number, print_json, print_json_list, print_line, print_table, rough, table};

/// Most nodes that are looked at for jobs.
const MAX_LISTED: usize = 10_000;

/// One job of the list.
#[derive(Serialize)]
struct ListedSchedule {
    name: String,
    #[serde(flatten)]
    state: ScheduleState,
}

/// Prints the history of one job, or all jobs.
pub(crate) async fn run(common: &Common, args: &Schedules) -> Result<(), Failure> {
    let client = client(common)?;
    let Some(name) = &args.name else {
        let jobs = list(&client, &args.namespace).await?;
        return if common.json { print_json_list("schedules", &jobs) } else { print_jobs(&jobs) };
    };
    let state = client.schedule_state(&args.namespace, name).await.map_err(failed)?;
    let state = state.ok_or_else(|| {
        let (name, namespace) = (escaped(name), escaped(&args.namespace));
        Failure::failed(format!("there is no schedule {name} in {namespace}; `lockkeeper cron {name}` makes it"))
    })?;
    if common.json { print_json(&state) } else { print_history(&state) }
}

fn failed(error: RecipeError) -> Failure {
    match error {
        RecipeError::Client(error) => error.into(),
        other => Failure::failed(other.to_string()),
    }
}

/// All nodes below the namespace that are schedules, in the order of their names.
async fn list(client: &Client, namespace: &str) -> Result<Vec<ListedSchedule>, Failure> {
    let root = format!("/{namespace}");
    let (mut to_visit, mut visited, mut jobs) = (vec![root.clone()], 0, Vec::new());
    while let Some(path) = to_visit.pop() {
        visited += 1;
        if visited > MAX_LISTED {
            return Err(Failure::failed(format!("more than {MAX_LISTED} nodes below {root}; name one job")));
        }
        let mut reading = Reading { children: true, ..Reading::default() };
        let mut first = true;
        loop {
            let node = match client.node(&path, &reading).await {
                Ok(node) => node,
                Err(error) if error.code() == Some(lockkeeper_api::Code::NoNode) => break,
                Err(error) => return Err(error.into()),
            };
            if std::mem::take(&mut first) {
                let name = path.strip_prefix(&root).unwrap_or_default().trim_start_matches('/');
                let bytes = node.data.to_bytes().unwrap_or_default();
                // Other nodes are directories, or somebody else's.
                if let Some(state) = (!name.is_empty()).then(|| ScheduleState::read(&path, &bytes).ok()).flatten() {
                    jobs.push(ListedSchedule { name: name.to_owned(), state });
                }
            }
            to_visit.extend(node.children.iter().flatten().map(|child| format!("{path}/{child}")));
            match node.next_children {
                Some(next) => reading.children_after = Some(next),
                None => break,
            }
        }
    }
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(jobs)
}

fn print_jobs(jobs: &[ListedSchedule]) -> Result<(), Failure> {
    if jobs.is_empty() {
        return print_line("there are no schedules");
    }
    let mut table = table(&["job", "at", "zone", "next", "open", "worker", "last", "outcome"]);
    for ListedSchedule { name, state } in jobs {
        let next = state.schedule.spec().ok().and_then(|spec| spec.next_after(state.last));
        let ended = state.history.back();
        table.add_row(vec![
            escaped(name).into(),
            escaped(&state.schedule.at).into(),
            escaped(&state.schedule.zone).into(),
            next.map_or("-".into(), |tick| tick.to_string()).into(),
            number(state.open.len()),
            worker_of(state.open.front()).into(),
            ended.map_or("-".into(), |ended| ended.tick.to_string()).into(),
            ended.map_or("-".into(), outcome).into(),
        ]);
    }
    print_table(&table)
}

fn worker_of(open: Option<&OpenTick>) -> String {
    let worker = open.and_then(|open| open.worker.as_ref());
    worker.map_or("-".into(), |worker| format!("{}, for {}", escaped(&worker.label), ago(worker.started_ms)))
}

fn print_history(state: &ScheduleState) -> Result<(), Failure> {
    let mut table = table(&["tick", "through", "outcome", "late", "took", "attempt", "token", "worker", "message"]);
    for ended in &state.history {
        let worker = ended.worker.as_ref();
        let span = |from: u64, to: u64| rough(std::time::Duration::from_millis(to.saturating_sub(from)));
        table.add_row(vec![
            ended.tick.to_string().into(),
            ended.through.map_or("-".into(), |tick| tick.to_string()).into(),
            outcome(ended).into(),
            worker.map_or("-".into(), |worker| span(ended.tick.as_millis(), worker.started_ms)).into(),
            worker.map_or("-".into(), |worker| span(worker.started_ms, ended.ended_ms)).into(),
            number(worker.map_or("-".into(), |worker| worker.attempt.to_string())),
            number(worker.map_or("-".into(), |worker| worker.token.to_string())),
            worker.map_or("-".into(), |worker| escaped(&worker.label)).into(),
            escaped(&ended.message).into(),
        ]);
    }
    for open in &state.open {
        let worker = open.worker.as_ref();
        let mut row: Vec<comfy_table::Cell> = vec![open.tick.to_string().into(), "-".into()];
        row.push(if worker.is_some() { "running" } else { "waits" }.into());
        row.extend(["-".into(), worker.map_or("-".into(), |worker| ago(worker.started_ms)).into()]);
        row.push(number(worker.map_or("-".into(), |worker| worker.attempt.to_string())));
        row.push(number(worker.map_or("-".into(), |worker| worker.token.to_string())));
        row.extend([worker.map_or("-".into(), |worker| escaped(&worker.label)).into(), "".into()]);
        table.add_row(row);
    }
    print_table(&table)?;
    print_line(&escaped(&format!("schedule: {}", state.schedule)))
}

fn outcome(ended: &EndedTick) -> String {
    let word = match ended.outcome {
        TickOutcome::Done => "done",
        TickOutcome::Failed => "failed",
        TickOutcome::Missed => "missed",
        TickOutcome::Overlapped => "overlapped",
        TickOutcome::Dropped => "dropped",
    };
    match ended.exit_code {
        Some(code) if code != 0 => format!("{word} ({code})"),
        _ => word.into(),
    }
}
