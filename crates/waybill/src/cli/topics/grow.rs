//! `waybill topics grow`: more partitions of the operation topics, while everything goes on.
//!
//! On a cluster this process does it itself. The embedded store belongs to the process of `up`, which is
//! asked on its admin port.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use waybill_messages::Topics;
use waybill_store::CqlStore;

use crate::cli::{admin_port, connection};
use crate::config::{Config, load_workflows};
use crate::growing::{Growing, GrowthView};

/// How often it is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// The arguments of `waybill topics grow`.
#[derive(Clone, Debug, Args)]
pub struct GrowArgs {
    /// How many there are to be: a whole multiple of what there are
    #[arg(long = "partitions", id = "wanted", value_name = "P")]
    partitions: u32,
}

impl GrowArgs {
    pub(super) fn run(&self, config: &Config) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let told = Told::default();
        runtime.block_on(async {
            match config.store.scylla.cql() {
                Some(cql) => {
                    let workflows = load_workflows(&config.workflows)?;
                    let store = Arc::new(CqlStore::connect(cql).await?);
                    let topics = Topics::new(&config.kafka.topic_prefix);
                    let kafka = connection::settings(config);
                    let growing = Growing::new(config, store, kafka, topics, &workflows);
                    Ok(growing
                        .run(self.partitions, &|step| told.tell(&step))
                        .await?)
                }
                None => self.ask(config, &told).await,
            }
        })
    }

    /// Asks the process that has the embedded store, and follows what it does.
    async fn ask(&self, config: &Config, told: &Told) -> anyhow::Result<()> {
        let url = format!("http://{}/partitions", config.admin.listen);
        let client = admin_port::client()?;
        let asked = client
            .put(&url)
            .json(&json!({ "partitions": self.partitions }));
        let _: GrowthView = admin_port::answered(&url, asked).await?;
        loop {
            let view: GrowthView = admin_port::answered(&url, client.get(&url)).await?;
            told.tell(&view.step);
            match (view.is_under_way, view.error) {
                (true, _) => tokio::time::sleep(ASK_EVERY).await,
                (false, None) => return Ok(()),
                (false, Some(error)) => anyhow::bail!(error),
            }
        }
    }
}

/// What was told last: each step once.
#[derive(Default)]
struct Told(Mutex<String>);

impl Told {
    fn tell(&self, step: &str) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != step {
            println!("{step}");
            step.clone_into(&mut last);
        }
    }
}
