//! Three candidates lead in turn. Each is observed with its data, has a larger token than the one before, and hands
//! over by resigning or when its session ends.
//!
//! `cargo run -p lockkeeper-client --example election`

mod support;

use support::{Outcome, check, connect, own, session};

#[tokio::main]
async fn main() -> Outcome {
    let name = own("election");
    let mut observer = connect().await?.observe_election(&name)?;
    check(observer.next().await?.is_none(), "nobody leads at first")?;
    let mut last_token = 0;
    for number in 1..=3 {
        let session = session(&format!("candidate {number}")).await?;
        let election = session.election(&name)?;
        let leadership = election.campaign(format!("candidate {number}").as_bytes()).await?;
        let seen = observer.next().await?.ok_or("nobody leads")?;
        println!("{} leads with token {}", String::from_utf8_lossy(&seen.data), seen.token);
        check(seen.token == leadership.token(), "the observer sees the leader's token")?;
        check(leadership.token() > last_token, "it is larger than the one before")?;
        last_token = leadership.token();

        // What the leader does ends when the leadership is lost; what it writes is refused then.
        let guarded = lockkeeper_client::api::nodes::Txn { operations: vec![leadership.guard()] };
        leadership.run(session.client().txn(&guarded)).await??;
        if number == 2 {
            session.close().await?;
            leadership.lost().await;
            check(leadership.proclaim(b"still here").await.is_err(), "a leader whose session has ended cannot speak")?;
        } else {
            leadership.resign().await?;
        }
        check(observer.next().await?.is_none(), "the end is observed")?;
    }
    println!("election 3 leaders in turn: ok");
    Ok(())
}
