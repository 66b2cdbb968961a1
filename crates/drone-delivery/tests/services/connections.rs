//! More connections than the listener allows.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use waybill_drone_delivery::services::ServicesSettings;

use super::site::{PATIENCE, Site, config, directory};

const CONNECTIONS_MAX: usize = 8;
/// Three quarters: all connections here are from one address.
const PER_ADDRESS_MAX: usize = 6;

#[tokio::test]
async fn twice_as_many_connections_as_the_limit_do_not_block_new_ones() {
    let directory = directory();
    let mut site = Site::start_with(ServicesSettings {
        connections_max: CONNECTIONS_MAX,
        ..config(directory.path())
    })
    .await;
    // A new connection for each request, so that the listener must accept it.
    let client = reqwest::Client::builder().pool_max_idle_per_host(0);
    site.client = client.build().unwrap();
    // Silent connections, and ones that send half a head.
    for sent in [&b""[..], b"GET /faults HTTP/1.1\r\nhost: loc"] {
        let mut streams = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(site.services.address()).await.unwrap();
            // The listener may close it at any moment to make room.
            let _ = stream.write_all(sent).await;
            streams.push(stream);
        }
        let answer = site.send("PUT", "/api/packages/p", "o/package", json!({}));
        assert!(answer.await.status().is_success());
        let counts = site.services.connections().counts();
        assert_eq!(counts.open, PER_ADDRESS_MAX);
        assert_eq!(counts.per_address, PER_ADDRESS_MAX);
        assert!(counts.replaced >= CONNECTIONS_MAX as u64, "{counts:?}");
        assert_eq!(counts.refused, 0);
        let mut buffer = [0; 1];
        let read = streams[0].read(&mut buffer);
        let read = tokio::time::timeout(PATIENCE, read).await.unwrap();
        assert_eq!(read.unwrap_or(0), 0, "the first one made room");
    }
}
