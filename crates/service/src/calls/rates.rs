//! Calls of rate limits: take permits, look at one, list them.

use lockkeeper_api::Code;
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::rates::{PermitsTaken, Rate, RateView, Rates, RatesQuery, TakePermits};
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_core::{RateName, RatePage, State};
use lockkeeper_node::NodeError;

use super::lists::{ListQuery, Names, Page, list};
use super::{CallScope, level};
use crate::failure::Failure;
use crate::principals::list_allows;
use crate::reply::{Answered, Reply};

/// Takes permits, or says in how long they will be there. Both are answers: what is refused is a request that is wrong.
pub(super) async fn take_permits(scope: CallScope, name: String, ask: TakePermits) -> Answered<PermitsTaken> {
    let TakePermits { permits, limit, per_ms, reconfigure } = ask;
    let rate = lockkeeper_core::Rate { limit, per_ms };
    let ask = lockkeeper_node::TakePermits { name: RateName::parse(&name)?, rate, permits, reconfigure };
    let done = scope.context.node.take_permits(scope.caller, ask).await?;
    let lockkeeper_node::PermitsTaken { granted, available, retry_after_ms } = done.value;
    let body = PermitsTaken { name, granted, available, retry_after_ms, zxid: done.zxid.0 };
    Ok(Reply::ok(done.zxid, body))
}

/// Shows a rate limit whose bucket is not full.
pub(super) async fn get_rate(scope: CallScope, name: String, query: ReadQuery) -> Answered<RateView> {
    let wanted = RateName::parse(&name)?;
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(query.consistency), move |state: &State| {
            state.check_right(&principals, &to_read(wanted.as_str()))?;
            list_allows(&principals, state, &wanted.path())?;
            state.rate(&wanted)
        })
        .await?;
    match read.value.map_err(NodeError::Refused)? {
        Some(found) => {
            let body = RateView { rate: view(&name, found), zxid: read.zxid.0 };
            Ok(Reply::ok(read.zxid, body))
        }
        None => {
            let detail = format!("the bucket of rate limit {name} is full, and nothing is kept of a full one");
            Err(Failure::new(Code::NotFound, detail).at(read.zxid))
        }
    }
}

/// Lists the rate limits whose buckets are not full, in order of their names.
pub(super) async fn list_rates(scope: CallScope, page: RatesQuery) -> Answered<Rates> {
    let RatesQuery { prefix, after, limit, consistency } = page;
    let query = ListQuery { prefix, after, limit, consistency };
    let show = |Page { state, who, names, after, limit }: Page<'_, RateName>| {
        let after = after.map(RateName::as_str);
        let page = match names {
            Names::InParts(name) => in_parts(state, name, after, limit),
            Names::Beginning(prefix) => state.rates(prefix, after, limit),
        };
        let readable = page.rates.iter().filter(|(path, ..)| list_allows(who, state, path).is_ok());
        let rates: Vec<_> = readable.map(|(_, name, found)| view(name, *found)).collect();
        (rates, page.next.map(str::to_owned))
    };
    let ((rates, next), zxid) = list(scope, Resource::Rates, RateName::parse, query, show).await?;
    Ok(Reply::ok(zxid, Rates { rates, next, zxid: zxid.0 }))
}

/// The rate limit of a name, or those below it: there cannot be both.
fn in_parts<'a>(state: &'a State, name: &str, after: Option<&str>, limit: usize) -> RatePage<'a> {
    let own = state.rates(name, None, 1).rates.into_iter().find(|(_, found, _)| *found == name);
    match own.filter(|_| after.is_none()) {
        Some(own) => RatePage { rates: vec![own], next: None },
        None => state.rates(&format!("{name}/"), after, limit),
    }
}

fn to_read(name: &str) -> Need<'_> {
    Need::of(Resource::Rates, name, Rights::READ.and(Rights::ACQUIRE))
}

fn view(name: &str, found: lockkeeper_core::RateView) -> Rate {
    let lockkeeper_core::RateView { rate, available, leased, full_at_ms } = found;
    Rate { name: name.to_owned(), limit: rate.limit, per_ms: rate.per_ms, available, leased, full_at_ms }
}
