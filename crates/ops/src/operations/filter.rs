//! The filter flags of `ops list` and of verbs for many operations.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use waybill_api::view::UNREADABLE;
use waybill_engine::ProcessState;
use waybill_units::duration_from_text;

/// Selects the operations that match every given flag.
#[derive(Clone, PartialEq, Eq, Debug, Default, Args)]
#[command(next_help_heading = "Which operations")]
pub(super) struct Filter {
    /// In one of these states, separated by commas
    #[arg(
        long,
        value_name = "STATE,...",
        value_delimiter = ',',
        ignore_case = true,
        hide_possible_values = true,
        value_parser = states()
    )]
    state: Vec<String>,
    /// Of this workflow
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Of this tenant; with an id argument, the tenant whose caller chose it
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// That failed at this step, or run it now
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// With this error code, or with this fingerprint from `waybill ops list`
    #[arg(long, value_name = "FINGERPRINT|CODE")]
    error: Option<String>,
    /// That have needed attention for at least this time, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = duration_from_text)]
    older_than: Option<Duration>,
    /// Include abandoned operations
    #[arg(long)]
    abandoned: bool,
}

fn states() -> impl TypedValueParser<Value = String> {
    let words = || {
        let listed = ProcessState::LISTED.into_iter();
        listed.map(ProcessState::as_str).chain([UNREADABLE])
    };
    PossibleValuesParser::new(words()).map(move |given| {
        let known = words().find(|word| word.eq_ignore_ascii_case(&given));
        known.map_or(given, str::to_owned)
    })
}

impl Filter {
    /// The tenant, if given.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Whether the filter names a state.
    pub(super) fn names_states(&self) -> bool {
        !self.state.is_empty()
    }

    /// Whether the filter selects operations whose rows cannot be read.
    pub(super) fn names_unreadable(&self) -> bool {
        self.state.iter().any(|state| state == UNREADABLE)
    }

    /// Whether no flag is given.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether only the tenant is given.
    pub(super) fn is_tenant_only(&self) -> bool {
        let others = Self {
            tenant: None,
            ..self.clone()
        };
        others.is_empty()
    }

    /// Selects these states if none is given.
    pub(super) fn or_states(mut self, states: &[ProcessState]) -> Self {
        if self.state.is_empty() {
            self.state = states
                .iter()
                .map(|state| state.as_str().to_owned())
                .collect();
        }
        self
    }

    /// The filter as parameters of the API.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let states = (!self.state.is_empty()).then(|| self.state.join(","));
        let older_than = self.older_than.map(|age| format!("{}ms", age.as_millis()));
        let abandoned = self.abandoned.then(|| "true".to_owned());
        let pairs = [
            ("state", states),
            ("workflow", self.workflow.clone()),
            ("tenant", self.tenant.clone()),
            ("step", self.step.clone()),
            ("error", self.error.clone()),
            ("olderThan", older_than),
            ("abandoned", abandoned),
        ];
        pairs
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches as _, error::ErrorKind};

    use super::*;

    fn read(line: &str) -> Result<Filter, clap::Error> {
        let command = Filter::augment_args(clap::Command::new("filter").no_binary_name(true));
        Filter::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    #[test]
    fn every_given_flag_becomes_a_query_parameter() {
        let filter = read(
            "--state error,compensationfailed --state UNREADABLE --workflow w --tenant t --step s \
             --error e --older-than 10m --abandoned",
        );
        let expected = [
            ("state", "Error,CompensationFailed,Unreadable"),
            ("workflow", "w"),
            ("tenant", "t"),
            ("step", "s"),
            ("error", "e"),
            ("olderThan", "600000ms"),
            ("abandoned", "true"),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, value)| (name, value.to_owned()))
            .collect();
        assert_eq!(filter.unwrap().query(), expected);
        assert_eq!(read("").unwrap().query(), []);
    }

    #[test]
    fn a_state_that_cannot_be_listed_is_refused() {
        for bad in [
            "--state Pending",
            "--state Processed",
            "--state Cancelled",
            "--state Failed",
            "--state Error,",
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{bad}");
        }
        assert_eq!(
            read("--older-than 10").unwrap_err().kind(),
            ErrorKind::ValueValidation
        );
    }

    #[test]
    fn the_default_states_of_a_verb_apply() {
        let own = [ProcessState::Error];
        let states = |line: &str| read(line).unwrap().or_states(&own).state;
        assert_eq!(states(""), ["Error"]);
        assert_eq!(states("--state processing"), ["Processing"]);
    }

    #[test]
    fn only_a_tenant_may_accompany_an_id() {
        assert!(read("--tenant t").unwrap().is_tenant_only());
        assert!(!read("--tenant t --abandoned").unwrap().is_tenant_only());
        assert!(!read("--tenant t").unwrap().is_empty());
    }
}
