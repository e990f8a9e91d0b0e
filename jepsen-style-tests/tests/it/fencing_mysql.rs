//! The fenced statements for MySQL against a real MariaDB: a stale writer is refused, under both ways in which a
//! driver can have rows counted and with SQL modes strict and lax.

use futures::future::join_all;
use jepsen_style_tests::servers::mariadb::{self, MariaDb};
use lockkeeper_checkers::skip::has;
use lockkeeper_client::fencing::sql::{Dialect, FencedTable, parameter, refused};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, TxOpts, Value};

async fn connect(server: &MariaDb, found_rows: bool, sql_mode: &str) -> Conn {
    let options = OptsBuilder::from_opts(Opts::from_url(&server.url()).unwrap())
        .client_found_rows(found_rows)
        .prefer_socket(false)
        .setup(vec![format!("SET SESSION sql_mode = '{sql_mode}'")]);
    Conn::new(options).await.unwrap()
}

/// Whether the write was accepted; any error but that of a stale token ends the test.
async fn accepted(db: &mut Conn, statement: &str, token: u64, parameters: Vec<Value>) -> bool {
    match db.exec_drop(statement, Params::Positional(parameters)).await {
        Ok(()) => true,
        Err(Error::Server(error)) => {
            refused(error.code, token).expect_err(&error.to_string());
            false
        }
        Err(error) => panic!("{error}"),
    }
}

async fn row(db: &mut Conn, key: &str) -> (i64, i64) {
    db.exec_first("SELECT balance, fence FROM accounts WHERE id = ?", (key,)).await.unwrap().unwrap()
}

#[tokio::test]
async fn mariadb_writes_nothing_for_a_stale_token() {
    if !has(mariadb::PACKAGES, mariadb::installed) {
        return;
    }
    let logs = tempfile::tempdir().unwrap();
    let server = MariaDb::start(logs.path(), &[]).await.unwrap();
    let accounts = FencedTable::new("lockkeeper.accounts", "id").unwrap().dialect(Dialect::MySql);
    for found_rows in [false, true] {
        for sql_mode in ["TRADITIONAL", "", "SIMULTANEOUS_ASSIGNMENT"] {
            let mut db = connect(&server, found_rows, sql_mode).await;
            db.query_drop("DROP TABLE IF EXISTS accounts, lockkeeper_fence").await.unwrap();
            db.query_drop("CREATE TABLE accounts (id VARCHAR(20) PRIMARY KEY, balance BIGINT)").await.unwrap();
            db.query_drop("INSERT INTO accounts VALUES ('ann', 10)").await.unwrap();
            db.query_drop(accounts.add_column()).await.unwrap();
            db.query_drop(Dialect::MySql.fence_table()).await.unwrap();
            db.query_drop(Dialect::MySql.fence_table()).await.unwrap();
            a_column_in_the_row(&mut db, &accounts).await;
            a_row_for_each_lock(&server, &mut db).await;
            late_writers_among_many(&server, found_rows, &accounts).await;
        }
    }
}

async fn a_column_in_the_row(db: &mut Conn, accounts: &FencedTable) {
    let update = accounts.update(&["balance"]).unwrap();
    let mut written = async |token: u64, balance: i64| {
        let token_value = Value::from(parameter(token).unwrap());
        let parameters = vec![token_value.clone(), token_value, balance.into(), "ann".into()];
        accepted(db, &update, token, parameters).await
    };
    assert!(written(33, 11).await, "rows begin below every token");
    assert!(written(34, 12).await);
    assert!(!written(33, 0).await, "33 is stale");
    assert!(written(34, 12).await, "34 still holds, also where it changes nothing");
    assert!(written(34, 13).await);
    assert_eq!(row(db, "ann").await, (13, 34));

    let upsert = accounts.upsert(&["balance"]).unwrap();
    let mut written = async |token: u64, balance: i64| {
        let parameters = vec![parameter(token).unwrap().into(), "bob".into(), balance.into()];
        accepted(db, &upsert, token, parameters).await
    };
    assert!(written(35, 1).await, "makes the row");
    assert!(!written(34, 0).await);
    assert!(written(35, 1).await);
    assert!(written(36, 2).await);
    assert!(!written(1, 0).await);
    assert_eq!(row(db, "bob").await, (2, 36));
}

/// The fence holds until its transaction ends: an earlier holder waits for it, and is refused.
async fn a_row_for_each_lock(server: &MariaDb, db: &mut Conn) {
    let raise = Dialect::MySql.raise_fence();
    let parameters = |token: i64| vec![Value::from("accounts"), token.into()];
    let mut first = connect(server, true, "").await;
    let mut second = connect(server, false, "").await;
    let mut held = second.start_transaction(TxOpts::default()).await.unwrap();
    held.exec_drop(raise, parameters(51)).await.unwrap();
    let late = accepted(&mut first, raise, 50, parameters(50));
    let next = async {
        // It waits for the transaction that holds the fence: a condition of the database, not a time.
        let waiting = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'";
        while db.query_first::<(String, u64), _>(waiting).await.unwrap().is_some_and(|(_, waits)| waits == 0) {
            tokio::task::yield_now().await;
        }
        held.query_drop("UPDATE accounts SET balance = balance + 1").await.unwrap();
        held.commit().await.unwrap();
    };
    let (late, ()) = tokio::join!(late, next);
    assert!(!late, "50 is stale once 51 has committed");
    assert_eq!(row(db, "ann").await.0, 14);

    // Locks whose names differ by case or by a space have fences of their own.
    for other in ["Accounts", "accounts "] {
        assert!(accepted(db, raise, 7, vec![other.into(), 7.into()]).await, "{other:?}");
    }
}

async fn late_writers_among_many(server: &MariaDb, found_rows: bool, accounts: &FencedTable) {
    let upsert = accounts.upsert(&["balance"]).unwrap();
    let writer = async |tokens: Vec<u64>| {
        let mut db = connect(server, found_rows, "").await;
        let mut largest_accepted = 0;
        for token in tokens {
            let value = parameter(token).unwrap();
            // A deadlock undoes the statement, and it is sent again.
            let written = loop {
                let parameters = Params::Positional(vec![value.into(), "many".into(), value.into()]);
                match db.exec_drop(&upsert, parameters).await {
                    Ok(()) => break true,
                    Err(Error::Server(error)) if error.code == 1_213 => {}
                    Err(Error::Server(error)) => {
                        refused(error.code, token).expect_err(&error.to_string());
                        break false;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            if written {
                largest_accepted = token;
            }
        }
        largest_accepted
    };
    let writers = (0..4_u64).map(|number| writer((100..160).filter(|token| token % 4 == number).collect()));
    assert_eq!(join_all(writers).await.into_iter().max(), Some(159));
    let mut db = connect(server, found_rows, "").await;
    assert_eq!(row(&mut db, "many").await, (159, 159), "the value is that of the largest token");
}
