//! Parts of the contract on leases: one holder, waits, ownership, expiry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use lockkeeper_client::Moment;
use lockkeeper_engines::{LockEngine, LockRequest, Wait};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::{Bench, Found, check, hold, is_lost, is_refused, must_be_held, text, until_free};

/// Servers count whole milliseconds by clocks of their own.
const ROUNDING: Duration = Duration::from_millis(20);

/// Clients of two engines enter and leave; never are two inside.
pub(super) async fn exclusion(bench: &Bench<'_>) -> Found {
    let (engines, inside) = ([bench.engine(), bench.engine()], Arc::new(AtomicUsize::new(0)));
    let client = |number: usize| {
        let (engine, request, inside) = (engines[number % 2].clone(), bench.patient("one"), inside.clone());
        async move {
            for _ in 0..3 {
                let lease = hold(&*engine, &request).await?;
                let others = inside.fetch_add(1, Ordering::SeqCst);
                for _ in 0..20 {
                    yield_now().await;
                }
                let left = inside.fetch_sub(1, Ordering::SeqCst);
                check(others == 0 && left == 1, "two clients hold the lock")?;
                engine.release(&lease).await.map_err(text)?;
            }
            Ok(())
        }
    };
    join_all((0..4).map(client)).await.into_iter().collect()
}

/// A try does not wait; a released lock is free.
pub(super) async fn try_once(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let request = bench.request("one", Wait::Try);
    let lease = hold(&*first, &request).await?;
    must_be_held(&*second, &request, "while it is held").await?;
    must_be_held(&*first, &request, "while the same client holds it").await?;
    first.release(&lease).await.map_err(text)?;
    let again = hold(&*second, &request).await?;
    second.release(&again).await.map_err(text)
}

/// A waiter gets the lock when its holder releases it.
pub(super) async fn wait(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let request = bench.patient("one");
    let lease = hold(&*first, &request).await?;
    let waiter = request.clone().with_wait(Wait::Endless);
    let mut waiting = Box::pin(hold(&*second, &waiter));
    let early = timeout(request.lease / 10, &mut waiting).await;
    check(early.is_err(), "a waiter gets the lock while it is held")?;
    first.release(&lease).await.map_err(text)?;
    let granted = waiting.await?;
    must_be_held(&*first, &request, "after it was handed over").await?;
    second.release(&granted).await.map_err(text)
}

/// A wait ends in time and leaves nothing behind.
pub(super) async fn time_out(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let lease = hold(&*first, &bench.patient("one")).await?;
    let wait = bench.subject.lease() / 5;
    let begun = Instant::now();
    let outcome = second.acquire(&bench.request("one", Wait::AtMost(wait))).await.map_err(text)?;
    check(outcome.is_none(), "a second client holds the lock")?;
    check(begun.elapsed() + ROUNDING >= wait, format!("the wait of {wait:?} ended after {:?}", begun.elapsed()))?;
    first.release(&lease).await.map_err(text)?;
    until_free(&*first, &bench.patient("one"), bench.subject.lease() / 2, "after a wait that timed out").await
}

/// Nobody releases or renews another's lock with an old lease.
pub(super) async fn owner_only(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let request = bench.request("one", Wait::Try);
    let old = hold(&*first, &request).await?;
    first.release(&old).await.map_err(text)?;
    let current = hold(&*second, &request).await?;
    let outcome = first.release(&old).await;
    check(is_lost(&outcome), format!("the release of an old lease gives {outcome:?}"))?;
    let outcome = first.renew(&old).await;
    check(is_lost(&outcome), format!("the renewal of an old lease gives {outcome:?}"))?;
    must_be_held(&*first, &request, "after a release with an old lease").await?;
    second.release(&current).await.map_err(text)
}

/// A lease that nobody renews ends, not before its time, and its holder is told.
pub(super) async fn expiry(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let request = bench.patient("one");
    let begun = Instant::now();
    let lease = hold(&*first, &request).await?;
    let next = hold(&*second, &request).await?;
    check(begun.elapsed() + ROUNDING >= request.lease, format!("the next client holds after {:?}", begun.elapsed()))?;
    check(Moment::now() >= lease.ends_at, "a lease claims to hold beside the next one")?;
    let outcome = first.renew(&lease).await;
    check(is_lost(&outcome), format!("the renewal of an expired lease gives {outcome:?}"))?;
    let outcome = first.release(&lease).await;
    check(is_lost(&outcome), format!("the release of an expired lease gives {outcome:?}"))?;
    second.release(&next).await.map_err(text)
}

/// The drop of a future leaves neither a grant nor a place in a queue.
pub(super) async fn dropped(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let request = bench.patient("waiting");
    let lease = hold(&*first, &request).await?;
    let waited = timeout(request.lease / 10, second.acquire(&request)).await;
    check(waited.is_err(), "a second client holds the lock")?;
    first.release(&lease).await.map_err(text)?;
    until_free(&*first, &request, request.lease / 2, "after the drop of a waiter").await?;
    // At different stages of an acquisition of a free lock.
    for pause_us in [0, 50, 200, 1_000, 5_000] {
        let request = bench.patient(&format!("free-{pause_us}"));
        let mut acquiring = Box::pin(first.acquire(&request));
        if acquiring.as_mut().now_or_never().is_some() {
            continue;
        }
        if timeout(Duration::from_micros(pause_us), &mut acquiring).await.is_ok() {
            continue;
        }
        drop(acquiring);
        until_free(&*second, &request, request.lease * 2, "after the drop of an acquisition").await?;
    }
    Ok(())
}

async fn refused(engine: &dyn LockEngine, request: LockRequest, what: &str) -> Found {
    let outcome = engine.acquire(&request).await;
    check(is_refused(&outcome), format!("{what} gives {outcome:?}"))
}

/// What is out of bounds is refused, with a reason.
pub(super) async fn bounds(bench: &Bench<'_>) -> Found {
    let engine = bench.engine();
    let shortest = engine.capabilities().minimum_lease;
    check(!shortest.is_zero(), "the minimum lease is nothing")?;
    let request = bench.request("one", Wait::Try);
    refused(&*engine, request.clone().with_lease(shortest / 2), "a lease below the minimum").await?;
    refused(&*engine, request.clone().with_lease(Duration::MAX), "an endless lease").await?;
    refused(&*engine, request.clone().with_label("x".repeat(10_000)), "a long label").await?;
    let long = "x".repeat(10_000);
    for name in ["", "/", "a//b", "../a", "a/../b", "a\0b", "a\r\nDEL b", &long] {
        refused(&*engine, LockRequest::new(name).with_wait(Wait::Try), &format!("the name {name:?}")).await?;
        let holder = engine.holder(name).await;
        check(is_refused(&holder) || super::is_missing(&holder), format!("the holder of {name:?} is {holder:?}"))?;
    }
    Ok(())
}
