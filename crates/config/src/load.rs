//! Reading the configuration from file and environment. Errors name the key and the place.

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Toml};
use serde::{Deserialize, Deserializer};

use super::{Checked, Config, ConfigError};

/// Prefix of the environment variables. Those without a `__` behind it (`LOCKKEEPER_ENDPOINTS`, …) are for the command
/// line.
const PREFIX: &str = "LOCKKEEPER_";

impl Config {
    /// Defaults, then the file, then the environment; not checked yet.
    ///
    /// # Errors
    /// The file cannot be read, a key is unknown, a value is of the wrong type.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
        Self::from_text(&text, &path.display().to_string())
    }

    /// As [`read`](Self::read), from text; `origin` names it in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_text(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let environment = Env::prefixed(PREFIX).filter(|key| key.as_str().contains("__")).split("__");
        Figment::new()
            .merge(Toml::string(text))
            .merge(environment)
            .extract()
            .map_err(|error| ConfigError::Malformed { origin: origin_of(&error, origin), what: describe(&error) })
    }

    /// Reads and checks.
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`check`](Self::check).
    pub fn load(path: &Path) -> Result<(Self, Checked), ConfigError> {
        let config = Self::read(path)?;
        let checked = config.check()?;
        Ok((config, checked))
    }
}

fn origin_of(error: &figment::Error, file: &str) -> String {
    match &error.metadata {
        Some(metadata) if metadata.name.contains("environment") => "in the environment".into(),
        _ => file.into(),
    }
}

/// One line: the key, then the error. TOML's own errors take several lines, of which the last one names the error.
fn describe(error: &figment::Error) -> String {
    let key = error.path.join(".");
    let text = error.kind.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let what = match lines.as_slice() {
        [only] => (*only).to_owned(),
        [first, .., last] => format!("{first}: {last}"),
        [] => "not understood".to_owned(),
    };
    if key.is_empty() { what } else { format!("{key}: {what}") }
}

/// Text that may look like a number: `LOCKKEEPER_CLUSTER__ID=7` means the text `7`.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Scalar {
        Text(String),
        Number(u64),
    }
    Ok(match Scalar::deserialize(from)? {
        Scalar::Text(text) => text,
        Scalar::Number(number) => number.to_string(),
    })
}
