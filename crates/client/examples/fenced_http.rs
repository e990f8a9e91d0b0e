//! A service that is the resource: it takes writes over HTTP, and its middleware refuses stale fencing tokens
//! (`support/fence.rs`, 20 lines). A holder that was paused gets 412, and its write is not carried out.
//!
//! `cargo run -p lockkeeper-client --example fenced_http`

mod support;

use std::sync::Arc;

use axum::extract::State;
use axum::routing::put;
use lockkeeper_client::fencing::FencedFile;
use lockkeeper_client::fencing::http::{STALE_STATUS, TOKEN_HEADER};
use parking_lot::Mutex;
use support::fence::{Fence, fenced};
use support::{Outcome, check, own, session};

type Document = Arc<Mutex<String>>;

async fn write(State(document): State<Document>, body: String) {
    *document.lock() = body;
}

#[tokio::main]
async fn main() -> Outcome {
    let directory = tempfile::tempdir()?;
    let fence = Fence::new(FencedFile::new(directory.path().join("document.fence")));
    let document = Document::default();
    let service = axum::Router::new()
        .route("/document", put(write))
        .layer(axum::middleware::from_fn_with_state(fence, fenced))
        .with_state(document.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/document", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, service).await });
    let http = reqwest::Client::new();
    let put = async |token: u64, text: &'static str| {
        let answer = http.put(&url).header(TOKEN_HEADER, token).body(text).send().await?;
        Ok::<u16, reqwest::Error>(answer.status().as_u16())
    };

    let lock = own("document");
    let (first, second) = (session("first").await?, session("second").await?);
    let paused = first.lock(&lock).lock().await?;
    check(put(paused.token(), "by the first").await? == 200, "the holder writes")?;
    second.client().force_release(&lock, paused.token()).await?;
    let guard = second.lock(&lock).lock().await?;
    check(put(guard.token(), "by the second").await? == 200, "the next holder writes")?;
    check(put(paused.token(), "too late").await? == STALE_STATUS, "the paused holder is refused")?;
    check(*document.lock() == "by the second", "nothing of the late write is there")?;
    check(http.put(&url).body("whose?").send().await?.status() == 428, "a write without a token is refused")?;
    guard.release().await?;
    Ok(())
}
