//! Visible characters, by Unicode's general categories (UAX #44).
//!
//! What must hold: names do not differ only in invisible characters, and foreign text cannot
//! reverse, hide or change the text printed next to it. Deliberately absent: a check for characters
//! that look alike (Latin `a`, Cyrillic `а`); a tenant chooses its own names.

use std::fmt;
use std::io::IsTerminal;

use serde::Serialize;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory as _};

/// Whether a character is a visible letter, mark, number, punctuation or symbol. Control, format,
/// separator, private and unassigned characters are not.
pub fn is_visible(c: char) -> bool {
    let group = c.general_category_group();
    let is_shown = !matches!(
        group,
        GeneralCategoryGroup::Other | GeneralCategoryGroup::Separator
    );
    is_shown && !is_ignorable(c)
}

/// Invisible letters, marks and symbols: those of Unicode's `Default_Ignorable_Code_Point` that are
/// not format characters, and U+2800 (Braille blank), U+FFFC (object replacement), U+16FE4
/// (Khitan filler) and U+1D159 (null note head).
fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{fffc}'
            | '\u{16fe4}'
            | '\u{1d159}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Whether a text is one word: visible characters only. It must not begin with a combining mark,
/// which would change the character printed before it.
pub fn is_word(text: &str) -> bool {
    text.starts_with(|c| is_visible(c) && !is_mark(c)) && text.chars().all(is_visible)
}

/// Whether a text is a name: words separated by single spaces (U+0020). The empty text is one.
pub fn is_name(text: &str) -> bool {
    text.is_empty() || text.split(' ').all(is_word)
}

/// Whether a character combines with the one before it.
fn is_mark(c: char) -> bool {
    c.general_category_group() == GeneralCategoryGroup::Mark
}

/// A text for people, on one line: escapes all characters that are neither visible nor a space, as
/// `\u{202e}`.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_visible(c) || c == ' ' {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

/// `text` with its lines, and all other invisible characters escaped.
pub fn escaped_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(escaped).collect();
    lines.join("\n")
}

/// JSON on one line with invisible characters escaped, as `\u202e`. Its value is unchanged.
///
/// # Errors
///
/// If the value cannot be serialized as JSON.
pub fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escaped_json(&serde_json::to_string(value)?))
}

/// JSON with invisible characters escaped, except for white space between its values.
pub fn escaped_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        // In strings these are escaped already.
        if is_visible(c) || matches!(c, ' ' | '\n' | '\r' | '\t') {
            shown.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    shown
}

/// [`escaped`], but control characters, which could end a line or a mail's header, become spaces.
pub fn on_one_line(text: &str) -> String {
    escaped(&text.replace(char::is_control, " "))
}

/// Whether text on this stream may have colors: on a terminal, unless `NO_COLOR` is set
/// (<https://no-color.org>).
pub fn may_be_colored(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !no_color && stream.is_terminal()
}

/// A count with its noun, in the singular or the plural: `1 request`, `2 requests`.
pub fn counted<N: fmt::Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    match count == N::from(1) {
        true => format!("1 {noun}"),
        false => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(0_u64, "dead letter"), "0 dead letters");
        assert_eq!(counted(1_usize, "request"), "1 request");
        assert_eq!(counted(-1_i64, "step"), "-1 steps");
    }

    /// One of each invisible kind: control, format (invisible, reversing text, a tag), separators,
    /// a selector, a filler, private use, unassigned.
    const INVISIBLE: [char; 18] = [
        '\0',
        '\u{85}',
        '\u{ad}',
        '\u{200b}',
        '\u{202e}',
        '\u{2066}',
        '\u{e0041}',
        '\u{a0}',
        '\u{2028}',
        '\u{fe0f}',
        '\u{3164}',
        '\u{2800}',
        '\u{fffc}',
        '\u{16fe4}',
        '\u{1d159}',
        '\u{e000}',
        '\u{378}',
        '\u{10ffff}',
    ];

    #[test]
    fn printable_characters_of_every_script_are_visible() {
        for c in "aZ9-_/é́ßд中あ한א؟€🚁".chars() {
            assert!(is_visible(c), "{c:?}");
        }
        for c in INVISIBLE.into_iter().chain([' ', '\u{3000}']) {
            assert!(!is_visible(c), "{c:?}");
        }
    }

    #[test]
    fn a_name_has_single_spaces_between_visible_characters() {
        for name in ["", "acme", "Acme Ltd.", "株式 会社"] {
            assert!(is_name(name), "{name:?}");
        }
        for other in [" ", " acme", "acme ", "acme  ltd", "a\tb"] {
            assert!(!is_name(other), "{other:?}");
        }
        for c in INVISIBLE {
            assert!(!is_name(&format!("a{c}b")), "{c:?}");
        }
    }

    #[test]
    fn combining_marks_require_a_base_character() {
        for word in ["e\u{301}", "1\u{20e3}", "न\u{93e}म"] {
            assert!(is_word(word) && is_name(&format!("a {word}")), "{word:?}");
        }
        // One of each kind: nonspacing, enclosing, spacing.
        for mark in ["\u{301}", "\u{20e3}", "\u{93e}"] {
            for text in [mark.to_owned(), format!("{mark}a")] {
                assert!(!is_word(&text) && !is_name(&text), "{text:?}");
                assert!(!is_name(&format!("a {text}")), "{text:?}");
            }
        }
        assert!(!is_word("") && !is_word("a b"));
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escaped("a\u{202e}b\n c\u{a0}é"), "a\\u{202e}b\\n c\\u{a0}é");
        assert_eq!(escaped_lines("a\u{202e}\nb"), "a\\u{202e}\nb");
        assert_eq!(on_one_line("a\u{202e}b\nc"), "a\\u{202e}b c");
    }

    #[test]
    fn escaped_json_keeps_its_value() {
        let value: String = INVISIBLE
            .into_iter()
            .chain("é \u{1d173}\n".chars())
            .collect();
        let json = to_json(&value).unwrap();
        assert!(json.chars().all(|c| is_visible(c) || c == ' '), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), value);
    }
}
