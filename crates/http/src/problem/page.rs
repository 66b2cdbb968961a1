//! The page about a kind of problem, at the address that its `type` gives.

use super::Kind;

/// The style of this page and of similar ones.
pub const STYLE: &str = include_str!("style.css");

/// The page, in HTML. It loads nothing from elsewhere.
#[must_use]
pub fn page(kind: Kind) -> String {
    include_str!("page.html")
        .replace("/*style*/", STYLE)
        .replace("{status}", &kind.status().to_string())
        .replace("{name}", kind.name())
        .replace("{title}", kind.title())
        .replace("{advice}", kind.advice())
}
