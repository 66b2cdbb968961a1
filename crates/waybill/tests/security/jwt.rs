//! JSON web tokens that a test signs.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use serde_json::{Value, json};

/// A key that signs with EdDSA.
#[derive(Clone)]
pub struct Signing {
    id: String,
    key: PKey<Private>,
}

impl Signing {
    pub fn new() -> Self {
        Self::named("one")
    }

    /// A key with this ID.
    pub fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            key: PKey::generate_ed25519().unwrap(),
        }
    }

    /// The key set with its public half.
    pub fn set(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.key.raw_public_key().unwrap());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": self.id, "x": x}]}).to_string()
    }

    pub fn token(&self, claims: &Value) -> String {
        let signed = signed(&json!({"alg": "EdDSA", "kid": self.id}), claims);
        let mut signer = Signer::new_without_digest(&self.key).unwrap();
        let signature = signer.sign_oneshot_to_vec(signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// An unsigned token.
pub fn unsigned(claims: &Value) -> String {
    format!("{}.", signed(&json!({"alg": "none"}), claims))
}

/// The claims of a token that is valid for a while.
pub fn claims(scope: &str, tenant: &str) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    json!({
        "iss": "https://id.example",
        "aud": ["waybill"],
        "sub": "anna",
        "exp": now.unwrap().as_secs() + 600,
        "scope": scope,
        "tenant": tenant,
    })
}

fn signed(header: &Value, claims: &Value) -> String {
    let parts = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    parts.join(".")
}
