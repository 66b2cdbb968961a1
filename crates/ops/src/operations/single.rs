//! A verb for one operation.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;
use waybill_api::verb::Verb;
use waybill_api::view::OperationView;
use waybill_terminal::Output;

use super::OpsError;
use super::api::{Answer, Api, ApiError};
use super::asking::{Asking, key};
use super::follow::Followed;
use super::line::{Outcome, Report};

/// The operation, and the wanted output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single<'a> {
    /// Its ID, or that of its caller.
    pub(super) id: &'a str,
    /// The tenant that gave it this ID.
    pub(super) tenant: Option<&'a str>,
    /// How long to wait for the result.
    pub(super) wait: Option<Duration>,
    /// The format of the report.
    pub(super) output: Output,
}

/// The note on a cancel for an unknown ID.
const KEPT: &str =
    "the id is unknown: the cancel is kept, and a later request with this id will end Cancelled";

/// The state after a verb was sent.
pub(super) enum Sent {
    /// The result is not known yet.
    OnItsWay(Followed),
    /// The result is known.
    Known(Report),
}

/// Sends a verb to one operation.
pub(super) async fn ask_one(
    api: &Api,
    asking: &Asking,
    single: Single<'_>,
) -> Result<(), OpsError> {
    let report = match asked(api, asking, single).await {
        Ok(report) => report,
        Err((id, error)) if error.is_about_the_operation() && single.output == Output::Json => {
            Report::new(&id, asking.verb, Outcome::Refused).with_note(&error.to_string())
        }
        Err((_, error)) => return Err(error.into()),
    };
    let is_good = match report.outcome {
        Outcome::Asked | Outcome::Done => true,
        Outcome::Failed | Outcome::Refused | Outcome::Open | Outcome::Skipped => false,
    };
    if is_good || single.output == Output::Json {
        let mut out = io::stdout().lock();
        report.write(single.output, &mut out)?;
        out.flush()?;
    }
    match is_good {
        true => Ok(()),
        false => Err(OpsError::Missed(report.to_string())),
    }
}

/// Sends the verb. An error has the ID of its operation: the given ID only if the operation is
/// unknown.
async fn asked(
    api: &Api,
    asking: &Asking,
    single: Single<'_>,
) -> Result<Report, (String, ApiError)> {
    let Single {
        id, tenant, wait, ..
    } = single;
    let seen = match api.find(id, tenant).await {
        Ok(found) => Some(found.operation),
        // A cancel may arrive before its request.
        Err(error) if error.is_unknown() && asking.verb == Verb::Cancel => None,
        Err(error) => return Err((id.to_owned(), error)),
    };
    let known = seen.as_ref().map(|seen| seen.id.to_string());
    let refused = |error| (known.unwrap_or_else(|| id.to_owned()), error);
    if let Some(report) = seen
        .as_ref()
        .and_then(|seen| resubmitted_before(asking, seen))
    {
        return Ok(report);
    }
    let until = Instant::now() + wait.unwrap_or_default();
    let report = match send(api, asking, id, tenant, seen.as_ref(), until).await {
        Ok(Sent::Known(report)) => report,
        Ok(Sent::OnItsWay(followed)) if wait.is_none() => followed.asked(),
        Ok(Sent::OnItsWay(followed)) => followed.wait(api).await.map_err(refused)?,
        Err(error) => return Err(refused(error)),
    };
    Ok(match seen {
        Some(_) => report,
        None => of_unknown(report),
    })
}

/// The report for a cancel whose ID was unknown when it was sent.
fn of_unknown(report: Report) -> Report {
    match report.note {
        None => report.with_note(KEPT),
        Some(_) => report,
    }
}

/// The report if the operation already runs again as a new one. A second one would repeat all
/// effects; if the first failed, that one is to be repaired.
pub(super) fn resubmitted_before(asking: &Asking, seen: &OperationView) -> Option<Report> {
    let new = seen.resubmitted_as?;
    (asking.verb == Verb::ResubmitAsNew).then(|| {
        Report::new(&seen.id.to_string(), asking.verb, Outcome::Skipped)
            .with_new(&new.to_string())
            .with_note("already resubmitted under that id")
    })
}

/// Sends the verb, with a key that depends on the operation's last seen state.
pub(super) async fn send(
    api: &Api,
    asking: &Asking,
    id: &str,
    tenant: Option<&str>,
    seen: Option<&OperationView>,
    until: Instant,
) -> Result<Sent, ApiError> {
    let key = seen.and_then(key);
    let key = key.unwrap_or_else(|| Uuid::now_v7().to_string());
    let verb = asking.verb;
    let answer = api
        .ask(id, tenant, verb.in_path(), &asking.body(), &key)
        .await?;
    Ok(match answer {
        Answer::Asked(asked) => Sent::OnItsWay(Followed::new(seen, &asked, asking, tenant, until)),
        Answer::AsItIs(now) => {
            let done = Report::new(&now.id.to_string(), verb, Outcome::Done).with_state(&now);
            Sent::Known(done.with_note("already in the requested state"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_of_an_unknown_id_is_reported_as_kept_unless_there_is_another_note() {
        let report = |outcome| Report::new("ghost", Verb::Cancel, outcome);
        let kept = of_unknown(report(Outcome::Asked));
        assert_eq!(
            kept.to_string(),
            "asked       ghost  cancel  the id is unknown: the cancel is kept, and a later request with this id will \
             end Cancelled"
        );
        let refused = report(Outcome::Refused).with_note("final");
        assert_eq!(of_unknown(refused.clone()), refused);
    }

    #[test]
    fn an_operation_that_runs_again_as_a_new_one_is_not_sent_a_second_time() {
        let asking = |verb| Asking {
            verb,
            step: None,
            reason: None,
            by: None,
        };
        let resubmitted = OperationView {
            resubmitted_as: Some(Uuid::from_u128(2)),
            ..OperationView::default()
        };
        let report = resubmitted_before(&asking(Verb::ResubmitAsNew), &resubmitted).unwrap();
        assert_eq!(report.outcome, Outcome::Skipped);
        assert_eq!(report.resubmitted_as, Some(Uuid::from_u128(2).to_string()));
        assert_eq!(
            resubmitted_before(&asking(Verb::Resubmit), &resubmitted),
            None
        );
        let fresh = OperationView::default();
        assert_eq!(
            resubmitted_before(&asking(Verb::ResubmitAsNew), &fresh),
            None
        );
    }
}
