//! The middleware of the example, on a real HTTP server: a stale writer is refused, also one that passes while another
//! request is at work, and also after a restart.

#[path = "../../examples/support/fence.rs"]
mod fence;

use std::sync::Arc;

use axum::extract::State;
use axum::routing::put;
use lockkeeper_client::fencing::FencedFile;
use lockkeeper_client::fencing::http::TOKEN_HEADER;
use parking_lot::Mutex;
use tokio::sync::Notify;

use fence::{Fence, fenced};

/// A document whose writers wait for a permission in the middle of their write.
#[derive(Clone, Default)]
struct Document {
    text: Arc<Mutex<String>>,
    begun: Arc<Notify>,
    may_end: Arc<Notify>,
}

async fn write(State(document): State<Document>, body: String) {
    if body.starts_with("slow") {
        document.begun.notify_one();
        document.may_end.notified().await;
    }
    document.text.lock().push_str(&body);
}

async fn serve(document: Document, fence: Fence) -> String {
    let service = axum::Router::new()
        .route("/document", put(write))
        .layer(axum::middleware::from_fn_with_state(fence, fenced))
        .with_state(document);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/document", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, service).await });
    url
}

async fn sent(url: &str, token: &str, text: &'static str) -> (u16, String) {
    let answer = reqwest::Client::new().put(url).header(TOKEN_HEADER, token).body(text).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn a_stale_writer_is_refused_by_the_service() {
    let directory = tempfile::tempdir().unwrap();
    let fence = || Fence::new(FencedFile::new(directory.path().join("fence")));
    let document = Document::default();
    let url = serve(document.clone(), fence()).await;

    assert_eq!(sent(&url, "33", "a").await.0, 200);
    assert_eq!(sent(&url, "34", "b").await.0, 200);
    let (status, why) = sent(&url, "33", "late").await;
    assert!(status == 412 && why.contains("34 has been here"), "{status} {why}");
    assert_eq!(sent(&url, "34", "c").await.0, 200, "34 still holds");
    assert_eq!(sent(&url, "x", "late").await.0, 400);
    let without = reqwest::Client::new().put(&url).body("late").send().await.unwrap();
    assert_eq!(without.status(), 428);

    // A later holder cannot get in between the check and the write of an earlier one.
    let slow = tokio::spawn({
        let url = url.clone();
        async move { sent(&url, "35", "slow").await.0 }
    });
    document.begun.notified().await;
    let next = sent(&url, "36", "d");
    let permission = async {
        tokio::task::yield_now().await;
        document.may_end.notify_one();
    };
    let ((status, _), ()) = tokio::join!(next, permission);
    assert_eq!((slow.await.unwrap(), status), (200, 200));
    assert_eq!(*document.text.lock(), "abcslowd");

    let restarted = serve(document.clone(), fence()).await;
    assert_eq!(sent(&restarted, "35", "late").await.0, 412, "a restart does not forget the token");
    assert_eq!(*document.text.lock(), "abcslowd");
}
