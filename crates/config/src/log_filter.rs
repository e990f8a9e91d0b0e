//! The filter of the log.

use tracing_subscriber::EnvFilter;

/// Libraries that log each step at `info` or above. Our own crates log what matters of it; name the library in
/// `log.level` to see more.
const QUIET: &str = "openraft=error,sled=warn,hyper=warn,hyper_util=warn,reqwest=warn";

/// The filter that `log.level` stands for.
///
/// # Errors
/// It is none.
pub fn log_filter(level: &str) -> Result<EnvFilter, String> {
    if level.eq_ignore_ascii_case("off") {
        return Ok(EnvFilter::new("off"));
    }
    // Of two directives for one target the later one counts.
    EnvFilter::try_new(format!("{QUIET},{level}")).map_err(|error| error.to_string())
}
