//! Bounds what librdkafka decompresses, as `crates/kafka/build.rs` explains.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let wrapped = std::env::var("DEP_WAYBILL_KAFKA_WRAPPED");
    let wrapped = wrapped.expect("waybill-kafka names them");
    for function in wrapped.split(',').filter(|name| !name.is_empty()) {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap={function}");
    }
}
