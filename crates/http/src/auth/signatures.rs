//! The signatures of JWTs: a provider for `jsonwebtoken` that uses the system's OpenSSL, as every
//! TLS connection of this program does.
//!
//! What must hold: nothing here signs, and no shared secret verifies anything. A key has exactly
//! one type, and only the algorithms of that type accept it.

use std::sync::LazyLock;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Public};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Verifier as OpenSslVerifier};

/// The algorithms that verify tokens.
pub(super) const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::RS256,
    Algorithm::PS256,
    Algorithm::ES256,
    Algorithm::EdDSA,
];

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    // They describe keys; here keys are only read.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes OpenSSL the provider of this process.
pub(super) fn install() {
    static INSTALLED: LazyLock<bool> = LazyLock::new(|| PROVIDER.install_default().is_ok());
    assert!(
        *INSTALLED,
        "no other part of this program installs a provider"
    );
}

/// The public key in OpenSSL's form, which proves that it is usable.
pub(super) fn public_key(key: &DecodingKey) -> Result<PKey<Public>> {
    let public = match (key.family(), key.kind()) {
        (AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, e }) => rsa(n, e),
        (AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => p256(point),
        (AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(x)) => {
            PKey::public_key_from_raw_bytes(x, Id::ED25519)
        }
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    };
    public.map_err(|error| new_error(ErrorKind::Provider(error.to_string())))
}

fn rsa(n: &[u8], e: &[u8]) -> std::result::Result<PKey<Public>, ErrorStack> {
    let key = Rsa::from_public_components(BigNum::from_slice(n)?, BigNum::from_slice(e)?)?;
    PKey::from_rsa(key)
}

fn p256(point: &[u8]) -> std::result::Result<PKey<Public>, ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let mut context = BigNumContext::new()?;
    // Refuses a point that is not on the curve.
    let point = EcPoint::from_bytes(&group, point, &mut context)?;
    PKey::from_ec_key(EcKey::from_public_key(&group, &point)?)
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if !ALGORITHMS.contains(algorithm) || algorithm.family() != key.family() {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    Ok(Box::new(SignatureVerifier {
        algorithm: *algorithm,
        key: public_key(key)?,
    }))
}

struct SignatureVerifier {
    algorithm: Algorithm,
    key: PKey<Public>,
}

impl JwtVerifier for SignatureVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for SignatureVerifier {
    fn verify(&self, signed: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        match self.is_valid(signed, signature) {
            Ok(true) => Ok(()),
            // A malformed signature verifies nothing.
            Ok(false) | Err(_) => Err(Error::new()),
        }
    }
}

impl SignatureVerifier {
    fn is_valid(&self, signed: &[u8], signature: &[u8]) -> std::result::Result<bool, ErrorStack> {
        let sha256 = MessageDigest::sha256();
        match self.algorithm {
            Algorithm::RS256 => {
                let mut verifier = OpenSslVerifier::new(sha256, &self.key)?;
                verifier.set_rsa_padding(Padding::PKCS1)?;
                verifier.verify_oneshot(signature, signed)
            }
            Algorithm::PS256 => {
                let mut verifier = OpenSslVerifier::new(sha256, &self.key)?;
                verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
                verifier.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
                verifier.set_rsa_mgf1_md(sha256)?;
                verifier.verify_oneshot(signature, signed)
            }
            Algorithm::ES256 => {
                // Two numbers of 32 bytes (RFC 7518, section 3.4), which OpenSSL wants in DER.
                let Some((r, s)) = signature
                    .split_at_checked(32)
                    .filter(|(_, s)| s.len() == 32)
                else {
                    return Ok(false);
                };
                let [r, s] = [BigNum::from_slice(r)?, BigNum::from_slice(s)?];
                let der = EcdsaSig::from_private_components(r, s)?.to_der()?;
                OpenSslVerifier::new(sha256, &self.key)?.verify_oneshot(&der, signed)
            }
            Algorithm::EdDSA => {
                OpenSslVerifier::new_without_digest(&self.key)?.verify_oneshot(signature, signed)
            }
            _ => Ok(false),
        }
    }
}
