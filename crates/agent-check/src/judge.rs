//! The rules that apply to every answer of every case.

use waybill_engine::{OperationId, Outcome, StepError, Timestamp};

use crate::CheckSettings;
use crate::findings::Findings;
use crate::rule::Rule;
use crate::transcript::{Expected, Reply, Sent, Transcript};

/// The code of a decoded reply whose agent gave none.
const NO_CODE: &str = "unspecified";

/// The trace context that the requests of an operation carry.
pub(super) fn trace_of(operation: OperationId) -> String {
    let id = operation.0.simple().to_string();
    format!("00-{id}-{}-01", &id[16..])
}

/// Judges all answers.
pub(super) fn judge(transcript: &Transcript, settings: &CheckSettings, findings: &mut Findings) {
    let mut counts = Counts::default();
    for sent in transcript.all() {
        for reply in &sent.replies {
            counts.replies += 1;
            address(transcript, sent, reply, findings);
            echo(sent, reply, findings);
            time(sent, reply, settings, findings);
            counts.errors += usize::from(error(reply, findings));
            counts.traced += usize::from(trace(sent, reply, findings));
        }
    }
    if let Some((count, cause)) = &transcript.unreadable {
        let what = format!("{count} replies cannot be read: {cause}");
        findings.fault(Rule::Answer, what);
    }
    let Counts {
        replies,
        errors,
        traced,
    } = counts;
    if replies == 0 {
        return;
    }
    findings.saw(Rule::Address, format!("{replies} replies"));
    findings.saw(Rule::Echo, format!("{replies} replies"));
    findings.saw(
        Rule::Trace,
        format!("{traced} of {replies} replies carry the trace context"),
    );
    match errors {
        0 => findings.excuse(Rule::Errors, "every answer was a success"),
        _ => findings.saw(Rule::Errors, format!("{errors} errors")),
    }
}

#[derive(Default)]
struct Counts {
    replies: usize,
    errors: usize,
    traced: usize,
}

fn address(transcript: &Transcript, sent: &Sent, reply: &Reply, findings: &mut Findings) {
    if !transcript.is_in_place(sent, reply) {
        let (asked, found) = (sent.request.reply_partition, reply.partition);
        let what = format!("a reply for partition {asked} is in partition {found}");
        findings.fault(Rule::Address, what);
    }
    if !reply.keyed {
        let what = "the key of a reply is not the operation's id";
        findings.fault(Rule::Address, what);
    }
}

fn echo(sent: &Sent, reply: &Reply, findings: &mut Findings) {
    let (asked, answer) = (&sent.request, &reply.reply);
    if asked.nonce != answer.nonce {
        let what = match answer.nonce {
            None => "a reply has no nonce",
            Some(_) => "the nonce of a reply is not that of the request",
        };
        findings.fault(Rule::Echo, what);
    }
    let named = (&*asked.step, asked.attempt, asked.epoch, asked.action);
    if named == (&*answer.step, answer.attempt, answer.epoch, answer.action) {
        return;
    }
    let what = format!(
        "step {}, attempt {}, epoch {}, {:?} was answered as step {}, attempt {}, epoch {}, {:?}",
        asked.step,
        asked.attempt,
        asked.epoch,
        asked.action,
        answer.step,
        answer.attempt,
        answer.epoch,
        answer.action
    );
    findings.fault(Rule::Echo, what);
}

fn time(sent: &Sent, reply: &Reply, settings: &CheckSettings, findings: &mut Findings) {
    let complete_by = sent.request.complete_by;
    if sent.expected == Expected::Silence {
        let what = "a request that was sent after its complete-by was answered";
        findings.fault(Rule::Late, what);
        return;
    }
    let Some(answered_at) = reply.timestamp_ms.map(Timestamp::from_millis) else {
        return;
    };
    if answered_at > complete_by + settings.clock_tolerance {
        let late = answered_at.since(complete_by).as_millis();
        let what = format!("a reply arrived {late} ms after its complete-by");
        findings.fault(Rule::Deadline, what);
    }
}

/// Returns whether there is an error to judge.
fn error(reply: &Reply, findings: &mut Findings) -> bool {
    let Some(StepError { code, message }) = error_of(&reply.reply.outcome) else {
        return false;
    };
    if code.is_empty() || code == NO_CODE {
        let what = format!("no code with the message {:?}", message);
        findings.fault(Rule::Errors, what);
    } else if !is_kebab_case(code) {
        let what = format!("the code {code:?} is not kebab-case");
        findings.fault(Rule::Errors, what);
    }
    if message.is_empty() {
        let what = format!("no message with the code {code:?}");
        findings.fault(Rule::Errors, what);
    }
    true
}

pub(super) fn error_of(outcome: &Outcome) -> Option<&StepError> {
    match outcome {
        Outcome::Success { .. } | Outcome::NotPerformed => None,
        Outcome::Transient { error }
        | Outcome::Permanent { error }
        | Outcome::Unknown { error }
        | Outcome::NotAttempted { error, .. } => Some(error),
    }
}

fn is_kebab_case(code: &str) -> bool {
    let is_word = |word: &str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !word.is_empty() && word.bytes().all(allowed)
    };
    code.split('-').all(is_word)
}

/// Returns whether the reply carries the trace context of its request.
fn trace(sent: &Sent, reply: &Reply, findings: &mut Findings) -> bool {
    let Some(carried) = reply.traceparent.as_deref() else {
        return false;
    };
    let trace_id = |context: &str| context.split('-').nth(1).map(str::to_owned);
    let asked = sent.request.traceparent.as_deref();
    if asked.and_then(trace_id).as_deref() == trace_id(carried).as_deref() && asked.is_some() {
        return true;
    }
    let what = match asked {
        Some(asked) => format!("a reply to the trace {asked} carries {carried:?}"),
        None => format!("a reply to a request without a trace carries {carried:?}"),
    };
    findings.fault(Rule::Trace, what);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kebab_case_is_recognized() {
        for good in ["http-409", "undone", "no-room"] {
            assert!(is_kebab_case(good), "{good}");
        }
        for bad in ["", "No-room", "no_room", "no room", "-no", "no--room"] {
            assert!(!is_kebab_case(bad), "{bad}");
        }
    }

    #[test]
    fn a_trace_context_has_the_form_that_w3c_gives_it() {
        let operation = OperationId(uuid::Uuid::from_u128(0x1234));
        assert_eq!(
            trace_of(operation),
            "00-00000000000000000000000000001234-0000000000001234-01"
        );
    }
}
