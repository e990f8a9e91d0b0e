//! Ten workers move money between two accounts in PostgreSQL under one lock, each transaction behind the fence of that
//! lock. A holder that comes too late is refused by the database itself.
//!
//! `cargo run -p lockkeeper-client --example fenced_postgres`; with `DATABASE_URL` on that database (it creates and
//! drops two tables of its own, and leaves `lockkeeper_fence`), otherwise on a temporary server. Exits with 77 where
//! there is neither.

mod support;

use lockkeeper_client::fencing::Stale;
use lockkeeper_client::fencing::sql::{FENCE_TABLE, FencedTable, RAISE_FENCE, accepted, parameter};
use support::postgres::{Postgres, installed};
use support::{Outcome, check, own, session};
use tokio_postgres::{Client, NoTls};

const WORKERS: i64 = 10;
const EACH: i64 = 10;
const START: i64 = 1_000;
const SKIPPED: i32 = 77;

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// One transfer: the fence first, in the same transaction as the writes.
async fn transfer(db: &mut Client, table: &str, lock: &str, token: u64, cents: i64) -> Result<(), Failure> {
    let transaction = db.transaction().await?;
    let rows = transaction.execute(RAISE_FENCE, &[&lock, &parameter(token)?]).await?;
    // Dropping the transaction rolls it back.
    accepted(rows, token)?;
    let read = format!("SELECT cents FROM {table} WHERE name = $1");
    let ann: i64 = transaction.query_one(&read, &[&"ann"]).await?.get(0);
    let bob: i64 = transaction.query_one(&read, &[&"bob"]).await?.get(0);
    let write = format!("UPDATE {table} SET cents = $2 WHERE name = $1");
    transaction.execute(&write, &[&"ann", &(ann - cents)]).await?;
    transaction.execute(&write, &[&"bob", &(bob + cents)]).await?;
    Ok(transaction.commit().await?)
}

#[tokio::main]
async fn main() -> Outcome {
    let (_server, url) = match (std::env::var("DATABASE_URL"), installed()) {
        (Ok(url), _) => (None, url),
        (Err(_), Some(programs)) => {
            let server = Postgres::start(&programs).await?;
            let url = server.url();
            (Some(server), url)
        }
        (Err(_), None) => {
            eprintln!("SKIPPED: PostgreSQL is not installed, and DATABASE_URL is not set");
            std::process::exit(SKIPPED);
        }
    };
    let run = uuid::Uuid::new_v4().simple().to_string();
    let (accounts, notes) = (format!("accounts_{run}"), format!("notes_{run}"));
    let db = connect(&url).await?;
    db.batch_execute(FENCE_TABLE).await?;
    db.batch_execute(&format!("CREATE TABLE {accounts} (name TEXT PRIMARY KEY, cents BIGINT NOT NULL)")).await?;
    db.batch_execute(&format!("INSERT INTO {accounts} VALUES ('ann', {START}), ('bob', 0)")).await?;
    db.batch_execute(&format!("CREATE TABLE {notes} (name TEXT PRIMARY KEY, text TEXT NOT NULL)")).await?;
    let lock = own("accounts");
    let outcome = async {
        a_row_for_the_lock(&url, &db, &accounts, &lock).await?;
        a_column_in_the_row(&db, &notes).await
    };
    let outcome = outcome.await;
    db.batch_execute(&format!("DROP TABLE {accounts}; DROP TABLE {notes}")).await?;
    db.execute("DELETE FROM lockkeeper_fence WHERE lock = $1", &[&lock]).await?;
    outcome
}

async fn a_row_for_the_lock(url: &str, db: &Client, table: &str, lock: &str) -> Outcome {
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let held = session(&format!("worker {worker}")).await?.lock(lock);
        let (mut db, table, lock) = (connect(url).await?, table.to_owned(), lock.to_owned());
        workers.push(tokio::spawn(async move {
            for _ in 0..EACH {
                let guard = held.lock().await?;
                guard.run(transfer(&mut db, &table, &lock, guard.token(), 1)).await??;
                guard.release().await?;
            }
            Ok::<(), Failure>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    let (first, second) = (session("first").await?, session("second").await?);
    let paused = first.lock(lock).lock().await?;
    second.client().force_release(lock, paused.token()).await?;
    let guard = second.lock(lock).lock().await?;
    let mut late_db = connect(url).await?;
    transfer(&mut late_db, table, lock, guard.token(), 1).await?;
    let late = transfer(&mut late_db, table, lock, paused.token(), 500).await;
    guard.release().await?;

    let sums = db.query(&format!("SELECT cents FROM {table} ORDER BY name"), &[]).await?;
    let (ann, bob): (i64, i64) = (sums[0].get(0), sums[1].get(0));
    let moved = WORKERS * EACH + 1;
    check(late.is_err_and(|error| error.is::<Stale>()), "the late holder was refused by the database")?;
    check((ann, bob) == (START - moved, moved), &format!("{moved} transfers took place once each: {ann} and {bob}"))
}

async fn a_column_in_the_row(db: &Client, table: &str) -> Outcome {
    let notes = FencedTable::new(table, "name")?;
    db.batch_execute(&notes.add_column()).await?;
    let write = notes.upsert(&["text"])?;
    let name = own("note");
    let holder = session("holder").await?;
    let first = holder.lock(&name).lock().await?;
    let early = first.token();
    first.release().await?;
    let second = holder.lock(&name).lock().await?;
    let rows = db.execute(&write, &[&parameter(second.token())?, &"note", &"by the second"]).await?;
    accepted(rows, second.token())?;
    let rows = db.execute(&write, &[&parameter(early)?, &"note", &"by the first, too late"]).await?;
    second.release().await?;
    let text: String = db.query_one(&format!("SELECT text FROM {table}"), &[]).await?.get(0);
    check(rows == 0 && text == "by the second", "a stale token writes no row")
}
