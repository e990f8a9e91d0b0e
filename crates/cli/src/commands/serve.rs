//! `lockkeeper serve`: runs one node.

use lockkeeper_server::{Config, ServeError, telemetry};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::unistd::getppid;

use crate::args::{COMMIT, Serve};
use crate::failure::{EXIT_FAILED, EXIT_OK, EXIT_USAGE, Failure, wants_json};
use crate::output::{print_json, print_line};
use crate::runtime::runtime;
use crate::signals::Stops;

/// Serves until a signal stops it.
pub(crate) fn run(args: &Serve) -> Result<u8, Failure> {
    if let Some(parent) = args.end_with {
        set_pdeathsig(Signal::SIGTERM)?;
        // The parent may have died before the call above.
        if getppid().as_raw() != parent {
            return Err(Failure::new(EXIT_FAILED, "the process given by --end-with has ended"));
        }
    }
    let (config, _) = Config::load(&args.config).map_err(|e| Failure::new(EXIT_USAGE, e.to_string()))?;
    if args.check_config {
        lockkeeper_server::check_config(&config).map_err(|e| Failure::new(e.exit_code(), e.to_string()))?;
        let config = args.config.display().to_string();
        return match wants_json() {
            true => print_json(&serde_json::json!({ "config": config, "valid": true })),
            false => print_line(&format!("{config} is valid")),
        }
        .map(|()| EXIT_OK);
    }
    // Files of a node are private; sled creates its files with the umask.
    umask(Mode::from_bits_truncate(0o077));
    telemetry::install_logging(&config.log);
    telemetry::note_commit(COMMIT);
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let mut stops = Stops::of(&[Signal::SIGTERM, Signal::SIGINT])?;
        let served = lockkeeper_server::run(config, async move { stops.next().await }).await;
        if let Err(fatal @ ServeError::Fatal(_)) = &served {
            // After a fatal error the process must not even wait for its own tasks.
            Failure::new(fatal.exit_code(), fatal.to_string()).print("serve");
            std::process::exit(i32::from(fatal.exit_code()));
        }
        Ok::<_, std::io::Error>(served)
    });
    // Nothing that is durable depends on what still runs, such as a check of the state.
    runtime.shutdown_background();
    let served = served.map_err(|e| Failure::failed(format!("cannot receive signals: {e}")))?;
    served.map(|()| EXIT_OK).map_err(|error| Failure::new(error.exit_code(), error.to_string()))
}
