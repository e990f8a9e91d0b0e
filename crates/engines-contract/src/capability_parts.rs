//! Parts of the contract on what only some engines promise. Where an engine does not, the lack is a typed error.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use lockkeeper_engines::{Capability, LockEngine, LockRequest, Mode, Wait, lock};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{
    Bench, Found, LOOK_EVERY, PART_ENDS_WITHIN, check, hold, is_missing, is_refused, must_be_held, text, until_free,
};

/// Tokens rise from holder to holder and can be verified, or there are none.
pub(super) async fn tokens(bench: &Bench<'_>) -> Found {
    let (engine, request) = (bench.engine(), bench.request("one", Wait::Try));
    let name = bench.lock("one");
    if !engine.capabilities().has(Capability::FencingToken) {
        let guard = lock(engine.clone(), &request).await.map_err(text)?.ok_or("a free lock is not granted")?;
        check(is_missing(&guard.token()), format!("an engine without tokens has {:?}", guard.token()))?;
        check(guard.lease().tokens.is_empty(), "a lease of an engine without tokens has one")?;
        let verified = engine.verify(&name, 1).await;
        check(is_missing(&verified), format!("an engine without tokens verifies {verified:?}"))?;
        return guard.release().await.map_err(text);
    }
    let mut last = 0;
    for round in 0..4 {
        let engine = bench.engine();
        let lease = hold(&*engine, &request).await?;
        let token = lease.token().ok_or("a lease has no token")?;
        check(token > last, format!("token {token} comes after {last}"))?;
        check(engine.verify(&name, token).await.map_err(text)?, "the holder's token is not valid")?;
        check(!engine.verify(&name, last).await.map_err(text)?, "the token of an earlier holder is valid")?;
        last = token;
        match round {
            // Also when the holder is gone, or its lock was taken away.
            1 => {
                bench.subject.break_lock(&name).await;
                until_free(&*bench.engine(), &request, request.lease * 3, "after the lock was taken away").await?;
            }
            _ => engine.release(&lease).await.map_err(text)?,
        }
        check(!engine.verify(&name, token).await.map_err(text)?, "a token is valid after the release")?;
    }
    Ok(())
}

/// Waiters get the lock in the order in which they came.
pub(super) async fn order(bench: &Bench<'_>) -> Found {
    let engine = bench.engine();
    if !engine.capabilities().has(Capability::Fair) {
        return Ok(());
    }
    let (name, request) = (bench.lock("one"), bench.patient("one"));
    let lease = hold(&*engine, &request).await?;
    let (sender, mut granted) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for number in 0..4_usize {
        let (own, request, sender) = (bench.engine(), request.clone(), sender.clone());
        waiters.push(tokio::spawn(async move {
            let lease = hold(&*own, &request).await?;
            let _ = sender.send(number);
            own.release(&lease).await.map_err(text)
        }));
        let begun = Instant::now();
        while bench.subject.waiting(&name).await <= number {
            check(begun.elapsed() < PART_ENDS_WITHIN, "a waiter does not show in the queue")?;
            engine.renew(&lease).await.map_err(text)?;
            sleep(LOOK_EVERY).await;
        }
    }
    engine.release(&lease).await.map_err(text)?;
    for waiter in waiters {
        waiter.await.map_err(|error| error.to_string())??;
    }
    let order: Vec<usize> = std::iter::from_fn(|| granted.try_recv().ok()).collect();
    check(order == [0, 1, 2, 3], format!("the lock went to {order:?}"))
}

/// Readers hold together and exclude a writer.
pub(super) async fn shared(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let writer = bench.request("one", Wait::Try);
    let reader = writer.clone().with_mode(Mode::Shared);
    if !first.capabilities().has(Capability::Shared) {
        let outcome = first.acquire(&reader).await;
        return check(is_missing(&outcome), format!("an engine without shared mode gives {outcome:?}"));
    }
    let one = hold(&*first, &reader).await?;
    let two = hold(&*second, &reader).await?;
    must_be_held(&*second, &writer, "while two read").await?;
    first.release(&one).await.map_err(text)?;
    must_be_held(&*first, &writer, "while one reads").await?;
    second.release(&two).await.map_err(text)?;
    let write = hold(&*first, &writer).await?;
    must_be_held(&*second, &reader, "while one writes").await?;
    first.release(&write).await.map_err(text)?;
    let mut several = LockRequest::together([bench.lock("a"), bench.lock("b")]).map_err(text)?;
    several.mode = Mode::Shared;
    several.lease = reader.lease;
    let outcome = first.acquire(&several).await;
    check(is_refused(&outcome), format!("several shared locks give {outcome:?}"))
}

/// Several locks: all or none, without deadlock, each excluded and given back.
pub(super) async fn several(bench: &Bench<'_>) -> Found {
    let (first, second) = (bench.engine(), bench.engine());
    let together = |wait: Wait| -> Result<LockRequest, String> {
        let mut request = LockRequest::together([bench.lock("b"), bench.lock("a"), bench.lock("b")]).map_err(text)?;
        (request.wait, request.lease) = (wait, bench.subject.lease());
        Ok(request)
    };
    // One of them is held: none is granted, and the other stays free.
    let b = hold(&*first, &bench.request("b", Wait::Try)).await?;
    check(second.acquire(&together(Wait::Try)?).await.map_err(text)?.is_none(), "a held lock is granted again")?;
    until_free(&*first, &bench.request("a", Wait::Try), bench.subject.lease() / 2, "beside a held lock").await?;
    first.release(&b).await.map_err(text)?;
    let all = hold(&*second, &together(Wait::AtMost(PART_ENDS_WITHIN))?).await?;
    check(all.locks == [bench.lock("a"), bench.lock("b")], format!("the lease has {:?}", all.locks))?;
    if second.capabilities().has(Capability::FencingToken) {
        let tokens = (all.token_of(&bench.lock("a")), all.token_of(&bench.lock("b")));
        check(tokens.0.is_some() && tokens.1.is_some(), "a lock of several has no token")?;
    }
    must_be_held(&*first, &bench.request("a", Wait::Try), "while several are held").await?;
    must_be_held(&*first, &bench.request("b", Wait::Try), "while several are held").await?;
    second.renew(&all).await.map_err(text)?;
    second.release(&all).await.map_err(text)?;
    for name in ["a", "b"] {
        until_free(&*first, &bench.request(name, Wait::Try), bench.subject.lease() / 2, "after several").await?;
    }
    // Requests that name the same locks in any order do not wait for each other in a circle.
    let client = |engine: Arc<dyn LockEngine>, names: [&str; 2]| {
        let names = names.map(|name| bench.lock(name));
        let lease = bench.subject.lease();
        async move {
            for _ in 0..3 {
                let mut request = LockRequest::together(names.clone()).map_err(text)?;
                (request.wait, request.lease) = (Wait::AtMost(PART_ENDS_WITHIN), lease);
                let held = hold(&*engine, &request).await?;
                engine.release(&held).await.map_err(text)?;
            }
            Ok(())
        }
    };
    let clients = [
        client(first.clone(), ["a", "b"]),
        client(second.clone(), ["b", "a"]),
        client(first, ["b", "c"]),
        client(second, ["c", "a"]),
    ];
    join_all(clients).await.into_iter().collect()
}

/// The holder of a lock can be shown, or the lack is an error.
pub(super) async fn holder(bench: &Bench<'_>) -> Found {
    let (engine, name) = (bench.engine(), bench.lock("one"));
    let mut request = bench.request("one", Wait::Try);
    request.label = "contract holder ä".into();
    let lease = hold(&*engine, &request).await?;
    let shown = bench.engine().holder(&name).await;
    if !engine.capabilities().has(Capability::ShowsHolder) {
        check(is_missing(&shown), format!("an engine that cannot show the holder shows {shown:?}"))?;
        return engine.release(&lease).await.map_err(text);
    }
    let shown = shown.map_err(text)?.ok_or("a held lock has no holder")?;
    let is_own = shown.label == request.label || bench.subject.names_holders_itself() && !shown.label.is_empty();
    check(is_own, format!("the holder is shown as {:?}", shown.label))?;
    check(shown.token == lease.token(), format!("the holder's token is shown as {:?}", shown.token))?;
    engine.release(&lease).await.map_err(text)?;
    // The next holder is another, whoever names it.
    request.label = "contract next holder".into();
    let (other, request) = (bench.engine(), request.with_wait(Wait::AtMost(PART_ENDS_WITHIN)));
    let lease = hold(&*other, &request).await?;
    let next = bench.engine().holder(&name).await.map_err(text)?.ok_or("a held lock has no holder")?;
    check(next.label != shown.label, format!("two holders are both shown as {:?}", next.label))?;
    other.release(&lease).await.map_err(text)?;
    let begun = Instant::now();
    while let Some(gone) = bench.engine().holder(&name).await.map_err(text)? {
        check(begun.elapsed() < Duration::from_secs(5), format!("a released lock has the holder {gone:?}"))?;
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
