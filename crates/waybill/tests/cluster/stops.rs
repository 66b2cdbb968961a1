//! Kills or pauses the broker, the database and each role, one after the other in a pseudorandom
//! order, while deliveries run.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use waybill_test_support::setup::{Dice, Setup};
use waybill_test_support::supervision::ends::Ends;

use crate::cluster::{Cluster, all_end_without_a_person, deliver_while};

/// Deliveries between two faults. A multiple of five, because one in five is remote.
const ROUND: usize = 60;
/// The length of a pause: longer than leases, and than the sessions of consumer groups.
const STILL: Duration = Duration::from_secs(8);
/// Determines the order of the faults.
const SEED: u64 = 0x5eed;

/// The target of a fault.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Kafka,
    Cassandra,
    Ingestion,
    Scheduler,
    Supervisor,
    Agents,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    StandsStill,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kills_and_pauses_lose_and_duplicate_no_delivery() {
    let Some((cluster, mut kafka, mut cassandra)) = Cluster::with_servers_or_skip().await else {
        return;
    };
    let services = cluster.services("");
    let ingestions = [
        cluster.ingestion(&services, ""),
        cluster.ingestion(&services, ""),
    ];
    let setups: Vec<Arc<Setup>> = ingestions.iter().map(|one| one.setup.clone()).collect();
    let mut ingestion = ingestions.into_iter();
    let (mut ingestion, other_ingestion) = (ingestion.next().unwrap(), ingestion.next().unwrap());
    let mut scheduler = cluster.scheduler("0-1", "");
    let mut supervisor = cluster.supervisor("");
    let mut agents = cluster.agents(&services, "");
    let others = [
        cluster.scheduler("2-3", ""),
        cluster.supervisor(""),
        cluster.agents(&services, ""),
    ];
    for member in [&ingestion, &scheduler, &supervisor, &agents]
        .into_iter()
        .chain(&others)
    {
        member.setup.ready().await;
    }

    let mut ids = Vec::new();
    for (round, (victim, fault)) in shuffled().into_iter().enumerate() {
        let began = Instant::now();
        let strike = || {
            let role = match victim {
                Victim::Kafka => return strike_server(&mut kafka, fault),
                Victim::Cassandra => return strike_server(&mut cassandra, fault),
                Victim::Ingestion => &mut ingestion,
                Victim::Scheduler => &mut scheduler,
                Victim::Supervisor => &mut supervisor,
                Victim::Agents => &mut agents,
            };
            match fault {
                Fault::Killed => role.kill_and_start_again(),
                Fault::StandsStill => {
                    role.freeze();
                    sleep(STILL);
                    role.thaw();
                }
            }
        };
        ids.extend(deliver_while(&setups, &format!("round-{round}"), ROUND, strike).await);
        // Each target works again before the next fault, because a role that finds no server at its
        // start ends.
        for member in [&ingestion, &scheduler, &supervisor, &agents] {
            member.setup.ready().await;
        }
        let took = began.elapsed().as_secs_f64();
        println!("measured: {victim:?}, {fault:?}: {ROUND} deliveries accepted in {took:.1} s");
    }
    let Ends { processed, .. } = all_end_without_a_person(&setups[0], &ids).await;
    // A few may have had more time-outs than a step allows.
    assert!(processed * 10 >= ids.len() * 9, "{processed}");
    // Every target works again.
    for mut member in [ingestion, other_ingestion, scheduler, supervisor, agents]
        .into_iter()
        .chain(others)
    {
        assert!(!member.has_ended(), "no process ended");
        member.setup.ready().await;
        member.terminate();
    }
    drop(services);
}

fn strike_server(server: &mut crate::servers::Server, fault: Fault) {
    match fault {
        Fault::Killed => {
            server.kill();
            server.start_again();
        }
        Fault::StandsStill => {
            server.freeze();
            sleep(STILL);
            server.thaw();
        }
    }
}

/// All faults, in a pseudorandom order that is the same each time.
fn shuffled() -> Vec<(Victim, Fault)> {
    let victims = [
        Victim::Kafka,
        Victim::Cassandra,
        Victim::Ingestion,
        Victim::Scheduler,
        Victim::Supervisor,
        Victim::Agents,
    ];
    let faults = victims
        .into_iter()
        .flat_map(|victim| [Fault::Killed, Fault::StandsStill].map(|fault| (victim, fault)));
    let mut faults: Vec<_> = faults.collect();
    let mut dice = Dice(SEED);
    for last in (1..faults.len()).rev() {
        let at = usize::try_from(dice.below(last as u64 + 1)).expect("the number is small");
        faults.swap(last, at);
    }
    faults
}
