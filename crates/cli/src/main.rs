//! `lockkeeper`: the only binary. It serves a node, runs commands under locks, and reads and changes a cluster's
//! contents.
//!
//! It must never keep durable state of its own, never print a secret, and never leave a process running that it started
//! under a lock.

mod args;
mod certs;
mod commands;
mod doctor;
mod failure;
mod hold;
mod output;
mod scrape;
mod signals;
mod supervise;
mod top;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Args, Command};
use failure::{EXIT_INTERNAL, EXIT_OK, EXIT_USAGE, Failure, print_error};
use lockkeeper_server::CommandTrace;
use nix::sys::prctl::set_name;

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
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
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

/// The trace of a command that calls a cluster, if the environment names a collector. A command never fails for it.
fn trace_of(command: &Command) -> Option<CommandTrace> {
    match command {
        Command::Serve(_) | Command::Dev(_) | Command::Bench(_) | Command::Certs(_) | Command::Recover(_) => None,
        Command::Completions { .. } | Command::Man { .. } | Command::Exec(_) | Command::Guard { .. } => None,
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
    let _ = error.print();
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let runs_cmd = typed_command()
        .is_some_and(|typed| matches!(typed.as_str(), "lock" | "semaphore" | "elect" | "gate" | "rate" | "cron"));
    ExitCode::from(match (is_help, runs_cmd) {
        (true, _) => EXIT_OK,
        (false, true) => EXIT_INTERNAL,
        (false, false) => EXIT_USAGE,
    })
}

/// The command of a command line that could not be parsed: the first word that is neither an option nor an option's
/// value.
fn typed_command() -> Option<String> {
    let command = Args::command();
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

fn command(args: Args) -> Result<u8, Failure> {
    let Args { common, command } = args;
    match command {
        Command::Serve(serve) => commands::serve::run(&serve),
        Command::Dev(dev) => commands::dev::run(&common, &dev),
        Command::Lock(lock) => commands::lock::run(&common, &lock),
        Command::Semaphore(semaphore) => commands::lock::run_semaphore(&common, &semaphore),
        Command::Elect(elect) => commands::elect::run(&common, &elect),
        Command::Gate(gate) => commands::gate::run(&common, &gate),
        Command::Rate(rate) => commands::rate::run(&common, &rate),
        Command::Cron(cron) => commands::cron::run(&common, &cron),
        Command::Schedules(schedules) => commands::on_runtime(commands::schedules::run(&common, &schedules)),
        Command::Locks(locks) => commands::on_runtime(commands::locks::run(&common, &locks)),
        Command::Gates(gates) => commands::on_runtime(commands::gates::run(&common, &gates)),
        Command::Sessions(args) => commands::on_runtime(commands::sessions::run(&common, &args)),
        Command::Ls(ls) => commands::on_runtime(commands::nodes::ls(&common, &ls)),
        Command::Get(get) => commands::on_runtime(commands::nodes::get(&common, &get)),
        Command::Set(set) => commands::on_runtime(commands::nodes::set(&common, &set)),
        Command::Create(create) => commands::on_runtime(commands::nodes::create(&common, &create)),
        Command::Delete(delete) => commands::on_runtime(commands::nodes::delete(&common, &delete)),
        Command::Watch(watch) => commands::on_runtime(commands::watch::run(&common, &watch)),
        Command::Status(status) => commands::on_runtime(commands::status::run(&common, &status)),
        Command::Health => commands::on_runtime(commands::health::run(&common)),
        Command::Doctor(doctor) => commands::on_runtime(commands::doctor::run(&common, &doctor)),
        Command::Top(top) => commands::on_runtime(commands::top::run(&common, &top)),
        Command::Member(member) => commands::on_runtime(commands::member::run(&common, &member)),
        Command::Unlock(unlock) => commands::on_runtime(commands::locks::unlock(&common, &unlock)),
        Command::Bench(bench) => commands::bench::run(&common, &bench),
        Command::Certs(certs) => commands::certs::run(&common, &certs),
        Command::Auth(auth) => commands::on_runtime(commands::auth::run(&common, &auth)),
        Command::Namespaces(args) => commands::on_runtime(commands::namespaces::run(&common, &args)),
        Command::Snapshot(snapshot) => commands::snapshot::run(&common, &snapshot),
        Command::Recover(recover) => commands::recover::run(&common, &recover),
        Command::Completions { shell } => commands::completions(shell),
        Command::Man { directory } => commands::manual_pages::run(&directory),
        Command::Exec(exec) => Err(supervise::helpers::exec(&exec)),
        Command::Guard { group } => supervise::helpers::guard(group),
    }
}
