//! `lockkeeper recover`: a cluster of one from a survivor.

use std::io::{BufRead, IsTerminal};

use lockkeeper_server::Config;
use lockkeeper_server::backup;

use crate::args::{Common, Recover};
use crate::failure::{EXIT_OK, EXIT_USAGE, Failure, print_error};
use crate::output::{count, escaped, print_json, print_line};
use crate::runtime::runtime;

/// Makes the survivor the only member.
pub(crate) fn run(common: &Common, args: &Recover) -> Result<u8, Failure> {
    let (config, _) = Config::load(&args.config).map_err(|e| Failure::new(EXIT_USAGE, e.to_string()))?;
    confirm(&config, args)?;
    let recovered = runtime()?.block_on(backup::recover(&config, args.attempt))?;
    if common.json {
        return print_json(&recovered.origin).map(|()| EXIT_OK);
    }
    print_line(&format!(
        "recovered {} into {}: the new cluster begins at zxid {} (the old one was seen at {}); over: {}; a \
         client of the old cluster may take itself for a holder until {} after the last keepalive that was \
         acknowledged\nthe data of before is kept in {}\nstart node {}, then add members with new ids and empty \
         directories",
        count(recovered.nodes, "node"),
        recovered.directory.display(),
        recovered.origin.first_zxid,
        recovered.origin.from_zxid,
        count(recovered.sessions_ended, "session"),
        humantime::format_duration(std::time::Duration::from_millis(recovered.longest_timeout_ms)),
        recovered.kept_as.display(),
        config.cluster.node
    ))
    .map(|()| EXIT_OK)
}

/// The cluster's name is typed, so that nobody does this to the wrong node, or without a thought.
fn confirm(config: &Config, args: &Recover) -> Result<(), Failure> {
    let (cluster, node) = (&config.cluster.id, config.cluster.node);
    print_error(&format!(
        "WARNING: this makes node {node} the only member of cluster {}. What the other members acknowledged and this \
         node never received is lost. If they ever run again, there are two clusters.",
        escaped(cluster)
    ));
    let typed = match &args.yes_cluster {
        Some(name) => name.clone(),
        None if !std::io::stdin().is_terminal() => {
            return Err(Failure::usage("name the cluster with --yes-cluster where no terminal can be asked"));
        }
        None => {
            print_error("Type the name of the cluster to go on:");
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            line.trim_end_matches(['\n', '\r']).to_owned()
        }
    };
    if typed == *cluster {
        return Ok(());
    }
    Err(Failure::usage(format!("the cluster's name is not \"{}\": nothing was changed", escaped(&typed))))
}
