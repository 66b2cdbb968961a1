//! Tables with a caption, described headings, and a frame that scrolls if they are too wide.

use std::fmt::Display;

use super::markup::Markup;

/// A column, or several under one heading.
pub struct Head<'a> {
    pub title: &'a str,
    /// The columns under it; empty for a single column.
    pub columns: &'a [&'a str],
}

/// A single column.
pub const fn head(title: &str) -> Head<'_> {
    Head {
        title,
        columns: &[],
    }
}

/// Whether a result is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    Good,
    Bad,
    Neutral,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "badge good",
            Self::Bad => "badge bad",
            Self::Neutral => "badge",
        }
    }

    /// A mark that is readable without colour.
    const fn mark(self) -> &'static str {
        match self {
            Self::Good => "✓ ",
            Self::Bad => "✗ ",
            Self::Neutral => "",
        }
    }
}

/// Writes a table. The first `words` columns contain words, the others numbers. `content` writes
/// the rows.
pub fn table(
    page: &mut Markup,
    caption: &str,
    words: usize,
    heads: &[Head<'_>],
    content: impl FnOnce(&mut Rows<'_>),
) {
    let region: [(_, &dyn Display); 4] = [
        ("class", &"scroll"),
        ("role", &"region"),
        ("aria-label", &caption),
        ("tabindex", &"0"),
    ];
    page.element("div", &region, |region| {
        region.element("table", &[], |table| {
            table.leaf("caption", &[], caption);
            table.element("thead", &[], |thead| write_heads(thead, words, heads));
            let mut rows = Rows { page: table, words };
            content(&mut rows);
        });
    });
}

/// Writes a mark with a word.
pub fn badge(page: &mut Markup, tone: Tone, text: impl Display) {
    page.element("span", &[("class", &tone.class())], |badge| {
        badge.text(tone.mark());
        badge.text(text);
    });
}

fn write_heads(thead: &mut Markup, words: usize, heads: &[Head<'_>]) {
    let is_deep = heads.iter().any(|head| !head.columns.is_empty());
    thead.element("tr", &[], |row| {
        for (at, head) in heads.iter().enumerate() {
            if head.columns.is_empty() {
                let class = if at < words { "word" } else { "number" };
                let rows = if is_deep { "2" } else { "1" };
                let attributes: [(_, &dyn Display); 3] =
                    [("scope", &"col"), ("class", &class), ("rowspan", &rows)];
                row.leaf("th", &attributes, head.title);
            } else {
                let columns = head.columns.len();
                let attributes: [(_, &dyn Display); 3] = [
                    ("scope", &"colgroup"),
                    ("class", &"group"),
                    ("colspan", &columns),
                ];
                row.leaf("th", &attributes, head.title);
            }
        }
    });
    if is_deep {
        thead.element("tr", &[], |row| {
            for column in heads.iter().flat_map(|head| head.columns) {
                row.leaf("th", &[("scope", &"col"), ("class", &"number")], column);
            }
        });
    }
}

/// The rows of a table.
pub struct Rows<'a> {
    page: &'a mut Markup,
    words: usize,
}

impl Rows<'_> {
    /// Writes a part of the table.
    pub fn body(&mut self, content: impl FnOnce(&mut Rows<'_>)) {
        let words = self.words;
        self.page.element("tbody", &[], |body| {
            content(&mut Rows { page: body, words });
        });
    }

    /// Writes a row. Its first cell is its heading.
    pub fn row(&mut self, class: &'static str, content: impl FnOnce(&mut Row<'_>)) {
        let words = self.words;
        self.page.element("tr", &[("class", &class)], |row| {
            content(&mut Row {
                page: row,
                words,
                cells: 0,
            });
        });
    }
}

/// A row of a table.
pub struct Row<'a> {
    page: &'a mut Markup,
    words: usize,
    cells: usize,
}

impl Row<'_> {
    /// Writes a cell with text.
    pub fn cell(&mut self, text: impl Display) {
        self.with(|cell| cell.text(text));
    }

    /// Writes a cell.
    pub fn with(&mut self, content: impl FnOnce(&mut Markup)) {
        let class = if self.cells < self.words {
            "word"
        } else {
            "number"
        };
        if self.cells == 0 {
            let attributes: [(_, &dyn Display); 2] = [("scope", &"row"), ("class", &class)];
            self.page.element("th", &attributes, content);
        } else {
            self.page.element("td", &[("class", &class)], content);
        }
        self.cells += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_caption_and_every_header_has_a_scope() {
        let mut page = Markup::default();
        let heads = [
            head("what"),
            Head {
                title: "ms",
                columns: &["p50", "p99"],
            },
        ];
        table(&mut page, "Times", 1, &heads, |rows| {
            rows.body(|rows| {
                rows.row("", |row| {
                    row.cell("<acceptance>");
                    row.cell("1");
                    row.cell("2");
                });
            });
        });
        let page = page.into_string();
        assert_eq!(super::super::markup::check_well_formed(&page), Ok(()));
        assert!(page.contains("<caption>Times</caption>"), "{page}");
        assert_eq!(
            page.matches("<th ").count(),
            page.matches("scope=\"").count()
        );
        assert!(page.contains("rowspan=\"2\">what</th>"), "{page}");
        assert!(page.contains("colspan=\"2\">ms</th>"), "{page}");
        assert!(
            page.contains(
                "scope=\"row\" class=\"word\">&lt;acceptance&gt;</th><td class=\"number\">1</td>"
            ),
            "{page}"
        );
    }
}
