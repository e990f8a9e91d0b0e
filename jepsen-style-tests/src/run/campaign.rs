//! The faults of a run, turn by turn: each is put on, held for longer than a session lives, taken off, and asked for
//! evidence that it took effect.

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::history::{FaultRecord, WakeUps};
use crate::nemesis::{Moments, Nemesis, TestBed};
use crate::record::boot_us;
use crate::verdict::{Failed, cannot_run};

use super::plan::{self, Deck, Pace};
use super::screen::Screen;

/// How long putting a fault on, or taking it off, may take.
const HAND_WITHIN: Duration = Duration::from_secs(90);

/// A stretch of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// What it is.
    pub name: String,
    /// When it began, on the boot clock.
    pub from_us: u64,
    /// When it ended.
    pub to_us: u64,
}

/// The results of the faults.
#[derive(Debug, Default)]
pub struct Campaign {
    /// Each fault that was put on and taken off.
    pub faults: Vec<FaultRecord>,
    /// Faults that a nemesis could not put on or off, and forbidden states that it found.
    pub checks: Vec<Check>,
    /// The stretches.
    pub phases: Vec<Phase>,
    /// The servers' wake-ups before the first fault.
    pub wake_ups: WakeUps,
}

/// Everything that a campaign needs.
pub struct Means<'a> {
    /// Nodes, network, clients.
    pub test_bed: &'a mut TestBed,
    /// The nemeses, in the order of the deck.
    pub nemeses: &'a mut [Box<dyn Nemesis>],
    /// Chooses them.
    pub deck: Deck,
    /// The lengths of the phases.
    pub pace: Pace,
    /// Time under load, all in all.
    pub time: Duration,
    /// The seed of randomness within a nemesis.
    pub seed: u64,
    /// Where progress is shown.
    pub screen: &'a Screen,
}

struct On {
    nemesis: usize,
    what: String,
    began_us: u64,
}

impl Campaign {
    /// Calm, then turns of faults until the time is over and each nemesis had its turn.
    pub async fn fight(mut means: Means<'_>) -> Self {
        let mut campaign = Self::default();
        let mut rng = StdRng::seed_from_u64(means.seed ^ 0x006e_656d_6573_6973);
        let begun = Instant::now();
        let until = means.time.saturating_sub(means.pace.last_calm);
        // Faults that take longer than planned still have their turn each, but not for ever.
        let at_most = until * 3 + Duration::from_secs(60);
        let mut calm = means.pace.first_calm;
        loop {
            campaign.calm(means.screen, "calm", calm).await;
            if campaign.phases.len() == 1 {
                campaign.wake_ups = means.test_bed.cluster.wake_ups().await;
            }
            let in_time = begun.elapsed() + means.pace.hold <= until;
            let due = !means.deck.dealt_once() && begun.elapsed() < at_most;
            if !in_time && !due {
                break;
            }
            let turn = means.deck.deal();
            if turn.is_empty() {
                campaign.calm(means.screen, "no faults", until.saturating_sub(begun.elapsed())).await;
                campaign.wake_ups = means.test_bed.cluster.wake_ups().await;
                break;
            }
            campaign.turn(&mut means, &turn, &mut rng).await;
            if begun.elapsed() + means.pace.calm + means.pace.hold > until && means.deck.dealt_once() {
                break;
            }
            calm = means.deck.about(means.pace.calm);
        }
        campaign
    }

    /// A stretch in which nothing is done.
    pub async fn calm(&mut self, screen: &Screen, name: &str, duration: Duration) {
        screen.phase(name);
        let from_us = boot_us();
        tokio::time::sleep(duration).await;
        self.phases.push(Phase { name: name.into(), from_us, to_us: boot_us() });
    }

    async fn turn(&mut self, means: &mut Means<'_>, turn: &[usize], rng: &mut StdRng) {
        let from_us = boot_us();
        let mut on = Vec::new();
        for at in turn {
            let nemesis = &mut means.nemeses[*at];
            means.screen.phase(&format!("putting on {}", nemesis.name()));
            let begun_us = boot_us();
            means.test_bed.moments = Moments::default();
            match bounded(nemesis.inject(means.test_bed, rng)).await {
                Ok(what) => {
                    means.screen.say(&format!("  fault on:  {} ({what})", nemesis.name()));
                    on.push(On { nemesis: *at, what, began_us: means.test_bed.moments.struck_us(begun_us) });
                }
                Err(failed) => {
                    self.trouble(nemesis.name(), "could not be put on", failed, means.screen);
                    // Whatever part of it is on must come off.
                    let _ = bounded(nemesis.heal(means.test_bed)).await;
                }
            }
        }
        let names: Vec<&str> = on.iter().map(|on| means.nemeses[on.nemesis].name()).collect();
        let names = names.join(" + ");
        means.screen.phase(&names);
        tokio::time::sleep(means.deck.about(means.pace.hold)).await;
        // The others in the order in which they came: nodes that were killed come back over a healed network.
        on.sort_by_key(|fault| plan::off_last(means.nemeses[fault.nemesis].name()));
        for fault in on {
            self.heal(means, fault).await;
        }
        self.phases.push(Phase { name: names, from_us, to_us: boot_us() });
    }

    async fn heal(&mut self, means: &mut Means<'_>, fault: On) {
        let nemesis = &mut means.nemeses[fault.nemesis];
        means.screen.phase(&format!("taking off {}", nemesis.name()));
        means.test_bed.moments = Moments::default();
        let evidence = match bounded(nemesis.heal(means.test_bed)).await {
            Ok(evidence) => evidence,
            Err(failed) => {
                self.trouble(nemesis.name(), "was put on, and then", failed, means.screen);
                Vec::new()
            }
        };
        let said = if evidence.is_empty() { "it is not known to have bitten".into() } else { evidence.join("; ") };
        means.screen.say(&format!("  fault off: {}: {said}", nemesis.name()));
        self.faults.push(FaultRecord {
            nemesis: nemesis.name().into(),
            what: fault.what,
            began_us: fault.began_us,
            ended_us: means.test_bed.moments.lifted_us(),
            bit: !evidence.is_empty(),
            evidence,
            stops_holders: nemesis.stops_holders(),
        });
    }

    fn trouble(&mut self, nemesis: &str, when: &str, failed: Failed, screen: &Screen) {
        screen.say(&format!("  trouble: {nemesis} {when}: {failed}"));
        let detail = format!("{nemesis} {when}: {failed}");
        self.checks.push(match failed {
            Failed::Broken(what) => {
                Check { at_us: Some(boot_us()), ..Check::invalid("faults and healing", "P10", detail, vec![what]) }
            }
            Failed::CannotRun(_) => Check::unknown("faults and healing", "P10", detail),
        });
    }
}

async fn bounded<T>(hand: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    match tokio::time::timeout(HAND_WITHIN, hand).await {
        Ok(done) => done,
        Err(_) => cannot_run(format!("not done within {HAND_WITHIN:?}")),
    }
}
