//! Another version of the program on the same data, with unfinished operations of the previous one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use waybill_test_support::previous::previous_or_skip;
use waybill_test_support::setup::Setup;

use crate::{deliver_all, is_remote, restart};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_completes_operations_started_by_the_other() {
    const DELIVERIES: usize = 800;
    let Some(previous) = previous_or_skip() else {
        return;
    };
    let mut setup = Setup::of_either_kind("partitions: 4\n");
    setup.set_program(&previous);
    let mut up = setup.up();
    let setup = Arc::new(setup);
    let progress = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (setup, progress) = (setup.clone(), progress.clone());
        tokio::spawn(async move { deliver_all(&setup, "versions", DELIVERIES, &progress).await })
    };
    let this = Path::new(env!("CARGO_BIN_EXE_waybill"));
    for (done, program) in [(1, this), (2, &previous), (3, this)] {
        setup
            .eventually("the next share is accepted", async || {
                progress.load(Ordering::Relaxed) >= DELIVERIES * done / 4
            })
            .await;
        assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
        setup.set_program(program);
        up = restart(&setup);
    }
    let ids = sending.await.expect("the clients do not fail");
    setup.all_reach(&ids, "Processed").await;
    setup.assert_one_effect_per_step(&ids, is_remote).await;
    assert_eq!(up.terminate(), Some(0), "{}", setup.log_tail());
}
