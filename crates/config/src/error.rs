//! What is wrong with a configuration: the key, its value and the remedy, in one line.

use std::fmt::Display;
use std::path::PathBuf;

/// The configuration cannot be read or breaks a rule. One line each.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}; give the path of a readable TOML file with --config")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, a key is unknown, or a value is of the wrong type.
    #[error("configuration {origin}: {what}")]
    Malformed {
        /// File or environment.
        origin: String,
        /// Key, value and rule.
        what: String,
    },
    /// A value breaks a rule.
    #[error("configuration: {key} = {value}: {rule}")]
    Refused {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it has to be.
        rule: String,
    },
}

/// The error of a value that breaks a rule.
pub fn refuse(key: impl Into<String>, value: impl Display, rule: impl Into<String>) -> ConfigError {
    ConfigError::Refused { key: key.into(), value: value.to_string(), rule: rule.into() }
}
