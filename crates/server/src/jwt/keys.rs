//! The keys of an issuer (RFC 7517, RFC 7518, RFC 8037), and the signatures that they verify. Only asymmetric keys
//! count, each for the algorithms of its kind alone.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;

/// Largest key set, in bytes.
pub(super) const MAX_SET_BYTES: usize = 256 * 1024;
/// Most keys of a set.
const MAX_KEYS: usize = 64;

/// An algorithm of a signature. `none` and those with a shared secret are no algorithms here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }

    /// How ring verifies it with an RSA key of at least 2048 bits.
    fn of_rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Self::Es256 | Self::Es384 | Self::EdDsa => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The point, uncompressed.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    fn fits(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Rsa { .. } => algorithm.of_rsa().is_some(),
            Self::P256(_) => algorithm == Algorithm::Es256,
            Self::P384(_) => algorithm == Algorithm::Es384,
            Self::Ed25519(_) => algorithm == Algorithm::EdDsa,
        }
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], sign: &[u8]) -> bool {
        let with = |by: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(by, key).verify(message, sign).is_ok()
        };
        match (self, algorithm.of_rsa()) {
            (Self::Rsa { n, e }, Some(by)) => RsaPublicKeyComponents { n, e }.verify(by, message, sign).is_ok(),
            (Self::Rsa { .. }, None) => false,
            (Self::P256(key), _) => with(&signature::ECDSA_P256_SHA256_FIXED, key),
            (Self::P384(key), _) => with(&signature::ECDSA_P384_SHA384_FIXED, key),
            (Self::Ed25519(key), _) => with(&signature::ED25519, key),
        }
    }
}

/// A key as its issuer publishes it. Other parameters, such as those of private keys, are not read.
#[derive(Deserialize)]
struct Published {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// A key for signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    id: String,
    /// The only algorithm that it is for, if its issuer says so.
    only: Option<Algorithm>,
    public: PublicKey,
}

impl Key {
    /// `None` if no JWT can be verified with it here: another kind of key, for another use, or without an id.
    fn of(published: Published) -> Option<Self> {
        let Published { kty, kid, alg, r#use, crv, n, e, x, y } = published;
        let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let point = |x: Option<String>, y: Option<String>, size: usize| {
            let (x, y) = (bytes(x)?, bytes(y)?);
            (x.len() == size && y.len() == size).then(|| [&[4], &x[..], &y[..]].concat())
        };
        let public = match (kty.as_str(), crv.as_deref()) {
            ("RSA", _) => PublicKey::Rsa { n: bytes(n)?, e: bytes(e)? },
            ("EC", Some("P-256")) => PublicKey::P256(point(x, y, 32)?),
            ("EC", Some("P-384")) => PublicKey::P384(point(x, y, 48)?),
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(bytes(x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        let only = match alg {
            Some(name) => Some(Algorithm::parse(&name).filter(|algorithm| public.fits(*algorithm))?),
            None => None,
        };
        let is_for_signatures = r#use.is_none_or(|r#use| r#use == "sig");
        Some(Self { id: kid?, only, public }).filter(|_| is_for_signatures)
    }

    pub(super) fn fits(&self, algorithm: Algorithm) -> bool {
        self.only.is_none_or(|only| only == algorithm) && self.public.fits(algorithm)
    }

    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        self.fits(algorithm) && self.public.verifies(algorithm, message, signature)
    }
}

/// The keys of an issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        if bytes.len() > MAX_SET_BYTES {
            return Err(format!("the key set is larger than {MAX_SET_BYTES} bytes"));
        }
        // The error of the parser could quote the text, which may hold private keys.
        let set: Set = serde_json::from_slice(bytes).map_err(|_| "it is not a JWK set: {\"keys\": […]}".to_owned())?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("the key set has more than {MAX_KEYS} keys"));
        }
        let published = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Published>(key).ok());
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
        self.0.iter().filter(move |key| key.id == id)
    }
}
