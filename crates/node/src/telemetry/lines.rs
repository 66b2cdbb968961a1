//! The format of log lines: one line each, visible characters only.
//!
//! What must hold: external text (a record's fields, a peer's error, a file's name) cannot break
//! the line, and cannot reverse, hide or colour the text around it.
//!
//! A line that a task logs while it answers an HTTP request ends with the id of that request.

use std::fmt;
use std::io;

use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::registry::LookupSpan;

use waybill_http::RequestId;
use waybill_telemetry::visible::{escaped, escaped_json};

/// The field of an event's message.
const MESSAGE: &str = "message";
/// The field of the current request's id.
const REQUEST_ID: &str = "requestId";

/// Lines for people.
pub(super) fn text<S, W>(to: W, is_coloured: bool) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_writer(TextLines(to))
        .with_ansi(is_coloured)
        .fmt_fields(debug_fn(write_field).delimited(" "))
}

/// Lines for programs: one JSON object each.
pub(super) fn json<S, W>(to: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_writer(JsonLines(to))
        .json()
        .flatten_event(true)
        .with_current_span(false)
}

/// Writes a field of a line for people. The default formatter escapes control characters only in
/// messages.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = escaped(&format!("{value:?}"));
    match field.name() {
        MESSAGE => writer.write_str(&value),
        // The name in italics, the sign dimmed.
        name if writer.has_ansi_escapes() => {
            write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}")
        }
        name => write!(writer, "{name}={value}"),
    }
}

/// Adds the id of the current request to lines for people.
struct TextLines<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for TextLines<W> {
    type Writer = TextLine<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        TextLine(self.0.make_writer())
    }
}

/// The formatter writes a whole line in one call, on the task that logs it.
struct TextLine<W>(W);

impl<W: io::Write> io::Write for TextLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match (RequestId::current(), line.strip_suffix(b"\n")) {
            (Some(id), Some(rest)) => {
                let whole = [rest, format!(" {REQUEST_ID}={id}\n").as_bytes()].concat();
                self.0.write_all(&whole)?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes JSON with invisible characters as `\uXXXX`, and with the id of the current request; other
/// values stay the same.
struct JsonLines<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for JsonLines<W> {
    type Writer = JsonLine<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        JsonLine(self.0.make_writer())
    }
}

/// The formatter writes a whole line in one call.
struct JsonLine<W>(W);

impl<W: io::Write> io::Write for JsonLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut escaped = escaped_json(&String::from_utf8_lossy(line));
        if let (Some(id), Some(rest)) = (RequestId::current(), escaped.strip_suffix("}\n")) {
            // Its characters need no escape.
            escaped = format!("{rest},\"{REQUEST_ID}\":\"{id}\"}}\n");
        }
        self.0.write_all(escaped.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt as _;
    use waybill_test_support::log::Lines;

    use super::*;
    use waybill_telemetry::visible::is_visible;

    /// Reversed text, an invisible character, a tag, a window title, hidden text, and a line break.
    const HOSTILE: &str = "a\u{202e}b\u{200b}\u{e0041}\x1b]0;x\x07\x1b[8mé\nERROR forged";

    /// What a layer writes for this text in a span's field, in an event's field, and in its
    /// message.
    fn written<L: Layer<Registry> + Send + Sync>(layer: impl FnOnce(Lines) -> L) -> String {
        let lines = Lines::default();
        let layer = layer(lines.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::info_span!("work", of = %HOSTILE);
            span.in_scope(|| tracing::info!(tenant = %HOSTILE, "asked by {HOSTILE}"));
        });
        lines.text()
    }

    #[test]
    fn untrusted_text_is_escaped_in_every_part_of_a_text_line() {
        let line = written(|lines| text(lines, false));
        let shown = r"a\u{202e}b\u{200b}\u{e0041}\u{1b}]0;x\u{7}\u{1b}[8mé\nERROR forged";
        for part in [
            format!("work{{of={shown}}}"),
            format!(" asked by {shown}"),
            format!(" tenant={shown}\n"),
        ] {
            assert!(line.contains(&part), "{part}: {line}");
        }
        assert_eq!(line.lines().count(), 1, "{line}");
    }

    #[test]
    fn colours_are_those_of_the_formatter_alone() {
        let line = written(|lines| text(lines, true));
        assert!(line.contains("\x1b[3mtenant\x1b[0m\x1b[2m=\x1b[0ma\\u{202e}b"));
        assert!(
            !line.contains("\x1b]") && !line.contains("\x1b[8m"),
            "{line:?}"
        );
        assert_eq!(line.lines().count(), 1, "{line:?}");
    }

    #[tokio::test]
    async fn a_line_has_the_id_of_the_request_that_is_being_answered() {
        let id = RequestId::fresh();
        let lines = id.scope(async { (written(|lines| text(lines, false)), written(json)) });
        let (text_line, json_line) = lines.await;
        assert!(
            text_line.ends_with(&format!(" requestId={id}\n")),
            "{text_line}"
        );
        assert_eq!(text_line.lines().count(), 1, "{text_line}");
        let parsed: Value = serde_json::from_str(&json_line).unwrap();
        assert_eq!(parsed["requestId"], id.as_str());
        assert_eq!(parsed["tenant"], HOSTILE);
        assert!(!written(json).contains("requestId"), "no request");
    }

    #[test]
    fn json_lines_contain_only_visible_characters() {
        let line = written(json);
        assert!(line.trim_end().chars().all(|c| is_visible(c) || c == ' '));
        let parsed: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["tenant"], HOSTILE);
        assert_eq!(parsed["message"], format!("asked by {HOSTILE}"));
    }
}
