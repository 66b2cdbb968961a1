//! Bounds what librdkafka decompresses, as `crates/kafka/build.rs` explains.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let wrapped = std::env::var("DEP_WAYBILL_KAFKA_WRAPPED");
    for function in wrapped.expect("waybill-kafka names them").split(',') {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap={function}");
    }
}
