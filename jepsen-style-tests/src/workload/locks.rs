//! The workloads that are about locks alone: `lock`, `rw-lock`, `semaphore`, `lock-delay` and `multi-lock`. A row says
//! which locks they have; their clients ask, hold for a while, look at what they hold, and give it back in every way
//! there is.
//!
//! `lock` waits with a bound, tries, and breaks waits off; through guards (even clients) and through plain calls (odd
//! ones). Some try to give back what is another's, which is refused, and some take it by force, which is not. In
//! `lock-delay` some holders die: their session is not renewed any more (under `client-kill` whole processes die).
//! Nobody may be granted their lock before the delay has passed by the replicated clock, which is read where it shows:
//! the end of a kept place in the lock's view, and the time of a node that the next holder makes.

use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::api::nodes::Kind;
use lockkeeper_client::locks::{Guard, WriteGuard};
use lockkeeper_client::{Error, Lock};
use rand::seq::IndexedRandom as _;

use super::lock_client::{self, EMPTY_WITHIN, LEAVE_PERCENT, asks, end_failed, under};
use crate::check::locks;
use crate::history::ops::{AcquireRequest, ClockReading, KeptPlace};
use crate::workload::prelude::*;

const LONGEST_WAIT_MS: u64 = 1_500;

/// `rw-lock`: how many of a hundred turns read.
const READERS_PERCENT: u32 = 65;

/// `semaphore`: the permits of each.
const PERMITS: [u16; 2] = [2, 3];

/// `multi-lock`: how many are taken together.
const TOGETHER: usize = 3;
const LONGEST_WAIT_FOR_ALL_MS: u64 = 2_500;

/// `lock-delay`: below this a holder makes a node that shows the replicated clock.
const MARKS: &str = "/jepsen-marks";
const DELAY_MS: u32 = 1_000;
const LONGEST_WAIT_FOR_THE_DEAD_MS: u64 = 3_000;
const DIE_PERCENT: u32 = 4;
/// One client in so many dies when it holds for the first time, so that in every run some do, and do so early.
const DOOMED_OF: u32 = 3;
/// One client in so many looks at the locks beside what it does. Not those that die.
const LOOKS_OUT_OF: u32 = 3;

/// What is asked of the locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Exclusive,
    ReadWrite,
    Permits,
    Delayed,
    Together,
}

/// One of them.
pub(super) struct LockWorkload {
    name: &'static str,
    about: &'static str,
    form: Form,
    locks: &'static [&'static str],
    /// The longest pause between two turns.
    think_ms: u64,
    /// How long the queues have to become empty, once the clients have gone.
    empty_within: Duration,
}

pub(super) const LOCK: LockWorkload = LockWorkload {
    name: "lock",
    about: "exclusive locks: waiting, trying, breaking off, giving back one's own and another's, by force too",
    form: Form::Exclusive,
    // The last is wanted so seldom that it is made anew, with its directory, now and then.
    locks: &["jepsen/lock-a", "jepsen/lock-b", "jepsen/lock-c", "jepsen/lock-seldom"],
    think_ms: 25,
    empty_within: EMPTY_WITHIN,
};

pub(super) const RW_LOCK: LockWorkload = LockWorkload {
    name: "rw-lock",
    about: "readers and writers; writers that become readers",
    form: Form::ReadWrite,
    locks: &["jepsen/shelf-a", "jepsen/shelf-b"],
    think_ms: 25,
    empty_within: EMPTY_WITHIN,
};

pub(super) const SEMAPHORE: LockWorkload = LockWorkload {
    name: "semaphore",
    about: "semaphores of two and three permits, wanted by more",
    form: Form::Permits,
    locks: &["jepsen/berths-2", "jepsen/berths-3"],
    think_ms: 20,
    empty_within: EMPTY_WITHIN,
};

pub(super) const LOCK_DELAY: LockWorkload = LockWorkload {
    name: "lock-delay",
    about: "holders with a lock delay that die while they hold; nobody before the delay has passed by the replicated \
        clock",
    form: Form::Delayed,
    // More than there are clients that die early, so that one at least goes on.
    locks: &["jepsen/quiet-a", "jepsen/quiet-b", "jepsen/quiet-c", "jepsen/quiet-d", "jepsen/quiet-e"],
    think_ms: 25,
    empty_within: Duration::from_secs(20),
};

pub(super) const MULTI_LOCK: LockWorkload = LockWorkload {
    name: "multi-lock",
    about: "three of seven locks together, in random order: no standstill, nothing in part",
    form: Form::Together,
    locks: &[
        "jepsen/many-1",
        "jepsen/many-2",
        "jepsen/many-3",
        "jepsen/many-4",
        "jepsen/many-5",
        "jepsen/many-6",
        "jepsen/many-7",
    ],
    think_ms: 20,
    empty_within: EMPTY_WITHIN,
};

/// How a client goes on after a turn.
enum After {
    GoOn,
    Close,
    Die,
}

#[async_trait]
impl Workload for LockWorkload {
    fn facts(&self) -> Facts {
        Facts { name: self.name, about: self.about, promises: locks::PROMISES }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let client = context.client;
        if self.form == Form::Exclusive {
            return contend(context, self.locks, client % 2 == 1).await;
        }
        let mut lock_client = LockClient::new(context.clone())?;
        let (mut looking, mut doomed) = (None, false);
        if self.form == Form::Delayed {
            if !lock_client.kit.prepare(&[MARKS]).await {
                return Ok(());
            }
            looking = (client % LOOKS_OUT_OF == 1).then(|| tokio::spawn(look_out(context, self.locks)));
            doomed = client.is_multiple_of(DOOMED_OF);
        }
        while let Some(session) = lock_client.session().await {
            let after = self.turn(&mut lock_client, &session, client, doomed).await;
            doomed &= !matches!(after, After::Die);
            drop(session);
            match after {
                After::GoOn => {}
                After::Close => drop(lock_client.close().await),
                After::Die => lock_client.abandon(),
            }
            lock_client.kit.think(0..self.think_ms).await;
        }
        lock_client.close().await;
        match looking {
            Some(looking) => looking.await.map_err(|error| error.to_string())?,
            None => Ok(()),
        }
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        lock_client::conclude(context, self.locks, self.empty_within).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        match self.form {
            Form::Exclusive => locks::exclusive(run, self.locks),
            Form::ReadWrite => locks::readers_and_writers(run, self.locks),
            Form::Permits => {
                let semaphores: Vec<(&str, u16)> = self.locks.iter().copied().zip(PERMITS).collect();
                locks::semaphores(run, &semaphores)
            }
            Form::Delayed => locks::delayed(run, self.locks),
            Form::Together => locks::together(run, self.locks),
        }
    }
}

impl LockWorkload {
    async fn turn(&self, lock_client: &mut LockClient, session: &Session, client: u32, doomed: bool) -> After {
        // Those that die early do so each at another lock, as nobody gets on there for some seconds.
        let at =
            if doomed { (client / DOOMED_OF) as usize } else { lock_client.kit.rng.random_range(0..self.locks.len()) };
        let name = self.locks[at % self.locks.len()];
        match self.form {
            Form::Delayed => return delayed_turn(lock_client, session, name, doomed).await,
            Form::Permits => permit_turn(lock_client, session, name, PERMITS[at]).await,
            Form::Together => joint_turn(lock_client, session, self.locks).await,
            _ if lock_client.kit.chance(READERS_PERCENT) => read(lock_client, session, name).await,
            _ => write(lock_client, session, name).await,
        }
        After::GoOn
    }
}

/// Takes one of these locks after the other, of which the last is wanted seldom, until it is to end.
pub(super) async fn contend(context: ClientContext, locks: &[&str], plain: bool) -> Result<(), String> {
    let mut lock_client = LockClient::new(context)?;
    while let Some(session) = lock_client.session().await {
        let lock = one_of(&mut lock_client.kit, locks);
        if lock_client.kit.chance(4) {
            lock_client.steal(&session, lock).await;
        }
        if lock_client.kit.chance(1) {
            lock_client.force(&session, lock).await;
        }
        let after = if plain {
            plain_turn(&mut lock_client, &session, lock).await
        } else {
            guarded_turn(&mut lock_client, &session, lock).await;
            After::GoOn
        };
        if matches!(after, After::Close) || lock_client.kit.chance(1) {
            lock_client.close().await;
        }
        lock_client.kit.think(0..25).await;
    }
    lock_client.close().await;
    Ok(())
}

/// One of the locks by chance, seldom the last.
pub(super) fn one_of<'a>(kit: &mut ClientKit, locks: &[&'a str]) -> &'a str {
    let often = kit.rng.random_range(0..locks.len() - 1);
    if kit.chance(2) { locks[locks.len() - 1] } else { locks[often] }
}

/// How long to wait: now and then only a try, and now and then for so long that a lost wake-up would be felt.
pub(super) fn patience_ms(kit: &mut ClientKit) -> u64 {
    match kit.rng.random_range(0..100) {
        0..15 => 0,
        15..30 => LONGEST_WAIT_MS * 4,
        _ => kit.rng.random_range(50..LONGEST_WAIT_MS),
    }
}

/// How long to wait: now and then only a try.
fn patience(kit: &mut ClientKit, longest_ms: u64) -> (u64, Duration) {
    let wait_ms = if kit.chance(10) { 0 } else { kit.rng.random_range(100..longest_ms) };
    (wait_ms, Duration::from_millis(wait_ms))
}

async fn guarded_turn(lock_client: &mut LockClient, session: &Session, name: &str) {
    let lock = session.lock(name);
    let wait_ms = patience_ms(&mut lock_client.kit);
    let asks = asks(name, Mode::Exclusive, wait_ms, session);
    if wait_ms > 0 && lock_client.kit.chance(5) {
        return broken_off(lock_client, &asks, &lock).await;
    }
    let wait = async {
        match wait_ms {
            0 => lock.try_lock().await,
            _ => lock.lock_timeout(Duration::from_millis(wait_ms)).await,
        }
    };
    let Some(guard) = lock_client.acquire(&asks, wait).await else { return };
    let under = under(&asks, guard.token());
    hold(lock_client, &under, || guard.is_lost()).await;
    if lock_client.kit.chance(10) {
        // Given back in the background, and nobody says when.
        let begun = lock_client.recorder().begin(ops::RELEASE, &under);
        drop(guard);
        return begun.info("dropped");
    }
    if lock_client.kit.chance(LEAVE_PERCENT) {
        return lock_client.leave(&under, guard).await;
    }
    lock_client.release(&under, guard).await;
    if lock_client.kit.chance(10) {
        lock_client.verify(&under).await;
    }
}

/// Waits, and goes away while it waits: the library takes the request back.
async fn broken_off(lock_client: &LockClient, asks: &AcquireRequest, lock: &Lock) {
    let begun = lock_client.recorder().begin(ops::ACQUIRE, asks);
    match tokio::time::timeout(Duration::from_millis(asks.wait_ms / 20 + 1), lock.lock()).await {
        Ok(Ok(guard)) => {
            let under = under(asks, guard.token());
            begun.ok(&Granted { token: guard.token() }, Some(guard.zxid()));
            lock_client.release(&under, guard).await;
        }
        Ok(Err(error)) => end_failed(begun, &error),
        Err(_) => begun.info("broken off"),
    }
}

/// By plain calls. What may still be open in the session after it ends with that.
async fn plain_turn(lock_client: &mut LockClient, session: &Session, name: &str) -> After {
    let asks = asks(name, Mode::Exclusive, patience_ms(&mut lock_client.kit), session);
    let under = match acquire(lock_client, session, &asks).await {
        Ok(under) => under,
        Err(after) => return after,
    };
    hold(lock_client, &under, || session.left().is_zero()).await;
    release(lock_client, session, &under).await
}

/// Asks for one lock by a plain call; or how to go on without it.
async fn acquire(lock_client: &LockClient, session: &Session, asks: &AcquireRequest) -> Result<TokenRef, After> {
    let acquire = Acquire { wait_ms: asks.wait_ms, delay_ms: asks.delay_ms, ..Acquire::default() };
    let begun = lock_client.recorder().begin(ops::ACQUIRE, asks);
    match session.client().acquire(&asks.locks[0], &acquire).await {
        Ok(acquired) => {
            begun.ok(&Granted { token: acquired.token }, Some(acquired.zxid));
            Ok(under(asks, acquired.token))
        }
        Err(error) => {
            end_failed(begun, &error);
            lock_client.rest().await;
            Err(if matches!(error, Error::Refused(_)) { After::GoOn } else { After::Close })
        }
    }
}

/// Gives one lock back by a plain call.
async fn release(lock_client: &LockClient, session: &Session, under: &TokenRef) -> After {
    let begun = lock_client.recorder().begin(ops::RELEASE, under);
    match session.client().release(&under.locks[0], under.token).await {
        Ok(released) => {
            begun.ok(&Value::Null, Some(released.zxid));
            After::GoOn
        }
        Err(error) => {
            end_failed(begun, &error);
            After::Close
        }
    }
}

/// What a holder does: looks at its guard, stays a while, has its token verified now and then, looks again.
async fn hold(lock_client: &mut LockClient, under: &TokenRef, is_lost: impl Fn() -> bool) {
    lock_client.looked(under, &is_lost);
    if lock_client.kit.chance(15) {
        lock_client.verify(under).await;
    }
    let longest_ms = if lock_client.kit.chance(5) { 300 } else { 20 };
    let stay_ms = lock_client.kit.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.looked(under, &is_lost);
}

/// Has its token verified now and then, stays, looks at its guard.
async fn stay<K>(lock_client: &mut LockClient, under: &TokenRef, guard: &Guard<K>, longest_ms: u64) {
    if lock_client.kit.chance(10) {
        lock_client.verify(under).await;
    }
    let stay_ms = lock_client.kit.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.look(under, guard);
}

/// Gives back, now and then with the whole session.
async fn give_back<K>(lock_client: &mut LockClient, under: &TokenRef, guard: Guard<K>) {
    if lock_client.kit.chance(LEAVE_PERCENT) {
        return lock_client.leave(under, guard).await;
    }
    lock_client.release(under, guard).await;
}

async fn read(lock_client: &mut LockClient, session: &Session, name: &str) {
    let (wait_ms, wait) = patience(&mut lock_client.kit, LONGEST_WAIT_MS);
    let asks = asks(name, Mode::Shared, wait_ms, session);
    let lock = session.rw_lock(name);
    let asked = async { if wait_ms == 0 { lock.try_read().await } else { lock.read_timeout(wait).await } };
    let Some(guard) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(lock_client, &under, &guard, 20).await;
    give_back(lock_client, &under, guard).await;
}

async fn write(lock_client: &mut LockClient, session: &Session, name: &str) {
    let (wait_ms, wait) = patience(&mut lock_client.kit, LONGEST_WAIT_MS);
    let asks = asks(name, Mode::Write, wait_ms, session);
    let lock = session.rw_lock(name);
    let asked = async { if wait_ms == 0 { lock.try_write().await } else { lock.write_timeout(wait).await } };
    let Some(guard) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(lock_client, &under, &guard, 20).await;
    if lock_client.kit.chance(30) {
        downgrade(lock_client, &under, guard).await;
    } else {
        give_back(lock_client, &under, guard).await;
    }
}

async fn downgrade(lock_client: &mut LockClient, under: &TokenRef, guard: WriteGuard) {
    let begun = lock_client.recorder().begin(ops::DOWNGRADE, under);
    match guard.downgrade().await {
        Ok(guard) => {
            begun.ok(&Value::Null, None);
            stay(lock_client, under, &guard, 20).await;
            lock_client.release(under, guard).await;
        }
        Err(error) => {
            // Given back by now, or on the way there.
            let letting = lock_client.recorder().begin(ops::RELEASE, under);
            end_failed(begun, &error);
            letting.info("after a downgrade that failed");
        }
    }
}

async fn permit_turn(lock_client: &mut LockClient, session: &Session, name: &str, permits: u16) {
    let (wait_ms, wait) = patience(&mut lock_client.kit, LONGEST_WAIT_MS);
    let asks = AcquireRequest { permits: Some(permits), ..asks(name, Mode::Permit, wait_ms, session) };
    let semaphore = session.semaphore(name, permits);
    let asked =
        async { if wait_ms == 0 { semaphore.try_acquire().await } else { semaphore.acquire_timeout(wait).await } };
    let Some(permit) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, permit.token());
    let longest_ms = if lock_client.kit.chance(5) { 300 } else { 25 };
    stay(lock_client, &under, &permit, longest_ms).await;
    give_back(lock_client, &under, permit).await;
}

/// Some take one of the locks alone.
async fn joint_turn(lock_client: &mut LockClient, session: &Session, locks: &[&str]) {
    let count = if lock_client.kit.chance(15) { 1 } else { TOGETHER };
    // In the order in which they were drawn: it is the library that brings them into one order.
    let names: Vec<String> =
        locks.choose_multiple(&mut lock_client.kit.rng, count).map(|name| (*name).to_owned()).collect();
    let (wait_ms, wait) = patience(&mut lock_client.kit, LONGEST_WAIT_FOR_ALL_MS);
    let asks = AcquireRequest { locks: names.clone(), ..asks("", Mode::Exclusive, wait_ms, session) };
    let several = session.multi_lock(names);
    let asked = async { if wait_ms == 0 { several.try_lock().await } else { several.lock_timeout(wait).await } };
    let Some(guard) = lock_client.acquire(&asks, asked).await else { return };
    let under = under(&asks, guard.token());
    stay(lock_client, &under, &guard, 15).await;
    give_back(lock_client, &under, guard).await;
}

/// By plain calls: a guard would give the lock back when it is dropped.
async fn delayed_turn(lock_client: &mut LockClient, session: &Session, name: &str, doomed: bool) -> After {
    let wait_ms = lock_client.kit.rng.random_range(200..LONGEST_WAIT_FOR_THE_DEAD_MS);
    let asks = AcquireRequest { delay_ms: DELAY_MS, ..asks(name, Mode::Exclusive, wait_ms, session) };
    let under = match acquire(lock_client, session, &asks).await {
        Ok(under) => under,
        Err(after) => return after,
    };
    mark(lock_client, session, &under).await;
    let stay_ms = lock_client.kit.rng.random_range(0..30);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    lock_client.looked(&under, || session.left().is_zero());
    if doomed || lock_client.kit.chance(DIE_PERCENT) {
        return After::Die;
    }
    release(lock_client, session, &under).await
}

/// Reads the replicated clock while holding: it stands in what one makes.
async fn mark(lock_client: &LockClient, session: &Session, under: &TokenRef) {
    let begun = lock_client.recorder().begin(ops::MARK, under);
    let node = Create { kind: Kind::Ephemeral, ..Create::default() };
    let path = format!("{MARKS}/t{}", under.token);
    match session.client().create(&path, &node).await {
        Ok(made) => {
            begun.ok(&ClockReading { clock_ms: made.stat.ctime_ms }, Some(made.zxid));
            // That it goes with the session will do.
            let _ = session.client().delete(&path, None).await;
        }
        Err(error) => end_failed(begun, &error),
    }
}

/// Looks at all the locks over and over, and records each place that is kept for a dead holder, until when. Those that
/// die are not there to see it, nor are those that were killed: one in each process looks.
async fn look_out(context: ClientContext, locks: &'static [&'static str]) -> Result<(), String> {
    let mut kit = ClientKit::new(context)?;
    let mut seen = BTreeSet::new();
    while kit.think(150..250).await {
        for lock in locks {
            let Ok(view) = kit.client.lock(lock).await else { continue };
            for place in view.holders.iter().chain(&view.queue) {
                let name = place.path.rsplit('/').next().and_then(lockkeeper_checkers::name::parse);
                let (Some(until_ms), Some(dead)) = (place.delayed_until_ms, name.and_then(|name| name.keeps_place_of))
                else {
                    continue;
                };
                if seen.insert(dead) {
                    let kept = KeptPlace { lock: (*lock).to_owned(), dead, since_ms: place.since_ms, until_ms };
                    kit.context.recorder.note(ops::KEPT, &kept, Some(view.zxid));
                }
            }
        }
    }
    Ok(())
}
