//! Rate limits over HTTP: what they answer, and who may.

use lockkeeper_api::Code;
use lockkeeper_api::rates::{PermitsTaken, RateView, Rates};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Cluster, Got, Running};

async fn take(node: &Running, name: &str, body: Value) -> Got {
    node.post(&format!("/v1/rates/{name}/take"), None, body).await
}

#[tokio::test]
async fn permits_are_granted_refused_and_shown() {
    let node = Cluster::start(1).await;
    let rate = |permits: u32| json!({ "permits": permits, "limit": 5, "per_ms": 3_600_000 });
    let taken: PermitsTaken = take(&node, "mails/welcome", rate(4)).await.json();
    assert_eq!((taken.name.as_str(), taken.granted, taken.available), ("mails/welcome", true, 1));
    let refused = take(&node, "mails/welcome", rate(2)).await;
    assert_eq!(refused.status, StatusCode::OK, "a limit that is used up is no overload");
    let refused: PermitsTaken = refused.json();
    assert!(!refused.granted && (700_000..=720_001).contains(&refused.retry_after_ms), "{refused:?}");
    let one = json!({ "limit": 5, "per_ms": 3_600_000 });
    assert!(take(&node, "mails/welcome", one).await.json::<PermitsTaken>().granted, "one permit where nothing is said");

    let shown: RateView = node.get("/v1/rates/mails/welcome").await.json();
    assert_eq!((shown.rate.limit, shown.rate.per_ms, shown.rate.available), (5, 3_600_000, 0));
    node.get("/v1/rates/mails/other").await.problem(Code::NotFound);
    for name in ["mails/a", "mails/b", "sms/a"] {
        take(&node, name, rate(1)).await.json::<PermitsTaken>();
    }
    let page: Rates = node.get("/v1/rates?prefix=mails/&limit=2").await.json();
    let names = |page: &Rates| page.rates.iter().map(|rate| rate.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(&page), page.next.as_deref()), (vec!["mails/a".into(), "mails/b".into()], Some("mails/b")));
    let page: Rates = node.get("/v1/rates?prefix=mails/&limit=2&after=mails/b").await.json();
    assert_eq!((names(&page), page.next), (vec!["mails/welcome".into()], None));

    let problem = take(&node, "mails/welcome", json!({ "limit": 6, "per_ms": 3_600_000 })).await;
    assert!(problem.problem(Code::RateMismatch).detail.contains("5 permits in 3600000 ms"), "{}", problem.text);
    let changed = json!({ "limit": 6, "per_ms": 3_600_000, "reconfigure": true });
    assert!(take(&node, "mails/welcome", changed).await.json::<PermitsTaken>().granted);
    for bad in [
        json!({ "limit": 0, "per_ms": 1 }),
        json!({ "limit": 1, "per_ms": 0 }),
        json!({ "limit": 5, "per_ms": 1_000, "permits": 6 }),
        json!({ "limit": 5, "per_ms": 1_000, "permits": 0 }),
        json!({ "limit": 5 }),
        json!({ "limit": 5, "per_ms": 1_000, "surprise": 1 }),
    ] {
        take(&node, "bad", bad).await.problem(Code::BadRequest);
    }
    take(&node, "mails", rate(1)).await.problem(Code::BadRequest);
    take(&node, "mails%2F..", rate(1)).await.problem(Code::BadPath);
    node.post("/v1/nodes/rates/mails/c", None, json!({})).await.problem(Code::Forbidden);
    let figures = node.get("/metrics").await.text;
    for wanted in ["lockkeeper_rate_permits_total{outcome=\"granted\"}", "lockkeeper_rate_requests_refused_total"] {
        assert!(figures.contains(wanted), "{wanted}");
    }
}
