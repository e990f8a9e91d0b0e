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

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;
use lockkeeper_client::Paging;

use crate::args::CommandLine;
use crate::connect::client;
use crate::failure::{EXIT_OK, Failure};
use crate::output::{print_bytes, print_line};
use crate::runtime::runtime;

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
