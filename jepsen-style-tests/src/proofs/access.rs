//! Access control as the proofs set it up, over plain HTTP.

use lockkeeper_api::access::{AccessChange, AccessChanged, Resource, Right, Rule};
use reqwest::{Client, ClientBuilder};

use crate::http::client_with_token;
use crate::proofs::prelude::*;

/// A token and its id.
#[derive(Clone)]
pub(super) struct TokenMade {
    pub(super) token: String,
    pub(super) id: String,
}

/// Enables access control and lets the harness ask with the token that this gives. `builder` has the settings of its
/// client.
pub(super) async fn enable(
    cluster: &mut Cluster,
    builder: impl Fn() -> Result<ClientBuilder, Failed>,
) -> Result<TokenMade, Failed> {
    let made = Administrator::at(cluster.api(1)).change(AccessChange::Enable { token_hash: None }).await?;
    let made = token_of(made)?;
    cluster.ask_with(&with_token(builder()?, &made.token)?);
    Ok(made)
}

/// A client that shows this token with every request.
pub(super) fn with_token(builder: ClientBuilder, token: &str) -> Result<Client, Failed> {
    Ok(client_with_token(builder, token)?)
}

pub(super) fn rule(resource: Resource, prefix: &str, rights: &[Right]) -> Rule {
    Rule { resource, prefix: prefix.into(), rights: rights.to_vec() }
}

/// Changes access control. Every change must succeed.
#[derive(Clone)]
pub(super) struct Administrator(Api);

impl Administrator {
    pub(super) fn at(api: Api) -> Self {
        Self(api)
    }

    pub(super) async fn change(&self, change: AccessChange) -> Result<AccessChanged, Failed> {
        let changed = self.0.change_access(&change).await;
        changed.map(|answer| answer.value).or_broken(format!("the administrator's change {change:?} fails"))
    }

    /// Makes a role and grants it to the principals.
    pub(super) async fn role(&self, name: &str, rules: Vec<Rule>, principals: &[&str]) -> Result<(), Failed> {
        self.change(AccessChange::PutRole { name: name.into(), rules, version: None }).await?;
        for principal in principals {
            self.change(AccessChange::Grant { principal: (*principal).into(), role: name.into() }).await?;
        }
        Ok(())
    }

    pub(super) async fn token(&self, principal: &str, ttl_s: Option<u64>) -> Result<TokenMade, Failed> {
        let create = AccessChange::CreateToken { principal: principal.into(), ttl_s, token_hash: None };
        token_of(self.change(create).await?)
    }

    pub(super) async fn revoke_token(&self, token: &TokenMade) -> Result<(), Failed> {
        self.change(AccessChange::RevokeToken { id: token.id.clone() }).await.map(drop)
    }
}

fn token_of(made: AccessChanged) -> Result<TokenMade, Failed> {
    match (made.token, made.token_id) {
        (Some(token), Some(id)) => Ok(TokenMade { token, id }),
        (_, id) => broken(format!("a token was asked for, and the answer has none (its id: {id:?})")),
    }
}
