//! Locks that their holder may take again, that readers share, that several hold, and several locks at once.
//!
//! `cargo run -p lockkeeper-client --example lock_kinds`

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_client::Error;
use lockkeeper_client::api::Code;
use lockkeeper_client::locks::ReentrantLock;
use support::{Outcome, check, own, session};

const PERMITS: u16 = 3;
const TASKS: usize = 30;
const SEATS: usize = 12;
const MEALS: usize = 5;

#[tokio::main]
async fn main() -> Outcome {
    reentrant().await?;
    read_write().await?;
    semaphore().await?;
    several().await
}

async fn deposit(ledger: &ReentrantLock) -> Result<u64, Error> {
    let guard = ledger.lock().await?;
    let token = guard.token();
    guard.release().await?;
    Ok(token)
}

/// A function that takes a lock calls another that takes it too.
async fn reentrant() -> Outcome {
    let name = own("ledger");
    let (here, elsewhere) = (session("here").await?, session("elsewhere").await?);
    let ledger = here.reentrant(&name);

    let outer = ledger.lock().await?;
    let inner_token = deposit(&ledger).await?;
    check(inner_token == outer.token(), "the same task comes in again, under the same token")?;
    check(outer.hold_count() == 1, "and has left once")?;
    check(elsewhere.reentrant(&name).try_lock().await?.is_none(), "another session stays out")?;
    let other_task = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.try_lock().await.map(|guard| guard.is_none()) }
    });
    check(other_task.await??, "so does another task of this process")?;
    outer.release().await?;

    // Where the work moves between tasks the owner is named.
    let first = ledger.lock_as("request 7").await?;
    let second = tokio::spawn(async move { ledger.lock_as("request 7").await }).await??;
    check((second.hold_count(), second.token()) == (2, first.token()), "an owner may be in several tasks")?;
    first.release().await?;
    check(elsewhere.lock(&name).try_lock().await?.is_none(), "it is held until the last has left")?;
    second.release().await?;
    let guard = elsewhere.lock(&name).lock().await?;
    Ok(guard.release().await?)
}

/// Readers share a lock, a writer has it alone, and a writer becomes a reader without another writer in between.
async fn read_write() -> Outcome {
    let name = own("prices");
    let (ann, bob) = (session("ann").await?, session("bob").await?);
    let (here, there) = (ann.rw_lock(&name), bob.rw_lock(&name));

    let (one, two) = (here.read().await?, there.read().await?);
    check(there.try_write().await?.is_none(), "no writer while two read")?;

    // A writer that waits goes before readers that come later: it does not starve.
    let writing = tokio::spawn({
        let there = there.clone();
        async move { there.write().await }
    });
    while ann.client().lock(&name).await?.waiting == 0 {
        tokio::task::yield_now().await;
    }
    check(here.try_read().await?.is_none(), "no new reader before the writer that waits")?;
    one.release().await?;
    two.release().await?;
    let writer = writing.await??;
    check(here.try_read().await?.is_none(), "no reader while one writes")?;

    let token = writer.token();
    let reader = writer.downgrade().await?;
    let another = here.read().await?;
    check(reader.token() == token, "the writer reads on under its token, and others read beside it")?;
    check(there.try_write().await?.is_none(), "and nobody writes meanwhile")?;
    another.release().await?;
    reader.release().await?;
    let writer = here.write().await?;
    Ok(writer.release().await?)
}

/// Thirty tasks, three permits: never more than three work at a time, and all get their turn.
async fn semaphore() -> Outcome {
    let name = own("printers");
    let sessions = [session("a").await?, session("b").await?, session("c").await?];
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let printers = sessions[number % 3].semaphore(&name, PERMITS);
        let (inside, most) = (inside.clone(), most.clone());
        tasks.push(tokio::spawn(async move {
            let permit = printers.acquire().await?;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        }));
    }
    for task in tasks {
        task.await??;
    }
    let most = most.load(Ordering::SeqCst);
    check(most <= usize::from(PERMITS), &format!("never more than {PERMITS} inside (most: {most})"))?;
    check(most > 1, "and not one by one")?;

    // All must state the same number.
    let held = sessions[0].semaphore(&name, PERMITS).acquire().await?;
    let other = sessions[1].semaphore(&name, PERMITS + 1).try_acquire().await;
    let refused = other.err().as_ref().and_then(Error::code) == Some(Code::LockMismatch);
    check(refused, "a semaphore of another size under the same name is refused")?;
    Ok(held.release().await?)
}

/// Twelve philosophers around a table take two forks each, both or none, in one transaction: no philosopher starves,
/// and there is no deadlock.
async fn several() -> Outcome {
    let forks: Vec<String> = (0..SEATS).map(|fork| own(&format!("fork {fork}"))).collect();
    let taken: Arc<Vec<AtomicBool>> = Arc::new((0..SEATS).map(|_| AtomicBool::new(false)).collect());
    let mut dinner = Vec::new();
    for seat in 0..SEATS {
        let (left, right) = (seat, (seat + 1) % SEATS);
        let pair = session(&format!("philosopher {seat}")).await?.multi_lock([&forks[left], &forks[right]]);
        let taken = taken.clone();
        dinner.push(tokio::spawn(async move {
            let mut twice = 0;
            for _ in 0..MEALS {
                let guard = pair.lock().await?;
                for fork in [left, right] {
                    twice += u32::from(taken[fork].swap(true, Ordering::SeqCst));
                }
                tokio::task::yield_now().await;
                for fork in [left, right] {
                    taken[fork].store(false, Ordering::SeqCst);
                }
                guard.release().await?;
            }
            Ok::<u32, Error>(twice)
        }));
    }
    let mut twice = 0;
    for philosopher in dinner {
        twice += philosopher.await??;
    }
    check(twice == 0, &format!("{SEATS} philosophers had {MEALS} meals each, and no fork was in two hands"))?;

    let (ann, bob) = (session("ann").await?, session("bob").await?);
    let one = bob.lock(&forks[1]).lock().await?;
    let two = ann.multi_lock([&forks[0], &forks[1]]).try_lock().await?;
    check(two.is_none(), "not both while one is taken")?;
    let other = bob.lock(&forks[0]).try_lock().await?.ok_or("the other fork was kept")?;
    check(other.token() > one.token(), "and the other is not kept either")?;
    one.release().await?;
    Ok(other.release().await?)
}
