//! Four processes see each other join, change and leave; one leaves when its session ends.
//!
//! `cargo run -p lockkeeper-client --example membership`

mod support;

use lockkeeper_client::recipes::MemberChange;
use support::{Outcome, check, own, session};

#[tokio::main]
async fn main() -> Outcome {
    let path = format!("/{}", own("members"));
    let observer = session("observer").await?;
    let mut members = observer.group(&path)?.watch().await?;
    let mut joined = Vec::new();
    for name in ["ada", "bob", "eve", "joe"] {
        let session = session(name).await?;
        let member = session.group(&path)?.join(name, b"idle").await?;
        check(members.changes().await == [MemberChange::Joined(name.into())], &format!("{name} comes"))?;
        joined.push((session, member));
    }
    let taken = observer.group(&path)?.join("ada", b"").await;
    check(taken.is_err(), "a name belongs to one at a time")?;
    joined[1].1.set_data(b"busy").await?;
    check(members.changes().await == [MemberChange::Updated("bob".into())], "bob's data change")?;
    check(members.current().get("bob").is_some_and(|data| data == b"busy"), "and can be seen")?;
    joined[2].0.close().await?;
    check(members.changes().await == [MemberChange::Left("eve".into())], "eve goes with her session")?;
    let (_, ada) = joined.swap_remove(0);
    ada.leave().await?;
    check(members.changes().await == [MemberChange::Left("ada".into())], "ada leaves")?;
    let left: Vec<String> = observer.group(&path)?.members().await?.into_keys().collect();
    check(left == ["bob", "joe"], "the others are still there")?;
    println!("membership 4 came, 2 went: ok");
    Ok(())
}
