//! A page that shows a report or a comparison: a template, the data as JSON, and the scripts that
//! show it.
//!
//! The page fetches nothing. Its content security policy allows the scripts and styles that are
//! part of this program, by their hashes, and no others. The scripts set text of the data as text,
//! never as markup.

use openssl::base64;
use openssl::sha::sha256;
use serde::Serialize;

const LICENCE: &str = include_str!("page/vendor/LICENSE");
const STYLES: [&str; 2] = [
    include_str!("page/vendor/uPlot.min.css"),
    include_str!("page/report.css"),
];
const SCRIPTS: [&str; 4] = [
    include_str!("page/vendor/uPlot.iife.min.js"),
    include_str!("page/elements.js"),
    include_str!("page/plots.js"),
    include_str!("page/report.js"),
];

/// The page with this title. `data` is an object with the field `report` or `comparison`.
///
/// # Errors
///
/// If the data cannot be written as JSON.
pub fn page(title: &'static str, data: &impl Serialize) -> serde_json::Result<String> {
    Ok(format!(
        include_str!("page/report.html"),
        title = title,
        script_hashes = hashes(&SCRIPTS),
        style_hashes = hashes(&STYLES),
        styles = elements("style", &STYLES),
        licence = LICENCE,
        // A `<` is always inside a string. Escaped, no text can end the element.
        data = serde_json::to_string(data)?.replace('<', "\\u003c"),
        scripts = elements("script", &SCRIPTS),
    ))
}

fn hashes(contents: &[&str]) -> String {
    let hash = |content: &&str| base64::encode_block(&sha256(content.as_bytes()));
    let hashes: Vec<String> = contents
        .iter()
        .map(|content| format!("'sha256-{}'", hash(content)))
        .collect();
    hashes.join(" ")
}

fn elements(tag: &str, contents: &[&str]) -> String {
    let elements: Vec<String> = contents
        .iter()
        .map(|content| format!("<{tag}>{content}</{tag}>"))
        .collect();
    elements.join("\n")
}

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;
