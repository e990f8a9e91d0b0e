//! Why a JWT proves nothing. The text names the cause, and nothing of the token.

/// Largest JWT, in bytes.
pub(super) const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum JwtError {
    #[error("the JWT is larger than {MAX_TOKEN_BYTES} bytes")]
    TooLarge,
    #[error("it is neither a token of this cluster nor a JWT")]
    Malformed,
    #[error("the JWT has a critical header parameter, and this node knows none")]
    Critical,
    #[error("the JWT is not signed with RS256 to RS512, PS256 to PS512, ES256, ES384 or EdDSA")]
    Algorithm,
    #[error("the JWT does not name its key (kid)")]
    NoKeyId,
    #[error("no key of the issuer has the id (kid) of the JWT")]
    UnknownKey,
    #[error("the key of the JWT is not for its algorithm")]
    OtherAlgorithm,
    #[error("the signature of the JWT is wrong")]
    Signature,
    #[error("the JWT has no claim {0}, or one of the wrong type")]
    Claim(&'static str),
    #[error("the JWT is of another issuer than auth.jwt.issuer")]
    Issuer,
    #[error("the JWT is for another audience than auth.jwt.audience")]
    Audience,
    #[error("the JWT has expired")]
    Expired,
    #[error("the JWT is not valid yet")]
    NotYet,
    #[error("the JWT has no text in the claim auth.jwt.principal_claim")]
    NoPrincipal,
    #[error("no role can be granted to the principal of the JWT; choose another auth.jwt.principal_claim")]
    BadPrincipal,
}
