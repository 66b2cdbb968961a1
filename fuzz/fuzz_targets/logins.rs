//! Messages of logins at the embedded broker, and what it stores for SCRAM.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use waybill_sasl::{Exchange, SALT_BYTES, Verifier, plain};

static STORED: LazyLock<Verifier> = LazyLock::new(|| Verifier::new("pencil", &[1; SALT_BYTES]));

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
    // Both messages of a client, with a line feed between them.
    let mut messages = data.splitn(2, |byte| *byte == b'\n');
    let first = messages.next().unwrap_or_default();
    let stored = |_: &str| Some(STORED.clone());
    if let Ok((exchange, _)) = Exchange::begin(first, "server", &[2; 32], stored) {
        let second = messages.next().unwrap_or_default();
        assert!(exchange.finish(second).is_err(), "nobody guesses a proof");
    }
});
