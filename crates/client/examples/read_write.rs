//! Readers share a lock, a writer has it alone, and a writer becomes a reader without another writer in between.
//!
//! `cargo run -p lockkeeper-client --example read_write`

mod support;

use support::{Outcome, check, own, session};

#[tokio::main]
async fn main() -> Outcome {
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
