//! The blocks of `docs/operate.md`, and their processes.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::ports;
use crate::process::Process;
use crate::proofs::prelude::*;

const PAGE: &str = include_str!("../../../../docs/operate.md");
/// Begins a line that says what the block prints.
const MARK: &str = "# → ";
/// The nodes that the page's blocks start.
const NODES: std::ops::RangeInclusive<u16> = 2..=6;
const DONE: &str = "the block is done";
/// The nodes of a block end with its shell, and the shell with this process.
const BEFORE: &str = r#"
lockkeeper() {
    if [ "$1" = serve ] && command -v setpriv >/dev/null; then exec setpriv --pdeathsig KILL -- lockkeeper "$@"; fi
    command lockkeeper "$@"
}
"#;
const POLL: Duration = Duration::from_millis(20);

/// The page, with ports that are free here.
pub(super) struct Page {
    text: String,
    /// The port for clients of each node, by the page's.
    ports: Vec<(u16, u16)>,
}

impl Page {
    pub(super) fn with_free_ports() -> Result<Self, Failed> {
        let printed: Vec<u16> = NODES.flat_map(|node| [7000 + node, 7100 + node]).collect();
        let ports: Vec<(u16, u16)> = printed.iter().copied().zip(ports::free(printed.len())?).collect();
        let here = |text: String, (printed, free): &(u16, u16)| {
            text.replace(&format!("127.0.0.1:{printed}"), &format!("127.0.0.1:{free}"))
        };
        let text = ports.iter().fold(PAGE.to_owned(), here);
        Ok(Self { text, ports })
    }

    /// Where clients reach a node that a block starts.
    pub(super) fn client_address(&self, node: u64) -> Option<SocketAddr> {
        let printed = 7000 + u16::try_from(node).ok()?;
        let (_, port) = self.ports.iter().find(|(known, _)| *known == printed)?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, *port)))
    }

    /// The block under a heading.
    fn block(&self, heading: &str) -> Result<&str, Failed> {
        let below = self.text.split_once(&format!("\n{heading}\n")).map(|(_, below)| below);
        let block = below.and_then(|below| below.split_once("```bash\n")).map(|(_, block)| block);
        match block.and_then(|block| block.split_once("```")) {
            Some((block, _)) => Ok(block),
            None => broken(format!("docs/operate.md has no block under {heading:?}")),
        }
    }
}

/// A block that was run, and the nodes that it started, which go on.
pub(super) struct RunningBlock {
    nodes: Vec<(u64, Pid)>,
    _shell: Process,
}

impl RunningBlock {
    /// Runs a block until its last command has ended. `starts` are the nodes that it starts, in its order.
    pub(super) async fn run(
        page: &Page,
        heading: &str,
        (directory, endpoint): (&Path, &str),
        starts: &[u64],
        within: Duration,
    ) -> Result<Self, Failed> {
        let block = page.block(heading)?;
        let mut script = BEFORE.to_owned();
        // Writing to a String does not fail.
        let _ = write!(script, "{block}\njobs -p | sed 's/^/pid /'\necho '{DONE}'\nwait || true\n");
        let path = std::env::var("PATH").unwrap_or_default();
        let environment = [
            ("PATH".to_owned(), format!("{}:{path}", directory.display())),
            ("LOCKKEEPER_ENDPOINTS".to_owned(), endpoint.to_owned()),
        ];
        let name: String = heading.chars().filter(char::is_ascii_alphabetic).collect();
        let (output, log) = (directory.join(format!("{name}.out")), directory.join(format!("{name}.log")));
        let cd = format!("cd {:?}\n{script}", directory.display().to_string());
        let argv = ["bash", "-euo", "pipefail", "-c", &cd].map(str::to_owned);
        let mut shell = Process::start_telling(&argv, &environment, &output, &log)?;
        let begun = Instant::now();
        let printed = loop {
            let printed = std::fs::read_to_string(&output).unwrap_or_default();
            if printed.contains(DONE) {
                break printed;
            }
            if shell.ended().is_some() || begun.elapsed() > within {
                let why = std::fs::read_to_string(&log).unwrap_or_default();
                return broken(format!("the block under {heading:?} failed, or took too long: {printed}{why}"));
            }
            tokio::time::sleep(POLL).await;
        };
        let pids = printed.lines().filter_map(|line| line.strip_prefix("pid ")?.trim().parse().ok()).map(Pid::from_raw);
        let nodes: Vec<(u64, Pid)> = starts.iter().copied().zip(pids).collect();
        let block_run = Self { nodes, _shell: shell };
        if block_run.nodes.len() != starts.len() {
            return broken(format!("the block under {heading:?} does not start nodes {starts:?}: {printed}"));
        }
        says_what_it_marks(block, &printed)?;
        Ok(block_run)
    }

    /// Kills a node, if this block has started it.
    pub(super) fn stop(&mut self, node: u64) {
        self.stop_if(|id| id == node);
    }

    /// Kills the nodes that are not among these.
    pub(super) fn stop_all_but(&mut self, nodes: &[u64]) {
        self.stop_if(|id| !nodes.contains(&id));
    }

    fn stop_if(&mut self, which: impl Fn(u64) -> bool) {
        for (_, pid) in self.nodes.iter().filter(|(id, _)| which(*id)) {
            // One that has ended already is no error.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        self.nodes.retain(|(id, _)| !which(*id));
    }
}

impl Drop for RunningBlock {
    fn drop(&mut self) {
        self.stop_if(|_| true);
    }
}

/// What a block marks is in its output, in this order.
fn says_what_it_marks(block: &str, printed: &str) -> Result<(), Failed> {
    let mut rest = printed;
    for line in block.lines().filter_map(|line| line.strip_prefix(MARK)) {
        match rest.split_once(line) {
            Some((_, after)) => rest = after,
            None => return broken(format!("{line:?} is missing, or out of order, in: {printed}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_other_ports_and_their_marks_are_looked_for() {
        let page = Page::with_free_ports().unwrap();
        let block = page.block("### Replace a node").unwrap();
        let own = page.client_address(6).unwrap().to_string();
        assert!(block.contains(&own) && !block.contains("127.0.0.1:7006"), "{block}");
        assert!(page.block("### Nothing").is_err() && page.client_address(1).is_none());
        assert!(says_what_it_marks("# → a\n# → b", "so a, then b").is_ok());
        assert!(says_what_it_marks("# → b\n# → a", "so a, then b").is_err());
    }
}
