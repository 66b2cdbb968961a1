use std::io::Write as _;

use super::*;

const CONTENTS: Contents = Contents {
    operations: 2,
    records: 7,
    at: Timestamp(1_234_567_000_000),
};

/// A piece of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Owned {
    Entry(Database, String, Vec<u8>, Vec<u8>),
    Segment(String, i32, i64),
    LogBytes(Vec<u8>),
}

fn entry(database: Database, table: &str, key: &[u8], value: &[u8]) -> Owned {
    Owned::Entry(database, table.to_owned(), key.to_vec(), value.to_vec())
}

fn owned(piece: Piece<'_>) -> Owned {
    match piece {
        Piece::Entry {
            database,
            table,
            key,
            value,
        } => entry(database, table, key, value),
        Piece::Segment {
            topic,
            partition,
            base,
        } => Owned::Segment(topic.to_owned(), partition, base),
        Piece::LogBytes(bytes) => Owned::LogBytes(bytes.to_vec()),
    }
}

/// The longest name of a topic, which needs an extension of tar's.
fn long_topic() -> String {
    "t".repeat(249)
}

fn written() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = Writer::begin(&mut bytes, CONTENTS.at).unwrap();
    file.entry(Database::Store, "state", b"a", b"one").unwrap();
    file.entry(Database::Store, "state", b"b", b"").unwrap();
    file.entry(Database::Store, "due", b"b", b"").unwrap();
    file.entry(Database::Broker, "due", b"b", b"").unwrap();
    let segment = ("topic", 3, 1_000);
    file.segment(segment, 7, &b"batches"[..]).unwrap();
    let topic = long_topic();
    file.segment((&topic, 4, 0), 0, &b""[..]).unwrap();
    file.finish(CONTENTS).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<(Contents, Vec<Owned>), FileError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let reader = Reader::open(file.path())?;
    let mut pieces = Vec::new();
    reader.read(|piece| {
        pieces.push(owned(piece));
        Ok::<_, FileError>(())
    })?;
    Ok((reader.contents(), pieces))
}

fn refusal(bytes: &[u8]) -> String {
    read(bytes).expect_err("it is refused").to_string()
}

fn compress(archive: &[u8]) -> Vec<u8> {
    zstd::encode_all(archive, 1).unwrap()
}

fn decompress(backup: &[u8]) -> Vec<u8> {
    zstd::decode_all(backup).unwrap()
}

/// A backup of a member that no writer makes, which fits its manifest.
fn with_member(name: &str, kind: tar::EntryType, content: &[u8]) -> Vec<u8> {
    let member = |archive: &mut tar::Builder<Vec<u8>>, name: &str, kind, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_entry_type(kind);
        archive.append_data(&mut header, name, content).unwrap();
        let mut hash = <sha2::Sha256 as sha2::Digest>::new();
        sha2::Digest::update(&mut hash, content);
        Listed {
            name: name.to_owned(),
            bytes: content.len() as u64,
            sha256: writer::hex(hash),
        }
    };
    let mut archive = tar::Builder::new(Vec::new());
    let regular = tar::EntryType::Regular;
    let head = br#"{"version": 2, "atMicros": 1}"#;
    let members = vec![
        member(&mut archive, HEAD, regular, head),
        member(&mut archive, name, kind, content),
    ];
    let manifest = serde_json::to_vec(&Manifest {
        operations: 0,
        records: 0,
        members,
    });
    member(&mut archive, MANIFEST, regular, &manifest.unwrap());
    compress(&archive.into_inner().unwrap())
}

#[test]
fn a_backup_is_read_in_the_order_of_writing() {
    let expected = vec![
        entry(Database::Store, "state", b"a", b"one"),
        entry(Database::Store, "state", b"b", b""),
        entry(Database::Store, "due", b"b", b""),
        entry(Database::Broker, "due", b"b", b""),
        Owned::Segment("topic".to_owned(), 3, 1_000),
        Owned::LogBytes(b"batches".to_vec()),
        Owned::Segment(long_topic(), 4, 0),
    ];
    assert_eq!(read(&written()).unwrap(), (CONTENTS, expected));
}

#[test]
fn the_file_is_an_archive_that_other_programs_list() {
    let archive = decompress(&written());
    let mut archive = tar::Archive::new(&archive[..]);
    let members = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        assert_eq!(entry.header().mode().unwrap(), 0o600);
        entry.path().unwrap().to_str().unwrap().to_owned()
    });
    let long = format!("logs/{}/4/00000000000000000000.log", long_topic());
    let expected = [
        "waybill-backup.json",
        "store/state/00000000",
        "store/due/00000000",
        "broker/due/00000000",
        "logs/topic/3/00000000000000001000.log",
        &long,
        "manifest.json",
    ];
    assert_eq!(members.collect::<Vec<_>>(), expected);
}

#[test]
fn a_large_table_is_in_several_members_and_none_is_much_larger_than_the_limit() {
    let mut bytes = Vec::new();
    let mut file = Writer::begin(&mut bytes, CONTENTS.at).unwrap();
    let value = vec![7; 1 << 20];
    for key in 0..10_u8 {
        file.entry(Database::Store, "state", &[key], &value)
            .unwrap();
    }
    file.finish(CONTENTS).unwrap();
    let archive = decompress(&bytes);
    let mut archive = tar::Archive::new(&archive[..]);
    let sizes = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().size());
    let entry = 8 + 1 + (1 << 20);
    let sizes: Vec<u64> = sizes.collect();
    assert_eq!(sizes[1..4], [4 * entry, 4 * entry, 2 * entry]);
    let (_, pieces) = read(&bytes).unwrap();
    let keys = (0..10_u8).map(|key| entry_of(key, &value));
    assert_eq!(pieces, keys.collect::<Vec<_>>());
}

fn entry_of(key: u8, value: &[u8]) -> Owned {
    entry(Database::Store, "state", &[key], value)
}

#[test]
fn a_truncated_file_is_refused_and_names_the_last_readable_member() {
    let whole = written();
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} bytes");
    }
    // Members after which an archive ends.
    let archive = decompress(&whole);
    for (length, place) in [
        (256, "at its start"),
        (512, "in waybill-backup.json"),
        (1_024, "after waybill-backup.json"),
        (2_048, "after store/state/00000000"),
    ] {
        let refused = refusal(&compress(&archive[..length]));
        let expected = format!("the backup is truncated or altered {place}");
        assert_eq!(refused, expected, "{length} bytes");
    }
    let longer = [whole, b"x".to_vec()].concat();
    let expected = "the backup is truncated or altered after manifest.json";
    assert_eq!(refusal(&longer), expected);
}

#[test]
fn a_flipped_bit_is_detected_unless_it_changes_nothing() {
    let whole = written();
    let expected = read(&whole).unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut altered = whole.clone();
            altered[at] ^= 1 << bit;
            // The compression has unused bits, and several forms of the same content.
            if let Ok(found) = read(&altered) {
                assert_eq!(found, expected, "bit {bit} of byte {at}");
            }
        }
    }
}

#[test]
fn altered_content_of_an_intact_archive_is_refused_with_the_member() {
    let archive = decompress(&written());
    let at = archive.windows(7).position(|bytes| bytes == b"batches");
    let mut altered = archive.clone();
    altered[at.unwrap()] ^= 1;
    assert_eq!(
        refusal(&compress(&altered)),
        "the backup is truncated or altered in logs/topic/3/00000000000000001000.log"
    );
    // A member that is missing: its header, and its content up to the next block.
    let missing = [&archive[..2_048], &archive[3_072..]].concat();
    assert_eq!(
        refusal(&compress(&missing)),
        "the backup is truncated or altered in store/due/00000000"
    );
}

#[test]
fn a_file_of_another_kind_or_version_is_refused_with_the_reason() {
    assert!(matches!(read(b"{}"), Err(FileError::NoBackup)));
    assert!(matches!(read(&[b'x'; 200]), Err(FileError::NoBackup)));
    let mut other = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    other.append_data(&mut header, "photo", &b""[..]).unwrap();
    let other = compress(&other.into_inner().unwrap());
    assert!(matches!(read(&other), Err(FileError::NoBackup)));
    let archive = String::from_utf8(decompress(&written())).unwrap();
    let newer = archive.replacen("\"version\":2", "\"version\":9", 1);
    let newer = read(&compress(newer.as_bytes()));
    assert!(matches!(newer, Err(FileError::Version(9))));
}

#[test]
fn invalid_members_that_fit_the_manifest_are_refused() {
    let regular = tar::EntryType::Regular;
    let sizes = |key: u32, value: u32| [key.to_le_bytes(), value.to_le_bytes()].concat();
    let entry = "store/state/00000000";
    for (name, kind, content, problem) in [
        (
            entry,
            regular,
            sizes(0, 0),
            "an entry of an impossible size",
        ),
        (
            entry,
            regular,
            sizes(1, 0),
            "an entry of an impossible size",
        ),
        (
            entry,
            regular,
            sizes(1, u32::MAX),
            "an entry of an impossible size",
        ),
        ("logs/topic/x/0.log", regular, Vec::new(), "no valid name"),
        ("logs/topic/0/0", regular, Vec::new(), "no valid name"),
        ("etc/passwd", regular, Vec::new(), "no valid name"),
        (
            "link",
            tar::EntryType::Symlink,
            Vec::new(),
            "not a regular file",
        ),
        (
            "pax",
            tar::EntryType::XHeader,
            Vec::new(),
            "not a regular file",
        ),
    ] {
        let refused = refusal(&with_member(name, kind, &content));
        assert!(refused.contains(problem), "{name}: {refused}");
    }
}

#[test]
fn a_name_without_end_is_not_read_into_memory() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(1 << 20);
    header.set_cksum();
    archive.append(&header, &vec![b'x'; 1 << 20][..]).unwrap();
    let head = archive.into_inner().unwrap();
    // Without the two empty blocks at the end.
    let head = &head[..head.len() - 1_024];
    let whole = [head, &decompress(&written())].concat();
    let expected = "the backup is truncated or altered at its start";
    assert_eq!(refusal(&compress(&whole)), expected);
}

#[test]
fn a_window_that_needs_much_memory_is_refused() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(&decompress(&written())).unwrap();
    let refused = read(&encoder.finish().unwrap()).unwrap_err();
    let FileError::Altered { source, .. } = &refused else {
        panic!("{refused:?}");
    };
    let cause = source.as_ref().unwrap().to_string();
    assert!(cause.contains("memory"), "{cause}");
}
