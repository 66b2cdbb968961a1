//! Supervision, proved from outside: services that fail, hang, refuse and go away, under processes
//! that are killed. At the end every accepted delivery has ended or waits for a person, and the
//! services' ledger balances.

mod audit;
mod balance;
mod ends;
mod faults;
mod outage;
mod parked;
mod setting;

use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use crate::world::World;
use ends::{Ends, QUESTIONS};
pub(crate) use setting::Setting;
use setting::{SERVICES, replaced};

impl Setting {
    pub(crate) fn world(self) -> World {
        let world = World::of_either_kind("");
        let sections = self.sections(&world.path(""));
        let config = format!(
            "partitions: 4\n\
             scheduler: {{ handOffAfter: 1s, timeoutGrace: 200ms }}\n\
             {sections}"
        );
        std::fs::write(world.path("waybill.yaml"), config).expect("the directory is writable");
        world
    }
}

impl World {
    /// Sends these deliveries, some at once, and returns their ids in order.
    pub(crate) async fn deliver_each(
        &self,
        deliveries: impl IntoIterator<Item = Value>,
    ) -> Vec<String> {
        let sent = stream::iter(deliveries).map(|body| async move { self.deliver(&body).await });
        sent.buffered(QUESTIONS).collect().await
    }
}
