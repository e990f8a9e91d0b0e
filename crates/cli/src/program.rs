//! From the command line to the command, and from its end to the exit code.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Args, Command};
use crate::failure::{EXIT_INTERNAL, EXIT_OK, EXIT_USAGE, Failure};
use crate::{commands, supervise};

/// Does what the command line asks for.
pub(crate) fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let prefix = args.command.name().to_owned();
    match command(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.tell(&prefix);
            ExitCode::from(failure.code)
        }
    }
}

/// Help goes to standard output and is no failure. A command that lockkeeper runs has 2 for itself, so misuse of `lock`
/// and its like is 125.
fn usage(error: &clap::Error) -> ExitCode {
    // Nothing can be done where not even this can be printed.
    let _ = error.print();
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let runs_another =
        typed_command().is_some_and(|typed| matches!(typed.as_str(), "lock" | "semaphore" | "elect" | "gate"));
    ExitCode::from(match (asked_for, runs_another) {
        (true, _) => EXIT_OK,
        (false, true) => EXIT_INTERNAL,
        (false, false) => EXIT_USAGE,
    })
}

/// The command, where the line could not be understood: the first word that is neither an option nor an option's value.
fn typed_command() -> Option<String> {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    loop {
        match words.next()? {
            option if matches!(option.as_str(), "--endpoints" | "--patience") => drop(words.next()),
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
        Command::Semaphore(semaphore) => commands::semaphore::run(&common, &semaphore),
        Command::Elect(elect) => commands::elect::run(&common, &elect),
        Command::Gate(gate) => commands::gate::run(&common, &gate),
        Command::Locks(locks) => commands::on_runtime(commands::locks::run(&common, &locks)),
        Command::Sessions => commands::on_runtime(commands::sessions::run(&common)),
        Command::Ls(ls) => commands::on_runtime(commands::nodes::ls(&common, &ls)),
        Command::Get(get) => commands::on_runtime(commands::nodes::get(&common, &get)),
        Command::Set(set) => commands::on_runtime(commands::nodes::set(&common, &set)),
        Command::Create(create) => commands::on_runtime(commands::nodes::create(&common, &create)),
        Command::Delete(delete) => commands::on_runtime(commands::nodes::delete(&common, &delete)),
        Command::Watch(watch) => commands::on_runtime(commands::watch::run(&common, &watch)),
        Command::Status(status) => commands::on_runtime(commands::status::run(&common, &status)),
        Command::Unlock(unlock) => commands::on_runtime(commands::unlock::run(&common, &unlock)),
        Command::Bench(bench) => commands::bench::run(&common, &bench),
        Command::Completions { shell } => commands::completions::run(shell),
        Command::Exec(exec) => Err(supervise::exec::run(&exec)),
        Command::Guard { group } => supervise::guard::run(group),
    }
}
