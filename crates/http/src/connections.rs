//! The open connections of one listener, bounded in all and for each address (promise P13). Once three quarters are
//! taken, an address has at most as many as are free, so that a few greedy addresses never fill the listener. When
//! there is no room for a new connection, an idle one makes way: the one that has been idle longest of the address that
//! has most.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_node::network_of;
use lockkeeper_service::budget::give_back;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::phase::{Phase, PhaseClock};

/// A connection whose header is not complete after this counts as idle.
const SLOW_HEADER: Duration = Duration::from_secs(1);
/// Most idle connections noted at a time: a search costs a look at each connection.
const NOTED: usize = 64;
/// Pause between two searches when the first one found nothing.
const PAUSE: Duration = Duration::from_millis(10);

/// An address with at most this part of all connections is not greedy.
const FEW: usize = 64;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) all: usize,
    pub(crate) of_address: usize,
    /// A connection that has been idle for less does not make way: its next request may be on its way.
    pub(crate) young: Duration,
    /// The same for a new connection of its own address: an address over its share must not keep the node busy
    /// replacing its connections.
    pub(crate) young_of_own: Duration,
}

/// The bound that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    All,
    Address,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) most: Most,
    open: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    next_id: u64,
    all: HashMap<u64, Connection>,
    by_address: HashMap<IpAddr, usize>,
    /// Connections that may make way, of one address or of any.
    noted: HashMap<Option<IpAddr>, Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// The first to make way first.
    ids: VecDeque<u64>,
    look_again_at: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    phase_clock: Arc<PhaseClock>,
    make_way: CancellationToken,
}

impl Connection {
    /// For how long it has been idle; `None` if it must not make way.
    fn idle_for(&self, young: Duration) -> Option<Duration> {
        match self.phase_clock.now() {
            (Phase::Idle, lasted) if lasted >= young => Some(lasted),
            (Phase::Header, lasted) if lasted >= SLOW_HEADER => Some(lasted),
            _ => None,
        }
    }
}

/// The place of an open connection, freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    connections: Arc<Connections>,
    id: u64,
    /// Cancelled when it is to make way.
    pub(crate) make_way: CancellationToken,
    /// Whether another has made way for it.
    pub(crate) displaced: bool,
}

impl Connections {
    pub(crate) fn new(most: Most) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Registers a connection, in place of an idle one if need be.
    ///
    /// # Errors
    /// There is no room, and no connection may make way.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr, phase_clock: Arc<PhaseClock>) -> Result<Registered, Full> {
        let address = network_of(from);
        let mut open = self.open.lock();
        let of_address = open.by_address.get(&address).copied().unwrap_or(0);
        let mut displaced = false;
        if of_address >= self.share(&open) {
            displaced = open.make_room(Some(address), self.most.young_of_own);
            if !displaced {
                return Err(Full::Address);
            }
        } else if open.all.len() >= self.most.all {
            displaced = open.make_room(None, self.most.young);
            if !displaced {
                return Err(Full::All);
            }
        }
        let id = open.next_id;
        open.next_id += 1;
        let make_way = CancellationToken::new();
        open.all.insert(id, Connection { address, phase_clock, make_way: make_way.clone() });
        *open.by_address.entry(address).or_default() += 1;
        Ok(Registered { connections: self.clone(), id, make_way, displaced })
    }

    /// How many connections one address may have now. An address that is alone, or has few, need not leave room for
    /// others.
    fn share(&self, open: &Registry) -> usize {
        let Most { all, of_address, .. } = self.most;
        let free = all.saturating_sub(open.all.len());
        let is_scarce = open.by_address.len() > 1 && free <= all / 4;
        if is_scarce { of_address.min(free.max(all / FEW).max(2)) } else { of_address }
    }
}

impl Registry {
    /// Closes an idle connection, of one address or of any.
    fn make_room(&mut self, of: Option<IpAddr>, young: Duration) -> bool {
        for looked in [false, true] {
            while let Some(id) = self.noted.entry(of).or_default().ids.pop_front() {
                let still = self.all.get(&id).is_some_and(|connection| connection.idle_for(young).is_some());
                if still && let Some(connection) = self.remove(id) {
                    connection.make_way.cancel();
                    return true;
                }
            }
            let look_again_at = self.noted.get(&of).and_then(|noted| noted.look_again_at);
            if looked || look_again_at.is_some_and(|at| Instant::now() < at) {
                break;
            }
            let noted = self.note(of, young);
            self.noted.insert(of, noted);
        }
        false
    }

    fn note(&self, of: Option<IpAddr>, young: Duration) -> Noted {
        let candidates = self.all.iter().filter(|(_, connection)| of.is_none_or(|of| connection.address == of));
        let mut idle: Vec<_> = candidates
            .filter_map(|(id, connection)| {
                let idle_for = connection.idle_for(young)?;
                let neighbours = self.by_address.get(&connection.address).copied().unwrap_or(0);
                Some((Reverse(neighbours), Reverse(idle_for), *id))
            })
            .collect();
        if idle.len() > NOTED {
            idle.select_nth_unstable(NOTED);
            idle.truncate(NOTED);
        }
        idle.sort_unstable();
        let look_again_at = idle.is_empty().then(|| Instant::now() + PAUSE);
        Noted { ids: idle.into_iter().map(|(.., id)| id).collect(), look_again_at }
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        let connection = self.all.remove(&id)?;
        give_back(&mut self.by_address, connection.address, 1);
        if !self.by_address.contains_key(&connection.address) {
            self.noted.remove(&Some(connection.address));
        }
        Some(connection)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // One that has made way is gone already.
        drop(self.connections.open.lock().remove(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YOUNG: Duration = Duration::ZERO;

    fn from(host: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, host])
    }

    fn busy() -> Arc<PhaseClock> {
        let phase_clock = PhaseClock::new();
        phase_clock.enter(Phase::Busy);
        phase_clock
    }

    #[test]
    fn the_idle_make_way_oldest_first_at_the_greediest_address() {
        let connections = Connections::new(Most { all: 6, of_address: 4, young: YOUNG, young_of_own: YOUNG });
        let enter = |host, phase_clock| connections.enter(from(host), phase_clock);
        let honest = enter(2, PhaseClock::new()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let greedy: Vec<_> = (0..4).map(|_| enter(1, PhaseClock::new()).unwrap()).collect();
        let _fifth = enter(1, busy()).unwrap();
        assert!(greedy.iter().any(|one| one.make_way.is_cancelled()), "of the same address");
        let _other = enter(3, busy()).unwrap();
        let _one_more = enter(3, busy()).unwrap();
        assert!(!honest.make_way.is_cancelled(), "it is older, but alone at its address");
        assert_eq!(greedy.iter().filter(|one| one.make_way.is_cancelled()).count(), 2);
    }

    /// Idle connections of others do not make way for those who have most, however many of their own are at work.
    #[test]
    fn two_addresses_do_not_fill_it() {
        let connections = Connections::new(Most { all: 640, of_address: 320, young: YOUNG, young_of_own: YOUNG });
        let honest: Vec<_> = (0..5).map(|_| connections.enter(from(9), PhaseClock::new()).unwrap()).collect();
        let mut greedy = Vec::new();
        for _ in 0..640 {
            greedy.extend([1, 2].into_iter().filter_map(|host| connections.enter(from(host), busy()).ok()));
        }
        assert!(honest.iter().all(|one| !one.make_way.is_cancelled()));
        assert_eq!(connections.enter(from(1), busy()).unwrap_err(), Full::Address);
        let newcomers: Vec<_> = (0..100).filter_map(|_| connections.enter(from(3), busy()).ok()).collect();
        assert!(greedy.len() > 400 && newcomers.len() > 50, "{} and {}", greedy.len(), newcomers.len());
        assert!(connections.enter(from(9), busy()).is_ok() && connections.enter(from(4), busy()).is_ok());
        assert!(honest.iter().all(|one| !one.make_way.is_cancelled()), "there was room all the while");
    }

    /// It keeps its share, and the node is not kept busy with replacing one by the other.
    #[test]
    fn an_address_beyond_its_share_replaces_its_own_in_its_own_time() {
        let young_of_own = Duration::from_millis(50);
        let connections = Connections::new(Most { all: 8, of_address: 4, young: YOUNG, young_of_own });
        let enter = |host| connections.enter(from(host), PhaseClock::new());
        let began = Instant::now();
        let mut open: Vec<_> = (0..4).map(|_| enter(1).unwrap()).collect();
        // Another address comes meanwhile: what is known of the one is not forgotten for it.
        let (mut refused, mut others) = (0, Vec::new());
        while began.elapsed() < young_of_own {
            refused += usize::from(enter(1).is_err());
            others.extend(enter(2));
            others.truncate(4);
        }
        assert!(refused > 10 && open.iter().all(|one| !one.make_way.is_cancelled()));
        std::thread::sleep(PAUSE);
        open.push(enter(1).expect("those are old enough now"));
        assert!(open.pop().is_some_and(|one| one.displaced));
        drop((open, others));
        assert!(connections.open.lock().noted.keys().all(Option::is_none), "who has gone is forgotten");
    }

    #[test]
    fn who_is_alone_there_has_the_whole_share() {
        let connections = Connections::new(Most { all: 2_000, of_address: 1_000, young: YOUNG, young_of_own: YOUNG });
        let open: Vec<_> = (0..1_000).map(|_| connections.enter(from(1), busy()).unwrap()).collect();
        assert_eq!(connections.enter(from(1), busy()).unwrap_err(), Full::Address);
        drop(open);
    }

    #[test]
    fn nobody_at_work_makes_way() {
        let connections = Connections::new(Most { all: 3, of_address: 2, young: YOUNG, young_of_own: YOUNG });
        let enter = |host| connections.enter(from(host), busy());
        let (one, _two) = (enter(1).unwrap(), enter(1).unwrap());
        assert_eq!(enter(1).unwrap_err(), Full::Address);
        let _three = enter(2).unwrap();
        assert_eq!(enter(2).unwrap_err(), Full::All);
        drop(one);
        assert!(enter(1).is_ok());
        assert_eq!(connections.open.lock().all.len(), 2, "those that went are forgotten");
    }
}
