//! A broker of its own: `cargo run --release --example broker -- DATA_DIR [ADDRESS]`.
//!
//! It prints `listening on ADDRESS` once it serves, and stops in order on Ctrl-C or when its disk
//! fails. The tests start it as a process that they can kill.

use std::error::Error;

use waybill_broker::{Broker, BrokerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(data_dir) = arguments.next() else {
        return Err("usage: broker DATA_DIR [ADDRESS]".into());
    };
    let mut config = BrokerConfig::new(data_dir);
    if let Some(address) = arguments.next() {
        config.listen = address.parse()?;
    }
    let broker = Broker::start(config).await?;
    println!("listening on {}", broker.address());
    tokio::select! {
        stopped = tokio::signal::ctrl_c() => stopped?,
        failure = broker.failed() => eprintln!("{failure}"),
    }
    println!("{:#?}", broker.stats());
    if !broker.shutdown().await {
        return Err("not everything could be synced to disk".into());
    }
    Ok(())
}
