//! A gate's operation and its work in one transaction of a real PostgreSQL: however a worker ends, the work is done
//! once.
#![cfg(unix)]

use std::time::Duration;

use lockkeeper_checkers::skip::needs;
use lockkeeper_client::fencing::operations::{
    AlreadyDone, FIND_OPERATION, FORGET_OLD_OPERATIONS, FORGET_OPERATION, OPERATION_TABLE, RECORD_OPERATION,
    STORE_RESULT, recorded,
};
use lockkeeper_client::fencing::sql::parameter;
use lockkeeper_client::recipes::{Begun, GateTicket};
use lockkeeper_client::{Session, SessionOptions};
use tokio_postgres::Client;

use crate::fencing_sql::postgres::{Postgres, installed};
use crate::fencing_sql::{connect, one_waits};
use crate::test_cluster::{TestCluster, soon};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn cents(db: &Client) -> i64 {
    db.query_one("SELECT cents FROM accounts WHERE name = 'ann'", &[]).await.unwrap().get(0)
}

/// The work: 10 cents from Ann, once for each key. Gives the receipt.
async fn pay(db: &mut Client, key: &str, token: u64) -> Result<String, AlreadyDone> {
    let work = db.transaction().await.unwrap();
    let token = parameter(token).unwrap();
    // Dropping the transaction rolls it back.
    recorded(work.execute(RECORD_OPERATION, &[&key, &token]).await.unwrap(), key)?;
    work.execute("UPDATE accounts SET cents = cents - 10 WHERE name = 'ann'", &[]).await.unwrap();
    let receipt = format!("receipt of {token}");
    let stored = work.execute(STORE_RESULT, &[&key, &token, &receipt.as_bytes()]).await.unwrap();
    assert_eq!(stored, 1);
    work.commit().await.unwrap();
    Ok(receipt)
}

async fn begin(session: &Session, key: &str) -> GateTicket {
    let give_up_at = tokio::time::Instant::now() + crate::test_cluster::SOON;
    loop {
        match session.gate(key).begin("f").await.unwrap() {
            Begun::Proceed(ticket) => return ticket,
            other => assert!(tokio::time::Instant::now() < give_up_at, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn work_is_done_once_however_its_worker_ends() {
    let Some(programs) = needs("postgresql", installed) else { return };
    let server = Postgres::start(&programs).await.unwrap();
    let mut db = connect(&server).await;
    db.batch_execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, cents BIGINT NOT NULL)").await.unwrap();
    db.batch_execute("INSERT INTO accounts VALUES ('ann', 1000)").await.unwrap();
    db.batch_execute(OPERATION_TABLE).await.unwrap();
    db.batch_execute(OPERATION_TABLE).await.unwrap();
    let setting = TestCluster::new().await;
    a_worker_that_dies_after_its_commit(&setting, &mut db).await;
    a_paused_worker_that_comes_too_late(&setting, &mut db).await;
    two_at_once(&server, &db).await;
    records_are_forgotten_on_demand(&mut db).await;
}

/// The transaction has committed, the gate is not finished: the next worker learns the result and does nothing.
async fn a_worker_that_dies_after_its_commit(setting: &TestCluster, db: &mut Client) {
    let short = SessionOptions { timeout: Duration::from_millis(500), ..SessionOptions::default() };
    let worker = Session::open(&setting.client, &short).await.unwrap();
    let ticket = begin(&worker, "pay/1").await;
    let first = ticket.token();
    let receipt = pay(db, "pay/1", first).await.unwrap();
    drop((ticket, worker));
    let next = setting.session().await;
    let ticket = soon(begin(&next, "pay/1")).await;
    assert!(ticket.token() > first);
    let refused = pay(db, "pay/1", ticket.token()).await.unwrap_err();
    assert_eq!(refused, AlreadyDone { gate: "pay/1".into() });
    let found = db.query_one(FIND_OPERATION, &[&"pay/1"]).await.unwrap();
    let (token, result): (i64, Vec<u8>) = (found.get(0), found.get(1));
    assert_eq!((token, result.as_slice()), (parameter(first).unwrap(), receipt.as_bytes()));
    ticket.finish(result, DAY).await.unwrap();
    assert_eq!(cents(db).await, 990);
}

/// A worker is paused before its transaction, and another does the work meanwhile.
async fn a_paused_worker_that_comes_too_late(setting: &TestCluster, db: &mut Client) {
    let (paused, next) = (setting.session().await, setting.session().await);
    let late = begin(&paused, "pay/2").await;
    let token = late.token();
    paused.close().await.unwrap();
    let ticket = soon(begin(&next, "pay/2")).await;
    pay(db, "pay/2", ticket.token()).await.unwrap();
    pay(db, "pay/2", token).await.unwrap_err();
    ticket.finish("paid", DAY).await.unwrap();
    assert_eq!(cents(db).await, 980);
}

/// The second transaction waits for the first: it is refused if the first commits, and goes on if it rolls back.
async fn two_at_once(server: &Postgres, db: &Client) {
    for commits in [false, true] {
        let (mut one, mut other) = (connect(server).await, connect(server).await);
        let first = one.transaction().await.unwrap();
        let rows = first.execute(RECORD_OPERATION, &[&"pay/3", &7_i64]).await.unwrap();
        recorded(rows, "pay/3").unwrap();
        let second = pay(&mut other, "pay/3", 8);
        let then = async {
            one_waits(db).await;
            if commits { first.commit().await.unwrap() } else { first.rollback().await.unwrap() }
        };
        let (second, ()) = tokio::join!(second, then);
        assert_eq!(second.is_err(), commits, "{second:?}");
        let deleted = db.execute(FORGET_OPERATION, &[&"pay/3"]).await.unwrap();
        assert_eq!(deleted, 1);
    }
    assert_eq!(cents(db).await, 970);
}

async fn records_are_forgotten_on_demand(db: &mut Client) {
    assert_eq!(db.execute(FORGET_OLD_OPERATIONS, &[&3_600.0_f64]).await.unwrap(), 0);
    db.execute("UPDATE lockkeeper_operation SET done_at = now() - interval '2 hours' WHERE gate = 'pay/1'", &[])
        .await
        .unwrap();
    assert_eq!(db.execute(FORGET_OLD_OPERATIONS, &[&3_600.0_f64]).await.unwrap(), 1);
    pay(db, "pay/1", 9).await.unwrap();
    pay(db, "pay/2", 9).await.unwrap_err();
}
