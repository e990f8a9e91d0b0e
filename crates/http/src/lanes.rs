//! The routes with a lane of their own: what keeps or gives back something, and what asks for health.

use axum::http::Method;
use lockkeeper_api::CallKind;

/// Whether requests for this route have a lane of their own.
pub(crate) fn has_own_lane(method: &str, route: &str) -> bool {
    CallKind::at(method, route).is_some_and(|row| row.rules.own_lane)
}

/// Whether a request that has found no route yet is one of [`has_own_lane`].
pub(crate) fn keeps_or_gives_back(method: &Method, path: &str) -> bool {
    CallKind::rows().any(|row| row.rules.own_lane && row.method == method.as_str() && row.matches(path))
}

/// Whether a path asks for health or metrics, which are needed most when the node is overloaded.
pub(crate) fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_or_gives_back_is_known_by_its_path() {
        for (method, path) in [
            (Method::DELETE, "/v1/sessions/7"),
            (Method::POST, "/v1/sessions/7/keepalive"),
            (Method::POST, "/v1/locks/a/release"),
            (Method::POST, "/v1/locks/a/b/downgrade"),
            (Method::POST, "/v1/locks/a%2Fb/verify"),
        ] {
            assert!(keeps_or_gives_back(&method, path), "{method} {path}");
            assert!(!keeps_or_gives_back(&Method::GET, path), "{path}");
        }
        for path in
            ["/v1/sessions", "/v1/sessions/7", "/v1/locks/a/acquire", "/v1/locks/release", "/v1/nodes/a/release"]
        {
            assert!(!keeps_or_gives_back(&Method::POST, path), "{path}");
        }
    }
}
