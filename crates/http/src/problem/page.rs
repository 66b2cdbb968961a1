//! The page about a kind of problem, which its `type` leads to.

use super::Kind;

/// The style of this page and of others that look like it.
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
