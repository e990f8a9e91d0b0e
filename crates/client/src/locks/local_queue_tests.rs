//! The rules of sharing: by example, and against random orders of events.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn queue(max_passes: u32, max_time_ms: u64) -> LocalQueue<char> {
    LocalQueue::new(Sharing { max_passes, max_time: Duration::from_millis(max_time_ms) })
}

#[test]
fn turns_follow_each_other_first_come_first_served_up_to_the_cap() {
    let mut queue = queue(2, 1_000);
    assert_eq!(queue.join('a'), (1, true), "the first has the cluster asked");
    for waiter in ['b', 'c', 'd'] {
        assert!(!queue.join(waiter).1);
    }
    let (grant, first) = queue.granted(at(0));
    assert_eq!(first, Some('a'));
    assert_eq!(queue.turn_ended(grant, at(1), false), AfterTurn::Pass('b'));
    assert_eq!(queue.turn_ended(grant, at(2), false), AfterTurn::Pass('c'));
    assert_eq!(queue.turn_ended(grant, at(3), false), AfterTurn::Release, "passed on twice");
    assert!(queue.over(), "d still waits");
    let (grant, first) = queue.granted(at(10));
    assert_eq!(first, Some('d'));
    assert_eq!(queue.turn_ended(grant, at(11), false), AfterTurn::Release, "nobody waits");
    assert!(!queue.over());
    assert!(queue.join('e').1);
}

#[test]
fn a_grant_that_is_old_is_not_passed_on() {
    let mut queue = queue(100, 50);
    queue.join('a');
    queue.join('b');
    queue.join('c');
    let (grant, _) = queue.granted(at(100));
    assert_eq!(queue.turn_ended(grant, at(149), false), AfterTurn::Pass('b'));
    assert_eq!(queue.turn_ended(grant, at(150), false), AfterTurn::Release);
}

#[test]
fn nothing_is_passed_on_where_the_caps_say_never() {
    for mut queue in [queue(0, 1_000), queue(100, 0)] {
        queue.join('a');
        queue.join('b');
        let (grant, _) = queue.granted(at(0));
        assert_eq!(queue.turn_ended(grant, at(0), false), AfterTurn::Release);
        assert!(queue.over());
    }
}

#[test]
fn a_loss_ends_the_grant_and_the_turn_that_had_it_has_no_say_any_more() {
    let mut queue = queue(100, 1_000);
    queue.join('a');
    queue.join('b');
    let (first_grant, _) = queue.granted(at(0));
    assert!(queue.over(), "lost: b is asked for anew while a still has its guard");
    let (second_grant, first) = queue.granted(at(5));
    assert_eq!(first, Some('b'));
    queue.join('c');
    assert_eq!(queue.turn_ended(first_grant, at(6), true), AfterTurn::GrantOver);
    assert_eq!(queue.turn_ended(second_grant, at(7), true), AfterTurn::Release, "lost: not passed on");
    assert!(queue.over());
}

#[test]
fn who_leaves_is_skipped_and_nobody_is_asked_for_nobody() {
    let mut queue = queue(100, 1_000);
    let (a, _) = queue.join('a');
    let (b, _) = queue.join('b');
    assert_eq!(queue.leave(a), (Some('a'), false));
    assert_eq!(queue.leave(a), (None, false));
    assert_eq!(queue.leave(b), (Some('b'), true));
    let (c, begin) = queue.join('c');
    assert!(!begin, "it is being asked still");
    assert!(!queue.stop_asking());
    queue.leave(c);
    assert!(queue.stop_asking());
    assert!(queue.join_if_idle(|| 'd').is_some());
    assert!(queue.join_if_idle(|| 'e').is_none());
    assert_eq!(queue.failed(), ['d']);
    assert!(queue.join('f').1);
}

/// A random event; its number selects one of the candidates.
#[derive(Clone, Debug)]
enum Event {
    Join,
    Leave(usize),
    /// The task gets its answer: granted or failed.
    Answer {
        granted: bool,
    },
    /// The turn that is under way ends.
    EndTurn,
    /// The grant is lost; its turn goes on without it.
    Lose,
    /// A turn of a lost grant ends at last.
    EndOldTurn,
    /// The task has released the grant.
    GivenBack,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Join),
        2 => (0_usize..8).prop_map(Event::Leave),
        3 => prop::bool::weighted(0.8).prop_map(|granted| Event::Answer { granted }),
        6 => Just(Event::EndTurn),
        1 => Just(Event::Lose),
        1 => Just(Event::EndOldTurn),
        3 => Just(Event::GivenBack),
        1 => (0_u64..40).prop_map(Event::Pass),
    ]
}

/// What is so, kept as plainly as possible.
#[derive(Default)]
struct World {
    now: u64,
    next_name: u64,
    /// Who waits here, in order.
    waiting: VecDeque<(u64, u64)>,
    asking: bool,
    /// Grant, since when, how often passed on.
    turn: Option<(u64, u64, u32)>,
    giving_back: bool,
    /// Turns of grants that are lost.
    old_turns: Vec<u64>,
}

impl World {
    fn next_waiter(&mut self) -> Option<u64> {
        self.waiting.pop_front().map(|(_, name)| name)
    }
}

const MAX_PASSES: u32 = 3;
const MAX_TIME_MS: u64 = 50;

fn step(world: &mut World, queue: &mut LocalQueue<u64>, event: &Event) {
    match *event {
        Event::Join => {
            world.next_name += 1;
            let idle = !world.asking && world.turn.is_none() && !world.giving_back;
            let (number, begin) = queue.join(world.next_name);
            assert_eq!(begin, idle, "one asks, and only when nobody does");
            world.waiting.push_back((number, world.next_name));
            world.asking |= begin;
        }
        Event::Leave(which) if !world.waiting.is_empty() => {
            let (number, name) = world.waiting.remove(which % world.waiting.len()).unwrap();
            let for_nobody = world.asking && world.waiting.is_empty();
            assert_eq!(queue.leave(number), (Some(name), for_nobody));
            // The task may or may not check before its answer comes.
            if for_nobody && which % 2 == 0 {
                assert!(queue.stop_asking());
                world.asking = false;
            }
        }
        Event::Answer { granted } if world.asking => {
            world.asking = false;
            if !granted {
                let names: Vec<u64> = world.waiting.drain(..).map(|(_, name)| name).collect();
                assert_eq!(queue.failed(), names, "everybody is told");
                return;
            }
            let (grant, first) = queue.granted(at(world.now));
            assert_eq!(first, world.next_waiter(), "first come, first served");
            match first {
                Some(_) => world.turn = Some((grant, world.now, 0)),
                None => world.giving_back = true,
            }
        }
        Event::EndTurn => {
            let Some((grant, since, passes)) = world.turn.take() else { return };
            let may_pass = passes < MAX_PASSES && world.now < since + MAX_TIME_MS;
            match queue.turn_ended(grant, at(world.now), false) {
                AfterTurn::Pass(name) => {
                    assert!(may_pass, "passed on beyond the cap");
                    assert_eq!(Some(name), world.next_waiter(), "first come, first served");
                    world.turn = Some((grant, since, passes + 1));
                }
                AfterTurn::Release => {
                    assert!(!may_pass || world.waiting.is_empty(), "somebody waits and may have it");
                    world.giving_back = true;
                }
                AfterTurn::GrantOver => panic!("the turn that is under way was not known"),
            }
        }
        Event::Lose => {
            let Some((grant, ..)) = world.turn.take() else { return };
            world.old_turns.push(grant);
            world.asking = queue.over();
            assert_eq!(world.asking, !world.waiting.is_empty());
        }
        Event::EndOldTurn => {
            let Some(grant) = world.old_turns.pop() else { return };
            assert_eq!(queue.turn_ended(grant, at(world.now), true), AfterTurn::GrantOver, "two turns would overlap");
        }
        Event::GivenBack if world.giving_back => {
            world.giving_back = false;
            world.asking = queue.over();
            assert_eq!(world.asking, !world.waiting.is_empty(), "nobody waits unasked for");
        }
        Event::Pass(millis) => world.now += millis,
        Event::Leave(_) | Event::Answer { .. } | Event::GivenBack => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: never two turns, never beyond the caps, in order, and nobody forgotten.
    #[test]
    fn no_order_of_events_breaks_the_rules(events in prop::collection::vec(event(), 1..120)) {
        let max_time = Duration::from_millis(MAX_TIME_MS);
        let mut queue = LocalQueue::new(Sharing { max_passes: MAX_PASSES, max_time });
        let mut world = World::default();
        for event in &events {
            step(&mut world, &mut queue, event);
            let busy = world.asking || world.turn.is_some() || world.giving_back;
            prop_assert!(busy || world.waiting.is_empty(), "somebody waits and nobody asks");
        }
        // Left alone, it comes to rest with everybody served.
        for _ in 0..1_000 {
            step(&mut world, &mut queue, &Event::Answer { granted: true });
            step(&mut world, &mut queue, &Event::EndTurn);
            step(&mut world, &mut queue, &Event::GivenBack);
        }
        prop_assert!(world.waiting.is_empty() && !world.asking && world.turn.is_none());
        prop_assert!(queue.join_if_idle(|| 0).is_some());
    }
}
