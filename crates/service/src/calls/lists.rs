//! A page of the names below a root of the service: of locks, gates and rate limits.

use lockkeeper_api::Level;
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::gate::GATES_ROOT;
use lockkeeper_core::limits::MAX_PATH_BYTES;
use lockkeeper_core::lock::LOCKS_ROOT;
use lockkeeper_core::path::PathError;
use lockkeeper_core::rate::RATES_ROOT;
use lockkeeper_core::{NodePath, State, Zxid};
use lockkeeper_node::NodeError;

use super::{CallScope, level, page_limit};
use crate::failure::Failure;
use crate::principals::list_allows;

/// The query of a list.
pub(super) struct ListQuery {
    pub(super) prefix: Option<String>,
    pub(super) after: Option<String>,
    pub(super) limit: Option<usize>,
    pub(super) consistency: Option<Level>,
}

/// The names that the caller asks for.
pub(super) enum Names<'a> {
    /// All that begin so.
    Beginning(&'a str),
    /// This one and those below it: rights are for whole parts of names, and the place to go on from must not tell
    /// another name.
    InParts(&'a str),
}

/// A page, for a caller who may have it.
pub(super) struct Page<'a, N> {
    pub(super) state: &'a State,
    pub(super) who: &'a Principals,
    pub(super) names: Names<'a>,
    pub(super) after: Option<&'a N>,
    pub(super) limit: usize,
}

/// Reads what `show` makes of a page, if the caller has a right on the names that it asks for.
pub(super) async fn list<N: Send + 'static, T: Send + 'static>(
    scope: CallScope,
    resource: Resource,
    parse: fn(&str) -> Result<N, PathError>,
    query: ListQuery,
    show: impl FnOnce(Page<'_, N>) -> T + Send + 'static,
) -> Result<(T, Zxid), Failure> {
    let (root, longest) = match resource {
        Resource::Locks => (LOCKS_ROOT, "any lock's name"),
        Resource::Gates => (GATES_ROOT, "any gate's key"),
        _ => (RATES_ROOT, "any name"),
    };
    let limit = page_limit(query.limit)?;
    let prefix = query.prefix.unwrap_or_default();
    if prefix.len() > MAX_PATH_BYTES {
        return Err(Failure::bad_request(format!("'prefix' is longer than {longest} can be")));
    }
    let after = query.after.as_deref().map(parse).transpose()?;
    let root = NodePath::parse(root)?;
    let (node, who) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(query.consistency), move |state: &State| {
            list_allows(&who, state, &root)?;
            let asked = prefix.trim_end_matches('/');
            state.check_right(&who, &Need::of(resource, asked, Rights::READ.and(Rights::ACQUIRE)))?;
            let names = match state.access().is_enabled() && !asked.is_empty() {
                true => Names::InParts(asked),
                false => Names::Beginning(&prefix),
            };
            Ok(show(Page { state, who: &who, names, after: after.as_ref(), limit }))
        })
        .await?;
    Ok((read.value.map_err(NodeError::Refused)?, read.zxid))
}
