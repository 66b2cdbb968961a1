//! References from the documentation to the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names in backticks that are as long as those of tests.
fn names_in(page: &str) -> BTreeSet<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| name.matches('_').count() >= 4)
        .filter(|name| {
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

/// The names of all functions of Rust files below a directory.
fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("the sources can be read") {
        let path = entry.expect("the sources can be read").path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source can be read");
            let named = text.split("fn ").skip(1);
            found.extend(named.map(|rest| {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                rest[..end.unwrap_or(rest.len())].to_owned()
            }));
        }
    }
}

#[test]
fn every_test_named_in_the_documents_exists() {
    let mut found = BTreeSet::new();
    for directory in ["crates", "loadtest"] {
        functions(&root().join(directory), &mut found);
    }
    for page in ["docs/guarantees.md", "SECURITY.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect("the file exists");
        let named = names_in(&text);
        assert!(named.len() > 20, "{page}: {named:?}");
        let missing: Vec<_> = named
            .iter()
            .filter(|name| !found.contains(**name))
            .collect();
        assert!(
            missing.is_empty(),
            "{page}: no function has these names: {missing:?}"
        );
    }
}

/// The pages of `docs/`, as paths relative to it.
fn pages_of_docs() -> BTreeSet<String> {
    let mut pages = BTreeSet::new();
    for directory in ["", "runbooks/"] {
        let files = std::fs::read_dir(root().join("docs").join(directory)).expect("it exists");
        let names = files.map(|file| file.expect("it can be read").file_name());
        let names = names.map(|name| name.into_string().expect("a page has a plain name"));
        let pages_here = names.filter(|name| name.ends_with(".md"));
        pages.extend(pages_here.map(|name| format!("{directory}{name}")));
    }
    pages
}

/// The targets of the links of a page.
fn links_in(page: &str) -> impl Iterator<Item = &str> {
    let behind = page.split("](").skip(1);
    behind.filter_map(|rest| rest.split(')').next())
}

#[test]
fn links_between_documents_resolve() {
    let at_the_top = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
    ];
    let mut pages: Vec<PathBuf> = at_the_top.map(|page| root().join(page)).to_vec();
    pages.extend(
        pages_of_docs()
            .iter()
            .map(|page| root().join("docs").join(page)),
    );
    let mut dead = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page can be read");
        let links = links_in(&text);
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let file = link.split('#').next().unwrap_or_default();
            if !page.with_file_name(file).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn the_summary_of_the_book_lists_every_page_once() {
    const SUMMARY: &str = "SUMMARY.md";
    let text = std::fs::read_to_string(root().join("docs").join(SUMMARY)).expect("the file exists");
    let mut listed: Vec<&str> = links_in(&text).collect();
    listed.sort_unstable();
    let mut pages = pages_of_docs();
    pages.remove(SUMMARY);
    let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
    assert_eq!(
        listed, pages,
        "docs/SUMMARY.md is not the list of all pages"
    );
}
