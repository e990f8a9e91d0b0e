//! What the cluster acknowledged must be on all nodes.

use crate::proofs::prelude::*;

/// Looks for these nodes of the tree on every node of the cluster; says which is the first that is not there.
pub(super) async fn missing<'a>(
    cluster: &Cluster,
    paths: impl IntoIterator<Item = &'a str>,
) -> Result<Option<String>, Failed> {
    let wanted: BTreeSet<&str> = paths.into_iter().collect();
    let parents: BTreeSet<&str> = wanted.iter().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
    for (id, api) in cluster.apis() {
        let mut found = BTreeSet::new();
        for parent in &parents {
            match api.children_stale(parent).await {
                Ok((names, _)) => found.extend(names.into_iter().map(|name| format!("{parent}/{name}"))),
                Err(failure) if failure.code() == Some(Code::NoNode) => {}
                Err(failure) => return broken(format!("with all nodes ready, node {id}: {failure}")),
            }
        }
        if let Some(missing) = wanted.iter().find(|path| !found.contains::<str>(path)) {
            return Ok(Some(format!("{missing} was acknowledged and is not on node {id}")));
        }
    }
    Ok(None)
}

/// The same where nothing may be missing.
pub(super) async fn all_there<'a>(cluster: &Cluster, paths: impl IntoIterator<Item = &'a str>) -> Result<(), Failed> {
    match missing(cluster, paths).await? {
        Some(what) => broken(what),
        None => Ok(()),
    }
}
