//! How an origin of a web page and the authority in it are written.

use http::uri::Authority;

/// Whether `origin` is written as browsers write one: `scheme://host[:port]` and nothing behind it.
pub(super) fn is_origin(origin: &str) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    matches!(scheme, "http" | "https") && rest.parse::<Authority>().is_ok_and(|authority| is_plain(&authority))
}

/// A host and perhaps a port, without a user.
pub fn is_plain(authority: &Authority) -> bool {
    let port_is_sound = authority.as_str().len() == authority.host().len() || authority.port_u16().is_some();
    !authority.host().is_empty() && !authority.as_str().contains('@') && port_is_sound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_one_form() {
        for good in ["http://a", "https://a.example:8443", "http://[::1]:80"] {
            assert!(is_origin(good), "{good}");
        }
        for bad in ["*", "a", "a:80", "http://", "http://a/", "ftp://a", "http://u@a", "http://a:x"] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
