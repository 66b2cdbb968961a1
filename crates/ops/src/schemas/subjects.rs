//! The state of each subject in the schema registry, and the registration of missing schemas.

use std::fmt;

use serde::Serialize;
use waybill_messages::SchemaId;
use waybill_registry::{Compatibility, Registry, RegistryError, Subject};

/// The state of a subject.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubjectView {
    pub(crate) subject: String,
    /// The ID of this version's schema; `None` if it is missing and may be registered.
    pub(crate) schema: Option<u32>,
    registered_now: bool,
}

impl SubjectView {
    /// The subject as found in the registry; nothing was changed.
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

/// Registers the missing schemas, and returns the state of each subject.
///
/// # Errors
///
/// If the registry is unavailable or refuses, or a schema is incompatible with earlier versions.
/// Then no schema is registered.
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

/// Reads the state of each subject; changes nothing.
///
/// # Errors
///
/// If the registry is unavailable or refuses, or a schema is incompatible with earlier versions.
pub(crate) async fn check(
    registry: &Registry,
    subjects: &[Subject],
) -> anyhow::Result<Vec<SubjectView>> {
    let states = states(registry, subjects).await?;
    refuse_incompatible(&states)?;
    Ok(states.into_iter().map(SubjectView::as_it_stands).collect())
}

/// The state of a subject in the registry.
struct State<'a> {
    subject: &'a Subject,
    found: Found,
}

enum Found {
    /// It has this version's schema, with this ID.
    Registered(SchemaId),
    /// The schema is missing and compatible.
    Missing,
    /// The schema is missing and incompatible, for these reasons.
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
        "schemas are incompatible with earlier versions of their subjects\n{}",
        refused.join("\n")
    );
    Ok(())
}
