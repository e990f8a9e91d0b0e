//! The keys of an issuer (RFC 7517, RFC 7518, RFC 8037), and the signatures that they verify. Only asymmetric keys
//! count, each for the algorithms of its kind alone.

use jsonwebtoken::crypto;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;

use super::ring_provider;

/// Largest key set, in bytes.
pub(super) const MAX_SET_BYTES: usize = 256 * 1024;
/// Most keys of a set.
const MAX_KEYS: usize = 64;

/// A key for signatures.
#[derive(Clone, Debug)]
pub(super) struct Key {
    published: Jwk,
    /// The algorithms that it is for.
    algorithms: Vec<Algorithm>,
    public: DecodingKey,
}

impl Key {
    /// `None` if no JWT can be verified with it here: another kind of key, for another use, or without an id.
    fn of(published: Jwk) -> Option<Self> {
        let is_for_signatures =
            published.common.public_key_use.as_ref().is_none_or(|r#use| *r#use == PublicKeyUse::Signature);
        if !is_for_signatures || published.common.key_id.is_none() {
            return None;
        }
        let public = DecodingKey::from_jwk(&published).ok()?;
        let size = public.try_get_as_bytes().map_or(0, <[u8]>::len);
        let of_kind: &[Algorithm] = match &published.algorithm {
            AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms(),
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 && size == 65 => {
                &[Algorithm::ES256]
            }
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 && size == 97 => {
                &[Algorithm::ES384]
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 && size == 32 => {
                &[Algorithm::EdDSA]
            }
            _ => return None,
        };
        let algorithms = match published.common.key_algorithm {
            // The only one, if its issuer says so.
            Some(only) => vec![Algorithm::try_from(only).ok().filter(|only| of_kind.contains(only))?],
            None => of_kind.to_vec(),
        };
        Some(Self { published, algorithms, public })
    }

    pub(super) fn fits(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether a signature, as a JWT has it, is one of this key.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &str) -> bool {
        self.fits(algorithm)
            && crypto::verify(signature, message, &self.public, algorithm).is_ok_and(|verified| verified)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.published == other.published
    }
}

/// The keys of an issuer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeySet(Vec<Key>);

impl KeySet {
    /// Reads a JWK set. Keys that are not for the signatures of JWTs are left out.
    ///
    /// # Errors
    /// It is malformed or too large, or no key is left.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        ring_provider::install();
        if bytes.len() > MAX_SET_BYTES {
            return Err(format!("the key set is larger than {MAX_SET_BYTES} bytes"));
        }
        // The error of the parser could quote the text, which may hold private keys.
        let set: Set = serde_json::from_slice(bytes).map_err(|_| "it is not a JWK set: {\"keys\": […]}".to_owned())?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("the key set has more than {MAX_KEYS} keys"));
        }
        let published = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let keys: Vec<Key> = published.filter_map(Key::of).collect();
        match keys.is_empty() {
            true => Err("it has no RSA, P-256, P-384 or Ed25519 key for signatures with an id (kid)".into()),
            false => Ok(Self(keys)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn with_id<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Key> {
        self.0.iter().filter(move |key| key.published.common.key_id.as_deref() == Some(id))
    }
}
