//! Trace contexts: what can be read is written so that it reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waybill_telemetry::trace::TraceContext;

fuzz_target!(|text: &str| {
    if let Some(context) = TraceContext::parse(text) {
        assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
    }
});
