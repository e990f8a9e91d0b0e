//! The fenced statements against a real PostgreSQL, with concurrent and late writers. Skipped, with a message, where
//! none is installed.
#![cfg(unix)]

#[path = "../../examples/support/postgres.rs"]
mod postgres;

use lockkeeper_client::fencing::sql::{FENCE_TABLE, FencedTable, RAISE_FENCE, accepted, parameter};
use tokio_postgres::{Client, NoTls, types::ToSql};

use postgres::{Postgres, installed};

async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn balance(db: &Client, id: &str) -> (i64, i64) {
    let row = db.query_one("SELECT balance, fence FROM accounts WHERE id = $1", &[&id]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn written(db: &Client, statement: &str, token: u64, rest: &[&(dyn ToSql + Sync)]) -> bool {
    let token_parameter = parameter(token).unwrap();
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&token_parameter];
    parameters.extend(rest);
    accepted(db.execute(statement, &parameters).await.unwrap(), token).is_ok()
}

#[tokio::test]
async fn stale_tokens_write_nothing() {
    let Some(programs) = installed() else {
        eprintln!("SKIPPED: PostgreSQL is not installed (no `postgres` and `initdb` in PATH or /usr/lib/postgresql)");
        return;
    };
    let server = Postgres::start(&programs).await.unwrap();
    let db = connect(&server).await;
    db.batch_execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL)").await.unwrap();
    db.batch_execute("INSERT INTO accounts VALUES ('ann', 10)").await.unwrap();
    let accounts = FencedTable::new("public.accounts", "id").unwrap();
    db.batch_execute(&accounts.add_column()).await.unwrap();
    db.batch_execute(FENCE_TABLE).await.unwrap();
    db.batch_execute(FENCE_TABLE).await.unwrap();

    a_column_in_the_row(&db, &accounts).await;
    a_row_for_each_lock(&server, &db).await;
    late_writers_among_many(&server, &accounts).await;
}

async fn a_column_in_the_row(db: &Client, accounts: &FencedTable) {
    let update = accounts.update(&["balance"]).unwrap();
    assert!(written(db, &update, 33, &[&"ann", &11_i64]).await, "rows begin below every token");
    assert!(written(db, &update, 34, &[&"ann", &12_i64]).await);
    assert!(!written(db, &update, 33, &[&"ann", &0_i64]).await, "33 is stale");
    assert!(written(db, &update, 34, &[&"ann", &13_i64]).await, "34 still holds");
    assert_eq!(balance(db, "ann").await, (13, 34));

    let upsert = accounts.upsert(&["balance"]).unwrap();
    assert!(written(db, &upsert, 35, &[&"bob", &1_i64]).await, "makes the row");
    assert!(!written(db, &upsert, 34, &[&"bob", &0_i64]).await);
    assert!(written(db, &upsert, 36, &[&"bob", &2_i64]).await);
    assert_eq!(balance(db, "bob").await, (2, 36));
}

/// The fence holds until its transaction ends: a later holder waits, and an earlier one that waited is refused.
async fn a_row_for_each_lock(server: &Postgres, db: &Client) {
    let (mut first, mut second) = (connect(server).await, connect(server).await);
    let raise = async |db: &tokio_postgres::Transaction<'_>, token: i64| {
        db.execute(RAISE_FENCE, &[&"accounts", &token]).await.unwrap()
    };

    let held = second.transaction().await.unwrap();
    assert_eq!(raise(&held, 51).await, 1);
    let late = async {
        let late = first.transaction().await.unwrap();
        let rows = raise(&late, 50).await;
        late.rollback().await.unwrap();
        rows
    };
    let next = async {
        // It waits for the transaction that holds the fence: a condition of the database, not a time.
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while db.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::task::yield_now().await;
        }
        held.execute("UPDATE accounts SET balance = balance + 1", &[]).await.unwrap();
        held.commit().await.unwrap();
    };
    let (rows, ()) = tokio::join!(late, next);
    assert_eq!(rows, 0, "50 is stale once 51 has committed");
    assert_eq!(balance(db, "ann").await.0, 14);

    let rolled_back = second.transaction().await.unwrap();
    assert_eq!(raise(&rolled_back, 90).await, 1);
    rolled_back.rollback().await.unwrap();
    let goes_on = second.transaction().await.unwrap();
    assert_eq!(raise(&goes_on, 52).await, 1, "what was rolled back was not seen");
    goes_on.commit().await.unwrap();
}

async fn late_writers_among_many(server: &Postgres, accounts: &FencedTable) {
    let writer = async |tokens: Vec<u64>| {
        let db = connect(server).await;
        let upsert = accounts.upsert(&["balance"]).unwrap();
        let mut largest_accepted = 0;
        for token in tokens {
            let value = i64::try_from(token).unwrap();
            if written(&db, &upsert, token, &[&"many", &value]).await {
                largest_accepted = token;
            }
        }
        largest_accepted
    };
    let writers = (0..8_u64).map(|number| writer((100..200).filter(|token| token % 8 == number).collect()));
    let largest = futures::future::join_all(writers).await.into_iter().max().unwrap();
    assert_eq!(largest, 199);
    let db = connect(server).await;
    assert_eq!(balance(&db, "many").await, (199, 199), "the value is that of the largest token");
}
