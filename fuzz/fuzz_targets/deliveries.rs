//! Bodies of deliveries: what is taken has a canonical form that is taken, too, and has the same
//! one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waybill_drone_delivery::request::{validate, validate_reschedule};

fuzz_target!(|bytes: &[u8]| {
    let Ok(body) = serde_json::from_slice(bytes) else {
        return;
    };
    _ = validate_reschedule(&body);
    let Ok(delivery) = validate(&body) else {
        return;
    };
    let canonical = delivery.canonical_json();
    let body = serde_json::from_slice(&canonical).expect("the canonical form is JSON");
    let again = validate(&body).expect("and a delivery");
    assert_eq!(again.canonical_json(), canonical);
});
