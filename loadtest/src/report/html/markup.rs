//! Writes HTML and SVG. Text and attributes are escaped and tags are closed automatically, so that
//! no outside text becomes markup and every page is well-formed, also as XML.

use std::fmt::{self, Display, Write as _};

/// A piece of a page.
#[derive(Default)]
pub struct Markup(String);

/// Attributes with their values.
pub type Attributes<'a> = [(&'static str, &'a dyn Display)];

impl Markup {
    /// Adds markup that is part of this program.
    pub fn own(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Adds text.
    pub fn text(&mut self, text: impl Display) {
        write!(Escaped(&mut self.0), "{text}").expect("a string takes everything");
    }

    /// Adds an element with the content that `content` writes.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: &Attributes<'_>,
        content: impl FnOnce(&mut Self),
    ) {
        self.tag(tag, attributes);
        self.0.push('>');
        content(self);
        self.0.push_str("</");
        self.0.push_str(tag);
        self.0.push('>');
    }

    /// Adds an element that contains only text.
    pub fn leaf(&mut self, tag: &'static str, attributes: &Attributes<'_>, text: impl Display) {
        self.element(tag, attributes, |leaf| leaf.text(text));
    }

    /// Adds an element without content.
    pub fn void(&mut self, tag: &'static str, attributes: &Attributes<'_>) {
        self.tag(tag, attributes);
        self.0.push_str("/>");
    }

    /// The complete text.
    pub fn into_string(self) -> String {
        self.0
    }

    fn tag(&mut self, tag: &'static str, attributes: &Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes {
            self.0.push(' ');
            self.0.push_str(name);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
    }
}

struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(character),
                // A page must not contain these, not even escaped.
                other if other.is_control() => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

/// Checks that every tag of a page is closed, that attributes are quoted and unique, and that every
/// special character is escaped.
///
/// # Errors
///
/// The problem, and the text at its place.
#[cfg(test)]
pub fn check_well_formed(page: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.trim_start_matches("<!DOCTYPE html>");
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at])?;
        rest = &rest[at..];
        let end = rest.find('>').ok_or(format!("no end of {rest}"))?;
        let shown = &rest[..=end];
        let tag = &rest[1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let innermost = open.pop();
            if innermost != Some(name) {
                return Err(format!("{innermost:?} is closed by {shown}"));
            }
            continue;
        }
        let (tag, is_void) = match tag.strip_suffix('/') {
            Some(tag) => (tag, true),
            None => (tag, false),
        };
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(format!("no name in {shown}"));
        }
        check_attributes(attributes).map_err(|error| format!("{error} in {shown}"))?;
        if matches!(name, "style" | "script") {
            let end = rest.find(&format!("</{name}>")).ok_or("no end")?;
            rest = &rest[end..];
        }
        if !is_void {
            open.push(name);
        }
    }
    check_text(rest)?;
    match open.last() {
        Some(name) => Err(format!("<{name}> is not closed")),
        None => Ok(()),
    }
}

#[cfg(test)]
fn check_attributes(attributes: &str) -> Result<(), String> {
    let mut names = std::collections::BTreeSet::new();
    let mut rest = attributes;
    while !rest.is_empty() {
        let (name, value) = rest
            .split_once("=\"")
            .ok_or("an attribute without quotes")?;
        let (value, after) = value.split_once('"').ok_or("a quote without end")?;
        if !names.insert(name.trim_start()) {
            return Err(format!("{name} twice"));
        }
        check_text(value)?;
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
fn check_text(text: &str) -> Result<(), String> {
    let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    let is_bare = |(at, _): (usize, &str)| !known.iter().any(|k| text[at..].starts_with(k));
    if text.contains('>') || text.match_indices('&').any(is_bare) {
        return Err(format!("unescaped: {text}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_text_is_escaped_everywhere() {
        let mut page = Markup::default();
        let hostile = "</td><script>alert('1' && \"2\")\u{0}</script>";
        page.leaf("td", &[("title", &hostile)], hostile);
        let escaped = "&lt;/td&gt;&lt;script&gt;alert(&#39;1&#39; &amp;&amp; &quot;2&quot;)\u{fffd}&lt;/script&gt;";
        assert_eq!(
            page.into_string(),
            format!("<td title=\"{escaped}\">{escaped}</td>")
        );
    }

    #[test]
    fn the_check_finds_malformed_markup() {
        assert_eq!(
            check_well_formed("<p a=\"1\" b=\"2\">x<br/>&amp;</p>"),
            Ok(())
        );
        for broken in [
            "<p>",
            "<p><b></p></b>",
            "</p>",
            "<p a=1></p>",
            "<p a=\"1\" a=\"2\"></p>",
            "<p a=\"&\"></p>",
            "<p>a & b</p>",
            "<p>a > b</p>",
            "<p>a < b</p>",
        ] {
            assert!(check_well_formed(broken).is_err(), "{broken}");
        }
    }
}
