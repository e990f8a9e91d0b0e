//! The checks. Each gives its part of the last line.

use lockkeeper_checkers::lives::Life;
use lockkeeper_checkers::replay::{Replay, inside, token_of};

use super::{At, Evidence, LockCheck, LockWork, Strike, Strikes};
use crate::judge::streaks::{Fairness, fair, streaks};
use crate::judge::{counts, grants};
use crate::proofs::prelude::*;

/// The checks that every row gets.
pub(super) const EVERY: &[LockCheck] = &[no_call_failed_by_itself, nothing_left, wake_ups, no_standstill, struck];

/// One hand may have the lock for so long after the cap's time is over: a task of a busy process on a busy machine.
const LAST_HAND: Duration = Duration::from_millis(100);
/// Long enough for every strike of a script.
const LONG_LOAD: Duration = Duration::from_secs(3_600);

/// Grants of one lock come in the order of their requests, one at a time, and nobody is passed over.
pub(super) fn first_come_first_served(seen: &Evidence<'_>) -> ProofResult {
    let mut never = 0;
    for (requests, _) in seen.queues.values() {
        grants::exclusive(&seen.history.grants, requests).map_err(Failed::Broken)?;
        never += grants::none_passed_over(&seen.history.grants, requests).map_err(Failed::Broken)?;
    }
    Ok(format!("grants in queue order, none passed over ({never} requests given up)"))
}

/// The number in the file is that of the writes, and the tokens beside it rise.
pub(super) fn no_update_lost(seen: &Evidence<'_>) -> ProofResult {
    let writes = seen.history.writes;
    let text = std::fs::read_to_string(seen.dir.join("counter"))?;
    let value: u64 = text.trim().parse().map_err(|_| Failed::Broken(format!("the counter's file holds {text:?}")))?;
    if value != writes {
        return broken(format!("{writes} increments were written and the counter is {value}: updates were lost"));
    }
    let text = std::fs::read_to_string(seen.dir.join("tokens"))?;
    let at_file: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    if at_file.len() as u64 != writes {
        return broken(format!("{writes} increments were written and the file saw {} tokens", at_file.len()));
    }
    if let Some(pair) = at_file.windows(2).find(|pair| pair[0] >= pair[1]) {
        return broken(format!("the file saw token {} and then token {}", pair[0], pair[1]));
    }
    Ok(format!("counter {value}"))
}

/// Never more are inside than there are permits, and each of them is among the first of the queue. All permits were in
/// use at a time, or nothing is shown.
pub(super) fn permits_kept(seen: &Evidence<'_>) -> ProofResult {
    let LockWork::Permits(permits) = seen.scenario.work else { return broken("the work is none with permits") };
    let mut most = 0;
    for (requests, _) in seen.queues.values() {
        most = most.max(inside(requests, &seen.insides, usize::from(permits)).map_err(Failed::Broken)?);
    }
    if most < usize::from(permits) {
        return cannot_run(format!("the trial did not bite: {most} inside at most"));
    }
    Ok(format!("{} stays, at most {most} inside by zxid", seen.insides.len()))
}

/// Several locks come together and go together, and whoever is inside is the first in all their queues.
pub(super) fn all_or_nothing(seen: &Evidence<'_>) -> ProofResult {
    let queues: BTreeMap<String, Vec<Life>> =
        seen.queues.iter().map(|(lock, (requests, _))| (lock.clone(), requests.clone())).collect();
    grants::together(&seen.history.grants, &queues).map_err(Failed::Broken)?;
    let mut stood = 0;
    for (lock, requests) in &queues {
        let tokens: BTreeSet<u64> = requests.iter().map(|request| request.token).collect();
        let here = |life: &&Life| token_of(&life.name).is_some_and(|token| tokens.contains(&token));
        let here: Vec<Life> = seen.insides.iter().filter(here).cloned().collect();
        stood += here.len();
        inside(requests, &here, 1).or_broken(lock)?;
    }
    let insides = seen.insides.len();
    if stood != insides * 3 {
        return broken(format!("{insides} were inside, under tokens that stand in {stood} queues, not three each"));
    }
    Ok(format!("three locks each, one zxid in and one out, {insides} stays foremost in all three"))
}

/// With locks to be had all the while, every client gets some.
pub(super) fn everybody_served(seen: &Evidence<'_>) -> ProofResult {
    let mut each: BTreeMap<&str, usize> = BTreeMap::new();
    for grant in &seen.history.grants {
        *each.entry(&grant.who).or_default() += 1;
    }
    let clients = seen.scenario.clients();
    if each.len() != clients as usize {
        return broken(format!("{} of {clients} clients were ever granted anything", each.len()));
    }
    let least = each.values().min().copied().unwrap_or(0);
    Ok(format!("each of {clients} clients had at least {least} grants"))
}

/// A lock that the tasks of a process hand on among themselves is handed on no more often and for no longer than the
/// cap allows, and an outsider is served where its request stands in the log, behind the streak that ran and at most
/// one other.
pub(super) fn fair_to_outsiders(seen: &Evidence<'_>) -> ProofResult {
    let LockWork::Shared(share) = seen.scenario.work else { return broken("the work is none that is shared") };
    // Only while it was shared: from the end of the first leg on.
    let leg = |record: &Record| matches!(record.what, WorkerEvent::Leg { .. }).then_some(record.at_us);
    let legs: Vec<u64> = seen.shared.iter().filter_map(leg).collect();
    let [apart_until_us, shared_until_us] = legs[..] else { return broken(format!("{} legs", legs.len())) };
    let asked = |grant: &&grants::Grant| grant.asked_us > apart_until_us && grant.granted_us < shared_until_us;
    let outside: Vec<grants::Grant> = seen.history.grants.iter().filter(asked).cloned().collect();
    let requests: Vec<Life> = seen.queues.values().flat_map(|(requests, _)| requests.iter().cloned()).collect();
    let most = u64::from(share.max_passes) + 1;
    let fairness = fair(&streaks(&seen.shared), &outside, &requests, most).map_err(Failed::Broken)?;
    let Fairness { longest, longest_us, most_before_an_outsider, longest_wait_us } = fairness;
    if outside.len() < 20 || longest < 2 {
        return broken(format!(
            "the outsider was granted {} times, the longest streak had {longest} hands",
            outside.len()
        ));
    }
    let cap = share.max_time + LAST_HAND;
    if u128::from(longest_us) > cap.as_micros() {
        return broken(format!("a grant stayed in the process for {longest_us} us, the cap is {cap:?}"));
    }
    let (streak, wait) = (Duration::from_micros(longest_us), Duration::from_micros(longest_wait_us));
    Ok(format!(
        "cap {} passes or {}: longest streak {longest} hands, {}; an outsider waited {} at most, with \
         {most_before_an_outsider} hands before it",
        share.max_passes,
        millis(share.max_time),
        millis(streak),
        millis(wait)
    ))
}

/// Calls fail where a node was killed, and nowhere else.
fn no_call_failed_by_itself(seen: &Evidence<'_>) -> ProofResult {
    let failures = &seen.history.failures;
    if let Some(first) = failures.first().filter(|_| seen.strikes.nodes == 0) {
        return broken(format!("{} calls failed though no node did, the first: {first}", failures.len()));
    }
    Ok(format!("{} failed calls, {} guards lost", failures.len(), seen.history.lost))
}

/// At the end of the log no request stands in a queue. That the queues were seen empty in time was seen before.
fn nothing_left(seen: &Evidence<'_>) -> ProofResult {
    if let Some((lock, (_, replay))) = seen.queues.iter().find(|(_, (_, replay))| replay.left > 0) {
        return broken(format!("{} requests stand in the queue of {lock} at the end of the log", replay.left));
    }
    Ok(format!("queues empty {} after the end", millis(seen.empty_after)))
}

/// The servers woke as many waiters as came to hold, and no more.
fn wake_ups(seen: &Evidence<'_>) -> ProofResult {
    let sum = |of: fn(&Replay) -> usize| -> usize { seen.queues.values().map(|(_, replay)| of(replay)).sum() };
    let promotions = sum(|replay| replay.promotions.len());
    let counted = seen.counted;
    let waits_that_died = sum(|replay| replay.went_waiting);
    // A client may send a call again while its first attempt still waits.
    let repeats = seen.scenario.clients() as usize;
    let owed = match seen.scenario.work {
        // One for each waiter that came to hold, and one for each that died waiting.
        LockWork::Counter => promotions + waits_that_died,
        // A waiter's death wakes nobody.
        LockWork::Permits(_) => promotions,
        // A waiter is woken in each of its queues.
        LockWork::Several(_) => sum(|replay| replay.wake_ups) + repeats,
        LockWork::Shared(_) => promotions + waits_that_died + repeats,
    };
    if counted > owed as f64 {
        return broken(format!("{counted} notifications, the log owes at most {owed}: {promotions} came to hold"));
    }
    let known = format!("wake-ups: {counted} known of {owed} owed at most");
    if matches!(seen.scenario.work, LockWork::Several(_) | LockWork::Shared(_)) {
        // Requests of several queues are woken together, and tasks give up waiting at the end of a leg.
        return Ok(known);
    }
    counts::in_calm(&seen.windows).map_err(Failed::Broken)?;
    if seen.windows.is_empty() {
        return cannot_run("there was no calm window");
    }
    let in_calm: f64 = seen.windows.iter().map(|window| window.counted).sum();
    let certain: usize = seen.windows.iter().map(|window| window.certain).sum();
    let possible: usize = seen.windows.iter().map(|window| window.possible).sum();
    Ok(format!("{known}, in {} calm windows {in_calm} of {certain}..{possible}", seen.windows.len()))
}

/// Grants go on.
fn no_standstill(seen: &Evidence<'_>) -> ProofResult {
    let parts = undisturbed(seen.at_work_us, &seen.strikes.aftermath_us);
    let gaps = parts.into_iter().flat_map(|(from, to)| grants::standstills(&seen.history.grants, from, to));
    let stood = gaps.map(|(since, until)| (Duration::from_micros(until - since), seen.disk.within(since, until)));
    let beyond = |(stood, disk): &(Duration, Duration)| stood.saturating_sub(*disk);
    let Some((longest, disk)) = stood.max_by_key(beyond) else {
        return broken("no time in which to look for standstills");
    };
    if beyond(&(longest, disk)) > seen.scenario.standstill {
        return broken(format!(
            "nothing was granted for {longest:?}, and the disk was busy for {disk:?} of it: a deadlock, or as good as \
             one"
        ));
    }
    let wait = |grant: &grants::Grant| Duration::from_micros(grant.granted_us - grant.asked_us);
    let waits: Vec<Duration> = seen.history.grants.iter().map(wait).collect();
    let Some(waits) = Summary::of(&waits) else { return broken("nobody waited") };
    let (longest, disk) = (millis(longest), millis(disk));
    Ok(format!("no standstill longer than {longest} (the disk was busy for {disk} of it), wait {waits}"))
}

/// The parts of a time that lie outside the others, which are in the order of their beginnings.
fn undisturbed((from, to): (u64, u64), disturbances: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut parts, mut since) = (Vec::new(), from);
    for (begun, over) in disturbances {
        parts.push((since, (*begun).min(to)));
        since = since.max((*over).min(to));
    }
    parts.push((since, to));
    parts.retain(|(from, to)| from < to);
    parts
}

/// Each kind of strike that the script has in a long load took place, or nothing is shown.
fn struck(seen: &Evidence<'_>) -> ProofResult {
    let Strikes { nodes, leaders, processes, .. } = seen.strikes;
    let struck = format!("{nodes} nodes ({leaders} leading) and {processes} processes killed");
    let script = (seen.scenario.script)(LONG_LOAD);
    let missed = |At(_, strike): &At| if *strike == Strike::Node { nodes == 0 } else { processes == 0 };
    if script.iter().any(missed) {
        return cannot_run(format!("the trial did not bite: {struck}"));
    }
    Ok(struck)
}

#[cfg(test)]
mod tests {
    use Path;

    use lockkeeper_checkers::replay::Promotion;

    use super::super::{Crew, Scenario, in_turn};
    use super::*;
    use crate::disk_latency::Syncs;
    use crate::judge::counts::CalmWindow;
    use crate::judge::grants::{Grant, GrantHistory};

    const SECOND: Duration = Duration::from_secs(1);
    const ROW: Scenario = Scenario {
        name: "row",
        seconds: 10,
        crews: &[Crew { clients: 2, ttl: SECOND }],
        work: LockWork::Counter,
        script: |over| in_turn(SECOND, over, &[Strike::Node]),
        standstill: SECOND,
        left_within: SECOND,
        checks: &[],
    };

    fn seen() -> Evidence<'static> {
        let grant = |token: u64| Grant {
            who: format!("process/{token}"),
            locks: vec!["row".into()],
            token,
            asked_us: token,
            granted_us: token * 100_000,
            until_us: None,
        };
        let replay = Replay { promotions: vec![Promotion { zxid: 7, token: 6 }], ..Replay::default() };
        Evidence {
            scenario: &ROW,
            dir: Path::new("."),
            history: GrantHistory { grants: vec![grant(5), grant(6)], ..GrantHistory::default() },
            shared: Vec::new(),
            queues: BTreeMap::from([("row".to_owned(), (Vec::new(), replay))]),
            insides: Vec::new(),
            counted: 1.0,
            windows: vec![CalmWindow { counted: 1.0, certain: 1, possible: 1 }],
            disk: Syncs::default(),
            strikes: Strikes { nodes: 1, ..Strikes::default() },
            at_work_us: (0, 900_000),
            empty_after: Duration::ZERO,
        }
    }

    type Spoil = fn(&mut Evidence<'static>);

    #[test]
    fn each_check_can_fail() {
        for check in EVERY.iter().chain(&[everybody_served as LockCheck]) {
            check(&seen()).unwrap();
        }
        let spoilt: [(LockCheck, Spoil); 7] = [
            (everybody_served, |seen| drop(seen.history.grants.pop())),
            (no_call_failed_by_itself, |seen| {
                seen.strikes.nodes = 0;
                seen.history.failures.push("lock: refused".into());
            }),
            (nothing_left, |seen| seen.queues.values_mut().for_each(|(_, replay)| replay.left = 1)),
            (wake_ups, |seen| seen.counted = 2.0),
            (wake_ups, |seen| seen.windows.clear()),
            (no_standstill, |seen| seen.at_work_us.1 = 5_000_000),
            (struck, |seen| seen.strikes.nodes = 0),
        ];
        for (check, spoil) in spoilt {
            let mut spoilt = seen();
            spoil(&mut spoilt);
            check(&spoilt).unwrap_err();
        }
    }

    #[test]
    fn what_lies_outside_is_what_is_left() {
        assert_eq!(undisturbed((10, 100), &[]), [(10, 100)]);
        assert_eq!(undisturbed((10, 100), &[(30, 50)]), [(10, 30), (50, 100)]);
        assert_eq!(undisturbed((10, 100), &[(30, 50), (40, 60), (90, 120)]), [(10, 30), (60, 90)]);
        assert!(undisturbed((10, 100), &[(0, 200)]).is_empty());
    }
}
