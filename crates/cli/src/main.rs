//! `lockkeeper`: the only binary. It serves a node, runs commands under locks, and reads and changes a cluster's
//! contents.
//!
//! It must never keep durable state of its own, never print a secret, and never leave a process running that it started
//! under a lock.

mod args;
mod certs;
mod commands;
mod connect;
mod doctor;
mod failure;
mod hold;
mod membership_summary;
mod output;
mod runtime;
mod scrape;
mod signals;
mod status_line;
mod supervise;
mod top;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use args::{Command, CommandLine, Internal, laid_out, version, width};
use failure::{EXIT_INTERNAL, EXIT_OK, EXIT_USAGE, Failure, print_error};
use lockkeeper_server::CommandTrace;
use nix::sys::prctl::set_name;
use output::print_line;
use runtime::on_runtime;

/// A node allocates for each message. With the system's allocator this took a fifth of its CPU time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(mutants)]
    if let Err(unknown) = lockkeeper_mutants::start("lockkeeper") {
        eprintln!("lockkeeper: {unknown}");
        return ExitCode::from(EXIT_USAGE);
    }
    run()
}

fn run() -> ExitCode {
    // A process that lockkeeper starts for itself would have the name of the link by which it is started.
    let _ = set_name(c"lockkeeper");
    if std::env::args_os().nth(1).is_some_and(|word| word.to_string_lossy().starts_with("__")) {
        return internal(Internal::parse());
    }
    let args = match CommandLine::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&laid_out(width()).try_get_matches().err().unwrap_or(error)),
    };
    failure::set_json(args.common.json);
    let prefix = args.command.name().to_owned();
    // Before there is another thread.
    if args.command.holds() {
        supervise::terminal::never_stop();
    }
    let trace = trace_of(&args.command);
    let (code, signal) = command(args).map_or_else(
        |failure| {
            failure.print(&prefix);
            (failure.code, failure.signal)
        },
        |code| (code, None),
    );
    if let Some(trace) = trace {
        trace.end(code);
    }
    if let Some(signal) = signal {
        signals::die_of(signal);
    }
    ExitCode::from(code)
}

/// Runs what another lockkeeper has started.
fn internal(command: Internal) -> ExitCode {
    let (name, result) = match command {
        Internal::Exec(exec) => {
            failure::set_json(exec.json);
            (exec.of.clone(), Err(supervise::helpers::exec(&exec)))
        }
        Internal::Guard { group } => ("__guard".into(), supervise::helpers::guard(group)),
        Internal::Locks { prefix } => ("__locks".into(), commands::complete_locks(&prefix)),
    };
    ExitCode::from(result.unwrap_or_else(|failure| {
        failure.print(&name);
        failure.code
    }))
}

/// The trace of a command that calls a cluster, if the environment names a collector. A command never fails for it.
fn trace_of(command: &Command) -> Option<CommandTrace> {
    match command {
        Command::Serve(_) | Command::Dev(_) | Command::Bench(_) | Command::Certs(_) | Command::Recover(_) => None,
        Command::Completions { .. } | Command::Man { .. } | Command::Version => None,
        // CMD takes the place of this process before a trace could be sent.
        Command::Rate(rate) if !rate.command.is_empty() => None,
        // They ask again and again: a trace of them would have no end, or no use.
        Command::Top(_) | Command::Watch(_) | Command::Health | Command::Cron(_) => None,
        _ => CommandTrace::from_environment(command.name()).unwrap_or_else(|error| {
            print_error(&format!("lockkeeper: warning: {error}; the command is not traced"));
            None
        }),
    }
}

/// Prints help or a usage error and returns the exit code. For the commands that run CMD a usage error is 125, because
/// 2 may be CMD's own.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return ExitCode::from(EXIT_OK);
    }
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let advice = with_dashes(&words, error).map(|right| format!("write -- before the command: {right}"));
    let command = typed_command().unwrap_or_default();
    let runs_cmd = matches!(command.as_str(), "lock" | "semaphore" | "elect" | "gate" | "rate" | "cron");
    let code = if runs_cmd { EXIT_INTERNAL } else { EXIT_USAGE };
    if words.iter().take_while(|word| *word != "--").any(|word| word == "--json") {
        failure::set_json(true);
        let message = error.to_string().trim_start_matches("error: ").trim_end().to_owned();
        let message = [Some(message), advice].into_iter().flatten().collect::<Vec<_>>().join("; ");
        Failure::usage(message).with_code(code).print(&command);
    } else {
        let _ = error.print();
        advice.iter().for_each(|advice| print_error(advice));
    }
    ExitCode::from(code)
}

/// A command line in which CMD stands without `--` before it, corrected.
fn with_dashes(words: &[String], error: &clap::Error) -> Option<String> {
    let context = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(vec![text.clone()]),
        ContextValue::Strings(texts) => Some(texts.clone()),
        _ => None,
    };
    // Only `lock` takes several names, and so CMD for some of them.
    let second_name = |words: &[String]| {
        let matches = CommandLine::command().ignore_errors(true).try_get_matches_from(words).ok()?;
        matches.subcommand_matches("lock")?.get_many::<String>("names")?.nth(1).cloned()
    };
    let invalid = context(ContextKind::InvalidArg)?;
    let command = match error.kind() {
        _ if words.iter().any(|word| word == "--") => return None,
        ErrorKind::UnknownArgument => match invalid.into_iter().next()? {
            option if option.starts_with('-') => {
                second_name(words.split(|word| word.starts_with(&option)).next().unwrap_or_default())?
            }
            word => word,
        },
        ErrorKind::MissingRequiredArgument if invalid.iter().any(|missing| missing.starts_with("<CMD>")) => {
            second_name(words)?
        }
        _ => return None,
    };
    // Behind the program, its command and one name.
    let at = words.iter().skip(3).position(|word| *word == command)? + 3;
    let (before, after) = words.split_at(at);
    let program = ["lockkeeper".to_owned()];
    let before = program.iter().chain(before.iter().skip(1)).map(String::as_str);
    Some(before.chain(["--"]).chain(after.iter().map(String::as_str)).collect::<Vec<_>>().join(" "))
}

/// The command of a command line that could not be parsed: the first word that is neither an option nor an option's
/// value.
fn typed_command() -> Option<String> {
    let command = CommandLine::command();
    let global = command.get_arguments().filter(|argument| argument.get_action().takes_values());
    let with_value: Vec<String> = global.filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect();
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    loop {
        match words.next()? {
            option if with_value.contains(&option) => drop(words.next()),
            option if option.starts_with('-') => {}
            command => return Some(command),
        }
    }
}

fn command(args: CommandLine) -> Result<u8, Failure> {
    let CommandLine { common, command } = args;
    match command {
        Command::Serve(serve) => commands::serve::run(&serve),
        Command::Dev(dev) => commands::dev::run(&common, &dev),
        Command::Lock(lock) => commands::lock::run(&common, &lock),
        Command::Semaphore(semaphore) => commands::lock::run_semaphore(&common, &semaphore),
        Command::Elect(elect) => commands::elect::run(&common, &elect),
        Command::Gate(gate) => commands::gate::run(&common, &gate),
        Command::Rate(rate) => commands::rate::run(&common, &rate),
        Command::Cron(cron) => commands::cron::run(&common, &cron),
        Command::Schedules(schedules) => on_runtime(commands::schedules::run(&common, &schedules)),
        Command::Locks(locks) => on_runtime(commands::locks::run(&common, &locks)),
        Command::Gates(gates) => on_runtime(commands::gates::run(&common, &gates)),
        Command::Sessions(args) => on_runtime(commands::sessions::run(&common, &args)),
        Command::Ls(ls) => on_runtime(commands::nodes::ls(&common, &ls)),
        Command::Get(get) => on_runtime(commands::nodes::get(&common, &get)),
        Command::Set(set) => on_runtime(commands::nodes::set(&common, &set)),
        Command::Create(create) => on_runtime(commands::nodes::create(&common, &create)),
        Command::Delete(delete) => on_runtime(commands::nodes::delete(&common, &delete)),
        Command::Watch(watch) => on_runtime(commands::watch::run(&common, &watch)),
        Command::Status(status) => on_runtime(commands::status::run(&common, &status)),
        Command::Health => on_runtime(commands::health::run(&common)),
        Command::Doctor(doctor) => on_runtime(commands::doctor::run(&common, &doctor)),
        Command::Top(top) => on_runtime(commands::top::run(&common, &top)),
        Command::Member(member) => on_runtime(commands::member::run(&common, &member)),
        Command::Unlock(unlock) => on_runtime(commands::locks::unlock(&common, &unlock)),
        Command::Bench(bench) => commands::bench::run(&common, &bench),
        Command::Certs(certs) => commands::certs::run(&common, &certs),
        Command::Auth(auth) => on_runtime(commands::auth::run(&common, &auth)),
        Command::Namespaces(args) => on_runtime(commands::namespaces::run(&common, &args)),
        Command::Snapshot(snapshot) => commands::snapshot::run(&common, &snapshot),
        Command::Recover(recover) => commands::recover::run(&common, &recover),
        Command::Completions { shell } => commands::completions(shell),
        Command::Man { directory } => commands::manual_pages::run(&directory),
        Command::Version => print_line(&format!("lockkeeper {}", version())).map(|()| EXIT_OK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_dashes_is_put_right() {
        for (line, right) in [
            ("lock x true", Some("lock x -- true")),
            ("lock x --wait 5s sleep 10", Some("lock x --wait 5s -- sleep 10")),
            ("semaphore s --permits 2 ./render", Some("semaphore s --permits 2 -- ./render")),
            ("gate invoices/1 ./send 1", Some("gate invoices/1 -- ./send 1")),
            ("lock x rsync -a src dst", Some("lock x -- rsync -a src dst")),
            ("lock echo echo hi", Some("lock echo -- echo hi")),
            ("lock x sh run sh", Some("lock x -- sh run sh")),
            ("lock x", None),
            ("lock x --", None),
            ("lock x --shred", None),
            ("semaphore s -- true", None),
        ] {
            let words: Vec<String> = ["lockkeeper"].into_iter().chain(line.split(' ')).map(str::to_owned).collect();
            let error = CommandLine::try_parse_from(&words).unwrap_err();
            let right = right.map(|right| format!("lockkeeper {right}"));
            assert_eq!(with_dashes(&words, &error), right, "{line}");
        }
    }
}
