//! Messages of logins at the embedded broker, and what it stores for SCRAM.

#![no_main]

use libfuzzer_sys::fuzz_target;
use waybill_sasl::{Exchange, SALT_BYTES, Verifier, plain};

fuzz_target!(|data: &[u8]| {
    if let Some((user, password)) = plain(data) {
        assert!(!user.is_empty());
        assert!(user.len() + password.len() < data.len());
    }
    if let Some(verifier) = std::str::from_utf8(data)
        .ok()
        .and_then(|text| text.parse::<Verifier>().ok())
    {
        assert_eq!(verifier.to_string().parse(), Ok(verifier));
    }
    let (first, second) = data.split_at(data.len() / 2);
    let stored = |_: &str| Some(Verifier::new("pencil", &[1; SALT_BYTES]));
    if let Ok((exchange, _)) = Exchange::begin(first, "server", &[2; 32], stored) {
        assert!(exchange.finish(second).is_err(), "nobody guesses a proof");
    }
});
