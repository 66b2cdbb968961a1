//! Finds the keys around a position in a YAML file.
//!
//! The parser reports the line and column of an error, but not the path to it. This module reads as
//! much YAML as it needs to find the path: indentation, flow collections, quotes and comments.

/// The key whose value begins at a position, if both are on one line.
pub(super) fn key_before(text: &str, position: (u64, u64)) -> Option<&str> {
    let (before, _) = line_at(text, position)?;
    let before = before.trim_end().strip_suffix(':')?;
    let key = before.rsplit(|c| !is_of_key(c)).next();
    key.filter(|key| !key.is_empty())
}

/// The key that begins at a position.
pub(super) fn key_at(text: &str, position: (u64, u64)) -> Option<&str> {
    let (_, behind) = line_at(text, position)?;
    let (key, value) = behind.split_once(':')?;
    let is_key = value.is_empty() || value.starts_with(' ');
    (is_key && !key.is_empty() && key.chars().all(is_of_key)).then_some(key)
}

/// The parts of a line before and after a position.
fn line_at(text: &str, (line, column): (u64, u64)) -> Option<(&str, &str)> {
    let line = text
        .lines()
        .nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let column = usize::try_from(column).ok()?.checked_sub(1)?;
    let (at, _) = line.char_indices().nth(column)?;
    Some(line.split_at(at))
}

fn is_of_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// The keys that lead to the key at a position, outermost first.
pub(super) fn keys_above(text: &str, (line, column): (u64, u64)) -> Vec<String> {
    let mut keys = Keys::default();
    for (number, text) in (1..=line).zip(text.lines()) {
        let end = (number == line).then_some(column);
        keys.read_line(text, end.and_then(|column| usize::try_from(column).ok()));
    }
    keys.above()
}

/// The keys that are open while a file is read.
#[derive(Default)]
struct Keys {
    /// Those of block mappings, each with its indentation.
    block: Vec<(usize, String)>,
    /// Those of flow collections: the key whose value is being read, if any.
    flow: Vec<Option<String>>,
    /// The part of a key in a flow mapping that was read so far.
    word: String,
}

impl Keys {
    /// Reads a line up to the column `end`, from 1, or whole.
    fn read_line(&mut self, line: &str, end: Option<usize>) {
        let mut start = 0;
        if self.flow.is_empty() {
            start = indentation(line);
            if line[start..].is_empty() || line[start..].starts_with('#') {
                return;
            }
            self.block.retain(|(other, _)| *other < start);
            if end.is_some_and(|end| end <= start + 1) {
                return;
            }
            if !begins_flow(&line[start..]) {
                let Some((key, value)) = key_of_line(&line[start..]) else {
                    return;
                };
                self.block.push((start, key.to_owned()));
                start += value;
            }
            if !begins_flow(&line[start..]) {
                return;
            }
        }
        let before = end.map_or(usize::MAX, |end| end - 1);
        let line = line.char_indices().take(before);
        self.read_flow(line.filter(|(at, _)| *at >= start).map(|(_, c)| c));
    }

    fn read_flow(&mut self, line: impl Iterator<Item = char>) {
        let mut quote = None;
        let mut last = ' ';
        for c in line {
            match c {
                _ if quote == Some(c) => quote = None,
                _ if quote.is_some() => self.word.push(c),
                '\'' | '"' if self.word.trim().is_empty() => quote = Some(c),
                '#' if last.is_whitespace() => break,
                '{' | '[' => {
                    self.flow.push(None);
                    self.word.clear();
                }
                '}' | ']' => {
                    self.flow.pop();
                    self.word.clear();
                }
                ',' => {
                    self.word.clear();
                    if let Some(key) = self.flow.last_mut() {
                        *key = None;
                    }
                }
                ':' => {
                    let key = std::mem::take(&mut self.word).trim().to_owned();
                    if let Some(of_value) = self.flow.last_mut() {
                        of_value.get_or_insert(key);
                    }
                }
                _ => self.word.push(c),
            }
            last = c;
        }
    }

    fn above(self) -> Vec<String> {
        let block = self.block.into_iter().map(|(_, key)| key);
        block.chain(self.flow.into_iter().flatten()).collect()
    }
}

/// The line of the first key in the block mapping that contains the key at a position. `None` in a
/// flow mapping.
pub(super) fn first_line_of_mapping(text: &str, (line, column): (u64, u64)) -> Option<u64> {
    let depth = usize::try_from(column).ok()?.checked_sub(1)?;
    let lines: Vec<(u64, &str)> = (1..=line).zip(text.lines()).collect();
    let (_, last) = lines.last()?;
    if indentation(last) != depth || begins_flow(&last[depth..]) {
        return None;
    }
    let mut first = line;
    for (number, line) in lines.into_iter().rev() {
        let content = line.trim_start();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let key = indentation(line);
        if key < depth {
            break;
        }
        if key == depth {
            first = number;
            let is_item = line.len() - content.len() < depth;
            if is_item {
                break;
            }
        }
    }
    Some(first)
}

/// The column where the content of a line begins, after the dashes of lists.
pub(super) fn indentation(line: &str) -> usize {
    let mut at = line.len() - line.trim_start_matches(' ').len();
    while let Some(item) = line[at..].strip_prefix("- ") {
        at = line.len() - item.trim_start_matches(' ').len();
    }
    at
}

fn begins_flow(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

/// The key at the start of a line's content, and where its value begins.
fn key_of_line(content: &str) -> Option<(&str, usize)> {
    let mut colons = content.match_indices(':').map(|(at, _)| at);
    let colon = colons.find(|at| {
        let behind = &content[at + 1..];
        behind.is_empty() || behind.starts_with(' ')
    })?;
    let key = content[..colon].trim().trim_matches(['\'', '"']);
    Some((key, colon + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path of the key at the first occurrence of `here` in a text.
    fn path(text: &str, here: &str) -> String {
        let at = text.find(here).unwrap();
        let before = &text[..at];
        let line = before.matches('\n').count() as u64 + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() as u64 + 1;
        let mut keys = keys_above(text, (line, column));
        keys.push(here.to_owned());
        keys.join(".")
    }

    #[test]
    fn the_path_of_a_key_is_found_in_block_and_flow_mappings() {
        for (text, expected) in [
            ("x: 1\n", "x"),
            ("a:\n  b:\n    c: 1\n  d: 2\nx: 1\n", "x"),
            ("a:\n  b:\n    c: 1\n  x: 2\n", "a.x"),
            ("a:\n  # c:\n\n  b:\n    c: {d: 1}\n    x: 2\n", "a.b.x"),
            ("a:\n- b: 1\n  c: 2\n- b: 2\n  x: 2\n", "a.x"),
            ("a:\n  - b: 1\n    c:\n      x: 2\n", "a.c.x"),
            ("a:\n  - x: 1\n", "a.x"),
            ("a: {b: {c: 1}, x: 1}\n", "a.x"),
            ("a: {'b}': 1, c: [{d: 2, x: 1}]}\n", "a.c.x"),
            ("a:\n  b: {c: 1, # }\n    d: {\n  x: 1}}\n", "a.b.d.x"),
            ("ä: {ö: {x: 1}}\n", "ä.ö.x"),
            ("{a: {x: 1}}\n", "a.x"),
            ("a: http://b:1/{c\nd:\n  x: 1\n", "d.x"),
        ] {
            assert_eq!(path(text, "x"), expected, "{text:?}");
        }
    }

    #[test]
    fn the_first_line_of_a_mapping_is_that_of_its_item_or_of_its_first_key() {
        let steps = "steps:\n  - name: a\n    agent: b\n  # the next\n  - name: c\n    input:\n      d: 1\n    after: [a]\n";
        for (text, position, expected) in [
            (steps, (3, 5), Some(2)),
            (steps, (8, 5), Some(5)),
            (steps, (7, 7), Some(7)),
            (steps, (1, 1), Some(1)),
            ("a: 1\nb:\n- c: 1\n  d: 2\n- e: 1\nf: 1\n", (6, 1), Some(1)),
            ("a: 1\nb:\n- c: 1\n  d: 2\n", (4, 3), Some(3)),
            ("a: {b: 1}\n", (1, 5), None),
        ] {
            assert_eq!(
                first_line_of_mapping(text, position),
                expected,
                "{text:?} {position:?}"
            );
        }
    }
}
