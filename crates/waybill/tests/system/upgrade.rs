//! Another version of the program on the same data, with unfinished operations of the previous one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use waybill_test_support::previous::previous_or_skip;
use waybill_test_support::world::World;

use crate::{deliver_all, is_remote, restart};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_version_has_left_under_way_another_ends() {
    const DELIVERIES: usize = 800;
    let Some(previous) = previous_or_skip() else {
        return;
    };
    let mut world = World::of_either_kind("partitions: 4\n");
    world.set_program(&previous);
    let mut up = world.up();
    let world = Arc::new(world);
    let progress = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (world, progress) = (world.clone(), progress.clone());
        tokio::spawn(async move { deliver_all(&world, "versions", DELIVERIES, &progress).await })
    };
    let this = Path::new(env!("CARGO_BIN_EXE_waybill"));
    for (done, program) in [(1, this), (2, &previous), (3, this)] {
        world
            .eventually("the next share is accepted", async || {
                progress.load(Ordering::Relaxed) >= DELIVERIES * done / 4
            })
            .await;
        assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());
        world.set_program(program);
        up = restart(&world);
    }
    let ids = sending.await.expect("the clients do not fail");
    world.all_reach(&ids, "Processed").await;
    world.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(up.terminate(), Some(0), "{}", world.log_tail());
}
