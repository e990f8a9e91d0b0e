//! The command line, and the settings that follow from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::nemesis::{self, Nemesis};
use crate::workload::{self, Workload};

use super::plan::Manner;

/// Timeout of the clients' sessions: every fault is on for longer.
pub const TTL: Duration = Duration::from_secs(2);

/// Runs workloads under faults against real processes, checks their history and writes a report.
///
/// Exit codes: 0 all valid (or corrupted where that is expected), 1 something invalid or unknown, 2 could not run.
#[derive(Clone, Debug, Parser)]
#[command(name = "jepsen-style-tests", version)]
pub struct Arguments {
    /// Workloads, each in a run of its own; or `all`. See --list.
    #[arg(long, value_delimiter = ',', default_value = "fenced-lock")]
    pub workload: Vec<String>,
    /// Nemeses that take turns; or `all` for random overlapping combinations of every one. See --list.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    pub nemesis: Vec<String>,
    /// Seconds under load, calm phases included; longer where it takes longer until each nemesis has had its turn.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub time: u64,
    /// Nodes of the cluster: 3 or 5.
    #[arg(long, default_value_t = 3, value_parser = three_or_five)]
    pub nodes: u64,
    /// The network that faults are put on.
    #[arg(long, value_enum, default_value_t = Backend::Proxy)]
    pub net: Backend,
    /// Where all chance comes from; drawn and printed where it is left out.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Clients, spread over a few processes.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub clients: u32,
    /// Where reports go, each in a directory of its own; `jepsen` in cargo's target directory where it is left out.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Every workload under every nemesis, in short runs; writes a table of them all.
    #[arg(long, conflicts_with_all = ["mutants", "list"])]
    pub matrix: bool,
    /// Part of the matrix: each workload, and each nemesis that the size of the cluster allows, at least once.
    #[arg(long, conflicts_with_all = ["matrix", "mutants", "list"])]
    pub slice: bool,
    /// Minutes after which --matrix and --slice begin no other run: what is left out is shown as such.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    pub minutes: Option<u64>,
    /// Cells of --matrix and --slice that run at the same time, each on a cluster of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub jobs: u8,
    /// Activates each mutant in turn and shows which check catches it.
    #[arg(long, conflicts_with = "list")]
    pub mutants: bool,
    /// Only these mutants, and without the runs that have none.
    #[arg(long, value_delimiter = ',', requires = "mutants")]
    pub only: Vec<String>,
    /// Judge recorded runs again, by the directories of their reports, with the checks as they are now.
    #[arg(long, num_args = 1.., value_name = "DIRECTORY", conflicts_with_all = ["matrix", "slice", "mutants", "list"])]
    pub judge: Vec<PathBuf>,
    /// Explain each workload and each nemesis in a line.
    #[arg(long)]
    pub list: bool,
    /// The server's binary; built from this checkout where it is left out.
    #[arg(long, env = "LOCKKEEPER_BIN")]
    pub binary: Option<PathBuf>,
}

fn three_or_five(text: &str) -> Result<u64, String> {
    match text {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("a cluster here has 3 or 5 nodes".into()),
    }
}

/// What puts faults on links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// A TCP proxy for each directed link: needs no rights.
    Proxy,
    /// A network namespace for each node: needs root.
    Netns,
}

impl Backend {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Netns => "netns",
        }
    }
}

/// One run, as it is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workload's name.
    pub workload: String,
    /// The nemeses' names; `none` is not among them.
    pub nemeses: Vec<String>,
    /// How they follow each other.
    pub manner: Manner,
    /// Time under load.
    pub time: Duration,
    /// How many nodes.
    pub nodes: u64,
    /// The network.
    pub net: Backend,
    /// Where all chance comes from.
    pub seed: u64,
    /// How many clients.
    pub clients: u32,
    /// Timeout of their sessions.
    pub ttl: Duration,
}

impl Settings {
    /// How `--nemesis` reads.
    pub fn nemesis(&self) -> String {
        match (self.manner, self.nemeses.is_empty()) {
            (Manner::Combined, _) => "all".into(),
            (_, true) => "none".into(),
            (Manner::InTurn, false) => self.nemeses.join(","),
        }
    }

    /// The command that does this again.
    pub fn command(&self) -> String {
        format!(
            "cargo run --release -p jepsen-style-tests -- --workload {} --nemesis {} --time {} --nodes {} --net {} \
                --clients {} --seed {}",
            self.workload,
            self.nemesis(),
            self.time.as_secs(),
            self.nodes,
            self.net.name(),
            self.clients,
            self.seed
        )
    }

    /// A short name for a directory.
    pub fn short_name(&self) -> String {
        let nemesis = match self.nemeses.len() {
            0 | 1 => self.nemesis(),
            _ if self.manner == Manner::Combined => "all".into(),
            2 | 3 => self.nemeses.join("+"),
            many => format!("{many}-nemeses"),
        };
        format!("{}-{nemesis}", self.workload)
    }
}

impl Arguments {
    /// The runs that were asked for: one a workload.
    pub fn settings(&self, seed: u64) -> Result<Vec<Settings>, String> {
        let workloads = workloads(&self.workload)?;
        let (nemeses, manner) = nemeses(&self.nemesis)?;
        let settings = |workload: &String| Settings {
            workload: workload.clone(),
            nemeses: nemeses.clone(),
            manner,
            time: Duration::from_secs(self.time),
            nodes: self.nodes,
            net: self.net,
            seed,
            clients: self.clients,
            ttl: TTL,
        };
        Ok(workloads.iter().map(settings).collect())
    }
}

/// The names that a `--workload` means.
pub fn workloads(asked: &[String]) -> Result<Vec<String>, String> {
    let known: Vec<&str> = workload::all().iter().map(|one| one.name()).collect();
    chosen("workload", asked, &known)
}

/// The names that a `--nemesis` means, without `none`.
pub fn nemeses(asked: &[String]) -> Result<(Vec<String>, Manner), String> {
    let known: Vec<&str> = nemesis::all().iter().map(|one| one.name()).collect();
    let manner = if asked.iter().any(|name| name == "all") { Manner::Combined } else { Manner::InTurn };
    let mut names = chosen("nemesis", asked, &known)?;
    names.retain(|name| name != "none");
    Ok((names, manner))
}

fn chosen(what: &str, asked: &[String], known: &[&str]) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for name in asked {
        match name.as_str() {
            "all" => names.extend(known.iter().map(|name| (*name).to_owned())),
            one if known.contains(&one) || one == "none" && what == "nemesis" => names.push(one.to_owned()),
            other => return Err(format!("there is no {what} '{other}'; there are: {}, all", known.join(", "))),
        }
    }
    // The same twice would be a mistake, or comes from `all,x`.
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

/// The workload of that name.
pub fn workload(name: &str) -> Result<Box<dyn Workload>, String> {
    workload::all().into_iter().find(|one| one.name() == name).ok_or_else(|| format!("there is no workload '{name}'"))
}

/// The nemeses of those names, in that order.
pub fn made(names: &[String]) -> Vec<Box<dyn Nemesis>> {
    let mut all: Vec<Option<Box<dyn Nemesis>>> = nemesis::all().into_iter().map(Some).collect();
    let mut take = |name: &String| {
        all.iter_mut().find(|one| one.as_ref().is_some_and(|one| one.name() == name)).and_then(Option::take)
    };
    names.iter().filter_map(&mut take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["jepsen-style-tests"].iter().chain(words))
    }

    #[test]
    fn wrong_usage_is_told_with_what_would_be_right() {
        let refused = |words: &[&str]| parse(words).unwrap_err().to_string();
        assert!(refused(&["--nodes", "4"]).contains("3 or 5"));
        assert!(refused(&["--time", "1"]).contains("5..=86400"));
        assert!(refused(&["--clients", "0"]).contains("1..=200"));
        assert!(refused(&["--net", "x"]).contains("proxy"));
        assert!(refused(&["--matrix", "--mutants"]).contains("cannot be used"));
        let unknown = chosen("workload", &["lokc".into()], &["lock", "gate"]).unwrap_err();
        assert_eq!(unknown, "there is no workload 'lokc'; there are: lock, gate, all");
        assert!(parse(&["--workload", "lokc"]).unwrap().settings(1).unwrap_err().contains("lokc"));
        assert!(parse(&["--nemesis", "flood"]).unwrap().settings(1).is_err());
    }

    #[test]
    fn a_slice_of_three_nodes_has_no_minority() {
        let excluded = |words: &[&str]| {
            let arguments = parse(words).unwrap();
            arguments.matrix_plan(&arguments.settings(1).unwrap()).unwrap().excluded
        };
        assert_eq!(excluded(&["--slice"]), nemesis::NEED_FIVE_NODES);
        assert!(excluded(&["--slice", "--nodes", "5"]).is_empty());
        assert!(excluded(&["--slice", "--nemesis", "kill-minority"]).is_empty(), "asked for by name");
        assert!(excluded(&["--matrix"]).is_empty());
    }

    #[test]
    fn names_are_chosen_once_each() {
        let known = ["none", "kill-one", "pause-one"];
        let names = |asked: &[&str]| {
            chosen("nemesis", &asked.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), &known).unwrap()
        };
        assert_eq!(names(&["all", "kill-one"]), known);
        assert_eq!(names(&["pause-one", "kill-one", "pause-one"]), ["pause-one", "kill-one"]);
        assert_eq!(names(&["none"]), ["none"]);
    }

    #[test]
    fn the_command_does_the_same_again() {
        let settings = Settings {
            workload: "lock".into(),
            nemeses: vec!["kill-one".into(), "pause-one".into()],
            manner: Manner::InTurn,
            time: Duration::from_secs(30),
            nodes: 5,
            net: Backend::Proxy,
            seed: 42,
            clients: 7,
            ttl: TTL,
        };
        let command = settings.command();
        let (_, words) = command.split_once(" -- ").unwrap();
        let again = parse(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!((again.workload, again.nemesis), (vec!["lock".to_owned()], settings.nemeses.clone()));
        assert_eq!((again.time, again.nodes, again.seed, again.clients), (30, 5, Some(42), 7));
        assert_eq!(settings.short_name(), "lock-kill-one+pause-one");
    }
}
