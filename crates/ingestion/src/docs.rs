//! The API's description, and its HTML pages.
//!
//! Everything is built once, at the start: the description from the schemas of the views and the
//! constants of the routes, the pages from text in the program. No page loads anything from another
//! server.

pub mod examples;
mod openapi;
pub mod responses;

use std::collections::HashMap;

use bytes::Bytes;
use waybill_api::form::Forms;
use waybill_http::problem::{self, Kind, STYLE};

/// The documentation that is served with the API.
#[derive(Debug)]
pub struct Docs {
    openapi: Bytes,
    page: Bytes,
    problems: HashMap<&'static str, Bytes>,
}

impl Docs {
    /// What the pages may do: run their own scripts and styles, and send requests to this server.
    pub const CONTENT_SECURITY_POLICY: &'static str = "default-src 'none'; \
        script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
        img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

    /// Builds the documents of a server with authentication (`is_guarded`) or without, and with
    /// these forms.
    pub fn new(is_guarded: bool, forms: &Forms) -> Self {
        let page = include_str!("docs/page.html")
            .replace("/*style*/", STYLE)
            .replace("/*script*/", include_str!("docs/page.js"));
        let problems = Kind::ALL
            .into_iter()
            .map(|kind| (kind.name(), problem::page(kind).into()))
            .collect();
        Self {
            openapi: openapi::document(is_guarded, forms).into(),
            page: page.into(),
            problems,
        }
    }

    /// The description: an OpenAPI document in JSON.
    pub fn openapi(&self) -> Bytes {
        self.openapi.clone()
    }

    /// The page that shows it.
    pub fn page(&self) -> Bytes {
        self.page.clone()
    }

    /// The page about one kind of problem.
    pub fn problem(&self, name: &str) -> Option<Bytes> {
        self.problems.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_complete_and_load_nothing_from_elsewhere() {
        let docs = Docs::new(true, &Forms::default());
        let mut pages = vec![docs.page()];
        pages.extend(Kind::ALL.map(|kind| docs.problem(kind.name()).unwrap()));
        for page in pages {
            let text = std::str::from_utf8(&page).unwrap();
            assert!(text.starts_with("<!doctype html>"));
            for unfilled in ["/*style*/", "/*script*/", "{title}", "{advice}", "{status}"] {
                assert!(!text.contains(unfilled), "{unfilled}");
            }
            for elsewhere in ["src=", "//cdn", "http://", "https://", "@import", " url("] {
                assert!(!text.contains(elsewhere), "{elsewhere}");
            }
        }
        assert!(docs.problem("no-such-problem").is_none());
    }
}
