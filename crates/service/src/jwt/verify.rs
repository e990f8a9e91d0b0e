//! Verification of a JWT (RFC 7519, RFC 7515, RFC 8725): signature, issuer, audience, times, principal. It reads no
//! clock.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily};
use lockkeeper_config::JwtSection;
use lockkeeper_core::access::{JWT, is_name, is_reserved};
use lockkeeper_core::limits::MAX_ACL_ID_BYTES;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{JwtError, MAX_TOKEN_BYTES};
use super::keys::{Key, KeySet};

/// What a JWT proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) principal: String,
    /// When it stops to count, in seconds since 1970; the leeway is included.
    pub(super) until_unix_s: u64,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// Verifies a JWT.
///
/// # Errors
/// What is wrong with it.
pub(super) fn verify(token: &str, keys: &KeySet, rules: &JwtSection, now_unix_s: u64) -> Result<Verified, JwtError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(JwtError::TooLarge);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
    let parts = signed.split_once('.').filter(|(_, claims)| !claims.contains('.'));
    let (header, claims) = parts.ok_or(JwtError::Malformed)?;
    let header: Header = decode(header)?;
    URL_SAFE_NO_PAD.decode(signature).map_err(|_| JwtError::Malformed)?;
    // Before the claims are read: only their issuer can have written them.
    verify_signature(&header, keys, signed.as_bytes(), signature)?;
    check_claims(&decode(claims)?, rules, now_unix_s)
}

fn decode<T: DeserializeOwned>(part: &str) -> Result<T, JwtError> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| JwtError::Malformed)
}

fn verify_signature(header: &Header, keys: &KeySet, signed: &[u8], signature: &str) -> Result<(), JwtError> {
    if header.crit.is_some() {
        return Err(JwtError::Critical);
    }
    // Those with a shared secret are no algorithms here.
    let algorithm = header.alg.parse().ok().filter(|known: &Algorithm| known.family() != AlgorithmFamily::Hmac);
    let algorithm = algorithm.ok_or(JwtError::Algorithm)?;
    let id = header.kid.as_deref().ok_or(JwtError::NoKeyId)?;
    let keys: Vec<&Key> = keys.with_id(id).collect();
    if keys.is_empty() {
        return Err(JwtError::UnknownKey);
    }
    if !keys.iter().any(|key| key.fits(algorithm)) {
        return Err(JwtError::OtherAlgorithm);
    }
    let is_signed = keys.iter().any(|key| key.verifies(algorithm, signed, signature));
    if is_signed { Ok(()) } else { Err(JwtError::Signature) }
}

fn check_claims(claims: &Map<String, Value>, rules: &JwtSection, now_unix_s: u64) -> Result<Verified, JwtError> {
    let issuer = claims.get("iss").and_then(Value::as_str).ok_or(JwtError::Claim("iss"))?;
    if issuer != rules.issuer {
        return Err(JwtError::Issuer);
    }
    let is_ours = |one: &Value| one.as_str() == Some(&rules.audience);
    match claims.get("aud").ok_or(JwtError::Claim("aud"))? {
        Value::Array(all) if all.iter().any(is_ours) => {}
        one if is_ours(one) => {}
        _ => return Err(JwtError::Audience),
    }
    let expires = time(claims, "exp")?.ok_or(JwtError::Claim("exp"))?;
    let until_unix_s = expires.saturating_add(rules.leeway_s);
    if now_unix_s >= until_unix_s {
        return Err(JwtError::Expired);
    }
    if time(claims, "nbf")?.is_some_and(|from| now_unix_s.saturating_add(rules.leeway_s) < from) {
        return Err(JwtError::NotYet);
    }
    let name = claims.get(&rules.principal_claim).and_then(Value::as_str).ok_or(JwtError::NoPrincipal)?;
    Ok(Verified { principal: principal_of(&rules.principal_prefix, name)?, until_unix_s })
}

/// A time in seconds since 1970, which may have a fraction.
fn time(claims: &Map<String, Value>, claim: &'static str) -> Result<Option<u64>, JwtError> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0).ok_or(JwtError::Claim(claim))?;
    // Beyond u64 it is the largest time.
    Ok(Some(value.as_u64().unwrap_or(seconds as u64)))
}

fn principal_of(prefix: &str, name: &str) -> Result<String, JwtError> {
    if name.is_empty() {
        return Err(JwtError::NoPrincipal);
    }
    let principal = format!("{prefix}{name}");
    let is_of_jwt = principal.strip_prefix(JWT).is_some_and(|rest| rest.starts_with(':'));
    let is_allowed = is_name(&principal) && principal.len() <= MAX_ACL_ID_BYTES;
    if !is_allowed || is_reserved(&principal) && !is_of_jwt {
        return Err(JwtError::BadPrincipal);
    }
    Ok(principal)
}
