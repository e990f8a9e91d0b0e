//! Who may do what in the attacked cluster, and the tokens of all of them.

use lockkeeper_api::access::{Resource, Right};
use reqwest::ClientBuilder;

use super::secrets::Secrets;
use crate::proofs::access::{Administrator, TokenMade, rule, with_token};
use crate::proofs::prelude::*;

/// The owner's identity of ZooKeeper's digest scheme, as credentials and as the principal that they prove.
pub(super) const PASSWORD: &str = "keeper:willow-7f3a9c51d000";
const DIGEST: &str = "digest:keeper:ru5fyXrUx88u34D7ecUxjOhynB0=";
/// The same for somebody with rights elsewhere.
pub(super) const PASSWORD_ELSEWHERE: &str = "sexton:juniper-58e21bb4c700";
const DIGEST_ELSEWHERE: &str = "digest:sexton:fg8ts93NF3Vxbh7YD9pkRIHzLDI=";
/// `keeper:a-guessed-password` in base64.
const WRONG_PASSWORD: &str = "a2VlcGVyOmEtZ3Vlc3NlZC1wYXNzd29yZA==";
const SESSION_TIMEOUT_MS: u32 = 600_000;
const EXPIRES_WITHIN: Duration = Duration::from_secs(15);

/// See the module's text.
pub(super) struct IssuedTokens {
    pub(super) administrator: String,
    pub(super) owner: TokenMade,
    pub(super) honest: String,
    pub(super) reader: String,
    pub(super) reader_session: String,
    pub(super) elsewhere: String,
    pub(super) elsewhere_session: String,
    pub(super) powerless: String,
    pub(super) without_role: String,
    pub(super) revoked: String,
    pub(super) revoked_administrator: String,
    pub(super) expired: String,
    pub(super) wrong_password: &'static str,
}

/// Makes the roles and gives them to their principals. The certificate `reader` is a principal as well.
async fn roles(administrator: &Administrator) -> Result<(), Failed> {
    use Resource::{Gates, Locks, Nodes};
    use Right::{Acquire, Force, Read, Write};
    let owns = vec![
        rule(Locks, "watched", &[Acquire, Read]),
        rule(Nodes, "/watched", &[Read, Write]),
        rule(Gates, "watched", &[Acquire, Read]),
    ];
    administrator.role("owner", owns, &["owner", DIGEST]).await?;
    administrator.role("honest", vec![rule(Locks, "honest", &[Acquire, Read])], &["honest"]).await?;
    let reads = vec![rule(Locks, "", &[Read]), rule(Nodes, "", &[Read]), rule(Gates, "", &[Read])];
    administrator.role("reader", reads, &["reader"]).await?;
    let elsewhere = vec![
        rule(Locks, "elsewhere", &[Acquire, Read, Force]),
        rule(Nodes, "/elsewhere", &[Read, Write]),
        rule(Gates, "elsewhere", &[Acquire, Read, Force]),
    ];
    administrator.role("elsewhere", elsewhere, &["elsewhere", DIGEST_ELSEWHERE]).await?;
    administrator.role("nothing", vec![rule(Gates, "nowhere", &[Read])], &["powerless"]).await
}

impl IssuedTokens {
    /// Makes the roles and all tokens. `nobody` has the settings of a client without a token.
    pub(super) async fn make(
        admin: (&Api, &TokenMade),
        nobody: impl Fn() -> Result<ClientBuilder, Failed>,
        secrets: &Secrets,
    ) -> Result<Self, Failed> {
        let (api, administrator_token) = admin;
        let administrator = Administrator::at(api.clone());
        roles(&administrator).await?;
        let token = async |principal: &str, ttl_s: Option<u64>| -> Result<TokenMade, Failed> {
            let made = administrator.token(principal, ttl_s).await?;
            secrets.add(&made.token);
            Ok(made)
        };
        let (revoked, revoked_administrator) = (token("owner", None).await?, token("admin", None).await?);
        for known in [&revoked, &revoked_administrator] {
            administrator.revoke_token(known).await?;
        }
        let expired = token("owner", Some(1)).await?.token;
        let (reader, elsewhere) = (token("reader", None).await?.token, token("elsewhere", None).await?.token);
        let (mut sessions, shown) = (Vec::new(), [&reader, &elsewhere]);
        for token in shown {
            let api = Api::at(with_token(nobody()?, token)?, api.base());
            let opened = api.open_session(SESSION_TIMEOUT_MS, "intruder").await;
            let opened = opened.map_err(|failure| {
                Failed::Broken(format!("a principal with a role cannot open a session: {failure}"))
            })?;
            secrets.add_credential(&opened.value.credential);
            sessions.push(opened.value.credential);
        }
        let elsewhere_session = sessions.pop().unwrap_or_default();
        let reader_session = sessions.pop().unwrap_or_default();
        for password in [PASSWORD, PASSWORD_ELSEWHERE] {
            secrets.add(password.split_once(':').map_or(password, |(_, password)| password));
        }
        secrets.add(&administrator_token.token);
        until_expired(&Api::at(with_token(nobody()?, &expired)?, api.base())).await?;
        Ok(Self {
            administrator: administrator_token.token.clone(),
            owner: token("owner", None).await?,
            honest: token("honest", None).await?.token,
            reader,
            reader_session,
            elsewhere,
            elsewhere_session,
            powerless: token("powerless", None).await?.token,
            without_role: token("lonely", None).await?.token,
            revoked: revoked.token,
            revoked_administrator: revoked_administrator.token,
            expired,
            wrong_password: WRONG_PASSWORD,
        })
    }
}

/// Waits until a token does not count any more.
async fn until_expired(api: &Api) -> Result<(), Failed> {
    let wait = Polling::within(EXPIRES_WITHIN).every(Duration::from_millis(200));
    loop {
        let opened = api.open_session(SESSION_TIMEOUT_MS, "expiring").await;
        match opened {
            Err(failure) if failure.code() == Some(lockkeeper_api::Code::Unauthenticated) => return Ok(()),
            // A credential of its own, which nobody uses. The session ends with the token.
            other => {
                wait.or_broken(|| format!("a token for a second still counts after {EXPIRES_WITHIN:?}: {other:?}"))
                    .await?;
            }
        }
    }
}
