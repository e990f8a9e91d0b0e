//! Where the keys of the issuer come from: a file, which is read again when it changes, or a URL, which is fetched at
//! intervals and when a JWT names a key that is not there. Keys that cannot be had leave the last ones in use.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_config::{ConfigError, JwtSection, refuse};
use lockkeeper_tls::client_config;
use reqwest::redirect::Policy;
use tokio::time::{Instant, sleep, sleep_until};

use super::Jwt;
use super::keys::{KeySet, MAX_SET_BYTES};
use crate::hangup::Hangups;

/// How often a file is looked at, as those of TLS.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The least time between two fetches, whatever asks for one, and the pause after one that failed.
const LEAST_PAUSE: Duration = Duration::from_secs(10);
/// Longest time for a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module's text.
pub(super) enum KeySource {
    File(PathBuf),
    Url { url: String, client: reqwest::Client, every: Duration },
}

impl KeySource {
    /// The source that the configuration names, and the keys of a file.
    pub(super) fn open(rules: &JwtSection) -> Result<(Self, KeySet), ConfigError> {
        if let Some(url) = &rules.jwks_url {
            let client = client(rules.authority.as_deref())?;
            let every = Duration::from_secs(rules.refresh_s);
            return Ok((Self::Url { url: url.clone(), client, every }, KeySet::default()));
        }
        let path = rules.jwks_file.clone().unwrap_or_default();
        let keys = read(&path).map_err(|why| refuse("auth.jwt.jwks_file", path.display(), why))?;
        Ok((Self::File(path), keys))
    }

    async fn load(&self) -> Result<KeySet, String> {
        match self {
            Self::File(path) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || read(&path)).await;
                reading.map_err(|error| format!("reading broke off: {error}"))?
            }
            Self::Url { url, client, .. } => fetch(client, url).await,
        }
    }

    fn pause(&self, failed: bool) -> Duration {
        match self {
            Self::File(_) => LOOK_EVERY,
            Self::Url { .. } if failed => LEAST_PAUSE,
            Self::Url { every, .. } => *every,
        }
    }
}

fn client(authority: Option<&Path>) -> Result<reqwest::Client, ConfigError> {
    let mut builder = reqwest::Client::builder().timeout(FETCH_TIMEOUT).redirect(Policy::none()).no_proxy();
    if let Some(authority) = authority {
        let named = |why: String| refuse("auth.jwt.authority", authority.display(), why);
        let tls = client_config(Some(authority), None).map_err(|error| named(error.to_string()))?;
        builder = builder.use_preconfigured_tls(tls);
    }
    builder.build().map_err(|error| refuse("auth.jwt.jwks_url", "this URL", format!("cannot be fetched: {error}")))
}

fn read(path: &Path) -> Result<KeySet, String> {
    let mut bytes = Vec::new();
    let opened = File::open(path);
    let read = opened.and_then(|file| file.take(MAX_SET_BYTES as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    KeySet::parse(&bytes)
}

async fn fetch(client: &reqwest::Client, url: &str) -> Result<KeySet, String> {
    let why = |error: reqwest::Error| {
        let error = error.without_url();
        lockkeeper_tls::causes(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
    };
    let mut response = client.get(url).send().await.map_err(why)?;
    if !response.status().is_success() {
        return Err(format!("the answer is {}", response.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(why)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_SET_BYTES {
            break;
        }
    }
    KeySet::parse(&bytes)
}

impl Jwt {
    /// Keeps the keys up to date; it never ends.
    pub async fn keep_current(self: Arc<Self>) {
        let mut hangups = Hangups::new("the keys of JWTs are read again only at intervals");
        let mut trouble = None;
        loop {
            self.look(&mut trouble).await;
            let looked = Instant::now();
            let asked_for = async {
                match &self.source {
                    KeySource::File(_) => std::future::pending().await,
                    KeySource::Url { .. } => self.unknown_key.notified().await,
                }
                sleep_until(looked + LEAST_PAUSE).await;
            };
            tokio::select! {
                () = sleep(self.source.pause(trouble.is_some())) => {}
                () = hangups.next() => {}
                () = asked_for => {}
            }
        }
    }

    /// Loads the keys. `trouble` is why the last attempt failed, as it was logged.
    async fn look(&self, trouble: &mut Option<String>) {
        let issuer = &self.rules.issuer;
        match self.source.load().await {
            Ok(keys) => {
                *trouble = None;
                let mut known = self.keys.write();
                if **known != keys {
                    tracing::info!(
                        issuer,
                        keys = keys.len(),
                        "JWTs are verified with the keys that were read just now"
                    );
                    *known = Arc::new(keys);
                }
            }
            Err(error) => {
                if trouble.as_ref() != Some(&error) {
                    tracing::warn!(issuer, error, "the keys of JWTs cannot be used, and the former ones stay in use");
                }
                *trouble = Some(error);
            }
        }
        let failed = if trouble.is_some() { 1.0 } else { 0.0 };
        metrics::gauge!("lockkeeper_jwt_keys_failed").set(failed);
    }
}
