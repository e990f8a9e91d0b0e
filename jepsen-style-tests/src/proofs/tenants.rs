//! P13 between tenants of one address: clients of one namespace go beyond each of its limits at every node, and repeat
//! at once what is refused. Each class meets a limit of its own, and all have one on requests a second, which keeps the
//! processor free for others. Another tenant's acquires may take at most half as long again as in calm, by their 99th
//! percentile, and none may fail. The state must never have more of the namespace than its limits allow, what gives
//! back must be carried out all the same, and each limit must have been met. As a control the same flood goes on
//! without limits: there the other tenant must be slower than that, or nothing was tried.

mod flood;

use std::net::{IpAddr, Ipv4Addr};

use lockkeeper_api::access::{AccessChange, NamespaceLimits, Resource, Right};

use super::access::{Administrator, enable, rule, with_token};
use super::lock_cycles::LockCycles;
use crate::http::client_builder;
use crate::proofs::prelude::*;
use flood::{Flood, FloodClass};

/// The calm tenant's share of a percentile may grow by half.
const MOST_TIMES: f64 = 1.5;
/// After a class: what it has left ends.
const PAUSE: Duration = Duration::from_millis(500);
const NOISY: &str = "noisy";
const CALM: &str = "calm";
/// Both tenants come from one address, as behind a proxy: the shares of addresses do not tell them apart.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// How often the use of the namespace is read during a flood.
const LOOK_EVERY: Duration = Duration::from_millis(250);
pub(super) fn classes() -> u32 {
    FloodClass::ALL.len() as u32
}

/// Each class floods for so long, and so long is the calm before it.
pub(super) async fn run(context: &Context, window: Duration) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    enable(&mut cluster, || Ok(client_builder())).await?;
    let administrator = Administrator::at(cluster.api(1));
    let noisy = tenant(&cluster, &administrator, NOISY).await?;
    let calm = LockCycles::steady(&tenant(&cluster, &administrator, CALM).await?, CALM).await?;
    calm.window(window).await;

    let mut findings = Vec::new();
    let mut told = Vec::new();
    for class in FloodClass::ALL {
        limit(&administrator, class.limits()).await?;
        let tried = TenantTrial::of(&cluster, (&calm, &noisy), class, window).await?;
        findings.extend(tried.judge());
        context.log.say(tried.to_string());
        told.push(tried.to_string());
        tokio::time::sleep(PAUSE).await;
    }
    // Without limits: at last, since it leaves much behind.
    limit(&administrator, NamespaceLimits::default()).await?;
    let control = TenantTrial::of(&cluster, (&calm, &noisy), FloodClass::Nodes, window).await?;
    context.log.say(format!("without limits: {control}"));
    if control.is_undisturbed() {
        findings.push(format!("without limits the flood does not disturb either, so nothing was tried: {control}"));
    }
    findings.extend(calm.end().await.failures);
    match findings.is_empty() {
        true => Ok(format!("{}; without limits {control}", told.join("; "))),
        false => broken(findings.join("; ")),
    }
}

/// Makes a tenant: a principal with a role on the namespace of its name. Its APIs at all nodes.
async fn tenant(cluster: &Cluster, administrator: &Administrator, name: &str) -> Result<Vec<Api>, Failed> {
    use Resource::{Locks, Nodes};
    let path = format!("/{name}");
    let rights = &[Right::Acquire, Right::Read, Right::Write];
    administrator.role(name, vec![rule(Locks, name, rights), rule(Nodes, &path, rights)], &[name]).await?;
    let token = administrator.token(name, None).await?;
    let client = with_token(client_builder().local_address(ADDRESS), &token.token)?;
    Ok(cluster.apis().into_iter().map(|(_, api)| Api::at(client.clone(), api.base())).collect())
}

async fn limit(administrator: &Administrator, limits: NamespaceLimits) -> Result<(), Failed> {
    let put = AccessChange::PutNamespace { name: NOISY.into(), owner: Some(NOISY.into()), limits, version: None };
    administrator.change(put).await.map(drop)
}

/// Reads again and again what the namespace has beyond its limits; the first that is found.
async fn watch_limits(cluster: &Cluster, time: Duration) -> Result<Vec<String>, Failed> {
    let began = Instant::now();
    while began.elapsed() < time {
        let beyond = beyond_limits(cluster).await?;
        if !beyond.is_empty() {
            return Ok(beyond);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(Vec::new())
}

/// What the namespace has beyond its limits, by what the cluster says.
async fn beyond_limits(cluster: &Cluster) -> Result<Vec<String>, Failed> {
    let all = cluster.api(1).namespaces().await.or_broken("the namespaces cannot be listed")?.value;
    let Some(noisy) = all.namespaces.iter().find(|namespace| namespace.name == NOISY) else {
        return broken("the namespace is not listed");
    };
    let (used, limits) = (noisy.usage, noisy.limits);
    let bounds = [
        ("sessions", used.sessions, limits.sessions),
        ("lock requests", used.lock_requests, limits.lock_requests),
        ("nodes", used.nodes, limits.nodes),
        ("bytes", used.bytes, limits.bytes),
    ];
    let beyond = bounds.into_iter().filter(|(_, used, limit)| limit.is_some_and(|limit| *used > limit));
    Ok(beyond.map(|(what, used, limit)| format!("{used} {what}, beyond its limit {limit:?}")).collect())
}

/// A class of floods, and how the calm tenant did before and meanwhile.
struct TenantTrial {
    class: FloodClass,
    before: Summary,
    during: Summary,
    /// Requests of the flood that were carried out, and that were refused by the limit of its class.
    carried_out: u64,
    refused: u64,
    failures: Vec<String>,
}

impl TenantTrial {
    async fn of(
        cluster: &Cluster,
        (calm, noisy): (&LockCycles, &[Api]),
        class: FloodClass,
        window: Duration,
    ) -> Result<Self, Failed> {
        let before = calm.window(window).await;
        let flood = Flood::start(noisy, class).await?;
        let (during, beyond) = tokio::join!(calm.window(window), watch_limits(cluster, window));
        let ended = flood.end().await?;
        let nothing = || Failed::Broken(format!("{}: the calm tenant got nothing done", class.name()));
        let mut failures = before.failures;
        failures.extend(during.failures);
        failures.extend(ended.failures);
        failures.extend(beyond?);
        Ok(Self {
            class,
            before: Summary::of(&before.took).ok_or_else(nothing)?,
            during: Summary::of(&during.took).ok_or_else(nothing)?,
            carried_out: ended.carried_out,
            refused: ended.refused,
            failures,
        })
    }

    fn is_undisturbed(&self) -> bool {
        self.during.p99 <= self.before.p99.mul_f64(MOST_TIMES)
    }

    fn judge(&self) -> Vec<String> {
        let mut findings: Vec<String> = self.failures.iter().take(1).cloned().collect();
        if !self.is_undisturbed() {
            findings.push(format!("another namespace is held up: {self}"));
        }
        if self.refused == 0 {
            findings.push(format!("the limit was never met, so nothing was tried: {self}"));
        }
        findings
    }
}

impl std::fmt::Display for TenantTrial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: p99 {} before, {} meanwhile ({:.2} times), {} of its requests carried out, {} refused",
            self.class.name(),
            millis(self.before.p99),
            millis(self.during.p99),
            self.during.times(&self.before),
            self.carried_out,
            self.refused
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(before_ms: u64, during_ms: u64, refused: u64, failures: &[&str]) -> TenantTrial {
        let summary = |ms| Summary::of(&[Duration::from_millis(ms)]).unwrap();
        TenantTrial {
            class: FloodClass::Nodes,
            before: summary(before_ms),
            during: summary(during_ms),
            carried_out: 1,
            refused,
            failures: failures.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn judges_times_limits_and_failures() {
        assert!(trial(10, 15, 1, &[]).judge().is_empty());
        assert_eq!(trial(10, 16, 1, &[]).judge().len(), 1, "too slow");
        assert_eq!(trial(10, 10, 0, &[]).judge().len(), 1, "nothing tried");
        assert_eq!(trial(10, 10, 1, &["a release failed"]).judge().len(), 1);
    }
}
