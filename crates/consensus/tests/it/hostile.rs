//! Messages that nobody who follows the protocol sends: refused, and the cluster goes on, also after a restart. Before,
//! an unreadable entry was committed, one vote used up all terms, and an answer could end the leader's replication.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_consensus::{PeerKind, ServeError};

use crate::common::{Cluster, UNREADABLE, propose_until_taken};
use crate::forged;
use crate::memory_network::until;

const STEP: u64 = 1 << 32;

/// What `from` sends to `to`, which must refuse it for being what it is. Two followers may not have exchanged their
/// claims yet when a leader is known; until they have, every message is refused before it is read.
async fn refused(cluster: &Cluster, from: u64, to: u64, kind: PeerKind, body: Bytes) {
    let started = Instant::now();
    let answer = loop {
        let answer = cluster.at(to).consensus.serve(cluster.caller(from), kind, body.clone()).await;
        let unconfirmed = matches!(&answer, Err(ServeError { code, .. }) if code == "start_unconfirmed");
        if !unconfirmed || started.elapsed() > Duration::from_secs(30) {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let code = answer.as_ref().map_err(|ServeError { code, .. }| code.as_str());
    assert!(matches!(code, Err("implausible" | "malformed")), "{kind}: {answer:?}");
}

/// It works, nobody has failed, and the same after every node was started again.
async fn works_and_starts_again(mut cluster: Cluster) {
    works(&cluster).await;
    for node in cluster.members.keys().copied().collect::<Vec<_>>() {
        let member = cluster.kill(node);
        Cluster::bury(member).await;
    }
    for node in 1..=3 {
        cluster.boot(node).await;
    }
    works(&cluster).await;
    cluster.stop().await;
}

async fn works(cluster: &Cluster) {
    let leader = cluster.agreed().await;
    propose_until_taken(&cluster.at(leader).consensus, b"after").await;
    let all = cluster.at(leader).machine.count();
    for (node, member) in &cluster.members {
        let applied = || (member.machine.count() >= all && member.machine.has(b"after")).then_some(());
        until("every node to apply what came after", applied).await;
        assert!(member.fatal.lock().unwrap().is_empty(), "node {node}: {:?}", member.fatal.lock().unwrap());
    }
}

/// A cluster that has applied something everywhere, and its leader.
async fn at_work() -> (Cluster, u64) {
    let cluster = Cluster::start(3, |_| {}).await;
    works(&cluster).await;
    let leader = cluster.agreed().await;
    (cluster, leader)
}

fn term(cluster: &Cluster, node: u64) -> u64 {
    cluster.at(node).consensus.status().term
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_proposal_does_not_get_into_the_log() {
    let cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let follower = cluster.followers(leader)[0];
    let before = cluster.at(leader).consensus.status().last_log;
    let answer = cluster
        .at(leader)
        .consensus
        .serve(cluster.caller(follower), PeerKind::Propose, forged::proposal(UNREADABLE))
        .await;
    assert!(String::from_utf8_lossy(&answer.unwrap()).contains("not an entry of this machine"));
    let error = cluster.at(follower).consensus.propose(Bytes::from_static(UNREADABLE)).await.unwrap_err();
    assert!(error.to_string().contains("cannot be read and was not taken"), "{error}");
    assert_eq!(cluster.at(leader).consensus.status().last_log, before);
    works_and_starts_again(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_no_leader_has_are_refused_by_a_follower() {
    let (cluster, leader) = at_work().await;
    let to = cluster.followers(leader)[0];
    let now = term(&cluster, to);
    let vote = forged::leader(now, leader);
    let prev = cluster.at(to).consensus.status().applied.map(|at| (at.term, at.index)).unwrap();
    let next = (now, prev.1 + 1);
    let good = || forged::normal(1, b"good");
    let entries = [
        (next, forged::normal(1, UNREADABLE)),
        (next, forged::normal(u64::MAX, b"clock")),
        (next, vec![9, 9]),
        ((now, next.1 + 1), good()),
        ((now, u64::MAX), good()),
        ((now + 1, next.1), good()),
        (next, forged::membership(&[], &[1])),
        (next, forged::membership(&[&[]], &[1])),
        (next, forged::membership(&[&[1, 2, 9]], &[1, 2])),
        (next, forged::membership(&[&[1], &[1], &[1]], &[1])),
        (next, forged::membership(&[&[1, 2, 100]], &[1, 2, 100])),
    ];
    for entry in entries {
        refused(&cluster, leader, to, PeerKind::Append, forged::append(vote, Some(prev), None, &[entry])).await;
    }
    for position in [(now + 1, 1), (1, u64::MAX), (1, 1 << 60)] {
        refused(&cluster, leader, to, PeerKind::Append, forged::append(vote, Some(position), None, &[])).await;
        refused(&cluster, leader, to, PeerKind::Heartbeat, forged::append(vote, None, Some(position), &[])).await;
    }
    let backwards = [(next, good()), ((now - 1, next.1 + 1), good())];
    refused(&cluster, leader, to, PeerKind::Append, forged::append(vote, Some(prev), None, &backwards)).await;
    // Whoever has not been elected has no log to give.
    let vote = forged::candidate(now + 1, leader);
    refused(&cluster, leader, to, PeerKind::Append, forged::append(vote, Some(prev), None, &[])).await;
    works_and_starts_again(cluster).await;
}

/// openraft would answer that it has the entry, and put the rest of the other history behind its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_contradicts_what_is_applied_ends_the_node_and_changes_nothing() {
    let (cluster, leader) = at_work().await;
    let to = cluster.followers(leader)[0];
    let at = cluster.at(to);
    let (now, applied) = (term(&cluster, to), at.consensus.status().applied.unwrap());
    let before = at.machine.payloads();
    let entry = ((now, applied.index + 1), forged::normal(1, b"another history"));
    let other = Some((applied.term - 1, applied.index));
    let append = forged::append(forged::leader(now, leader), other, None, &[entry]);
    let answer = at.consensus.serve(cluster.caller(leader), PeerKind::Append, append).await;
    assert_eq!(answer.unwrap_err().code, "contradicts_applied");
    let fatal = at.fatal.lock().unwrap().join("\n");
    assert!(fatal.contains("a majority of the cluster has lost what it acknowledged"), "{fatal}");
    assert_eq!(at.machine.payloads(), before);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_that_cannot_be_are_refused_in_every_request() {
    let cluster = Cluster::start(3, |_| {}).await;
    cluster.leader().await;
    let before = term(&cluster, 1);
    for term in [u64::MAX, u64::MAX - 1, 1 << 63, before + 2 * STEP] {
        for to in 1..=3 {
            let from = to % 3 + 1;
            let (candidate, leader) = (forged::candidate(term, from), forged::leader(term, from));
            let last = Some((before, 1_000));
            refused(&cluster, from, to, PeerKind::Vote, forged::vote(candidate, last)).await;
            refused(&cluster, from, to, PeerKind::PreVote, forged::vote(candidate, last)).await;
            refused(&cluster, from, to, PeerKind::Append, forged::append(leader, None, None, &[])).await;
            refused(&cluster, from, to, PeerKind::Heartbeat, forged::append(leader, None, None, &[])).await;
            refused(&cluster, from, to, PeerKind::TransferLeader, forged::transfer(leader, to, last)).await;
            let snapshot = forged::snapshot(leader, last, &[&[1, 2, 3]], &[1, 2, 3], &[0; 8]);
            refused(&cluster, from, to, PeerKind::Snapshot, snapshot).await;
        }
    }
    // A candidate that says it leads, and a log beyond every log.
    let later = before + 1;
    refused(&cluster, 1, 2, PeerKind::Vote, forged::vote(forged::leader(later, 1), None)).await;
    let far = Some((before, u64::MAX));
    refused(&cluster, 1, 2, PeerKind::Vote, forged::vote(forged::candidate(later, 1), far)).await;
    refused(&cluster, 1, 2, PeerKind::PreVote, forged::vote(forged::candidate(later, 1), far)).await;
    refused(&cluster, 1, 2, PeerKind::TransferLeader, forged::transfer(forged::leader(before, 1), 2, far)).await;
    assert!((1..=3).all(|node| term(&cluster, node) < STEP));
    works_and_starts_again(cluster).await;
}

/// What is refused must be so before it is durable: an installed snapshot is read again at each start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_cannot_be_read_or_cannot_be_is_refused() {
    let (cluster, leader) = at_work().await;
    let to = cluster.followers(leader)[0];
    let now = term(&cluster, to);
    let applied = until("an applied entry", || cluster.at(to).consensus.status().applied).await.index;
    let vote = forged::leader(now, leader);
    let three: (&[&[u64]], &[u64]) = (&[&[1, 2, 3]], &[1, 2, 3]);
    let empty = [0; 8];
    let forgeries = [
        forged::snapshot(vote, Some((now, applied + 10)), three.0, three.1, b"no state"),
        forged::snapshot(vote, Some((now + 1, applied + 10)), three.0, three.1, &empty),
        forged::snapshot(vote, Some((now, u64::MAX)), three.0, three.1, &empty),
        forged::snapshot(vote, Some((now, applied + 10)), &[&[1, 2, 9]], &[1, 2], &empty),
        forged::snapshot(vote, Some((now, applied + 10)), &[], &[1], &empty),
        forged::snapshot(vote, Some((now, applied + 10)), &[&[1, 2, 100]], &[1, 2, 100], &empty),
        forged::snapshot(forged::candidate(now + 1, leader), Some((now, applied + 10)), three.0, three.1, &empty),
    ];
    for forgery in forgeries {
        refused(&cluster, leader, to, PeerKind::Snapshot, forgery).await;
    }
    works_and_starts_again(cluster).await;
}

/// A peer that answers what cannot be is as good as silent, and heals when it is right again.
async fn survives_answers(kinds: &[PeerKind], answer: Bytes) {
    let cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let liar = cluster.followers(leader)[0];
    for kind in kinds {
        cluster.net.answer_with(liar, *kind, Some(answer.clone()));
    }
    for _ in 0..20 {
        propose_until_taken(&cluster.at(leader).consensus, b"meanwhile").await;
    }
    for kind in kinds {
        cluster.net.answer_with(liar, *kind, None);
    }
    assert!(term(&cluster, leader) < STEP);
    works_and_starts_again(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_survives_every_answer_to_its_appends() {
    let both = [PeerKind::Append, PeerKind::Heartbeat];
    for answer in [
        forged::partial(Some((1, 1 << 40))),
        forged::partial(Some((1 << 40, 2))),
        forged::partial(Some((0, u64::MAX))),
        forged::partial(None),
        forged::conflict(),
        forged::success_at(u64::MAX),
        forged::higher_vote(forged::candidate(0, 1)),
        Bytes::from_static(b"\xff\xff\xff"),
    ] {
        survives_answers(&both, answer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_uses_up_the_terms() {
    for node in 1..=3 {
        let answer = forged::higher_vote(forged::leader(u64::MAX, node));
        let (mut cluster, leader) = at_work().await;
        let liar = cluster.followers(leader)[0];
        cluster.net.answer_with(liar, PeerKind::Heartbeat, Some(answer));
        let votes = forged::vote_answer(forged::candidate(u64::MAX, node), false, Some((1, u64::MAX)));
        cluster.net.answer_with(liar, PeerKind::PreVote, Some(votes.clone()));
        cluster.net.answer_with(liar, PeerKind::Vote, Some(votes));
        let killed = cluster.kill(leader);
        Cluster::bury(killed).await;
        // The liar, whose log is as good, asks the third node, which answers truly.
        cluster.leader().await;
        for kind in [PeerKind::Heartbeat, PeerKind::PreVote, PeerKind::Vote] {
            cluster.net.answer_with(liar, kind, None);
        }
        cluster.boot(leader).await;
        works_and_starts_again(cluster).await;
    }
}

/// Each message raises a term by a step at most, so a few of them can take a node out of the others' reach: they follow
/// step by step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_term_was_driven_far_ahead_comes_together_with_the_others_again() {
    let cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let to = cluster.followers(leader)[0];
    for _ in 0..4 {
        let driven = term(&cluster, to) + STEP;
        let heartbeat = forged::append(forged::leader(driven, leader), None, None, &[]);
        cluster.at(to).consensus.serve(cluster.caller(leader), PeerKind::Heartbeat, heartbeat).await.unwrap();
        // The status follows the answer, and the next step counts from it.
        until("the node's status to name the term", || (term(&cluster, to) >= driven).then_some(())).await;
    }
    until("the others to follow", || (1..=3).all(|node| term(&cluster, node) > 3 * STEP).then_some(())).await;
    works_and_starts_again(cluster).await;
}
