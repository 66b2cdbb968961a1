//! From the configuration to how records are framed: the schema registry at the start of a role, and
//! the commands that prepare it.
//!
//! What must hold: **a role writes nothing before it has its ids**, and so is not ready before. A
//! registry that is away is waited for; one that refuses, or lacks a schema that the role may not
//! register, ends the role with what to do about it.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use waybill_engine::Workflows;
use waybill_messages::{Framing, SchemaId, SchemaIds, Topics};
use waybill_node::config::{Config, FramingChoice};
use waybill_registry::{
    Compatibility, Registry, RegistryError, SchemaCache, Subject, SubjectError, schema_ids,
    subjects,
};
use waybill_telemetry::health::Readiness;

/// How long a registry that does not answer is left alone at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The topics of the installation, and how their records are framed. Waits for the registry, if one
/// is configured.
///
/// # Errors
///
/// If the registry refuses, or a schema is not in it and is not to be registered.
pub(crate) async fn topics(
    config: &Config,
    workflows: &Workflows,
    readiness: &Readiness,
) -> anyhow::Result<Topics> {
    let topics = Topics::new(&config.kafka.topic_prefix);
    let settings = &config.schema_registry;
    let Some(registry) = settings.client()? else {
        return Ok(topics);
    };
    let framing = match settings.framing {
        FramingChoice::SingleObject => {
            Framing::reading(std::sync::Arc::new(SchemaCache::new(registry)))
        }
        FramingChoice::Confluent => {
            let url = registry.url().to_owned();
            let known = readiness.expect(format!("schemas of the registry at {url}"));
            let subjects = subjects(&topics, &workflows.agents());
            let ids = wait_for_ids(&registry, &subjects, settings.auto_register).await?;
            known.set(true);
            tracing::info!(registry = url, "records are framed with the registry's ids");
            Framing::confluent(ids, std::sync::Arc::new(SchemaCache::new(registry)))
        }
    };
    Ok(topics.framed(framing))
}

async fn wait_for_ids(
    registry: &Registry,
    subjects: &[Subject],
    register: bool,
) -> anyhow::Result<SchemaIds> {
    let mut pause = PAUSE_MIN;
    loop {
        match schema_ids(registry, subjects, register).await {
            Ok(ids) => return Ok(ids),
            Err(SubjectError::Registry(error)) if error.is_temporary() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    again_in = ?pause,
                    "this role waits for the schema registry"
                );
                tokio::time::sleep(pause).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
            Err(error @ SubjectError::Missing { .. }) => {
                return Err(error).context(
                    "schemas are missing, and schemaRegistry.autoRegister is false: \
                     run `waybill schemas register`",
                );
            }
            Err(error @ SubjectError::Registry(_)) => {
                return Err(error).context("the schema registry cannot be used");
            }
        }
    }
}

/// How a subject is, or has come to be.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubjectView {
    pub(crate) subject: String,
    /// The id of its schema of this version; `None` where that is not registered, and may be.
    pub(crate) schema: Option<u32>,
    registered_now: bool,
}

impl SubjectView {
    /// As it is in the registry; nothing was done.
    fn as_it_stands(State { subject, found }: State<'_>) -> Self {
        Self {
            subject: subject.name.clone(),
            schema: found.id(),
            registered_now: false,
        }
    }
}

impl fmt::Display for SubjectView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            schema,
            registered_now,
        } = self;
        match schema {
            None => write!(f, "{subject}: not registered"),
            Some(id) if *registered_now => write!(f, "{subject}: registered, schema {id}"),
            Some(id) => write!(f, "{subject}: schema {id}"),
        }
    }
}

/// Registers what is missing; returns what there is of each subject then.
///
/// # Errors
///
/// If the registry does not answer or refuses, or a schema does not go with earlier versions: none
/// is then registered.
pub(crate) async fn register(
    registry: &Registry,
    subjects: &[Subject],
) -> anyhow::Result<Vec<SubjectView>> {
    let mut views = check(registry, subjects).await?;
    for (view, subject) in views.iter_mut().zip(subjects) {
        if view.schema.is_none() {
            let id = registry
                .register(&subject.name, subject.schema.json)
                .await?;
            view.schema = Some(id.0);
            view.registered_now = true;
        }
    }
    Ok(views)
}

/// Looks how each subject is; changes nothing.
///
/// # Errors
///
/// If it does not answer or refuses, or a schema does not go with earlier versions.
pub(crate) async fn check(
    registry: &Registry,
    subjects: &[Subject],
) -> anyhow::Result<Vec<SubjectView>> {
    let states = states(registry, subjects).await?;
    refuse_incompatible(&states)?;
    Ok(states.into_iter().map(SubjectView::as_it_stands).collect())
}

/// How a subject is.
struct State<'a> {
    subject: &'a Subject,
    found: Found,
}

enum Found {
    /// It has the schema of this version, by this id.
    Registered(SchemaId),
    /// It may get it.
    Missing,
    /// It may not, for these reasons.
    Incompatible(Vec<String>),
}

impl Found {
    fn id(&self) -> Option<u32> {
        match self {
            Self::Registered(id) => Some(id.0),
            Self::Missing | Self::Incompatible(_) => None,
        }
    }
}

async fn states<'a>(
    registry: &Registry,
    subjects: &'a [Subject],
) -> Result<Vec<State<'a>>, RegistryError> {
    let mut states = Vec::new();
    for subject in subjects {
        let Subject { name, schema } = subject;
        let found = match registry.look_up(name, schema.json).await? {
            Some(id) => Found::Registered(id),
            None => match registry.check(name, schema.json).await? {
                Compatibility::First | Compatibility::Compatible => Found::Missing,
                Compatibility::Incompatible { reasons } => Found::Incompatible(reasons),
            },
        };
        states.push(State { subject, found });
    }
    Ok(states)
}

fn refuse_incompatible(states: &[State<'_>]) -> anyhow::Result<()> {
    let refused: Vec<String> = states
        .iter()
        .filter_map(|state| match &state.found {
            Found::Incompatible(reasons) => {
                let reasons = match reasons.as_slice() {
                    [] => "the registry gives no reason".to_owned(),
                    reasons => reasons.join("; "),
                };
                Some(format!("{}: {reasons}", state.subject.name))
            }
            Found::Registered(_) | Found::Missing => None,
        })
        .collect();
    anyhow::ensure!(
        refused.is_empty(),
        "schemas do not go with earlier versions of their subjects\n{}",
        refused.join("\n")
    );
    Ok(())
}
