//! `zk-lock`: clients of both protocols in the same queues. Three of four use Curator's recipe over ZooKeeper's
//! protocol, the fourth does as those of `lock`. All acquire, hold and release in every way there is; some close or
//! abandon their session with what they hold, and some take a lock by force.

use zookeeper_client::{Error, MultiWriteError};

use super::absent;
use super::recipe::{self, Removed, RequestNode, Requested, Waited};
use super::visit::{EPHEMERAL, Leave, PERSISTENT, Visit, set_at, sure, zxid};
use crate::check::locks;
use crate::history::ops::AcquireRequest;
use crate::workload::lock_client::{self, EMPTY_WITHIN, LEAVE_PERCENT};
use crate::workload::locks::{contend, one_of, patience_ms};
use crate::workload::prelude::*;

/// The last is wanted so seldom that it is made anew, with its directory, now and then.
const LOCKS: [&str; 4] = ["jepsen/zk-lock-a", "jepsen/zk-lock-b", "jepsen/zk-lock-c", "jepsen/zk-lock-seldom"];

/// The workload.
pub(in crate::workload) struct ZooKeeperLockWorkload;

#[async_trait]
impl Workload for ZooKeeperLockWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "zk-lock",
            about: "exclusive locks by Curator's recipe over ZooKeeper's protocol, in one queue with native clients",
            promises: "P1 P2 P4 P5 P6 P7 P9 P10 P11",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        if context.client % 4 == 3 {
            let plain = context.client % 8 == 3;
            return contend(context, &LOCKS, plain).await;
        }
        let mut kit = ClientKit::new(context)?;
        let mut visit = None;
        while let Some(here) = renewed(&mut kit, visit.take()).await {
            let lock = one_of(&mut kit, &LOCKS);
            if kit.chance(1) {
                force(&kit, &here, lock).await;
            }
            visit = turn(&mut kit, here, lock).await;
            if kit.chance(1)
                && let Some(here) = visit.take()
            {
                here.end().await;
            }
            kit.think(0..25).await;
        }
        Ok(())
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        lock_client::conclude(context, &LOCKS, EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        let mut checks = locks::exclusive_over_both_protocols(run, &LOCKS);
        checks.extend(absent::check(run));
        checks
    }
}

/// The same session while it lives, or another; none, and the session ended, if the client is to end.
async fn renewed(kit: &mut ClientKit, visit: Option<Visit>) -> Option<Visit> {
    let going_on = visit.filter(|visit| !visit.is_over());
    if kit.context.stop.is_cancelled() {
        if let Some(visit) = going_on {
            visit.end().await;
        }
        return None;
    }
    if going_on.is_some() {
        return going_on;
    }
    let leave = if kit.chance(20) { Leave::Dies } else { Leave::Closes };
    let nodes = kit.context.zookeepers.clone();
    let visit = Visit::begin(kit, &nodes, leave).await?;
    // So that the log shows when it ended. Without, that is not known.
    let _ = visit.client.mkdir(ops::SESSIONS, &PERSISTENT).await;
    let sent_us = boot_us();
    if visit.client.create(&mark(&visit), b"", &EPHEMERAL).await.is_ok() {
        visit.acknowledged(sent_us);
    }
    Some(visit)
}

/// The node that shows when the session ended.
fn mark(visit: &Visit) -> String {
    format!("{}/s{}", ops::SESSIONS, visit.session)
}

/// Takes a lock, holds it and lets go of it. None if its session is over or to be so.
async fn turn(kit: &mut ClientKit, visit: Visit, lock: &str) -> Option<Visit> {
    let (locks, wait_ms, session) = (vec![lock.to_owned()], patience_ms(kit), visit.session);
    let asks = AcquireRequest { locks, mode: Mode::Exclusive, wait_ms, session, permits: None, delay_ms: 0 };
    let Some(place) = acquire(kit, &visit, &asks).await else { return Some(visit) };
    let under = TokenRef { locks: asks.locks, token: place.token, session };
    hold(kit, &visit, &under, &place).await;
    if kit.chance(LEAVE_PERCENT) {
        visit.end().await;
        return None;
    }
    release(kit, &visit, &under, &place).await;
    Some(visit)
}

async fn acquire(kit: &ClientKit, visit: &Visit, asks: &AcquireRequest) -> Option<RequestNode> {
    let recorder = &kit.context.recorder;
    let begun = recorder.begin(ops::ACQUIRE, asks);
    let place = match recipe::request(visit, recorder, &asks.locks[0]).await {
        Requested::Stands(place) => place,
        Requested::NotDone(why) => {
            begun.fail(&why);
            return None;
        }
        Requested::Unknown(why) => {
            begun.info(&why);
            return None;
        }
    };
    match recipe::wait(visit, &place, Duration::from_millis(asks.wait_ms)).await {
        Waited::Holds(at) => {
            begun.ok(&Granted { token: place.token }, Some(at));
            return Some(place);
        }
        Waited::TooLong => match recipe::remove(visit, &place.path()).await {
            Removed::Done | Removed::NotThere => begun.fail("not to be had in time"),
            Removed::Unknown(why) => {
                begun.info(&why);
                recipe::remove_for_certain(visit, &place.path()).await;
            }
        },
        Waited::Gone => begun.fail("its request was taken out"),
        Waited::Over(why) => begun.info(&why),
    }
    None
}

/// What a holder does: has its token verified, looks whether its session may be over, stays a while, looks again.
async fn hold(kit: &mut ClientKit, visit: &Visit, under: &TokenRef, place: &RequestNode) {
    look(kit, visit, under);
    // Who has waited for long is not sure of its session any more.
    if visit.is_lost() || kit.chance(40) {
        verify(kit, visit, under, place).await;
        look(kit, visit, under);
    }
    let longest_ms = if kit.chance(5) { 300 } else { 20 };
    let stay_ms = kit.rng.random_range(0..longest_ms);
    tokio::time::sleep(Duration::from_millis(stay_ms)).await;
    look(kit, visit, under);
}

fn look(kit: &ClientKit, visit: &Visit, under: &TokenRef) {
    let begun = kit.context.recorder.begin(ops::LOOK, under);
    let lost = visit.is_lost();
    begun.ok(&lost, None);
}

/// Whoever was the first holds for as long as its request is there: a write of it says at which zxid it was.
async fn verify(kit: &ClientKit, visit: &Visit, under: &TokenRef, place: &RequestNode) {
    let begun = kit.context.recorder.begin(ops::VERIFY, under);
    let sent_us = boot_us();
    match visit.client.set_data(&place.path(), b"held", None).await {
        Ok(stat) => {
            visit.acknowledged(sent_us);
            begun.ok(&true, Some(zxid(stat.mzxid)));
        }
        Err(Error::NoNode) => begun.ok(&false, None),
        Err(error) => sure(&error).end(begun, &error.to_string()),
    }
}

/// Gives back: by itself, or in one transaction with a write, which tells at which zxid.
async fn release(kit: &mut ClientKit, visit: &Visit, under: &TokenRef, place: &RequestNode) {
    let begun = kit.context.recorder.begin(ops::RELEASE, under);
    let path = place.path();
    if kit.chance(50) {
        let sent_us = boot_us();
        match release_with_a_mark(visit, &path).await {
            Ok(at) => {
                visit.acknowledged(sent_us);
                return begun.ok(&Value::Null, Some(at));
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }) => {
                return begun.fail("it had gone");
            }
            // It is given back all the same, so the request is never certain not to be.
            Err(error) => begun.info(&error.to_string()),
        }
    } else {
        match recipe::remove(visit, &path).await {
            Removed::Done => return begun.ok(&Value::Null, None),
            Removed::NotThere => return begun.fail("it had gone"),
            Removed::Unknown(why) => begun.info(&why),
        }
    }
    recipe::remove_for_certain(visit, &path).await;
}

async fn release_with_a_mark(visit: &Visit, path: &str) -> Result<u64, MultiWriteError> {
    let mut both = visit.client.new_multi_writer();
    both.add_delete(path, None)?;
    both.add_set_data(&mark(visit), b"", None)?;
    set_at(both.commit().await?)
}

/// Takes the lock from whoever else is the first.
async fn force(kit: &ClientKit, visit: &Visit, lock: &str) {
    let Some((path, token, owner)) = recipe::first(&visit.client, lock).await else { return };
    if owner == 0 || owner == visit.session {
        return;
    }
    let under = TokenRef { locks: vec![lock.to_owned()], token, session: owner };
    let begun = kit.context.recorder.begin(ops::FORCE, &under);
    match recipe::remove(visit, &path).await {
        Removed::Done => begun.ok(&true, None),
        Removed::NotThere => begun.ok(&false, None),
        Removed::Unknown(why) => begun.info(&why),
    }
}
