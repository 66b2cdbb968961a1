use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Signer};
use serde_json::json;

use super::super::{Scope, Tenants, hash_of};
use super::*;

const NOW: i64 = 1_900_000_000;

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A private key, and the algorithm that it signs by.
struct Signing {
    algorithm: Algorithm,
    name: &'static str,
    id: &'static str,
    key: PKey<Private>,
}

impl Signing {
    fn rsa(name: &'static str, id: &'static str, bits: u32) -> Self {
        Self {
            algorithm: name.parse().unwrap(),
            name,
            id,
            key: PKey::from_rsa(Rsa::generate(bits).unwrap()).unwrap(),
        }
    }

    fn p256(id: &'static str) -> Self {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        Self {
            algorithm: Algorithm::ES256,
            name: "ES256",
            id,
            key: PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap(),
        }
    }

    fn ed25519(id: &'static str) -> Self {
        Self {
            algorithm: Algorithm::EdDSA,
            name: "EdDSA",
            id,
            key: PKey::generate_ed25519().unwrap(),
        }
    }

    fn jwk(&self) -> Value {
        match self.algorithm {
            Algorithm::RS256 | Algorithm::PS256 => {
                let rsa = self.key.rsa().unwrap();
                json!({"kty": "RSA", "kid": self.id, "alg": self.name, "use": "sig",
                    "n": encoded(&rsa.n().to_vec()), "e": encoded(&rsa.e().to_vec())})
            }
            Algorithm::ES256 => {
                let key = self.key.ec_key().unwrap();
                let (mut x, mut y) = (BigNum::new().unwrap(), BigNum::new().unwrap());
                let mut context = BigNumContext::new().unwrap();
                key.public_key()
                    .affine_coordinates(key.group(), &mut x, &mut y, &mut context)
                    .unwrap();
                let [x, y] = [x, y].map(|number| encoded(&number.to_vec_padded(32).unwrap()));
                json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y})
            }
            _ => {
                let x = encoded(&self.key.raw_public_key().unwrap());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": self.id, "x": x})
            }
        }
    }

    fn sign(&self, signed: &[u8]) -> Vec<u8> {
        let sha256 = MessageDigest::sha256();
        match self.algorithm {
            Algorithm::RS256 => {
                let mut signer = Signer::new(sha256, &self.key).unwrap();
                signer.sign_oneshot_to_vec(signed).unwrap()
            }
            Algorithm::PS256 => {
                let mut signer = Signer::new(sha256, &self.key).unwrap();
                signer.set_rsa_padding(Padding::PKCS1_PSS).unwrap();
                signer
                    .set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)
                    .unwrap();
                signer.sign_oneshot_to_vec(signed).unwrap()
            }
            Algorithm::ES256 => {
                let mut signer = Signer::new(sha256, &self.key).unwrap();
                let der = signer.sign_oneshot_to_vec(signed).unwrap();
                let signature = EcdsaSig::from_der(&der).unwrap();
                let [r, s] =
                    [signature.r(), signature.s()].map(|number| number.to_vec_padded(32).unwrap());
                [r, s].concat()
            }
            _ => {
                let mut signer = Signer::new_without_digest(&self.key).unwrap();
                signer.sign_oneshot_to_vec(signed).unwrap()
            }
        }
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(
            &json!({"alg": self.name, "kid": self.id, "typ": "JWT"}),
            claims,
        )
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = [header, claims].map(|part| encoded(part.to_string().as_bytes()));
        let signed = signed.join(".");
        let signature = encoded(&self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

fn claims() -> Value {
    json!({"iss": "https://id.example", "aud": "waybill", "sub": "anna", "exp": NOW + 60,
        "scope": "openid submit read", "tenant": "acme"})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn jwt(keys: &[&Signing]) -> Jwt {
    let set = json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()});
    of_set(&set).unwrap()
}

fn of_set(set: &Value) -> Result<Jwt, FileRefused> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), set.to_string()).unwrap();
    let config = JwtConfig {
        jwks_file: Some(file.path().to_owned()),
        issuer: Some("https://id.example".to_owned()),
        audience: Some("waybill".to_owned()),
        ..JwtConfig::default()
    };
    Jwt::load(&config).map(Option::unwrap)
}

fn at(jwt: &Jwt, token: &str, seconds: i64) -> Result<Arc<Principal>, Denied> {
    jwt.principal(token, hash_of(token), Timestamp(seconds * 1_000_000))
}

fn refused(jwt: &Jwt, token: &str) -> String {
    match at(jwt, token, NOW).unwrap_err() {
        Denied::BadToken(detail) => detail.to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_algorithm_that_is_known_is_verified_by_its_own_key() {
    let keys = [
        Signing::rsa("RS256", "one", 2_048),
        Signing::rsa("PS256", "two", 2_048),
        Signing::p256("three"),
        Signing::ed25519("four"),
    ];
    let jwt = jwt(&keys.iter().collect::<Vec<_>>());
    let expected = Principal {
        name: "jwt:anna".into(),
        scopes: [Scope::Submit, Scope::Read].into_iter().collect(),
        tenants: Tenants::One("acme".into()),
        agents: std::sync::Arc::default(),
    };
    for key in &keys {
        let token = key.token(&claims());
        for _ in 0..2 {
            assert_eq!(*at(&jwt, &token, NOW).unwrap(), expected, "{}", key.name);
        }
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let mut wrong = URL_SAFE_NO_PAD.decode(signature).unwrap();
        wrong[7] ^= 1;
        let not_signed = "No key in auth.jwt.jwksFile verifies the token's signature.";
        for signature in [encoded(&wrong), encoded(b"short"), String::new()] {
            assert_eq!(refused(&jwt, &format!("{signed}.{signature}")), not_signed);
        }
        // The same claims, signed by another key.
        let other = Signing {
            key: match key.algorithm {
                Algorithm::ES256 => Signing::p256("x").key,
                Algorithm::EdDSA => Signing::ed25519("x").key,
                _ => Signing::rsa(key.name, "x", 2_048).key,
            },
            ..*key
        };
        assert_eq!(
            refused(&jwt, &other.token(&claims())),
            not_signed,
            "{}",
            key.name
        );
    }
}

#[test]
fn a_token_does_not_choose_how_it_is_verified() {
    let key = Signing::rsa("RS256", "one", 2_048);
    let jwt = jwt(&[&key]);
    let not_known = "The token is not signed with RS256, PS256, ES256 or EdDSA.";
    let unsigned = |alg: &str| {
        let header = encoded(json!({"alg": alg}).to_string().as_bytes());
        format!("{header}.{}.", encoded(claims().to_string().as_bytes()))
    };
    for alg in ["none", "None", "NONE", ""] {
        assert_eq!(refused(&jwt, &unsigned(alg)), not_known, "{alg}");
    }
    // The public key, which is no secret, used as a shared secret.
    let public = key.key.public_key_to_pem().unwrap();
    let secret = PKey::hmac(&public).unwrap();
    let signed = ["HS256", "RS256"].map(|alg| {
        let header = json!({"alg": alg, "kid": "one"});
        let signed = [header, claims()].map(|part| encoded(part.to_string().as_bytes()));
        let signed = signed.join(".");
        let mut signer = Signer::new(MessageDigest::sha256(), &secret).unwrap();
        let signature = signer.sign_oneshot_to_vec(signed.as_bytes()).unwrap();
        format!("{signed}.{}", encoded(&signature))
    });
    assert_eq!(refused(&jwt, &signed[0]), not_known);
    assert!(refused(&jwt, &signed[1]).starts_with("No key"));
    // A key that is restricted to one algorithm verifies no other algorithm of the same key type.
    let pss = Signing {
        algorithm: Algorithm::PS256,
        name: "PS256",
        ..key
    };
    assert!(refused(&jwt, &pss.token(&claims())).starts_with("No key"));
}

#[test]
fn claims_must_match_the_configuration() {
    let key = Signing::ed25519("one");
    let jwt = jwt(&[&key]);
    let mut without_tenant = claims();
    without_tenant.as_object_mut().unwrap().remove("tenant");
    let cases = [
        (with("iss", json!("https://else.example")), "another issuer"),
        (with("iss", json!(null)), "another issuer"),
        (with("iss", json!(["https://id.example"])), "another issuer"),
        (with("aud", json!("else")), "another audience"),
        (with("aud", json!(["else"])), "another audience"),
        (with("aud", json!({"waybill": 1})), "another audience"),
        (with("aud", json!(null)), "another audience"),
        (with("exp", json!(null)), "times"),
        (with("exp", json!("soon")), "times"),
        (with("nbf", json!("now")), "times"),
        (with("nbf", json!(NOW + 61)), "not valid yet"),
        (with("exp", json!(NOW - 60)), "Expired"),
        (with("tenant", json!("")), "names no tenant"),
        (with("tenant", json!(["acme"])), "names no tenant"),
        (without_tenant, "names no tenant"),
    ];
    for (claims, expected) in cases {
        let message = refused(&jwt, &key.token(&claims));
        assert!(message.contains(expected), "{claims}: {message}");
    }
    for good in [
        with("aud", json!(["else", "waybill"])),
        with("exp", json!(NOW - 59)),
        with("exp", json!(NOW as f64 + 0.5)),
        with("nbf", json!(NOW + 60)),
        with("scope", json!(["submit", "read"])),
    ] {
        assert!(at(&jwt, &key.token(&good), NOW).is_ok(), "{good}");
    }
    let all = at(&jwt, &key.token(&with("tenant", json!("*"))), NOW).unwrap();
    assert_eq!(all.tenants, Tenants::All);
    let none = at(&jwt, &key.token(&with("scope", json!(null))), NOW).unwrap();
    assert!(Scope::ALL.iter().all(|scope| !none.scopes.contains(*scope)));
}

#[test]
fn a_verified_token_still_expires() {
    let key = Signing::ed25519("one");
    let jwt = jwt(&[&key]);
    let token = key.token(&claims());
    assert!(at(&jwt, &token, NOW).is_ok());
    assert!(at(&jwt, &token, NOW + 119).is_ok(), "clocks may differ");
    assert_eq!(at(&jwt, &token, NOW + 120), Err(Denied::Expired));
}

#[test]
fn a_verified_token_is_refused_once_its_key_is_removed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let [old, new] = ["old", "new"].map(Signing::ed25519);
    let set = |key: &Signing| json!({"keys": [key.jwk()]}).to_string();
    std::fs::write(file.path(), set(&old)).unwrap();
    let config = JwtConfig {
        jwks_file: Some(file.path().to_owned()),
        issuer: Some("https://id.example".to_owned()),
        audience: Some("waybill".to_owned()),
        ..JwtConfig::default()
    };
    let jwt = Jwt::load(&config).unwrap().unwrap();
    let [by_old, by_new] = [&old, &new].map(|key| key.token(&claims()));
    assert!(at(&jwt, &by_old, NOW).is_ok() && at(&jwt, &by_new, NOW).is_err());
    std::fs::write(file.path(), set(&new)).unwrap();
    jwt.reload();
    assert!(at(&jwt, &by_old, NOW).is_err() && at(&jwt, &by_new, NOW).is_ok());
}

#[test]
fn a_token_without_a_key_id_is_accepted_if_one_key_matches() {
    let [one, two] = ["one", "two"].map(Signing::ed25519);
    let token = one.token_with(&json!({"alg": "EdDSA"}), &claims());
    assert!(at(&jwt(&[&one]), &token, NOW).is_ok());
    assert!(at(&jwt(&[&one, &Signing::p256("three")]), &token, NOW).is_ok());
    assert!(at(&jwt(&[&one, &two]), &token, NOW).is_err());
}

#[test]
fn texts_that_are_not_tokens_are_refused() {
    let key = Signing::ed25519("one");
    let jwt = jwt(&[&key]);
    let good = key.token(&claims());
    let header = |header: Value| key.token_with(&header, &claims());
    let cases = [
        "a.b.c".to_owned(),
        "a".to_owned(),
        "..".to_owned(),
        format!("{good}.x"),
        header(json!({"alg": "EdDSA", "crit": ["exp"], "exp": 1})),
        header(json!({"alg": "EdDSA", "kid": 7})),
        header(json!(["EdDSA"])),
    ];
    for token in cases {
        assert_eq!(refused(&jwt, &token), "The token is not a JWT.", "{token}");
    }
}

#[test]
fn a_signed_token_that_parsers_read_differently_is_refused() {
    let key = Signing::ed25519("one");
    let jwt = jwt(&[&key]);
    let signed = |header: &str, claims: &str| {
        let signed = [header, claims]
            .map(|part| encoded(part.as_bytes()))
            .join(".");
        let signature = encoded(&key.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    };
    let header = r#"{"alg":"EdDSA","kid":"one"}"#;
    let text = claims().to_string();
    assert!(at(&jwt, &signed(header, &text), NOW).is_ok());
    let begins = |member: &str, of: &str| of.replacen('{', &format!("{{{member},"), 1);
    let deep = format!(r#""x":{}1{}"#, "[".repeat(40), "]".repeat(40));
    for (header, claims) in [
        (begins(r#""alg":"none""#, header), text.clone()),
        (begins(r#""kid":"two""#, header), text.clone()),
        (begins(r#""x":1,"x":2"#, header), text.clone()),
        (begins(r#""b64":false"#, header), text.clone()),
        (begins(&deep, header), text.clone()),
        (header.to_owned(), begins(r#""tenant":"*""#, &text)),
        (header.to_owned(), begins(r#""\u0074enant":"*""#, &text)),
        (header.to_owned(), begins(r#""x":{"y":1,"y":2}"#, &text)),
        (header.to_owned(), begins(&deep, &text)),
        (header.to_owned(), text.clone() + "{}"),
    ] {
        let token = signed(&header, &claims);
        assert_eq!(
            refused(&jwt, &token),
            "The token is not a JWT.",
            "{header} {claims}"
        );
    }
}

#[test]
fn a_key_that_the_token_brings_along_verifies_nothing() {
    let key = Signing::p256("one");
    let other = Signing::p256("one");
    let jwt = jwt(&[&key]);
    let header = json!({"alg": "ES256", "jwk": other.jwk(), "jku": "https://else.example/keys"});
    let refusal = refused(&jwt, &other.token_with(&header, &claims()));
    assert!(refusal.starts_with("No key"), "{refusal}");
    // A signature in DER, which the standard does not allow, and one of the wrong length.
    let token = key.token(&claims());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let raw = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let [r, s] = [&raw[..32], &raw[32..]].map(|part| BigNum::from_slice(part).unwrap());
    let der = EcdsaSig::from_private_components(r, s).unwrap();
    for wrong in [
        der.to_der().unwrap(),
        [&raw[..], &[0]].concat(),
        vec![0; 64],
    ] {
        let refusal = refused(&jwt, &format!("{signed}.{}", encoded(&wrong)));
        assert!(refusal.starts_with("No key"), "{refusal}");
    }
}

#[test]
fn an_invalid_key_set_is_refused_with_its_position() {
    let good = Signing::ed25519("one").jwk();
    let key = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let small = Signing::rsa("RS256", "small", 1_024).jwk();
    let mut off_curve = Signing::p256("off").jwk();
    off_curve["y"] = off_curve["x"].clone();
    for (keys, expected) in [
        (
            json!([{"kty": "oct", "k": "c2VjcmV0"}]),
            "key 1: is a symmetric key",
        ),
        (
            json!([good, key("d", json!("x"))]),
            "key 2: is a private key",
        ),
        (json!([good, good]), "key 2: another key has this kid"),
        (json!([small]), "key 1: has 1024 bits"),
        (json!([off_curve]), "key 1: cannot be used"),
        (
            json!([key("x", json!("a+b"))]),
            "key 1: cannot be used: Base64 error",
        ),
        (
            json!([key("alg", json!("RS256"))]),
            "key 1: alg does not match",
        ),
        (
            json!([key("use", json!("enc"))]),
            "contains no usable signature key",
        ),
        (json!([{"kty": "EC", "crv": "P-521"}]), "contains no usable"),
        (json!([]), "contains no usable"),
        (json!({}), "must be {\"keys\": [...]}"),
    ] {
        let refused = of_set(&json!({"keys": keys})).unwrap_err().to_string();
        assert!(
            refused.starts_with("auth.jwt.jwksFile: ") && refused.contains(expected),
            "{expected}: {refused}"
        );
    }
    let others = json!([good, {"kty": "EC", "crv": "P-521"}, {"kty": "AKP", "alg": "ML-DSA-44"}]);
    assert!(
        of_set(&json!({"keys": others})).is_ok(),
        "unknown values are left out"
    );
}
