//! Asks the person at the terminal before a verb is sent to many operations.

use std::io::{self, BufRead, IsTerminal as _, Write};

/// Whether a person can be asked: both the question and the answer go through a terminal.
pub(super) fn is_at_a_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks the question, and reads one line. Only `y` and `yes` confirm.
pub(super) fn is_confirmed(
    question: &str,
    input: &mut impl BufRead,
    terminal: &mut impl Write,
) -> io::Result<bool> {
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    let answer = answer.trim();
    Ok(["y", "yes"]
        .iter()
        .any(|yes| answer.eq_ignore_ascii_case(yes)))
}

#[cfg(test)]
mod tests {
    use super::is_confirmed;

    #[test]
    fn only_yes_confirms() {
        let confirms = |answer: &str| {
            let mut terminal = Vec::new();
            let confirmed = is_confirmed("sure?", &mut answer.as_bytes(), &mut terminal);
            assert_eq!(terminal, b"sure? [y/N] ");
            confirmed.unwrap()
        };
        for answer in ["y\n", "Yes\n", " y \n", "YES"] {
            assert!(confirms(answer), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "no\n", "yesterday\n"] {
            assert!(!confirms(answer), "{answer:?}");
        }
    }
}
