use super::*;

const RATE: Rate = Rate { limit: 1_000, per_ms: 1_000 };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn taking(permits: u32) -> TakePermits {
    TakePermits { name: RateName::parse("a").unwrap(), rate: RATE, permits, reconfigure: false }
}

type Answers = oneshot::Receiver<Result<At<PermitsTaken>, NodeError>>;

/// A request that waits for the next command.
fn wait(rates: &Rates, taking: TakePermits, at: u64) -> (Answers, bool) {
    match rates.enqueue(taking, Caller::default(), ms(at)).unwrap() {
        Taken::Later(receiver, is_first) => (receiver, is_first),
        Taken::Answered(answer) => panic!("answered from memory: {answer:?}"),
    }
}

fn from_memory(rates: &Rates, taking: TakePermits, at: u64) -> PermitsTaken {
    match rates.enqueue(taking, Caller::default(), ms(at)).unwrap() {
        Taken::Answered(answer) => answer.value,
        Taken::Later(..) => panic!("not answered from memory"),
    }
}

fn sent(rates: &Rates, at: u64) -> (Vec<u32>, u32, Vec<Waiting>) {
    rates.with(&taking(1).name, |known| {
        let batch = known.next_batch();
        let ahead = known.ahead(RATE, ms(at));
        (batch.iter().map(|waiting| waiting.taking.permits).collect(), ahead, batch)
    })
}

fn settle(rates: &Rates, at: u64, batch: Vec<Waiting>, (granted, leased, wait_ms): (u32, u32, u64)) {
    let value = Reply::PermitsTaken { granted, leased, available: 7, wait_ms };
    rates.with(&taking(1).name, |known| known.settle(RATE, ms(at), batch, Ok(At { value, zxid: Zxid(3) })));
}

fn answer(mut answers: Answers) -> PermitsTaken {
    answers.try_recv().unwrap().unwrap().value
}

#[test]
fn requests_that_come_meanwhile_share_a_command_and_a_busy_name_leases() {
    let rates = Rates::default();
    let (first, is_first) = wait(&rates, taking(1), 0);
    assert!(is_first);
    let (permits, ahead, batch) = sent(&rates, 0);
    assert_eq!((permits, ahead), (vec![1], 0));
    let others = [2, 3].map(|permits| wait(&rates, taking(permits), 1));
    assert!(others.iter().all(|(_, is_first)| !is_first));
    settle(&rates, 0, batch, (1, 0, 0));
    assert!(answer(first).granted);
    let (permits, ahead, batch) = sent(&rates, 10);
    assert_eq!((permits, ahead), (vec![2, 3], 1), "as many as were handed out");
    settle(&rates, 10, batch, (2, 10, 0));
    assert!(others.into_iter().all(|(receiver, _)| answer(receiver).granted));
    // A lease is handed out until it is used up, or its time is over.
    for left in [6, 2] {
        let taken = from_memory(&rates, taking(4), 200);
        assert_eq!(taken, PermitsTaken { granted: true, available: 7 + left, retry_after_ms: 0 });
    }
    let (_, _) = wait(&rates, taking(4), 200);
    assert!(from_memory(&rates, taking(1), 234).granted);
    let (_, is_first) = wait(&rates, taking(1), 235);
    assert!(!is_first);
    let (permits, ahead, _) = sent(&rates, 235);
    assert_eq!((permits, ahead), (vec![], 0), "those whose callers have gone are dropped, and that was long ago");
}

#[test]
fn a_refusal_counts_for_all_that_want_as_many() {
    let rates = Rates::default();
    let waiting = [5, 50, 60, 5].map(|permits| wait(&rates, taking(permits), 0).0);
    let (permits, _, batch) = sent(&rates, 0);
    assert_eq!(permits, [5, 50, 60, 5]);
    settle(&rates, 0, batch, (1, 0, 40));
    let [first, second, third, fourth] = waiting;
    assert!(answer(first).granted);
    for refused in [second, third] {
        assert_eq!(answer(refused), PermitsTaken { granted: false, available: 7, retry_after_ms: 41 });
    }
    // The smaller one behind them has another try.
    let (permits, _, batch) = sent(&rates, 1);
    assert_eq!(permits, [5]);
    assert_eq!(from_memory(&rates, taking(50), 10).retry_after_ms, 31);
    settle(&rates, 1, batch, (1, 0, 0));
    assert!(answer(fourth).granted);
}

#[test]
fn a_refusal_is_not_remembered_for_long() {
    let rates = Rates::default();
    let refused = wait(&rates, taking(5), 0).0;
    let (_, _, batch) = sent(&rates, 0);
    settle(&rates, 0, batch, (0, 0, 60_000));
    assert_eq!(answer(refused).retry_after_ms, 60_001);
    assert_eq!(from_memory(&rates, taking(5), 999).retry_after_ms, 59_002);
    // The bucket may have been deleted.
    let (_, _) = wait(&rates, taking(5), 1_000);
}

#[test]
fn another_rate_has_a_command_of_its_own() {
    let rates = Rates::default();
    let other = TakePermits { rate: Rate { limit: 5, per_ms: 1 }, ..taking(1) };
    let _waiting = [taking(1), other.clone(), taking(1)].map(|taking| wait(&rates, taking, 0).0);
    let (permits, _, batch) = sent(&rates, 0);
    assert_eq!(permits, [1]);
    settle(&rates, 0, batch, (1, 100, 0));
    let (_, _) = wait(&rates, other, 1);
    let (_, _) = wait(&rates, TakePermits { reconfigure: true, ..taking(1) }, 1);
    assert!(from_memory(&rates, taking(1), 1).granted);
}

#[test]
fn a_refused_right_is_that_of_the_first_alone() {
    let rates = Rates::default();
    let [mut first, mut second] = [1, 2].map(|permits| wait(&rates, taking(permits), 0).0);
    let (_, _, batch) = sent(&rates, 0);
    let refused = NodeError::Refused(Refusal::Forbidden("no".into()));
    rates.with(&taking(1).name, |known| known.settle(RATE, ms(0), batch, Err(refused.clone())));
    assert_eq!(first.try_recv(), Ok(Err(refused)));
    assert!(second.try_recv().is_err(), "it waits for the next command");
    let (permits, _, batch) = sent(&rates, 0);
    assert_eq!(permits, [2]);
    rates.with(&taking(1).name, |known| known.settle(RATE, ms(0), batch, Err(NodeError::ShuttingDown)));
    assert_eq!(second.try_recv(), Ok(Err(NodeError::ShuttingDown)));
}

#[test]
fn names_are_forgotten() {
    let rates = Rates::default();
    for number in 0..2 * MAX_NAMES {
        let name = RateName::parse(&number.to_string()).unwrap();
        let (_, _) = wait(&rates, TakePermits { name: name.clone(), ..taking(1) }, 0);
        rates.with(&name, |known| {
            known.is_in_flight = false;
            known.refused = Some(Refused { permits: 1, until: ms(1_000_000), known_until: ms(1_000_000) });
        });
    }
    assert!(rates.names.lock().len() <= MAX_NAMES);
}
