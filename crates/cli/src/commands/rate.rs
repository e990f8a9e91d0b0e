//! `lockkeeper rate`: takes permits of a rate limit, and runs a command if they are granted.
//!
//! Nothing is held, so CMD takes the place of this process and is not supervised.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use lockkeeper_client::api::rates::PermitsTaken;
use lockkeeper_client::recipes::RecipeError;

use crate::args::{Common, Rate};
use crate::connect::client;
use crate::failure::{EXIT_INTERNAL, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_OK, EXIT_WAIT_TIMED_OUT, Failure};
use crate::hold::before_command;
use crate::output::{escaped, print_json, print_line};
use crate::runtime::runtime;

/// Takes the permits; becomes CMD if there is one.
pub(crate) fn run(common: &Common, args: &Rate) -> Result<u8, Failure> {
    if args.permits > args.limit {
        let message = format!("--permits {} is more than --limit {}", args.permits, args.limit);
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    let taken = runtime().map_err(|failure| failure.with_code(EXIT_INTERNAL))?.block_on(take(common, args))?;
    if common.json && args.command.is_empty() {
        print_json(&taken)?;
    }
    if !taken.granted {
        let wait = Duration::from_millis(taken.retry_after_ms);
        let message = format!(
            "not granted: {} has {} of {} permits, and {} will be there in {}",
            escaped(&args.name),
            taken.available,
            args.limit,
            args.permits,
            humantime::format_duration(wait)
        );
        return Err(Failure::new(EXIT_WAIT_TIMED_OUT, message));
    }
    let Some((program, arguments)) = args.command.split_first() else {
        if !common.json {
            print_line(&format!("granted; about {} permits are left", taken.available))?;
        }
        return Ok(EXIT_OK);
    };
    let error = Command::new(program).args(arguments).exec();
    let name = program.to_string_lossy();
    Err(match error.kind() {
        ErrorKind::NotFound => Failure::new(EXIT_NOT_FOUND, format!("command not found: {name}")),
        _ => Failure::new(EXIT_NOT_EXECUTABLE, format!("cannot execute {name}: {error}")),
    })
}

async fn take(common: &Common, args: &Rate) -> Result<PermitsTaken, Failure> {
    let client = client(common).map_err(|failure| failure.with_code(EXIT_INTERNAL))?;
    let limit = client.rate_limit(&args.name, args.limit, args.per).map_err(refused)?;
    let limit = if args.reconfigure { limit.reconfigure() } else { limit };
    limit.take(args.permits, args.wait).await.map_err(before_command)
}

fn refused(error: RecipeError) -> Failure {
    Failure::new(EXIT_INTERNAL, error.to_string())
}
