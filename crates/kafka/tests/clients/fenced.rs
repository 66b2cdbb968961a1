//! Brokers that were paused are fenced, and metadata lists none of them until they rejoin. Clients
//! recover afterwards.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, MetadataResponse, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _};
use tokio::runtime::Runtime;
use waybill_broker::{Broker, BrokerSettings};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, ConsumerOptions, KafkaSettings, OutRecord, PartitionConsumer, Producer, ProducerOptions,
    TopicSpec,
};

use crate::support::{A_WHILE, ALL, OneProducer, PATIENCE, send_one};

/// How often all brokers are fenced. A client that librdkafka left without a broker recovers after
/// some seconds.
const TIMES: usize = 3;
const PRODUCERS: usize = 4;

#[test]
fn clients_recover_from_metadata_without_brokers() {
    let runtime = Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let fence = Fence::new();
    let mut config = BrokerSettings::new(dir.path());
    config.listen = ([127, 0, 0, 1], 0).into();
    config.advertised = Some((fence.address.ip().to_string(), fence.address.port()));
    let broker = runtime.block_on(Broker::start(config)).unwrap();
    fence.lead_to(broker.address());
    let mut settings = KafkaSettings::new(fence.address.to_string());
    let refresh = ("topic.metadata.refresh.interval.ms", "20");
    settings
        .properties
        .insert(refresh.0.to_owned(), refresh.1.to_owned());
    let admin = Admin::new(&settings, "admin").unwrap();
    runtime.block_on(admin.wait_ready(PATIENCE)).unwrap();
    let topic = [TopicSpec::new("t", 1)];
    runtime.block_on(admin.create_topics(&topic)).unwrap();

    let producers: Vec<OneProducer> = (0..PRODUCERS)
        .map(|index| Producer::new(&settings, &ProducerOptions::new(format!("p{index}"))).unwrap())
        .collect();
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    for round in 0..TIMES {
        fence.close();
        let handed_out = fence.handed_out();
        let deadline = Instant::now() + PATIENCE;
        // Long enough for each client to receive such metadata.
        while fence.handed_out() < handed_out + 2 * PRODUCERS && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        fence.open();
        for (index, producer) in producers.iter().enumerate() {
            let sent = send_one(producer, &record);
            assert_eq!(sent.result, Ok(()), "round {round}, producer {index}");
        }
        let deadline = Instant::now() + PATIENCE;
        let mut read = 0;
        while read < PRODUCERS {
            assert!(Instant::now() < deadline, "round {round}: {read} were read");
            let polled = consumer.poll(ALL, A_WHILE, &mut |_| read += 1);
            polled.unwrap();
        }
    }
}

/// A proxy of a broker that removes the broker from the metadata while it is closed.
struct Fence {
    address: SocketAddr,
    listener: TcpListener,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_closed: AtomicBool,
    /// How often metadata without a broker was sent.
    handed_out: AtomicUsize,
}

impl Fence {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener,
            state: Arc::default(),
        }
    }

    fn lead_to(&self, broker: SocketAddr) {
        let (listener, state) = (self.listener.try_clone().unwrap(), self.state.clone());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(broker) else {
                    continue;
                };
                let asked = Arc::<Mutex<HashMap<i32, i16>>>::default();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let of_requests = asked.clone();
                thread::spawn(move || {
                    carry(from, to, |frame| {
                        note_metadata(&frame, &of_requests);
                        frame
                    })
                });
                let state = state.clone();
                thread::spawn(move || {
                    carry(server, client, |frame| {
                        let correlation = i32::from_be_bytes(frame[..4].try_into().unwrap());
                        let version = asked.lock().unwrap().remove(&correlation);
                        match version.filter(|_| state.is_closed.load(Ordering::Relaxed)) {
                            Some(version) => {
                                state.handed_out.fetch_add(1, Ordering::Relaxed);
                                without_brokers(frame, version)
                            }
                            None => frame,
                        }
                    })
                });
            }
        });
    }

    fn close(&self) {
        self.state.is_closed.store(true, Ordering::Relaxed);
    }

    fn open(&self) {
        self.state.is_closed.store(false, Ordering::Relaxed);
    }

    fn handed_out(&self) -> usize {
        self.state.handed_out.load(Ordering::Relaxed)
    }
}

/// Remembers the version of a request for metadata by its correlation id.
fn note_metadata(frame: &[u8], asked: &Mutex<HashMap<i32, i16>>) {
    let number = |at: usize| i16::from_be_bytes([frame[at], frame[at + 1]]);
    if number(0) == ApiKey::Metadata as i16 {
        let correlation = i32::from_be_bytes(frame[4..8].try_into().unwrap());
        asked.lock().unwrap().insert(correlation, number(2));
    }
}

/// Metadata as a fenced broker sends it.
fn without_brokers(frame: Vec<u8>, version: i16) -> Vec<u8> {
    const LEADER_NOT_AVAILABLE: i16 = 5;
    let header_version = MetadataResponse::header_version(version);
    let mut frame = Bytes::from(frame);
    let header = ResponseHeader::decode(&mut frame, header_version).unwrap();
    let mut metadata = MetadataResponse::decode(&mut frame, version).unwrap();
    metadata.brokers.clear();
    metadata.controller_id = (-1).into();
    for partition in metadata
        .topics
        .iter_mut()
        .flat_map(|topic| &mut topic.partitions)
    {
        partition.error_code = LEADER_NOT_AVAILABLE;
        partition.leader_id = (-1).into();
    }
    let mut changed = BytesMut::new();
    header.encode(&mut changed, header_version).unwrap();
    metadata.encode(&mut changed, version).unwrap();
    changed.to_vec()
}

/// Forwards frames until one side closes.
fn carry(mut from: TcpStream, mut to: TcpStream, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let mut next = || -> io::Result<()> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        from.read_exact(&mut frame)?;
        let frame = change(frame);
        let length = u32::try_from(frame.len()).unwrap();
        to.write_all(&length.to_be_bytes())?;
        to.write_all(&frame)
    };
    while next().is_ok() {}
    // The other side may have closed already.
    _ = to.shutdown(Shutdown::Both);
}
