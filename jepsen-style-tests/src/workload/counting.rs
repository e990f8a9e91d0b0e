//! `fenced-lock` and its control `unfenced-lock`: holders increment a number in a real store, by reading it and writing
//! it under the number's lock.
//!
//! The fenced ones read and write under their token, which the store checks, and check their guard before they write;
//! some write late on purpose, past the guard and after they have released the lock, so that the fence has something to
//! refuse. The control does neither. Under faults that stop a holder it must lose updates.

use std::any::Any;
use std::path::Path;

use lockkeeper_client::Guard;

use super::ExpectedVerdict;
use super::lock_client::{EMPTY_WITHIN, LEAVE_PERCENT, asks, under, view_all};
use crate::check::{fenced, locks};
use crate::history::ops::{NumberWrite, StoreContents};
use crate::postgres::{self, Postgres};
use crate::store::{OpenStore, Store};
use crate::workload::prelude::*;

const NUMBERS: [&str; 3] = ["jepsen/number-1", "jepsen/number-2", "jepsen/number-3"];
/// The control has more of them, so that hardly a pause misses all of their holders.
const UNFENCED_NUMBERS: [&str; 6] =
    ["jepsen/bare-1", "jepsen/bare-2", "jepsen/bare-3", "jepsen/bare-4", "jepsen/bare-5", "jepsen/bare-6"];
const WAIT_MS: u64 = 1_500;
/// In the shared directory: where the store is, if it is not the file.
const STORE_AT: &str = "store";

/// With the fence, or without: the negative control.
pub(super) struct CountingWorkload {
    fenced: bool,
    numbers: &'static [&'static str],
    longest_pause_ms: u64,
}

pub(super) const FENCED: CountingWorkload = CountingWorkload { fenced: true, numbers: &NUMBERS, longest_pause_ms: 15 };
pub(super) const UNFENCED: CountingWorkload =
    CountingWorkload { fenced: false, numbers: &UNFENCED_NUMBERS, longest_pause_ms: 5 };

#[async_trait]
impl Workload for CountingWorkload {
    fn facts(&self) -> Facts {
        if self.fenced {
            Facts {
                name: "fenced-lock",
                about: "numbers in a fenced store (PostgreSQL, or a file), read and written under locks; some writes \
                    sent late on purpose",
                promises: locks::PROMISES,
            }
        } else {
            Facts {
                name: "unfenced-lock",
                about: "the control: the same numbers without fence and guard; must come out corrupt when holders are \
                    stopped",
                promises: "P1",
            }
        }
    }

    fn expected(&self) -> ExpectedVerdict {
        if self.fenced { ExpectedVerdict::Valid } else { ExpectedVerdict::InvalidWhenStopped }
    }

    /// Starts a PostgreSQL where there is one, and makes the numbers. What it gives keeps the server.
    async fn prepare(&self, shared: &Path) -> Result<Box<dyn Any + Send + Sync>, String> {
        let Some(programs) = postgres::installed() else { return Ok(Box::new(())) };
        let server = Postgres::start(&programs, shared).await.map_err(|error| error.to_string())?;
        let store = Store::Postgres(server.url());
        store.open(true).await?.reset().await?;
        std::fs::write(shared.join(STORE_AT), store.to_string()).map_err(|error| error.to_string())?;
        Ok(Box::new(server))
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut stores = self.stores(&context)?;
        let mut lock_client = LockClient::new(context)?;
        while let Some(session) = lock_client.session().await {
            if self.fenced {
                fenced_turn(&mut lock_client, &session, &mut stores).await;
            } else {
                unfenced_turn(&mut lock_client, &session, &mut stores).await;
            }
            lock_client.kit.think(0..self.longest_pause_ms).await;
        }
        lock_client.close().await;
        Ok(())
    }

    /// Reads the store's own list of what it took, and how the queues stand.
    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let mut stores = self.stores(&context)?;
        let lock_client = LockClient::new(context)?;
        for (at, lock) in self.numbers.iter().enumerate() {
            let begun = lock_client.recorder().begin(ops::TAKEN, lock);
            let taken = stores.take(at).await?.taken().await?;
            begun.ok(&StoreContents { store: stores.at.kind().to_owned(), writes: taken }, None);
        }
        let locks: Vec<String> = self.numbers.iter().map(|name| (*name).to_owned()).collect();
        view_all(&lock_client.kit.client, lock_client.recorder(), &locks, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        let mut checks = if self.fenced { locks::exclusive(run, self.numbers) } else { Vec::new() };
        checks.extend(fenced::checks(&run.history, self.fenced));
        checks
    }
}

impl CountingWorkload {
    fn stores(&self, context: &ClientContext) -> Result<Stores, String> {
        let (numbers, fenced) = (self.numbers, self.fenced);
        Ok(Stores { at: store_of(&context.shared)?, numbers, fenced, open: BTreeMap::new() })
    }
}

fn store_of(shared: &Path) -> Result<Store, String> {
    match std::fs::read_to_string(shared.join(STORE_AT)) {
        Ok(text) => text.parse(),
        Err(_) => Ok(Store::File(shared.join("number"))),
    }
}

/// A client's connections to the numbers, made as they are needed, and made anew after a failure.
struct Stores {
    at: Store,
    numbers: &'static [&'static str],
    fenced: bool,
    open: BTreeMap<usize, OpenStore>,
}

impl Stores {
    async fn take(&mut self, number: usize) -> Result<OpenStore, String> {
        match self.open.remove(&number) {
            Some(store) => Ok(store),
            None => self.at.open_row(self.fenced, row(number)).await,
        }
    }
}

/// The row of a lock's number.
fn row(at: usize) -> i32 {
    i32::try_from(at).unwrap_or(i32::MAX).saturating_add(1)
}

struct CountingTurn {
    under: TokenRef,
    number: usize,
    store: OpenStore,
    guard: Guard,
}

/// Takes one of the locks and reaches its number.
async fn begin(lock_client: &mut LockClient, session: &Session, stores: &mut Stores) -> Option<CountingTurn> {
    let number = lock_client.kit.rng.random_range(0..stores.numbers.len());
    let name = stores.numbers[number];
    let lock = session.lock(name);
    let asks = asks(name, Mode::Exclusive, WAIT_MS, session);
    let guard = lock_client.acquire(&asks, lock.lock_timeout(Duration::from_millis(WAIT_MS))).await?;
    let under = under(&asks, guard.token());
    match stores.take(number).await {
        Ok(store) => Some(CountingTurn { under, number, store, guard }),
        Err(why) => {
            lock_client.recorder().note(ops::STORE_FAILED, &why, None);
            lock_client.release(&under, guard).await;
            None
        }
    }
}

/// Reads as a holder does; none if a larger token has been there.
async fn read(lock_client: &LockClient, turn: &CountingTurn) -> Option<i64> {
    let begun = lock_client.recorder().begin(ops::READ, &turn.under);
    match turn.store.read_under(turn.under.token).await {
        Ok(Some(value)) => {
            begun.ok(&value, None);
            Some(value)
        }
        Ok(None) => {
            begun.fail("the token is stale");
            None
        }
        Err(why) => {
            begun.info(&why);
            None
        }
    }
}

/// Writes; gives the connection back if it is still good for anything.
async fn write(
    lock_client: &LockClient,
    under: &TokenRef,
    store: OpenStore,
    value: i64,
    late: bool,
) -> Option<OpenStore> {
    let added = NumberWrite { lock: under.locks[0].clone(), token: under.token, value, late };
    let begun = lock_client.recorder().begin(ops::WRITE, &added);
    match store.write(value, under.token).await {
        Ok(true) => begun.ok(&true, None),
        Ok(false) => begun.fail("the token is stale"),
        Err(why) => {
            begun.info(&why);
            return None;
        }
    }
    Some(store)
}

async fn fenced_turn(lock_client: &mut LockClient, session: &Session, stores: &mut Stores) {
    let Some(turn) = begin(lock_client, session, stores).await else { return };
    let value = if lock_client.look(&turn.under, &turn.guard) { None } else { read(lock_client, &turn).await };
    let longest_ms = if lock_client.kit.chance(5) { 300 } else { 20 };
    let stay_ms = lock_client.kit.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    let lost = lock_client.look(&turn.under, &turn.guard);
    let CountingTurn { under, number, store, guard } = turn;
    let Some(value) = value else { return lock_client.release(&under, guard).await };
    // What a good program does not do, and a paused one does all the same: it writes although the lock is gone.
    let late = lock_client.kit.chance(8) || lost && lock_client.kit.chance(50);
    let left = if late {
        lock_client.release(&under, guard).await;
        let pause_ms = lock_client.kit.rng.random_range(0..100);
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        write(lock_client, &under, store, value + 1, true).await
    } else {
        let left = if lost { Some(store) } else { write(lock_client, &under, store, value + 1, false).await };
        if lock_client.kit.chance(LEAVE_PERCENT) {
            lock_client.leave(&under, guard).await;
        } else {
            lock_client.release(&under, guard).await;
        }
        left
    };
    stores.open.extend(left.map(|store| (number, store)));
}

/// Almost all of the time somebody is between reading and writing, which is where a pause is to hit.
async fn unfenced_turn(lock_client: &mut LockClient, session: &Session, stores: &mut Stores) {
    let Some(turn) = begin(lock_client, session, stores).await else { return };
    let value = read(lock_client, &turn).await;
    let CountingTurn { under, number, store, guard } = turn;
    if let Some(value) = value {
        let stay_ms = lock_client.kit.rng.random_range(50..150);
        tokio::time::sleep(Duration::from_millis(stay_ms)).await;
        let left = write(lock_client, &under, store, value + 1, false).await;
        stores.open.extend(left.map(|store| (number, store)));
    }
    lock_client.release(&under, guard).await;
}
