//! The paths of ZooKeeper's system nodes, which no client may change, whichever frontend it uses. The ZooKeeper
//! frontend shows them.

/// The node above all system nodes.
pub const ROOT: &str = "/zookeeper";

/// Whether a path is `/zookeeper` or below, where clients may change nothing.
pub fn is_reserved(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_is_reserved() {
        assert!(is_reserved("/zookeeper") && is_reserved("/zookeeper/quota/a"));
        assert!(!is_reserved("/zookeepers") && !is_reserved("/"));
    }
}
