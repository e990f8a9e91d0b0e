//! Keys are made here, except RSA keys, which ring does not make: of those there are public keys and signatures.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use lockkeeper_config::JwtSection;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use super::error::{JwtError, MAX_TOKEN_BYTES};
use super::keys::KeySet;
use super::verify::{Verified, verify};

const NOW: u64 = 1_700_000_000;

/// A public key of 2048 bits, and its signatures of `a message` by PKCS #1 and PSS with SHA-256.
const RSA_N: &str = "\
    pyUU_1AB54CIJNo2BZnirAa2bZ1Rq3LaVk3Zb4IV1SxkmtwrtFiLbLGQp_MQ9z2lAlXAqNErYjsCYMkBZg2o8xlCyb7DU22BDTLkvkePLZGz\
    D_KDaveNgn_e8EYjE6jJfYoRyKxSAjlHnmo73PooiFACEi29VEMOAkbBdvM02XVivHPfgvBB3-ORLTfMlm7QS3jdp9onryV30ZTSe-yIkzJ2\
    FCOov-XS4knbGs97ng__VoZuYHrGZGxdQ6SdWetBRkuwABI_c2nS_4yJUeyrW0MzidAHzrYdUh1eDYGf0yPEzj6aKF_22WR8ELvrJZDkcxzs\
    _uXGRNEJu0yOD40vXw\
    ";
const RS256: &str = "\
    FV_P6Wdjy5FG_hdr5tYu_KYa9SnyylD6j8Tm3dMVnOab8m1hv9aqdHiqBInXxo3B82HqxfhB3UC2gEddZS6VyAxVZhqzz7A1Pmb79xUjHPJx\
    1EC2GlExGe3lfSjE7VXWP56Ii3eleKkquH7vCdndwNnMmmIJVJjZYart7HwiDL01uN1LGcHlaiUkIq7Or-jqz2E5SeKcu25emf10KcLNEp-1\
    WEg1RYETM14_n1INGWuqP_P7e9JWPa1JsebvCF6PTxl8AyzxFF1DkJL-R_Qca0NKW50Wvf3eQt9gpqabgrEXK2psKaL6YUN-vPbRemiV905D\
    nTAdbmPeB4VvSwjl_A\
    ";
const PS256: &str = "\
    ITlVnjPOUNNvzBApd8kLWDKZdlTtgOjno-Tz5btIegZu8L5rZ3B9KPa21x4IPPidQIb-BPP_1ZZvbLbYCt2RpQmmf9bw59lKk6clDN-L80o-\
    LOL9l3fG4thTyqD6U-_MvMAYzPnUBphneFAL9WTaHmi1rmzC5-0B3QmNnrbJ3K7p1Ajc8Nvj0716_C-0_C63GGLlVn0eis5kQyGS-Qq2dx5g\
    lerIvqsujQFgPJwzfgSJpZTVHyN4tr4gPBhdUmweJqStt_K307S9g3Smhent569SVD3EGSUbwCz390QADarSRAPhdrFVIlp6j9rURYj5BBDH\
    VfWtL-ETgCzQmw_ImQ\
    ";
/// The same of a key of 1024 bits.
const WEAK_N: &str = "\
    4Bql0AEXcNn05hZHNGIBD3FmvklgXVNuonH5WrPMczwua1lqx9nlXQbfDQGTztaCbPGEoBMKH0winTU_uHrB44Jgi-Ss0yz_kR_2x3AU2M-9\
    C1NYxxYBzgYIhclomLewRO6T8VhzZcBDL8lNtvs9P_ZOftuZCrnAgsFhwOEzLwU\
    ";
const WEAK_RS256: &str = "\
    jRGes-sRPQiN4kh9m2XKflh--6DoNinz9gLvFTZ_3Sgys2UJ_-GNI32oPosFYMRBBbapleIhsSh0jhbketHPDMkrxxEivl-tRh9RTsHmpsd6\
    dk2qmkXiTH46JMTXJ72yEpZCc4Zo7rAqPDyy99h-OCx55yugTa9_Pcp9-M37fyw\
    ";

fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn rules() -> JwtSection {
    serde_json::from_value(json!({ "issuer": "https://issuer.example", "audience": "orders" })).unwrap()
}

/// An issuer with a P-256 key `ec`, an Ed25519 key `ed`, and an RSA key `rsa` whose private half nobody has.
struct Issuer {
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        Self { ec, ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap() }
    }

    fn published(&self) -> Value {
        let point = self.ec.public_key().as_ref();
        json!({ "keys": [
            { "kty": "EC", "crv": "P-256", "kid": "ec", "x": text(&point[1..33]), "y": text(&point[33..]) },
            { "kty": "OKP", "crv": "Ed25519", "kid": "ed", "use": "sig", "alg": "EdDSA",
              "x": text(self.ed.public_key().as_ref()) },
            { "kty": "RSA", "kid": "rsa", "alg": "RS256", "n": RSA_N, "e": "AQAB" },
            { "kty": "oct", "kid": "shared", "k": "AAAA" },
        ] })
    }

    fn keys(&self) -> KeySet {
        KeySet::parse(self.published().to_string().as_bytes()).unwrap()
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", text(header.to_string().as_bytes()), text(claims.to_string().as_bytes()));
        let signature = match header["kid"].as_str() {
            Some("ed") => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
            _ => self.ec.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec(),
        };
        format!("{signed}.{}", text(&signature))
    }

    fn verify(&self, header: &Value, claims: &Value) -> Result<Verified, JwtError> {
        verify(&self.sign(header, claims), &self.keys(), &rules(), NOW)
    }
}

fn es256() -> Value {
    json!({ "alg": "ES256", "kid": "ec", "typ": "JWT" })
}

fn claims() -> Value {
    json!({ "iss": "https://issuer.example", "aud": "orders", "sub": "alice", "exp": NOW + 300 })
}

/// The claims with one changed, or taken away by `null`.
fn with(claim: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
        value => claims[claim] = value,
    }
    claims
}

#[test]
fn a_good_jwt_proves_its_principal_until_it_expires() {
    let issuer = Issuer::new();
    let alice = Verified { principal: "jwt:alice".into(), until_unix_s: NOW + 360 };
    assert_eq!(issuer.verify(&es256(), &claims()), Ok(alice.clone()));
    assert_eq!(issuer.verify(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims()), Ok(alice.clone()));
    let several = with("aud", json!(["other", "orders"]));
    assert_eq!(issuer.verify(&es256(), &several), Ok(alice.clone()));
    let token = issuer.sign(&es256(), &claims());
    let other = JwtSection { principal_claim: "aud".into(), principal_prefix: "oidc/".into(), ..rules() };
    let verified = verify(&token, &issuer.keys(), &other, NOW).unwrap();
    assert_eq!(verified.principal, "oidc/orders");
    assert_eq!(verify(&token, &issuer.keys(), &rules(), NOW + 359), Ok(alice));
    assert_eq!(verify(&token, &issuer.keys(), &rules(), NOW + 360), Err(JwtError::Expired));
}

#[test]
fn wrong_claims_are_refused() {
    let issuer = Issuer::new();
    for (claim, value, error) in [
        ("exp", json!(NOW - 60), JwtError::Expired),
        ("exp", Value::Null, JwtError::Claim("exp")),
        ("exp", json!("tomorrow"), JwtError::Claim("exp")),
        ("exp", json!(-1), JwtError::Claim("exp")),
        ("nbf", json!(NOW + 61), JwtError::NotYet),
        ("nbf", json!("now"), JwtError::Claim("nbf")),
        ("iss", Value::Null, JwtError::Claim("iss")),
        ("iss", json!("https://issuer.example/"), JwtError::Issuer),
        ("aud", Value::Null, JwtError::Claim("aud")),
        ("aud", json!("order"), JwtError::Audience),
        ("aud", json!([]), JwtError::Audience),
        ("aud", json!({ "orders": "orders" }), JwtError::Audience),
        ("sub", Value::Null, JwtError::NoPrincipal),
        ("sub", json!(7), JwtError::NoPrincipal),
        ("sub", json!(""), JwtError::NoPrincipal),
        ("sub", json!("auth0|alice"), JwtError::BadPrincipal),
        ("sub", json!("x".repeat(300)), JwtError::BadPrincipal),
    ] {
        assert_eq!(issuer.verify(&es256(), &with(claim, value.clone())), Err(error), "{claim}: {value}");
    }
    issuer.verify(&es256(), &with("nbf", json!(NOW + 60))).expect("within the leeway");
    issuer.verify(&es256(), &with("exp", json!(NOW as f64 + 0.5))).expect("a fraction");
}

#[test]
fn a_prefix_makes_no_other_scheme_out_of_a_name() {
    let issuer = Issuer::new();
    let rules = JwtSection { principal_prefix: "su".into(), ..rules() };
    let token = issuer.sign(&es256(), &with("sub", json!("per")));
    assert_eq!(verify(&token, &issuer.keys(), &rules, NOW), Err(JwtError::BadPrincipal));
}

#[test]
fn algorithms_without_a_key_pair_are_refused() {
    let issuer = Issuer::new();
    for alg in ["none", "None", "HS256", "HS512", "ES512", "es256", ""] {
        let header = json!({ "alg": alg, "kid": "ec" });
        assert_eq!(issuer.verify(&header, &claims()), Err(JwtError::Algorithm), "{alg}");
    }
    let unsigned = format!("{}.{}.", text(br#"{"alg":"none"}"#), text(claims().to_string().as_bytes()));
    assert_eq!(verify(&unsigned, &issuer.keys(), &rules(), NOW), Err(JwtError::Algorithm));
}

#[test]
fn a_key_is_for_its_algorithm_alone() {
    let issuer = Issuer::new();
    for (kid, alg) in [("ec", "RS256"), ("ec", "ES384"), ("ed", "ES256"), ("rsa", "PS256"), ("rsa", "ES256")] {
        let header = json!({ "alg": alg, "kid": kid });
        assert_eq!(issuer.verify(&header, &claims()), Err(JwtError::OtherAlgorithm), "{kid} {alg}");
    }
    for kid in ["other", "shared", ""] {
        let header = json!({ "alg": "ES256", "kid": kid });
        assert_eq!(issuer.verify(&header, &claims()), Err(JwtError::UnknownKey), "{kid}");
    }
    assert_eq!(issuer.verify(&json!({ "alg": "ES256" }), &claims()), Err(JwtError::NoKeyId));
    let critical = json!({ "alg": "ES256", "kid": "ec", "crit": ["b64"], "b64": false });
    assert_eq!(issuer.verify(&critical, &claims()), Err(JwtError::Critical));
}

#[test]
fn only_what_the_issuer_signed_counts() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let token = other.sign(&es256(), &claims());
    assert_eq!(verify(&token, &issuer.keys(), &rules(), NOW), Err(JwtError::Signature));
    let token = issuer.sign(&es256(), &claims());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    let forged = format!("{header}.{}.{signature}", text(with("sub", json!("root")).to_string().as_bytes()));
    assert_eq!(verify(&forged, &issuer.keys(), &rules(), NOW), Err(JwtError::Signature));
    let header = text(json!({ "alg": "ES256", "kid": "ec", "typ": "x" }).to_string().as_bytes());
    let forged = format!("{header}.{}.{signature}", signed.split_once('.').unwrap().1);
    assert_eq!(verify(&forged, &issuer.keys(), &rules(), NOW), Err(JwtError::Signature));
}

#[test]
fn what_is_malformed_or_too_large_is_refused() {
    let issuer = Issuer::new();
    let good = issuer.sign(&es256(), &claims());
    let cut = &good[..good.len() - 1];
    let encrypted = format!("{good}.AAAA.AAAA");
    for wrong in ["", ".", "..", "a.b.c", "a.proxys.token", &format!("{good}="), cut, &encrypted, "x", "🔑.🔑.🔑"]
    {
        let error = verify(wrong, &issuer.keys(), &rules(), NOW).unwrap_err();
        assert!(matches!(error, JwtError::Malformed), "{wrong}: {error}");
    }
    let large = issuer.sign(&es256(), &with("note", json!("x".repeat(MAX_TOKEN_BYTES))));
    assert_eq!(verify(&large, &issuer.keys(), &rules(), NOW), Err(JwtError::TooLarge));
}

#[test]
fn rsa_keys_verify_by_pkcs_and_pss() {
    let set = |n: &str| json!({ "keys": [{ "kty": "RSA", "kid": "r", "n": n, "e": "AQAB" }] }).to_string();
    let verifies = |n: &str, algorithm, message: &[u8], signature: &str| {
        let keys = KeySet::parse(set(n).as_bytes()).unwrap();
        keys.with_id("r").any(|key| key.verifies(algorithm, message, signature))
    };
    assert!(verifies(RSA_N, Algorithm::RS256, b"a message", RS256));
    assert!(verifies(RSA_N, Algorithm::PS256, b"a message", PS256));
    assert!(!verifies(RSA_N, Algorithm::RS256, b"a message", PS256));
    assert!(!verifies(RSA_N, Algorithm::PS256, b"a message", RS256));
    assert!(!verifies(RSA_N, Algorithm::RS512, b"a message", RS256));
    assert!(!verifies(RSA_N, Algorithm::RS256, b"another", RS256));
    assert!(!verifies(WEAK_N, Algorithm::RS256, b"a message", WEAK_RS256), "a key of 1024 bits");
}

#[test]
fn a_key_set_has_keys_for_signatures() {
    let issuer = Issuer::new();
    assert_eq!(issuer.keys().len(), 3, "the shared secret is left out");
    let mut other_use = issuer.published();
    for key in other_use["keys"].as_array_mut().unwrap() {
        key["use"] = json!("enc");
    }
    let mut without_ids = issuer.published();
    for key in without_ids["keys"].as_array_mut().unwrap() {
        key.as_object_mut().unwrap().remove("kid");
    }
    let many = json!({ "keys": vec![json!({}); 65] });
    let long = " ".repeat(300_000);
    for (set, part) in [
        (other_use.to_string(), "no RSA"),
        (without_ids.to_string(), "no RSA"),
        (r#"{"keys":[]}"#.to_owned(), "no RSA"),
        (many.to_string(), "more than 64 keys"),
        (long, "larger than"),
        ("-----BEGIN PRIVATE KEY-----".to_owned(), "not a JWK set"),
        (r#"[]"#.to_owned(), "not a JWK set"),
    ] {
        let error = KeySet::parse(set.as_bytes()).unwrap_err();
        assert!(error.contains(part) && !error.contains("PRIVATE"), "{error}");
    }
}
