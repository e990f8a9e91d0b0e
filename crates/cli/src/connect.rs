//! The client that the common options of all commands ask for.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use lockkeeper_client::{AccessToken, Client, Options, Tls, TlsFiles};

use crate::args::Common;
use crate::failure::{Failure, print_error};

/// The variable that may have the token itself.
const TOKEN_VARIABLE: &str = "LOCKKEEPER_ACCESS_TOKEN";
/// The variable with the fencing token of a command under a lock.
const FENCING_VARIABLE: &str = "LOCKKEEPER_TOKEN";
/// Permission of all users of this machine to read a file.
const READABLE_BY_ALL: u32 = 0o004;

/// A client with the common options.
pub(crate) fn client(common: &Common) -> Result<Client, Failure> {
    patient_client(common, Duration::ZERO)
}

/// The same for calls that may take so long.
pub(crate) fn patient_client(common: &Common, longest_call: Duration) -> Result<Client, Failure> {
    let endpoints = common.endpoints.iter().map(String::as_str).filter(|text| !text.trim().is_empty());
    let options = Options {
        prefer: common.prefer.into(),
        patience: common.patience.max(longest_call),
        attempt_timeout: common.patience.max(Duration::from_millis(100)).max(longest_call),
        token: token(common)?,
        ..Options::default()
    };
    warn_if_readable_by_all(common);
    Ok(Client::new_with_tls(endpoints, options, tls(common)?)?)
}

/// TLS as the common options ask for it.
pub(crate) fn tls(common: &Common) -> Result<Option<Tls>, Failure> {
    let identity = match (&common.cert, &common.key) {
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }),
        (None, None) => None,
        (Some(_), None) => return Err(Failure::usage("--cert needs --key, its private key")),
        (None, Some(_)) => return Err(Failure::usage("--key needs --cert, its certificate")),
    };
    match &common.ca {
        Some(authority) => Ok(Some(Tls::from_files(authority, identity.as_ref())?)),
        None if identity.is_some() => {
            Err(Failure::usage("--cert and --key need --ca: TLS is not used without an authority to verify nodes with"))
        }
        None => Ok(None),
    }
}

/// The token of `--token-file`, or else of the environment. An empty variable counts as none.
pub(crate) fn token(common: &Common) -> Result<Option<AccessToken>, Failure> {
    let Some(file) = &common.token_file else {
        return match std::env::var_os(TOKEN_VARIABLE) {
            Some(text) if !text.is_empty() => Ok(Some(text.to_string_lossy().parse::<AccessToken>()?)),
            _ => {
                warn_of_misplaced_token();
                Ok(None)
            }
        };
    };
    Ok(Some(AccessToken::from_file(file)?))
}

/// Other programs have the access token in a variable of such a name.
fn warn_of_misplaced_token() {
    let is_access_token = |text: &str| text.trim().starts_with("lk_") || text.parse::<AccessToken>().is_ok();
    if std::env::var(FENCING_VARIABLE).is_ok_and(|text| is_access_token(&text)) {
        print_error(&format!(
            "warning: {FENCING_VARIABLE} has an access token and is ignored: it is for the fencing token of a command \
             under a lock; set {TOKEN_VARIABLE} or --token-file instead"
        ));
    }
}

fn warn_if_readable_by_all(common: &Common) {
    if let Some(file) = &common.token_file
        && std::fs::metadata(file).is_ok_and(|found| found.mode() & READABLE_BY_ALL != 0)
    {
        let path = file.display();
        print_error(&format!("warning: every user of this machine can read the token file {path}; chmod 600 it"));
    }
}
