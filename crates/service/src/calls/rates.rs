//! Calls of rate limits: take permits, look at one, list them.

use lockkeeper_api::Code;
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::rates::{PermitsTaken, Rate, RateView, Rates, RatesQuery, TakePermits};
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_PATH_BYTES;
use lockkeeper_core::rate::RATES_ROOT;
use lockkeeper_core::{NodePath, RateName, RatePage, Refusal, State};
use lockkeeper_node::NodeError;

use super::{CallScope, level, page_limit};
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
    let limit = page_limit(page.limit)?;
    let prefix = page.prefix.unwrap_or_default();
    if prefix.len() > MAX_PATH_BYTES {
        return Err(Failure::bad_request("'prefix' is longer than any name can be"));
    }
    let after = page.after.as_deref().map(RateName::parse).transpose()?;
    let root = NodePath::parse(RATES_ROOT)?;
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(page.consistency), move |state: &State| {
            list_allows(&principals, state, &root)?;
            page_of(state, &principals, &prefix, after.as_ref(), limit)
        })
        .await?;
    let (rates, next) = read.value.map_err(NodeError::Refused)?;
    Ok(Reply::ok(read.zxid, Rates { rates, next, zxid: read.zxid.0 }))
}

/// A page, and where the next one starts.
fn page_of(
    state: &State,
    who: &Principals,
    prefix: &str,
    after: Option<&RateName>,
    limit: usize,
) -> Result<(Vec<Rate>, Option<String>), Refusal> {
    let asked = prefix.trim_end_matches('/');
    state.check_right(who, &to_read(asked))?;
    // Rights are for whole parts of names, and the place to go on from must not tell another name.
    let after = after.map(RateName::as_str);
    let page = match state.access().is_enabled() && !asked.is_empty() {
        true => in_parts(state, asked, after, limit),
        false => state.rates(prefix, after, limit),
    };
    let readable = page.rates.iter().filter(|(path, ..)| list_allows(who, state, path).is_ok());
    Ok((readable.map(|(_, name, found)| view(name, *found)).collect(), page.next.map(str::to_owned)))
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
