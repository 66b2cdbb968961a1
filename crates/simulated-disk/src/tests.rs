use std::path::Path;

use super::*;

const LOSSES: [Loss; 5] = [
    Loss::Nothing,
    Loss::Everything,
    Loss::Tail,
    Loss::Sectors(512),
    Loss::Sectors(4096),
];

fn dir() -> &'static Path {
    Path::new("/data")
}

fn path() -> PathBuf {
    dir().join("log")
}

fn disk(simulated: &SimulatedDisk) -> &dyn Disk {
    simulated
}

fn append(file: &dyn DiskFile, bytes: &[u8]) -> io::Result<()> {
    file.append_all(&mut [IoSlice::new(bytes)])
}

/// A synced file with 1000 bytes.
fn synced(disk: &SimulatedDisk) -> Box<dyn DiskFile> {
    let file = disk.open(&path(), Open::Append).unwrap();
    append(&*file, &[1; 1000]).unwrap();
    file.sync().unwrap();
    disk.sync_dir(dir()).unwrap();
    file
}

#[test]
fn what_is_synced_survives_every_loss_and_the_rest_some() {
    for loss in LOSSES {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let simulated = SimulatedDisk::new(seed);
            let file = synced(&simulated);
            append(&*file, &[2; 3000]).unwrap();
            append(&*file, &[3; 3000]).unwrap();
            simulated.restart(loss);
            let left = disk(&simulated).read(&path()).unwrap();
            assert_eq!(left[..1000], [1; 1000], "{loss:?}, seed {seed}");
            lengths.insert(left.len());
            assert!(
                file.bytes().is_err(),
                "the process that opened it is no more"
            );
        }
        match loss {
            Loss::Nothing => assert_eq!(lengths, [7000].into()),
            Loss::Everything => assert_eq!(lengths, [1000].into()),
            Loss::Tail => assert!(lengths.len() > 50, "{lengths:?}"),
            _ => assert!(lengths.len() >= 3, "{lengths:?}"),
        }
    }
}

#[test]
fn lost_sectors_leave_holes() {
    let has_hole = |seed| {
        let simulated = SimulatedDisk::new(seed);
        let file = synced(&simulated);
        append(&*file, &[2; 9000]).unwrap();
        simulated.restart(Loss::Sectors(512));
        let left = disk(&simulated).read(&path()).unwrap();
        let first_zero = left.iter().position(|&byte| byte == 0);
        first_zero.is_some_and(|zero| left[zero..].contains(&2))
    };
    assert!((0..100).filter(|&seed| has_hole(seed)).count() > 20);
}

#[test]
fn names_survive_a_power_loss_only_if_their_directory_was_synced() {
    let simulated = SimulatedDisk::new(1);
    drop(synced(&simulated));
    let other = dir().join("other");
    let file = simulated.open(&other, Open::Append).unwrap();
    append(&*file, b"x").unwrap();
    file.sync().unwrap();
    simulated.rename(&path(), &dir().join("renamed")).unwrap();
    simulated.restart(Loss::Process);
    assert_eq!(simulated.list(dir()).unwrap(), ["other", "renamed"]);
    simulated.restart(Loss::Everything);
    assert_eq!(simulated.list(dir()).unwrap(), ["log"]);

    simulated.open(&other, Open::Append).unwrap();
    simulated.remove(&path()).unwrap();
    simulated.sync_dir(dir()).unwrap();
    simulated.restart(Loss::Everything);
    assert_eq!(simulated.list(dir()).unwrap(), ["other"]);
}

#[test]
fn after_a_failed_sync_the_next_one_succeeds_and_writes_nothing() {
    let lost = (0..100).filter(|&seed| {
        let simulated = SimulatedDisk::new(seed);
        let file = synced(&simulated);
        append(&*file, &[2; 600]).unwrap();
        simulated.fail(Op::Sync, 0, 5);
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        assert_eq!(disk(&simulated).read(&path()).unwrap()[1000..], [2; 600]);
        file.sync().unwrap();
        simulated.restart(Loss::Everything);
        let left = disk(&simulated).read(&path()).unwrap();
        assert_eq!(left.len(), 1600, "the second sync makes the length durable");
        left[1000..] != [2; 600]
    });
    assert!(lost.count() > 50);
}

#[test]
fn a_crash_stops_every_later_operation() {
    let simulated = SimulatedDisk::new(3);
    let file = synced(&simulated);
    simulated.crash_after(1);
    append(&*file, b"before").unwrap();
    assert!(append(&*file, b"torn").is_err());
    assert!(simulated.has_crashed());
    assert!(file.sync().is_err());
    assert!(simulated.list(dir()).is_err());
    simulated.restart(Loss::Process);
    let left = disk(&simulated).read(&path()).unwrap();
    assert!(left[1000..].starts_with(b"before") && left.len() <= 1010);
}

#[test]
fn a_full_disk_refuses_growth_and_takes_overwrites() {
    let simulated = SimulatedDisk::new(4);
    let file = synced(&simulated);
    simulated.set_full(true);
    let refused = append(&*file, &[2; 100]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert!(file.bytes().unwrap() < 1100);
    let new = simulated.open(&dir().join("new"), Open::Empty);
    assert_eq!(new.unwrap_err().kind(), io::ErrorKind::StorageFull);
    let writer = simulated.open(&path(), Open::Write).unwrap();
    writer.write_all_at(&[7; 1000], 0).unwrap();
    writer.sync().unwrap();
}

#[test]
fn a_flipped_bit_is_known_until_it_is_overwritten() {
    let simulated = SimulatedDisk::new(5);
    drop(synced(&simulated));
    let (rotten, at) = simulated.rot().unwrap();
    assert_eq!(rotten, path());
    assert_eq!(simulated.rotten(&path()), [at]);
    let left = disk(&simulated).read(&path()).unwrap();
    assert_ne!(left[at as usize], 1);
    let writer = simulated.open(&path(), Open::Write).unwrap();
    writer.write_all_at(&[1; 1000], 0).unwrap();
    assert!(simulated.rotten(&path()).is_empty());
}
