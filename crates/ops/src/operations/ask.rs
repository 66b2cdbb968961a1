//! The arguments of the verbs: one operation by ID, or all that match a filter.

use std::time::Duration;

use clap::Args;
use waybill_api::verb::Verb;
use waybill_messages::{ASKED_BY_BYTES_MAX, REASON_BYTES_MAX};
use waybill_telemetry::visible::is_name;
use waybill_terminal::Output;
use waybill_units::duration_from_text;

use super::OpsError;
use super::api::Api;
use super::asking::Asking;
use super::filter::Filter;
use super::redrive::{Many, redrive};
use super::single::{Single, ask_one};

/// The default of `--wait` without a time.
const WAIT: &str = "60s";

/// The arguments of `waybill ops resubmit`.
#[derive(Clone, Debug, Args)]
pub(super) struct ResubmitArgs {
    /// Run it again as a new, linked operation; required if steps were undone
    #[arg(long)]
    as_new: bool,
    #[command(flatten)]
    plain: PlainArgs,
}

/// The arguments of verbs that need only an operation.
#[derive(Clone, Debug, Args)]
pub(super) struct PlainArgs {
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    target: Target,
}

/// The arguments of verbs that also need a reason.
#[derive(Clone, Debug, Args)]
pub(super) struct ReasonArgs {
    #[command(flatten)]
    why: WhyNeeded,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    target: Target,
}

/// The arguments of `waybill ops undone`.
#[derive(Clone, Debug, Args)]
pub(super) struct UndoneArgs {
    /// The operation's id, or the id that its caller chose
    #[arg(value_name = "ID")]
    id: String,
    /// The step that was undone
    #[arg(value_name = "STEP")]
    step: String,
    /// The tenant whose caller chose the id
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    why: WhyNeeded,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    how: How,
}

/// The operations that a verb is for.
#[derive(Clone, Debug, Args)]
struct Target {
    /// The operation's id, or the id that its caller chose; without it, the flags below select
    /// operations
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    how: How,
    // Last, because their headings apply to all flags after them.
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    many: Many,
}

/// How to wait for the result and print it.
#[derive(Clone, Debug, Args)]
struct How {
    /// With an id: wait for the result, for at most this time [default without a time: 60s]
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        default_missing_value = WAIT,
        value_parser = duration_from_text
    )]
    wait: Option<Duration>,
    /// The format of the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Debug, Args)]
struct Why {
    /// The reason; kept in the operation's history
    #[arg(long, value_name = "TEXT", value_parser = reason_from_text)]
    reason: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct WhyNeeded {
    /// The reason; kept in the operation's history
    #[arg(long, value_name = "TEXT", required = true, value_parser = given_reason_from_text)]
    reason: String,
}

#[derive(Clone, Debug, Args)]
struct Who {
    /// The name of the person who sends the request; kept in the operation's history
    #[arg(
        long,
        value_name = "NAME",
        env = "USER",
        hide_env_values = true,
        default_value = "operator",
        value_parser = name_from_text
    )]
    by: String,
}

impl ResubmitArgs {
    pub(super) async fn run(&self, api: &Api) -> Result<(), OpsError> {
        let verb = match self.as_new {
            true => Verb::ResubmitAsNew,
            false => Verb::Resubmit,
        };
        self.plain.run(api, verb).await
    }
}

impl PlainArgs {
    pub(super) async fn run(&self, api: &Api, verb: Verb) -> Result<(), OpsError> {
        let asking = Asking {
            verb,
            step: None,
            reason: self.why.reason.clone(),
            by: Some(self.who.by.clone()),
        };
        self.target.run(api, &asking).await
    }
}

impl ReasonArgs {
    pub(super) async fn run(&self, api: &Api, verb: Verb) -> Result<(), OpsError> {
        let asking = Asking {
            verb,
            step: None,
            reason: Some(self.why.reason.clone()),
            by: Some(self.who.by.clone()),
        };
        self.target.run(api, &asking).await
    }
}

impl UndoneArgs {
    pub(super) async fn run(&self, api: &Api) -> Result<(), OpsError> {
        let asking = Asking {
            verb: Verb::Undone,
            step: Some(self.step.clone()),
            reason: Some(self.why.reason.clone()),
            by: Some(self.who.by.clone()),
        };
        let single = Single {
            id: &self.id,
            tenant: self.tenant.as_deref(),
            wait: self.how.wait,
            output: self.how.output,
        };
        ask_one(api, &asking, single).await
    }
}

impl Target {
    async fn run(&self, api: &Api, asking: &Asking) -> Result<(), OpsError> {
        self.check()?;
        let How { wait, output } = self.how;
        match &self.id {
            Some(id) => {
                let single = Single {
                    id,
                    tenant: self.filter.tenant(),
                    wait,
                    output,
                };
                ask_one(api, asking, single).await
            }
            None => redrive(api, asking, &self.filter, &self.many, output).await,
        }
    }

    /// Requires an ID or filter flags, and refuses both, so that a slip cannot select all
    /// operations.
    fn check(&self) -> Result<(), OpsError> {
        let problem = match self.id {
            Some(_) if !self.filter.is_tenant_only() => {
                "with an id, --tenant is the only flag that may select operations"
            }
            None if self.how.wait.is_some() => {
                "--wait needs an id; use --canary-wait with many operations"
            }
            None if self.filter.is_empty() && !self.many.all => {
                "select operations: give an id, flags such as --error, or --all"
            }
            Some(_) | None => return Ok(()),
        };
        Err(OpsError::Usage(problem.to_owned()))
    }
}

fn reason_from_text(text: &str) -> Result<String, String> {
    match text.len() <= REASON_BYTES_MAX {
        true => Ok(text.trim().to_owned()),
        false => Err(format!("a reason has at most {REASON_BYTES_MAX} bytes")),
    }
}

fn given_reason_from_text(text: &str) -> Result<String, String> {
    match reason_from_text(text)? {
        reason if reason.is_empty() => Err("a reason is required".to_owned()),
        reason => Ok(reason),
    }
}

fn name_from_text(text: &str) -> Result<String, String> {
    if text.len() > ASKED_BY_BYTES_MAX {
        return Err(format!("a name has at most {ASKED_BY_BYTES_MAX} bytes"));
    }
    let name = text.trim();
    match is_name(name) {
        true => Ok(name.to_owned()),
        false => Err(
            "a name consists of visible characters, with single spaces between words, and no word begins with a combining mark"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn parsed<T: clap::FromArgMatches>(
        augment: impl Fn(clap::Command) -> clap::Command,
        line: &str,
    ) -> Result<T, clap::Error> {
        let command = augment(clap::Command::new("verb").no_binary_name(true));
        T::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    fn target(line: &str) -> Result<Target, clap::Error> {
        parsed(Target::augment_args, line)
    }

    #[test]
    fn a_verb_requires_an_id_or_filters() {
        for good in [
            "x",
            "x --tenant t",
            "x --wait",
            "--error e",
            "--all",
            "--tenant t",
        ] {
            assert!(target(good).unwrap().check().is_ok(), "{good}");
        }
        for (bad, problem) in [
            ("", "--all"),
            ("x --error e", "--tenant is the only flag"),
            ("x --abandoned", "--tenant is the only flag"),
            ("--error e --wait", "--canary-wait"),
        ] {
            let error = target(bad).unwrap().check().unwrap_err();
            assert!(error.to_string().contains(problem), "{bad}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn flags_for_many_operations_conflict_with_an_id() {
        for flag in [
            "--all",
            "--dry-run",
            "--limit 3",
            "--rate 5",
            "--canary 3",
            "--canary-wait 5s",
            "--canary-failures 1",
            "--unreachable-max 1s",
        ] {
            let error = target(&format!("x {flag}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{flag}");
            assert!(target(&format!("--error e {flag}")).is_ok(), "{flag}");
        }
    }

    #[test]
    fn a_wait_has_a_default_time() {
        let wait = |line: &str| target(line).unwrap().how.wait;
        assert_eq!(wait("x"), None);
        assert_eq!(wait("x --wait"), Some(Duration::from_secs(60)));
        assert_eq!(wait("x --wait 5s"), Some(Duration::from_secs(5)));
    }

    #[test]
    fn invalid_reasons_and_names_are_refused_before_a_request() {
        let abandon = |line: &str| {
            let error = parsed::<ReasonArgs>(ReasonArgs::augment_args, line);
            error.map(|_| ()).map_err(|error| error.kind())
        };
        let long = "y".repeat(REASON_BYTES_MAX + 1);
        assert_eq!(abandon("x"), Err(ErrorKind::MissingRequiredArgument));
        assert_eq!(abandon("x --reason"), Err(ErrorKind::InvalidValue));
        let line = format!("x --reason {long}");
        assert_eq!(abandon(&line), Err(ErrorKind::ValueValidation));
        let line = format!("x --reason y --by {long}");
        assert_eq!(abandon(&line), Err(ErrorKind::ValueValidation));
        assert_eq!(abandon("x --reason y --by kim"), Ok(()));
        assert!(given_reason_from_text("  ").is_err());
        assert!(name_from_text("a\u{7}").is_err());
    }
}
