//! Bounded counter and rate limit.

use std::time::{Duration, Instant};

use lockkeeper_client::Paging;
use lockkeeper_client::api::Code;
use lockkeeper_client::recipes::{RecipeError, TxnError};

use super::support::{cluster, session, soon};

#[tokio::test]
async fn a_hundred_buyers_get_ten_seats() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let seats = session.bounded_counter("/courses/7/seats", 0..=10).unwrap();
    let buyers = (0..100).map(|_| {
        let seats = seats.clone();
        tokio::spawn(async move { seats.try_add(1).await.unwrap() })
    });
    let mut got = Vec::new();
    for buyer in buyers.collect::<Vec<_>>() {
        got.extend(soon("a seat", buyer).await.unwrap());
    }
    got.sort_unstable();
    assert_eq!(got, (1..=10).collect::<Vec<i64>>());
    // A plain counter of the same path is the same number.
    let plain = session.counter("/courses/7/seats").unwrap();
    assert_eq!((plain.get().await.unwrap(), plain.add(-4).await.unwrap()), (10, 6));
    assert_eq!(seats.get().await.unwrap(), 6);
    let refused = seats.add(-7).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::OutOfBounds));
    let text = refused.to_string();
    assert!(text.contains("is 6") && text.contains("-7") && text.contains("bound 0"), "{text}");
    assert!(matches!(
        session.bounded_counter("/a", std::ops::RangeInclusive::new(1, 0)),
        Err(RecipeError::BadArgument(_))
    ));

    let done = session.txn().add("/courses/7/seats", 4, None, Some(10)).create("/bought", "4").commit().await.unwrap();
    assert_eq!(done.value(0), Some(10));
    let refused = session.txn().create("/b", "").add("/courses/7/seats", 1, None, Some(10)).commit().await.unwrap_err();
    assert!(matches!(refused, TxnError::Refused { operation: 1, cause: Code::OutOfBounds, .. }), "{refused}");
}

#[tokio::test]
async fn a_rate_limit_grants_refuses_and_lets_wait() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let client = session.client();
    let limit = session.rate_limit("mails/welcome", 3, Duration::from_millis(900)).unwrap();
    assert!(limit.try_take(2).await.unwrap().granted);
    let refused = limit.try_take(3).await.unwrap();
    assert!(!refused.granted && (1..=601).contains(&refused.retry_after_ms), "{refused:?}");
    // A wait that would take longer ends at once.
    let asked = Instant::now();
    assert!(!limit.take(3, Duration::from_millis(1)).await.unwrap().granted);
    assert!(asked.elapsed() < Duration::from_millis(300), "{:?}", asked.elapsed());
    let waited = soon("permits", limit.take(3, Duration::from_secs(20))).await.unwrap();
    assert!(waited.granted);

    let shown = client.rate("mails/welcome").await.unwrap().rate;
    assert_eq!((shown.limit, shown.per_ms), (3, 900));
    let listed = client.rates(Some("mails/"), &Paging::default()).await.unwrap();
    assert_eq!(listed.rates.iter().map(|rate| &rate.name[..]).collect::<Vec<_>>(), ["mails/welcome"]);
    let other = session.rate_limit("mails/welcome", 5, Duration::from_millis(900)).unwrap();
    assert_eq!(other.try_take(1).await.unwrap_err().code(), Some(Code::RateMismatch));
    assert!(other.clone().reconfigure().try_take(1).await.unwrap().granted);
    assert_eq!(limit.try_take(1).await.unwrap_err().code(), Some(Code::RateMismatch));
    assert_eq!(client.rate("never/used").await.unwrap_err().code(), Some(Code::NotFound));
    for bad in [(0, Duration::from_secs(1)), (1, Duration::ZERO), (1, Duration::from_secs(367 * 86_400))] {
        assert!(matches!(session.rate_limit("a", bad.0, bad.1), Err(RecipeError::BadArgument(_))), "{bad:?}");
    }
}
