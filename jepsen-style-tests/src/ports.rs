//! Free loopback ports for processes that are started, killed and started again.
//!
//! Not by binding port 0: what the kernel hands out there also serves as local port of outgoing connections, and while
//! a killed node is down one of the proof's own thousands of connections could take its port. These lie below that
//! range. Nor may another proof or test take it, which may run beside this process: each process draws from blocks of
//! ports of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::LazyLock;

use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use rand::seq::SliceRandom as _;
use tokio::net::TcpSocket;

const RANGE: std::ops::Range<u16> = 15_000..30_000;
const BLOCK: u16 = 100;
/// A process that has so many blocks gives its oldest ports out again.
const MOST_BLOCKS: usize = 40;
static RESERVED: LazyLock<Mutex<Reserved>> = LazyLock::new(|| Mutex::new(Reserved::below(std::env::temp_dir())));

/// The ports of this process.
struct Reserved {
    /// Where the files are by which processes know each other's blocks.
    directory: PathBuf,
    /// In the order in which they are to be given out. One that was given out goes to the end: perhaps nobody listens
    /// on it yet.
    ports: VecDeque<u16>,
    /// So many at the front have never been given out.
    new: usize,
    /// Their blocks, locked for as long as the process lives.
    blocks: Vec<Flock<File>>,
}

impl Reserved {
    fn below(directory: PathBuf) -> Self {
        Self { directory, ports: VecDeque::new(), new: 0, blocks: Vec::new() }
    }

    fn next(&mut self) -> Option<u16> {
        if self.new == 0 && self.blocks.len() < MOST_BLOCKS {
            self.reserve_block();
        }
        let port = self.ports.pop_front()?;
        self.ports.push_back(port);
        self.new = self.new.saturating_sub(1);
        Some(port)
    }

    fn reserve_block(&mut self) {
        let mut starts: Vec<u16> = RANGE.step_by(usize::from(BLOCK)).collect();
        starts.shuffle(&mut rand::rng());
        for start in starts {
            let path = self.directory.join(format!("lockkeeper-ports-{start}.lock"));
            let file = File::options().create(true).truncate(false).write(true).open(path).ok();
            let lock = file.and_then(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok());
            if let Some(lock) = lock {
                (start..start + BLOCK).for_each(|port| self.ports.push_front(port));
                self.new += usize::from(BLOCK);
                self.blocks.push(lock);
                return;
            }
        }
    }
}

/// `count` different ports on 127.0.0.1 that are free now.
pub fn free(count: usize) -> io::Result<Vec<u16>> {
    let mut reserved = RESERVED.lock();
    let mut found = Vec::new();
    let mut tried = 0;
    while found.len() < count {
        let port = reserved.next().filter(|_| tried < reserved.ports.len());
        let Some(port) = port else {
            return Err(io::Error::other(format!("no {count} free ports between {} and {}", RANGE.start, RANGE.end)));
        };
        tried += 1;
        if bind(port).is_ok() {
            found.push(port);
        }
    }
    Ok(found)
}

/// Fails if a socket listens on the port or is connected from it.
///
/// The socket is bound but does not listen. A process that another thread starts at this moment has a copy of the
/// socket between its fork and its exec. A copy that listened would refuse the port to its next owner for that long.
fn bind(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_port_that_was_looked_at_can_be_listened_on_at_once() {
        let port = super::free(1).unwrap()[0];
        // What a process has that another thread starts at this moment.
        let copy = super::bind(port).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(super::bind(port).is_err(), "a port on which somebody listens is not free");
        drop((copy, listener));
        assert!(super::bind(port).is_ok());
    }

    #[test]
    fn different_and_free() {
        // Nobody listens on the first ten when the others are chosen.
        let mut ports = super::free(10).unwrap();
        ports.extend(super::free(10).unwrap());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }

    #[test]
    fn no_two_processes_share_a_port() {
        let directory = tempfile::tempdir().unwrap();
        // Two open files of one process exclude each other as those of two do.
        let mut processes: [_; 4] = std::array::from_fn(|_| super::Reserved::below(directory.path().into()));
        let mut ports = BTreeSet::new();
        let enough = 1 + super::MOST_BLOCKS * usize::from(super::BLOCK);
        let given: Vec<usize> = processes
            .iter_mut()
            .map(|process| {
                let drawn: BTreeSet<u16> = (0..enough).filter_map(|_| process.next()).collect();
                ports.extend(&drawn);
                drawn.len()
            })
            .collect();
        assert_eq!(given, [4_000, 4_000, 4_000, 3_000]);
        assert_eq!(ports, super::RANGE.collect());
    }
}
