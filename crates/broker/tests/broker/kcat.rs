//! kcat against the broker, if kcat is installed.

use std::net::SocketAddr;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::common::*;

async fn kcat(address: SocketAddr, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let spawned = Command::new("kcat")
        .args(["-b", &address.to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{error}"),
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).await.unwrap();
    drop(stdin);
    let output = tokio::time::timeout(BOUND, child.wait_with_output()).await;
    Some(output.expect("kcat ends").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_lists_produces_and_consumes() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let address = broker.address();
    create_topic(address, "cats", 3, &[("flush.messages", "1")]).await;
    let Some(listed) = kcat(address, &["-L"], b"").await else {
        println!("SKIPPED: kcat is not installed");
        assert!(broker.shutdown().await);
        return;
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("topic \"cats\" with 3 partitions"),
        "{listed}"
    );

    let lines: String = (0..1000).map(|n| format!("key{n}:value{n}\n")).collect();
    for codec in ["none", "gzip", "snappy", "lz4"] {
        let produced = kcat(
            address,
            &["-P", "-t", "cats", "-K:", "-z", codec],
            lines.as_bytes(),
        )
        .await;
        let produced = produced.unwrap();
        assert!(
            produced.status.success(),
            "{}",
            String::from_utf8_lossy(&produced.stderr)
        );
    }
    let arguments = ["-C", "-t", "cats", "-o", "beginning", "-e", "-q", "-K:"];
    let consumed = String::from_utf8(kcat(address, &arguments, b"").await.unwrap().stdout).unwrap();
    let mut consumed: Vec<&str> = consumed.lines().collect();
    consumed.sort_unstable();
    let mut expected: Vec<&str> = lines.lines().flat_map(|line| [line; 4]).collect();
    expected.sort_unstable();
    assert_eq!(consumed, expected);

    let arguments = [
        "-C", "-t", "cats", "-p", "0", "-o", "-1", "-c", "1", "-f", "%o",
    ];
    let last = kcat(address, &arguments, b"").await.unwrap();
    let last: i64 = String::from_utf8(last.stdout).unwrap().parse().unwrap();
    assert!(last > 0);

    let group = [
        "-G",
        "kittens",
        "cats",
        "-X",
        "auto.offset.reset=earliest",
        "-c",
        "4000",
        "-q",
    ];
    let grouped = kcat(address, &group, b"").await.unwrap();
    let stderr = String::from_utf8_lossy(&grouped.stderr);
    assert_eq!(
        grouped.stdout.iter().filter(|&&b| b == b'\n').count(),
        4000,
        "{stderr}"
    );
    assert!(broker.shutdown().await);
}
