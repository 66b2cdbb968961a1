//! The documents that are served with the API: its description, and HTML pages.
//!
//! They are built once, at the start. No page loads anything from another server, or runs a script
//! of its own text. Below are the examples and the responses that the description shares with the
//! handlers.

pub mod examples;
pub mod responses;

use std::collections::HashMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use flate2::read::GzDecoder;
use hyper::header::HeaderValue;
use sha2::{Digest as _, Sha256};
use waybill_http::problem::{self, Kind, STYLE};

/// What the page about the API may do: run and show the files next to it, and send requests to this
/// server.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                           connect-src 'self'; img-src data:; base-uri 'none'; \
                           form-action 'none'; frame-ancestors 'none'";

/// The documentation that is served with the API.
#[derive(Debug)]
pub struct Docs {
    openapi: Bytes,
    problems: HashMap<&'static str, Bytes>,
    problem_policy: HeaderValue,
}

/// An HTML page.
#[derive(Debug)]
pub struct Page {
    /// Its text.
    pub html: Bytes,
    /// What it may do: its content security policy.
    pub policy: HeaderValue,
}

/// A file that the page about the API loads.
#[derive(Debug)]
pub struct PageFile {
    /// Its media type.
    pub media_type: &'static str,
    /// Whether its address changes with its content.
    pub is_immutable: bool,
    content: &'static [u8],
    is_compressed: bool,
}

impl PageFile {
    /// The content as gzip; `None` if it is kept uncompressed.
    pub fn gzip(&self) -> Option<Bytes> {
        self.is_compressed
            .then_some(Bytes::from_static(self.content))
    }

    /// The content.
    pub fn plain(&self) -> Bytes {
        if !self.is_compressed {
            return Bytes::from_static(self.content);
        }
        let mut plain = Vec::new();
        GzDecoder::new(self.content)
            .read_to_end(&mut plain)
            .expect("the file in the program is whole");
        plain.into()
    }
}

impl Docs {
    /// Builds the pages about problems. `openapi` is the description.
    pub fn new(openapi: String) -> Self {
        let problems = Kind::ALL
            .into_iter()
            .map(|kind| (kind.name(), problem::page(kind).into()))
            .collect();
        let style = BASE64_STANDARD.encode(Sha256::digest(STYLE));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'"
        );
        Self {
            openapi: openapi.into(),
            problems,
            problem_policy: HeaderValue::try_from(policy).expect("a policy is visible text"),
        }
    }

    /// The description: an OpenAPI document in JSON.
    pub fn openapi(&self) -> Bytes {
        self.openapi.clone()
    }

    /// The page that shows it.
    pub fn page() -> Page {
        Page {
            html: Bytes::from_static(include_bytes!("docs/page.html")),
            policy: HeaderValue::from_static(PAGE_POLICY),
        }
    }

    /// A file that this page loads.
    pub fn file(name: &str) -> Option<PageFile> {
        let compressed = |media_type, content| PageFile {
            media_type,
            is_immutable: true,
            content,
            is_compressed: true,
        };
        match name {
            "page.js" => Some(PageFile {
                media_type: JAVASCRIPT,
                is_immutable: false,
                content: include_bytes!("docs/page.js"),
                is_compressed: false,
            }),
            "swagger-ui-5.35.0.js" => Some(compressed(
                JAVASCRIPT,
                include_bytes!("docs/vendor/swagger-ui.js.gz"),
            )),
            "swagger-ui-5.35.0.css" => Some(compressed(
                "text/css; charset=utf-8",
                include_bytes!("docs/vendor/swagger-ui.css.gz"),
            )),
            _ => None,
        }
    }

    /// The page about one kind of problem.
    pub fn problem(&self, name: &str) -> Option<Page> {
        Some(Page {
            html: self.problems.get(name)?.clone(),
            policy: self.problem_policy.clone(),
        })
    }
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn pages_are_complete_and_load_nothing_from_elsewhere() {
        let docs = Docs::new(String::new());
        let mut pages = vec![Docs::page()];
        pages.extend(Kind::ALL.map(|kind| docs.problem(kind.name()).unwrap()));
        for page in pages {
            let text = std::str::from_utf8(&page.html).unwrap();
            assert!(text.starts_with("<!doctype html>"));
            for unfilled in ["/*style*/", "{title}", "{advice}", "{status}"] {
                assert!(!text.contains(unfilled), "{unfilled}");
            }
            for elsewhere in ["=\"//", "http://", "https://", "@import", " url("] {
                assert!(!text.contains(elsewhere), "{elsewhere}");
            }
            let policy = page.policy.to_str().unwrap();
            assert!(!policy.contains("unsafe-"), "{policy}");
        }
        assert!(docs.problem("no-such-problem").is_none());
    }

    #[test]
    fn the_page_loads_files_that_exist() {
        let page = Docs::page();
        let text = std::str::from_utf8(&page.html).unwrap();
        let loaded: Vec<_> = text.split("\"/docs/").skip(1).collect();
        assert_eq!(loaded.len(), 3);
        for rest in loaded {
            let (name, _) = rest.split_once('"').unwrap();
            let file = Docs::file(name).unwrap();
            assert!(!file.plain().is_empty(), "{name}");
            assert_eq!(file.gzip().is_some(), file.is_immutable, "{name}");
        }
        assert!(Docs::file("no-such-file").is_none());
    }

    #[test]
    fn the_files_of_swagger_ui_are_those_of_its_package() {
        let vendor = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/docs/vendor");
        let readme = std::fs::read_to_string(vendor.join("README.md")).unwrap();
        for name in ["swagger-ui-5.35.0.js", "swagger-ui-5.35.0.css"] {
            let digest = Sha256::digest(Docs::file(name).unwrap().plain());
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(readme.contains(&digest), "{name}: {digest}");
        }
    }
}
