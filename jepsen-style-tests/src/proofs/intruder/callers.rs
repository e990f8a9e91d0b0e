//! As whom an intruder asks over HTTP: with nothing, with something that does not count, or as somebody who is known
//! and has other rights.

use rand::Rng;
use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::certificates::{Certificates, ClientIdentity};
use super::tokens::IssuedTokens;
use crate::verdict::{Failed, OrFailed as _};

/// See the module's text.
pub(super) struct Intruder {
    pub(super) name: &'static str,
    pub(super) client: Client,
    pub(super) shows: ShownCredentials,
    /// The credential of a session of its own.
    pub(super) session: Option<String>,
    /// Whether it may read locks, nodes and gates.
    pub(super) may_read: bool,
    /// Whether it has a role, whatever that allows.
    pub(super) has_role: bool,
    /// How it is refused.
    pub(super) refused: &'static [&'static str],
}

/// What it shows.
#[derive(Clone)]
pub(super) enum ShownCredentials {
    Nothing,
    /// The value of each `Authorization` header.
    Headers(Vec<String>),
    /// A token that is drawn anew each time.
    RandomToken,
    /// A part of the URL's query.
    Query(String),
}

impl ShownCredentials {
    pub(super) fn headers(&self, random: &mut impl Rng) -> HeaderMap {
        let values = match self {
            Self::Headers(values) => values.clone(),
            Self::RandomToken => vec![format!("Bearer {}", random_token(random))],
            Self::Nothing | Self::Query(_) => Vec::new(),
        };
        let mut headers = HeaderMap::new();
        for value in values.iter().filter_map(|value| HeaderValue::from_str(value).ok()) {
            headers.append(AUTHORIZATION, value);
        }
        headers
    }

    /// The path and query of a request, with what is shown there.
    pub(super) fn target(&self, target: &str) -> String {
        match self {
            Self::Query(pair) if target.contains('?') => format!("{target}&{pair}"),
            Self::Query(pair) => format!("{target}?{pair}"),
            _ => target.to_owned(),
        }
    }
}

/// A token of the right form that nobody was given: 256 random bits.
pub(super) fn random_token(random: &mut impl Rng) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // The last of the 43 characters has four bits of the token.
    let places = (0..43).map(|at| if at == 42 { random.random_range(0..16) * 4 } else { random.random_range(0..64) });
    let text: String = places.map(|place: usize| char::from(ALPHABET[place])).collect();
    format!("lk_{text}")
}

const UNKNOWN: &[&str] = &["unauthenticated"];
/// A node may take what is not a token at all for a bad request.
const MALFORMED: &[&str] = &["unauthenticated", "bad_request"];
const NO_RIGHT: &[&str] = &["forbidden"];
/// Whether a name without any right counts as known is not promised.
const EITHER: &[&str] = &["unauthenticated", "forbidden"];

/// All of them.
pub(super) fn callers(certificates: &Certificates, tokens: &IssuedTokens) -> Result<Vec<Intruder>, Failed> {
    let client =
        |identity| -> Result<Client, Failed> { certificates.builder(identity)?.build().or_cannot_run("no client") };
    let nobody = client(ClientIdentity::None)?;
    let with = |name, refused, shows| {
        let (client, session) = (nobody.clone(), None);
        Intruder { name, client, shows, session, may_read: false, has_role: false, refused }
    };
    let header = |value: String| ShownCredentials::Headers(vec![value]);
    let bearer = |token: &str| header(format!("Bearer {token}"));
    let admin = &tokens.administrator;
    let mut all = vec![
        with("nobody", UNKNOWN, ShownCredentials::Nothing),
        with("a short token", MALFORMED, bearer("lk_abc")),
        with("a token without its last character", MALFORMED, bearer(&admin[..admin.len() - 1])),
        with("a token with one character more", MALFORMED, bearer(&format!("{admin}A"))),
        with("a token with another prefix", MALFORMED, bearer(&admin.replacen("lk_", "xk_", 1))),
        with("a token in upper case", MALFORMED, bearer(&admin.to_uppercase())),
        with("an empty token", MALFORMED, bearer("")),
        with("a huge token", &["unauthenticated", "bad_request", "header_too_large"], bearer(&admin.repeat(240))),
        with("a token of another scheme", MALFORMED, header(format!("Token {admin}"))),
        with(
            "two tokens",
            MALFORMED,
            ShownCredentials::Headers(vec![format!("Bearer {admin}"), "Bearer lk_abc".into()]),
        ),
        with("a token in the URL", MALFORMED, ShownCredentials::Query(format!("access_token={admin}"))),
        with("an unknown token", UNKNOWN, ShownCredentials::RandomToken),
        with("another unknown token", UNKNOWN, ShownCredentials::RandomToken),
        with("the owner's revoked token", UNKNOWN, bearer(&tokens.revoked)),
        with("the administrator's revoked token", UNKNOWN, bearer(&tokens.revoked_administrator)),
        with("the owner's expired token", UNKNOWN, bearer(&tokens.expired)),
        with("a wrong password", EITHER, header(format!("Basic {}", tokens.wrong_password))),
        with("a token without a role", NO_RIGHT, bearer(&tokens.without_role)),
    ];
    let powerless = with("a token whose role allows nothing here", NO_RIGHT, bearer(&tokens.powerless));
    let reader = with("a token that may read", NO_RIGHT, bearer(&tokens.reader));
    let elsewhere = with("a token with rights elsewhere", NO_RIGHT, bearer(&tokens.elsewhere));
    let mallory = with("a certificate without a role", NO_RIGHT, ShownCredentials::Nothing);
    let certified = with("a certificate that may read", NO_RIGHT, ShownCredentials::Nothing);
    let member = with("the certificate of a member", EITHER, ShownCredentials::Nothing);
    let (reading, working) = (tokens.reader_session.clone(), tokens.elsewhere_session.clone());
    all.extend([
        Intruder { has_role: true, ..powerless },
        Intruder { has_role: true, may_read: true, session: Some(reading), ..reader },
        Intruder { has_role: true, session: Some(working), ..elsewhere },
        Intruder { client: client(ClientIdentity::Mallory)?, ..mallory },
        Intruder { client: client(ClientIdentity::Reader)?, has_role: true, may_read: true, ..certified },
        Intruder { client: client(ClientIdentity::Member)?, ..member },
    ]);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_have_the_form_of_tokens() {
        let mut random = rand::rng();
        let (one, other) = (random_token(&mut random), random_token(&mut random));
        assert_ne!(one, other);
        assert_eq!(one.len(), 46);
        assert!("AEIMQUYcgkosw048".contains(one.chars().last().unwrap()), "{one}");
    }

    #[test]
    fn what_is_shown_in_the_url_joins_the_query() {
        let shown = ShownCredentials::Query("access_token=x".into());
        assert_eq!(shown.target("/v1/locks"), "/v1/locks?access_token=x");
        assert_eq!(shown.target("/v1/locks?after=a"), "/v1/locks?after=a&access_token=x");
        assert!(shown.headers(&mut rand::rng()).is_empty());
        let two = ShownCredentials::Headers(vec!["Bearer a".into(), "Bearer b".into()]).headers(&mut rand::rng());
        assert_eq!(two.get_all(AUTHORIZATION).iter().count(), 2);
    }
}
