//! The fenced statements against a real PostgreSQL and a real SQLite, with late writers.
//! MariaDB is tested in `jepsen-style-tests/tests`.
#![cfg(unix)]

#[path = "../../examples/support/postgres.rs"]
pub(crate) mod postgres;

use std::io::Write as _;
use std::process::{Command, Stdio};

use lockkeeper_checkers::skip::{has, has_programs, needs};
use lockkeeper_client::fencing::sql::{Dialect, FENCE_TABLE, FencedTable, RAISE_FENCE, accepted, parameter};
use tokio_postgres::{Client, NoTls, types::ToSql};

use postgres::{Postgres, installed};

pub(crate) async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Until a transaction waits for another one: a condition of the database, not a time.
pub(crate) async fn one_waits(db: &Client) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while db.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
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
    let Some(programs) = needs("postgresql", installed) else { return };
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
        // For the transaction that holds the fence.
        one_waits(db).await;
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

/// Executes the statements and prints, for each, the number of rows that it wrote; then the tables.
const SQLITE: &str = r#"
import json, sqlite3, sys
steps = json.load(sys.stdin)
db = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement, parameters in steps:
    print(db.execute(statement, parameters).rowcount)
print(db.execute("SELECT id, balance, fence FROM accounts ORDER BY id").fetchall())
print(db.execute("SELECT lock, token FROM lockkeeper_fence").fetchall())
"#;

#[test]
fn sqlite_writes_nothing_for_a_stale_token() {
    // Its module sqlite3 is the SQLite of this test.
    if !has("python3", || has_programs(&["python3"])) {
        return;
    }
    let accounts = FencedTable::new("main.accounts", "id").unwrap().dialect(Dialect::Sqlite);
    let (update, upsert) = (accounts.update(&["balance"]).unwrap(), accounts.upsert(&["balance"]).unwrap());
    let raise = Dialect::Sqlite.raise_fence();
    let steps = serde_json::json!([
        ["CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL)", []],
        ["INSERT INTO accounts VALUES ('ann', 10)", []],
        [accounts.add_column(), []],
        [Dialect::Sqlite.fence_table(), []],
        [update, [33, "ann", 11]],
        [update, [34, "ann", 12]],
        [update, [33, "ann", 0]],
        [update, [34, "ann", 12]],
        [upsert, [35, "bob", 1]],
        [upsert, [34, "bob", 0]],
        [upsert, [36, "bob", 2]],
        [raise, ["accounts", 51]],
        [raise, ["accounts", 50]],
        [raise, ["accounts", 51]],
    ]);
    let directory = tempfile::tempdir().unwrap();
    let mut python = Command::new("python3")
        .args(["-c", SQLITE])
        .arg(directory.path().join("db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(steps.to_string().as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().skip(4).collect();
    // 0 rows: token 33 after 34, 34 after 35, and 50 after 51. An accepted write is 1 row, even if it changes nothing.
    assert_eq!(lines[..10], ["1", "1", "0", "1", "1", "0", "1", "1", "0", "1"]);
    assert_eq!(lines[10..], ["[('ann', 12, 34), ('bob', 2, 36)]", "[('accounts', 51)]"]);
}
