//! Attacks on the listeners that speak HTTP.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Attacker, HOLD, Listener, hold};

/// The interval between dripped bytes.
const DRIP: Duration = Duration::from_secs(1);
/// The maximum number of dripped bytes.
const DRIPS_MAX: usize = 60;
/// Requests on one HTTP/2 connection with unread answers.
const STREAMS: u32 = 50;

/// Sends single bytes until the peer closes the connection.
async fn drip(stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    for _ in 0..DRIPS_MAX {
        tokio::time::sleep(DRIP).await;
        stream.write_all(&[byte]).await?;
    }
    Ok(())
}

pub(super) async fn half_head(attacker: &Attacker) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    stream
        .write_all(b"GET /v1/operations/a HTTP/1.1\r\nhost: localhost\r\nx: ")
        .await?;
    drip(&mut stream, b'y').await
}

/// Sends a request, and is idle after the answer.
pub(super) async fn idle_after_answer(attacker: &Attacker) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await?;
    hold(&mut stream).await;
    Ok(())
}

pub(super) async fn dripping_body(attacker: &Attacker) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    let routes = [
        "POST /v1/operations:batch",
        "POST /v1/operations",
        "PUT /log",
    ];
    let route = match attacker.listener {
        Listener::Services => "PUT /api/packages/p",
        _ => routes[attacker.number % routes.len()],
    };
    let media = match route.ends_with(":batch") {
        true => "application/x-ndjson",
        false => "application/json",
    };
    let head = format!(
        "{route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media}\r\ncontent-length: 500000\r\n\r\n{{\"workflow\": \""
    );
    stream.write_all(head.as_bytes()).await?;
    drip(&mut stream, b'a').await
}

/// An HTTP/2 frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The fields of a `GET` (RFC 7541): method and scheme from the static table, path and authority as
/// literals.
fn get(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(0x04, path), (0x01, "localhost")] {
        block.push(name);
        block.push(u8::try_from(value.len()).unwrap_or(0));
        block.extend(value.as_bytes());
    }
    block
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM_AND_HEADERS: u8 = 5;

/// Begins an HTTP/2 connection whose streams have a window of zero bytes.
async fn connect_without_window(attacker: &Attacker) -> io::Result<TcpStream> {
    const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    let mut stream = attacker.connect().await?;
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(SETTINGS, 0, 0, &NO_WINDOW));
    stream.write_all(&sent).await?;
    Ok(stream)
}

/// The frame that begins the request with this number on its connection.
fn request(number: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM_AND_HEADERS, 2 * number + 1, &get(path))
}

/// Requests large answers with a window of zero bytes.
pub(super) async fn unread_answers(attacker: &Attacker) -> io::Result<()> {
    let mut stream = connect_without_window(attacker).await?;
    let mut sent = Vec::new();
    for number in 0..STREAMS {
        let path = ["/metrics", "/openapi.json", "/docs"][number as usize % 3];
        sent.extend(request(number, path));
    }
    stream.write_all(&sent).await?;
    hold(&mut stream).await;
    Ok(())
}

/// Leaves a large answer unread, and reads a small one now and then.
pub(super) async fn unread_beside_read_answers(attacker: &Attacker) -> io::Result<()> {
    const WINDOW: u32 = 4096;
    let mut stream = connect_without_window(attacker).await?;
    let path = ["/metrics", "/openapi.json"][attacker.number % 2];
    stream.write_all(&request(0, path)).await?;
    let (mut reading, mut writing) = stream.into_split();
    let drip = async {
        for number in 1..u32::MAX {
            tokio::time::sleep(DRIP).await;
            let mut sent = request(number, "/livez");
            let id = 2 * number + 1;
            sent.extend(frame(WINDOW_UPDATE, 0, id, &WINDOW.to_be_bytes()));
            writing.write_all(&sent).await?;
        }
        Ok(())
    };
    let read = async { while matches!(reading.read(&mut [0; 4096]).await, Ok(1..)) {} };
    tokio::select! {
        sent = drip => sent,
        () = read => Ok(()),
        () = tokio::time::sleep(HOLD) => Ok(()),
    }
}

/// Sends a head, and disconnects once the answer begins.
async fn ask(attacker: &Attacker, text: &str) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    stream.write_all(text.as_bytes()).await?;
    let _ = timeout(HOLD, stream.read(&mut [0; 4096])).await;
    Ok(())
}

pub(super) async fn ambiguous_framing(attacker: &Attacker) -> io::Result<()> {
    for text in [
        "POST /v1/operations HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: other\r\n\r\n",
        "POST /v1/operations HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        "GET /livez HTTP/1.1\nhost: localhost\n\n",
    ] {
        ask(attacker, text).await?;
    }
    Ok(())
}

pub(super) async fn made_up_operations(attacker: &Attacker) -> io::Result<()> {
    for path in [
        "/v1/operations/made-up?at=0-999999-00000000",
        "/v1/operations/01920000-0000-7000-8000-000000000000/events?at=1-5-12345678",
        "/v1/operations?limit=1000",
    ] {
        ask(
            attacker,
            &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        )
        .await?;
    }
    Ok(())
}

pub(super) async fn foreign_page(attacker: &Attacker) -> io::Result<()> {
    for text in [
        "GET /v1/operations HTTP/1.1\r\nhost: attacker.example\r\n\r\n",
        "POST /v1/operations/a:cancel HTTP/1.1\r\nhost: localhost\r\norigin: https://attacker.example\r\n\
         content-type: application/json\r\ncontent-length: 0\r\n\r\n",
        "POST /backup HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: cross-site\r\ncontent-length: 0\r\n\r\n",
    ] {
        ask(attacker, text).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_begins_with_length_type_flags_and_stream() {
        let written = frame(1, 5, 3, b"ab");
        assert_eq!(written, [0, 0, 2, 1, 5, 0, 0, 0, 3, b'a', b'b']);
        assert_eq!(get("/x")[..5], [0x82, 0x86, 0x04, 2, b'/']);
    }
}
