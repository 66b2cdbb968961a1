//! Links the functions of `src/batch_limits.rs` into this crate's tests, in place of
//! librdkafka's, and names the functions to the build scripts of programs that depend on this
//! crate (`DEP_WAYBILL_KAFKA_WRAPPED`). Cargo passes no linker argument of a library on to them.
//! The argument is one of the GNU linker and LLVM's: on other systems nothing is replaced, and the
//! first consumer logs a warning.

/// The functions of librdkafka that allocate what a batch claims to hold, and the one that first
/// verifies its checksum.
const WRAPPED: [&str; 7] = [
    "rd_crc32c",
    "rd_gz_decompress",
    "rd_kafka_lz4_decompress",
    "rd_kafka_snappy_java_uncompress",
    "rd_kafka_snappy_uncompress",
    "rd_kafka_snappy_uncompressed_length",
    "rd_kafka_zstd_decompress",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    let wrapped = if is_linux { &WRAPPED[..] } else { &[] };
    println!("cargo::metadata=wrapped={}", wrapped.join(","));
    for function in wrapped {
        println!("cargo::rustc-link-arg=-Wl,--wrap={function}");
    }
}
