//! One module per command or family of commands.

pub(crate) mod auth;
pub(crate) mod bench;
pub(crate) mod certs;
pub(crate) mod cron;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod gate;
pub(crate) mod gates;
pub(crate) mod health;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod manual_pages;
pub(crate) mod member;
pub(crate) mod namespaces;
pub(crate) mod nodes;
pub(crate) mod rate;
pub(crate) mod recover;
pub(crate) mod schedules;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod watch;

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;
use lockkeeper_client::{AccessToken, Client, Options, Paging, Tls, TlsFiles};

use crate::args::{CommandLine, Common};
use crate::failure::{EXIT_OK, Failure, print_error};
use crate::output::{print_bytes, print_line};

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

/// Runs a command on a current-thread runtime.
pub(crate) fn on_runtime(command: impl Future<Output = Result<(), Failure>>) -> Result<u8, Failure> {
    runtime()?.block_on(command).map(|()| EXIT_OK)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start the runtime: {e}")))
}

/// `lockkeeper completions`: prints the script.
pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    // Into memory first, because the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "lockkeeper", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => {
            script = script.replace("complete -F _lockkeeper ", "complete -F _lockkeeper_or_locks ");
            script.push_str(LOCKS_IN_BASH);
        }
        Shell::Zsh => {
            script = script.replacen("\n_lockkeeper() {", "\n_lockkeeper_line() {", 1);
            script = script.replacen("\nif [ \"$funcstack", &format!("{LOCKS_IN_ZSH}\nif [ \"$funcstack"), 1);
        }
        Shell::Fish => script.push_str(LOCKS_IN_FISH),
        _ => {}
    }
    print_bytes(script.as_bytes()).map(|()| EXIT_OK)
}

const LOCKS_IN_BASH: &str = r#"
# With the names of locks, of the cluster of LOCKKEEPER_ENDPOINTS.
_lockkeeper_or_locks() {
    local word of_locks="" IFS=$'\n'
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$word" in
        lock | locks | unlock) of_locks=yes ;;
        --) of_locks="" && break ;;
        esac
    done
    case "$of_locks,$2,$3" in
    yes,-*,* | ,*) ;;
    yes,*,--shared | yes,*,--unfair | yes,*,--force | yes,*,--json | yes,*,[!-]*)
        COMPREPLY=($("$1" __locks "$2" 2>/dev/null))
        return 0
        ;;
    esac
    IFS=$' \t\n'
    _lockkeeper "$@"
}
"#;

const LOCKS_IN_ZSH: &str = r#"
# With the names of locks, of the cluster of LOCKKEEPER_ENDPOINTS.
_lockkeeper() {
    local -a names
    if (( words[(I)(lock|locks|unlock)] && ! words[(I)--] )) && [[ ${words[CURRENT]} != -* ]]; then
        names=("${(@f)$(lockkeeper __locks "${words[CURRENT]}" 2>/dev/null)}")
        [[ -z "$names" ]] || compadd -a names
    fi
    _lockkeeper_line "$@"
}
"#;

const LOCKS_IN_FISH: &str = r#"
# The names of locks, of the cluster of LOCKKEEPER_ENDPOINTS.
complete -c lockkeeper -n "__fish_seen_subcommand_from lock locks unlock" -a "(lockkeeper __locks (commandline -ct) 2>/dev/null)"
"#;

/// `lockkeeper __locks`: prints the names of locks that can be had at once, one a line. The options of the line that is
/// completed are not known, those of the environment are.
pub(crate) fn complete_locks(prefix: &str) -> Result<u8, Failure> {
    let unknown = |error: clap::Error| Failure::usage(error.to_string());
    let common = CommandLine::try_parse_from(["lockkeeper", "--patience", "500ms", "locks"]).map_err(unknown)?.common;
    let page = Paging { limit: Some(1_000), ..Paging::default() };
    let locks =
        runtime()?.block_on(async { client(&common)?.locks(Some(prefix), &page).await.map_err(Failure::from) })?;
    // What a shell would take for something else is left out.
    let is_plain = |name: &&str| !name.contains(|char: char| char.is_control() || " \t'\"\\$`".contains(char));
    let names: Vec<&str> = locks.locks.iter().map(|lock| lock.lock.as_str()).filter(is_plain).collect();
    if names.is_empty() { Ok(EXIT_OK) } else { print_line(&names.join("\n")).map(|()| EXIT_OK) }
}
