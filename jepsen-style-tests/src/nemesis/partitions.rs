//! Partitions: one node, halves, a ring of majorities, a bridge, the leader alone, and what only one direction loses.
//!
//! Mostly by silence; at times by reset connections, or by ends that do not know that they are talking to nobody. In
//! some the clients lose the nodes of the smaller side too.

use std::collections::BTreeSet;

use rand::RngCore as _;

use crate::nemesis::prelude::*;

#[derive(Clone, Copy)]
enum Shape {
    One,
    Halves,
    Ring,
    Bridge,
    Leader,
    OneWay,
}

struct Partition {
    shape: Shape,
    lines: Vec<ObservedLink>,
    before: Option<(Option<Lead>, LinkCounts)>,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    let shapes = [Shape::One, Shape::Halves, Shape::Ring, Shape::Bridge, Shape::Leader, Shape::OneWay];
    let make = |shape| Box::new(Partition { shape, lines: Vec::new(), before: None }) as Box<dyn Nemesis>;
    shapes.into_iter().map(make).collect()
}

/// What each node of one group sends to each of the other.
fn across(one: &[u64], other: &[u64]) -> Vec<ObservedLink> {
    one.iter().flat_map(|from| other.iter().map(|to| ObservedLink::To(Endpoint::Node(*from), *to))).collect()
}

fn both_ways(one: &[u64], other: &[u64]) -> Vec<ObservedLink> {
    [across(one, other), across(other, one)].concat()
}

/// Every node hears a majority, itself among it, and no two the same one.
fn ring(nodes: &[u64]) -> Vec<ObservedLink> {
    let majority = nodes.len() / 2 + 1;
    let mut lost = Vec::new();
    for (at, hears) in nodes.iter().enumerate() {
        // Its majority lies around it, as even as it can.
        let first = at + nodes.len() - (majority - 1) / 2;
        let heard: BTreeSet<u64> = (0..majority).map(|step| nodes[(first + step) % nodes.len()]).collect();
        lost.extend(
            nodes
                .iter()
                .filter(|from| !heard.contains(from))
                .map(|from| ObservedLink::To(Endpoint::Node(*from), *hears)),
        );
    }
    lost
}

impl Partition {
    /// What is lost, and how that is told.
    async fn draw(
        &self,
        test_bed: &TestBed,
        rng: &mut StdRng,
    ) -> Result<(Vec<ObservedLink>, Vec<u64>, String), Failed> {
        let mut nodes = test_bed.cluster.ids();
        nodes.shuffle(rng);
        let minority = (nodes.len() - 1) / 2;
        let all = nodes.clone();
        let alone = |node: u64| all.iter().copied().filter(|other| *other != node).collect::<Vec<_>>();
        Ok(match self.shape {
            Shape::One => {
                let told = format!("{} cut off from the others", observe::called(&test_bed.cluster, nodes[0]).await);
                (both_ways(&nodes[..1], &nodes[1..]), vec![nodes[0]], told)
            }
            Shape::Leader => {
                let leader = observe::leader_or_any(test_bed, rng).await?;
                let told = format!("{} cut off from the others", observe::called(&test_bed.cluster, leader).await);
                (both_ways(&[leader], &alone(leader)), vec![leader], told)
            }
            Shape::Halves => {
                let (less, more) = nodes.split_at(minority.max(1));
                (both_ways(less, more), less.to_vec(), format!("{less:?} and {more:?} cut off from each other"))
            }
            Shape::Bridge => {
                // Two followers have little to say to each other: the leader is to lose somebody.
                let leader = observe::leader_or_any(test_bed, rng).await?;
                nodes.sort_by_key(|node| *node == leader);
                let (bridge, rest) = (nodes[0], &nodes[1..]);
                let (one, other) = rest.split_at(rest.len() / 2);
                let told = format!("{one:?} and {other:?} reach each other over node {bridge} alone");
                (both_ways(one, other), Vec::new(), told)
            }
            Shape::Ring => (ring(&nodes), Vec::new(), format!("each of {nodes:?} hears another majority")),
            Shape::OneWay => {
                let node = if rng.random_bool(0.7) { observe::leader_or_any(test_bed, rng).await? } else { nodes[0] };
                let (called, others) = (observe::called(&test_bed.cluster, node).await, alone(node));
                if rng.random_bool(0.5) {
                    (
                        across(&[node], &others),
                        Vec::new(),
                        format!("{called} is not heard by the others, but hears them"),
                    )
                } else {
                    (across(&others, &[node]), Vec::new(), format!("{called} hears nobody, and is heard"))
                }
            }
        })
    }
}

/// How links fail.
fn manner(rng: &mut StdRng) -> (LinkFault, &'static str) {
    match rng.next_u32() % 8 {
        0..=4 => (LinkFault::Cut, "by silence"),
        5 | 6 => (LinkFault::Reset, "by resets"),
        _ => (LinkFault::HalfOpen, "by half-open connections"),
    }
}

/// Puts a fault on links, or takes it off.
pub(super) async fn put(test_bed: &TestBed, lines: &[ObservedLink], fault: LinkFault) -> Result<(), Failed> {
    for line in lines {
        match line {
            ObservedLink::To(from, to) => test_bed.net.set(*from, *to, fault).await?,
            ObservedLink::Answers(from) => test_bed.net.set_answers(*from, fault).await?,
        }
    }
    Ok(())
}

#[async_trait]
impl Nemesis for Partition {
    fn names(&self) -> (&'static str, &'static str) {
        match self.shape {
            Shape::One => ("partition-one", "one node cut off"),
            Shape::Halves => ("partition-halves", "a minority and a majority cut off from each other"),
            Shape::Ring => ("partition-ring", "each node hears a majority, and no two the same"),
            Shape::Bridge => ("partition-bridge", "two groups that reach each other over one node alone"),
            Shape::Leader => ("partition-leader", "the leader cut off"),
            Shape::OneWay => (
                "partition-oneway",
                "a node, mostly the leader, that is heard and hears nobody, or the other way round",
            ),
        }
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        (test_bed.cluster.ids().len() < 3).then_some(Lack::Settings("it takes three nodes at least"))
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let (mut lines, smaller_side, mut told) = self.draw(test_bed, rng).await?;
        let (fault, how) = if test_bed.net.backend() == "proxy" { manner(rng) } else { (LinkFault::Cut, "by silence") };
        if !smaller_side.is_empty() && rng.random_bool(0.25) {
            lines.extend(smaller_side.iter().map(|node| ObservedLink::To(Endpoint::Clients, *node)));
            lines.extend(smaller_side.iter().map(|node| ObservedLink::Answers(*node)));
            told.push_str(", and from the clients");
        }
        let lead = observe::lead(&test_bed.cluster, Duration::ZERO).await;
        let before = observe::count(test_bed, &lines).await;
        self.lines.clone_from(&lines);
        self.before = Some((lead, before));
        test_bed.moments.strike();
        put(test_bed, &lines, fault).await?;
        Ok(format!("{told}, {how}"))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let mut evidence = Vec::new();
        if let Some((lead, before)) = self.before.take()
            && let Some(held) = observe::held_since(test_bed, &before).await
        {
            evidence.push(held);
            evidence.extend(observe::lead_changed(&test_bed.cluster, lead).await);
        }
        put(test_bed, &std::mem::take(&mut self.lines), LinkFault::None).await?;
        test_bed.moments.lift();
        Ok(evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_ring_each_hears_a_majority_of_its_own() {
        for nodes in [vec![1, 2, 3], vec![1, 2, 3, 4, 5]] {
            let lost = ring(&nodes);
            let heard_by = |node: u64| -> BTreeSet<u64> {
                nodes
                    .iter()
                    .copied()
                    .filter(|from| !lost.contains(&ObservedLink::To(Endpoint::Node(*from), node)))
                    .collect()
            };
            let majorities: BTreeSet<BTreeSet<u64>> = nodes.iter().map(|node| heard_by(*node)).collect();
            assert_eq!(majorities.len(), nodes.len());
            for node in &nodes {
                assert!(heard_by(*node).contains(node));
                assert_eq!(heard_by(*node).len(), nodes.len() / 2 + 1);
            }
        }
    }
}
