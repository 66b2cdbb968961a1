//! Bytes on the broker's port that are no requests.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const FRAMES: usize = 500;
/// The log limits the lines of one place in the code to a hundred a minute.
const LINES_MAX: usize = 110;

/// A frame with an unknown API, and another length and content each time.
fn bad_frame(number: usize) -> Vec<u8> {
    let mut frame = vec![0; 4];
    frame.extend([0x7f, (number % 251) as u8]);
    frame.extend((0..8 + number % 40).map(|at| (at * number) as u8));
    let length = u32::try_from(frame.len() - 4).unwrap();
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_fill_no_log() {
    let site = Site::start();
    site.ready().await;
    let lines = || site.log().lines().count();
    let before = lines();
    for number in 0..FRAMES {
        let mut stream = TcpStream::connect(site.address("broker")).await.unwrap();
        stream.write_all(&bad_frame(number)).await.unwrap();
        // The broker closes the connection, with or without an answer.
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(PATIENCE, read).await.unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while site.metric("waybill_broker_malformed_total").await < FRAMES as f64 {
        assert!(Instant::now() < deadline, "each is counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let logged = lines() - before;
    assert!(logged > 0, "it is logged");
    assert!(logged <= LINES_MAX, "{logged} lines: {}", site.log());
    site.deliver("beside-bad-frames").await;
}
