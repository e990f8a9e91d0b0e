//! The cryptography of jsonwebtoken: ring, which is in the program with rustls. The providers that jsonwebtoken has
//! itself would bring a second one into it.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() })),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the provider of this process.
pub(super) fn install() {
    // An error means that it is installed.
    let _ = PROVIDER.install_default();
}

/// How ring verifies signatures of an RSA key of at least 2048 bits.
fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// How ring verifies those of a key that is a point on a curve.
fn of_curve(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::ES256 => &signature::ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &signature::ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDSA => &signature::ED25519,
        _ => return None,
    })
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Error> {
        let verified = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                rsa(self.algorithm).map(|by| RsaPublicKeyComponents { n, e }.verify(by, message, signature))
            }
            DecodingKeyKind::SecretOrDer(point) => {
                of_curve(self.algorithm).map(|by| UnparsedPublicKey::new(by, point).verify(message, signature))
            }
        };
        verified.ok_or_else(Error::new)?.map_err(|_| Error::new())
    }
}
