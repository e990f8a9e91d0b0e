//! `election`: candidates for two offices, who lead for a while, publish as the leader, and resign, release, or leave
//! with their session; and observers. At most one leads, by the order and by the clocks of those who lead; a leader
//! that lost its office is told before another has it (P1, P2, P11); an observed leader leads, and leaders are observed
//! in order (P8).
//!
//! An office is a lock, so the candidates' operations are recorded like those of lock clients and get the same checks.

use lockkeeper_checkers::lives;
use lockkeeper_checkers::places::{Places, places};
use lockkeeper_client::recipes::{Leader, Leadership};

use super::client_kit::sure_recipe;
use super::lock_client::{EMPTY_WITHIN, asks, under, view_all};
use crate::check::locks;
use crate::history::History;
use crate::workload::prelude::*;

const OFFICES: [&str; 2] = ["jepsen/a", "jepsen/b"];
const LOCKS: [&str; 2] = ["elections/jepsen/a", "elections/jepsen/b"];
const LONGEST_WAIT_MS: u64 = 2_000;

/// An operation: the leader speaks.
const PROCLAIM: &str = "proclaim";
/// Told: an observer saw who leads.
const OBSERVED: &str = "observed";

/// Told as `observed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Observed {
    office: String,
    /// Under which token somebody leads; none if nobody does.
    token: Option<u64>,
    /// What the leader said.
    said: String,
}

#[derive(Debug)]
pub(super) struct ElectionWorkload;

#[async_trait]
impl Workload for ElectionWorkload {
    fn facts(&self) -> Facts {
        Facts {
            name: "election",
            about: "leaders who are elected, speak, resign or leave with their session, and those who observe them",
            promises: "P1 P2 P3 P4 P5 P6 P7 P8 P10 P11",
        }
    }

    async fn client(&self, context: ClientContext) -> Result<(), String> {
        let mut lock_client = LockClient::new(context.clone())?;
        let office = OFFICES[context.client as usize % 2];
        let observing = context.client.is_multiple_of(3).then(|| tokio::spawn(observe(context, office)));
        while let Some(session) = lock_client.session().await {
            let office = OFFICES[lock_client.kit.rng.random_range(0..OFFICES.len())];
            campaign(&mut lock_client, session, office).await;
            lock_client.kit.think(0..40).await;
        }
        lock_client.close().await;
        match observing {
            Some(observing) => observing.await.map_err(|error| error.to_string())?,
            None => Ok(()),
        }
    }

    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let lock_client = LockClient::new(context)?;
        view_all(&lock_client.kit.client, lock_client.recorder(), &LOCKS.map(str::to_owned), EMPTY_WITHIN).await
    }

    fn check(&self, run: &Recorded) -> Vec<Check> {
        let mut checks = locks::exclusive(run, &LOCKS);
        checks.push(announced_in_office(run));
        checks.push(observed_in_order(run));
        checks
    }
}

fn said(token: u64, times: u32) -> String {
    format!("{token} said {times}")
}

async fn campaign(lock_client: &mut LockClient, session: Session, office: &str) {
    let Ok(election) = session.election(office) else { return };
    let wait_ms = if lock_client.kit.chance(10) { 0 } else { lock_client.kit.rng.random_range(50..LONGEST_WAIT_MS) };
    let asks = asks(&election.lock_name(), Mode::Exclusive, wait_ms, &session);
    let begun = lock_client.recorder().begin(ops::ACQUIRE, &asks);
    let elected = match wait_ms {
        0 => election.try_campaign(b"elected").await,
        _ => election.campaign_timeout(b"elected", Duration::from_millis(wait_ms)).await,
    };
    match elected {
        Ok(Some(leadership)) => {
            begun.ok(&Granted { token: leadership.token() }, None);
            let under = under(&asks, leadership.token());
            drop(session);
            lead(lock_client, &under, office, leadership).await;
        }
        Ok(None) => begun.fail("not elected in time"),
        // It may have been elected and have failed to say so.
        Err(error) => {
            begun.info(&error.to_string());
            lock_client.rest().await;
        }
    }
}

/// A term of office.
async fn lead(lock_client: &mut LockClient, under: &TokenRef, office: &str, leadership: Leadership) {
    let longest_ms = if lock_client.kit.chance(10) { 1_000 } else { 100 };
    let turns = lock_client.kit.rng.random_range(1..longest_ms / 10);
    let mut times = 0;
    for _ in 0..turns {
        if lock_client.looked(under, || leadership.is_lost()) {
            break;
        }
        if lock_client.kit.chance(20) {
            times += 1;
            proclaim(lock_client.recorder(), under, office, &leadership, times).await;
        }
        if !lock_client.kit.think(5..15).await {
            break;
        }
    }
    lock_client.looked(under, || leadership.is_lost());
    match lock_client.kit.rng.random_range(0..100) {
        0..80 => {
            let begun = lock_client.recorder().begin(ops::RELEASE, under);
            match leadership.resign().await {
                Ok(()) => begun.ok(&Value::Null, None),
                // In the background it goes on.
                Err(error) => begun.info(&error.to_string()),
            }
        }
        80..90 => {
            let begun = lock_client.recorder().begin(ops::RELEASE, under);
            drop(leadership);
            begun.info("dropped");
        }
        _ => lock_client.leave(under, leadership).await,
    }
}

async fn proclaim(recorder: &Recorder, under: &TokenRef, office: &str, leadership: &Leadership, times: u32) {
    let begun = recorder.begin(PROCLAIM, &(office, under.token, times));
    let spoken = leadership.proclaim(said(under.token, times).as_bytes()).await;
    match spoken {
        Ok(()) => begun.ok(&Value::Null, None),
        Err(error) => sure_recipe(&error).end(begun, &error.to_string()),
    }
}

async fn observe(context: ClientContext, office: &'static str) -> Result<(), String> {
    let mut client_kit = ClientKit::new(context)?;
    let mut watch = client_kit.client.observe_election(office).map_err(|error| error.to_string())?;
    loop {
        let seen = tokio::select! {
            () = client_kit.context.stop.cancelled() => return Ok(()),
            seen = watch.next() => seen,
        };
        match seen {
            Ok(leader) => tell_leader(&client_kit.context.recorder, office, leader.as_ref()),
            Err(_) => drop(client_kit.think(50..100).await),
        }
    }
}

fn tell_leader(recorder: &Recorder, office: &str, leader: Option<&Leader>) {
    let observed = Observed {
        office: office.to_owned(),
        token: leader.map(|leader| leader.token),
        said: leader.map(|leader| String::from_utf8_lossy(&leader.data).into_owned()).unwrap_or_default(),
    };
    recorder.note(OBSERVED, &observed, leader.map(|leader| leader.zxid));
}

/// The leader's node appears only while its lock is held under its token.
fn announced_in_office(run: &Recorded) -> Check {
    const NAME: &str = "only who holds the office says so";
    const OF: &str = "P1";
    let mut announced = 0;
    for (office, lock) in OFFICES.iter().zip(LOCKS) {
        let nodes = lives::lives(&run.log, &format!("/elections/{office}/_leader"));
        let (nodes, places) = match (nodes, places(&run.log, lock)) {
            (Ok(nodes), Ok(places)) => (nodes, places),
            (Err(why), _) | (_, Err(why)) => return Check::unknown(NAME, OF, why),
        };
        for Life { name, token: zxid, .. } in &nodes {
            let Ok(token) = name.parse::<u64>() else {
                return Check::unknown(NAME, OF, format!("a leader's node is called {name}"));
            };
            if let Err(why) = places.holds_after(token, *zxid) {
                let detail = format!("{office}: token {token} was announced at zxid {zxid} without holding the office");
                let check = Check::invalid(NAME, OF, detail, vec![why]);
                return Check { at_us: run.seen_us.get(zxid).copied(), ..check };
            }
            announced += 1;
        }
    }
    match announced {
        0 => Check::unknown(NAME, OF, "nobody was elected"),
        _ => Check::valid(NAME, OF, format!("{announced} leaders announced themselves while they held the office")),
    }
}

/// Whoever is observed holds the office at the zxid of the observation, said what it is heard to say, and no observer
/// goes back.
fn observed_in_order(run: &Recorded) -> Check {
    const NAME: &str = "leaders are observed in order";
    const OF: &str = "P8";
    let spoken = spoken(&run.history);
    let (mut queues, no_places) = (BTreeMap::new(), Places::default());
    for (office, lock) in OFFICES.iter().zip(LOCKS) {
        match places(&run.log, lock) {
            Ok(places) => queues.insert(*office, places),
            Err(why) => return Check::unknown(NAME, OF, why),
        };
    }
    let mut last: BTreeMap<(u32, String), u64> = BTreeMap::new();
    let mut observations = 0;
    for event in run.history.notes().filter(|event| event.what == OBSERVED) {
        let Ok(Observed { office, token, said: heard }) = event.told() else {
            return Check::unknown(NAME, OF, "an observation cannot be read");
        };
        let (Some(token), Some(zxid)) = (token, event.zxid) else { continue };
        let line =
            format!("client {} at {} us: {token} leads {office} at zxid {zxid}: {heard:?}", event.client, event.at_us);
        let broken = |why: String| {
            let check = Check::invalid(NAME, OF, why, vec![line.clone()]);
            Check { at_us: Some(event.at_us), ..check }
        };
        let places = queues.get(office.as_str()).unwrap_or(&no_places);
        if let Err(why) = places.holds_after(token, zxid) {
            return broken(format!("somebody was observed who did not lead: {why}"));
        }
        if heard != "elected" && !spoken.get(&token).is_some_and(|said| said.contains(&heard)) {
            return broken(format!("token {token} was heard to say what it did not say"));
        }
        let before = last.insert((event.client, office), token);
        if let Some(before) = before.filter(|before| *before > token) {
            return broken(format!("{token} was observed after {before}"));
        }
        observations += 1;
    }
    match observations {
        0 => Check::unknown(NAME, OF, "no leader was observed"),
        _ => Check::valid(NAME, OF, format!("{observations} observations of leaders")),
    }
}

/// What each leader may have said.
fn spoken(history: &History) -> BTreeMap<u64, Vec<String>> {
    let mut spoken: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for op in history.ops().iter().filter(|op| op.what == PROCLAIM && op.ended != Completion::Fail) {
        if let Ok((_, token, times)) = op.asked::<(String, u64, u32)>() {
            spoken.entry(token).or_default().push(said(token, times));
        }
    }
    spoken
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;
    use crate::history::Event;
    use crate::workload::fixture::{Bench, told};

    /// Tokens 10 and 11 stand in one queue, the first goes at 20, and both announce themselves.
    fn run(second_announced: u64, observed: &[(u64, u64, &str)]) -> Recorded {
        let mut bench = Bench::of_ops(1);
        let request = |token: u64| format!("/locks/{}/_c_x{token}-lock-{token:010}", LOCKS[0]);
        let node = |token: u64| format!("/elections/{}/_leader/{token:020}", OFFICES[0]);
        bench.log(10, true, &request(10));
        bench.log(11, true, &request(11));
        bench.log(12, true, &node(10));
        bench.log(20, false, &request(10));
        bench.log(20, false, &node(10));
        bench.log(second_announced, true, &node(11));
        bench.op(1, 1, PROCLAIM, json!([OFFICES[0], 10, 1]), Value::Null);
        for (at_us, (token, zxid, said)) in (10..).zip(observed) {
            let value = json!({ "office": OFFICES[0], "token": token, "said": said });
            bench.event(Event { client: 2, ..told(at_us, OBSERVED, value, Some(*zxid)) });
        }
        bench.recorded()
    }

    #[test]
    fn announcements_are_made_in_office() {
        assert_eq!(announced_in_office(&run(20, &[])).verdict, Verdict::Valid);
        assert_eq!(announced_in_office(&run(19, &[])).verdict, Verdict::Invalid, "while the other still held it");
        assert_eq!(announced_in_office(&Recorded::default()).verdict, Verdict::Unknown);
    }

    #[test]
    fn observers_see_those_who_lead_and_never_go_back() {
        let verdict = |observed: &[(u64, u64, &str)]| observed_in_order(&run(21, observed)).verdict;
        assert_eq!(verdict(&[(10, 12, "elected"), (10, 15, "10 said 1"), (11, 22, "elected")]), Verdict::Valid);
        assert_eq!(verdict(&[(11, 15, "elected")]), Verdict::Invalid, "it waited");
        assert_eq!(verdict(&[(10, 25, "elected")]), Verdict::Invalid, "it had gone");
        assert_eq!(verdict(&[(11, 22, "elected"), (10, 15, "elected")]), Verdict::Invalid, "back again");
        assert_eq!(verdict(&[(10, 15, "10 said 9")]), Verdict::Invalid, "never said");
        assert_eq!(verdict(&[]), Verdict::Unknown);
    }
}
