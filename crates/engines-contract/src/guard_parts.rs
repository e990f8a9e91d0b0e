//! Parts of the contract on guards: renewal, and the report of a loss.

use lockkeeper_engines::{EngineError, Guard, LockRequest, Wait, lock};
use tokio::time::{Instant, sleep, timeout};

use super::{Bench, Found, LOOK_EVERY, check, is_lost, must_be_held, text, until_free};

async fn guard(bench: &Bench<'_>, request: &LockRequest) -> Result<Guard, String> {
    lock(bench.engine(), request).await.map_err(text)?.ok_or_else(|| "a free lock is not granted".to_owned())
}

/// A guard holds for as long as it lives.
pub(super) async fn renewal(bench: &Bench<'_>) -> Found {
    let (other, request) = (bench.engine(), bench.request("one", Wait::Try));
    let guard = guard(bench, &request).await?;
    let begun = Instant::now();
    while begun.elapsed() < request.lease.mul_f32(2.5) {
        must_be_held(&*other, &request, "while a guard renews it").await?;
        check(!guard.is_lost(), "a guard that renews its lease calls it lost")?;
        sleep(LOOK_EVERY * 5).await;
    }
    check(guard.run(async { 7 }).await == Ok(7), "work under a guard does not run")?;
    guard.release().await.map_err(text)?;
    let again = super::hold(&*other, &request).await?;
    other.release(&again).await.map_err(text)?;
    // The drop of a guard releases it.
    drop(self::guard(bench, &request).await?);
    until_free(&*other, &request, request.lease / 2, "after the drop of a guard").await
}

/// A holder whose lock is taken away is reported within its lease, and its work stops.
pub(super) async fn loss(bench: &Bench<'_>) -> Found {
    let request = bench.request("one", Wait::Try);
    let guard = guard(bench, &request).await?;
    bench.subject.break_lock(&bench.lock("one")).await;
    let reported = timeout(request.lease, guard.lost()).await;
    check(reported.is_ok(), format!("no report of the loss within the lease of {:?}", request.lease))?;
    check(guard.is_lost() && guard.remaining().is_zero(), "a lost guard claims to hold")?;
    let worked = guard.run(async {}).await;
    check(is_lost(&worked), format!("work under a lost guard gives {worked:?}"))?;
    let released = guard.release().await;
    check(matches!(released, Err(EngineError::Lost(_))), format!("the release of a lost lock gives {released:?}"))?;
    let other = bench.engine();
    until_free(&*other, &request, request.lease * 2, "after the lock was taken away").await
}
