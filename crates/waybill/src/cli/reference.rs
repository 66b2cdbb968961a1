//! `waybill reference`: prints pages of the documentation that the program generates.

mod configuration;

use std::fmt::Write as _;

use clap::ValueEnum;
use waybill_http::problem::Kind;

use crate::catalogue;

/// Which page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Reference {
    /// docs/configuration.md: every key
    Configuration,
    /// docs/metrics.md: every metric
    Metrics,
    /// docs/problems.md: every kind of problem that the API and the admin port answer with
    Problems,
}

impl Reference {
    /// The text of the page.
    #[must_use]
    pub fn page(self) -> String {
        match self {
            Self::Configuration => configuration::page(),
            Self::Metrics => catalogue::page(),
            Self::Problems => problems(),
        }
    }
}

/// The page about problems.
fn problems() -> String {
    let mut page = "\
# Problems

<!-- Made by `waybill reference problems`; a test holds the two together. -->

What is refused is answered as RFC 9457 says, with the media type `application/problem+json`: `type` is one of those below and
never changes its meaning, `title` says it in words, `detail` is about this very request. `errors` names wrong fields by
a JSON pointer (`pointer`), and wrong query parameters (`parameter`) and headers (`header`) by their names: all, or the first 16 KiB. A relative
`type` is also the address of a page of the listener that answered.

| `type` | status | title | what to do |
|---|---|---|---|
"
    .to_owned();
    for kind in Kind::ALL {
        let (uri, status) = (kind.uri(), kind.status().as_u16());
        let (title, advice) = (kind.title(), kind.advice());
        writeln!(page, "| `{uri}` | {status} | {title} | {advice} |")
            .expect("writing to a string cannot fail");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_in_the_documents_are_those_that_the_program_makes() {
        for reference in Reference::value_variants() {
            let name = reference.to_possible_value().unwrap();
            let name = name.get_name();
            let path = format!("{}/../../docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
            let written = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                written == reference.page(),
                "docs/{name}.md is another: waybill reference {name} >docs/{name}.md"
            );
        }
    }
}
