//! The measured processes.

use anyhow::Context as _;
use waybill_usage::{Usage, has_ended};

use crate::model::Part;

/// A process that is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The name in reports.
    pub name: String,
    /// Its id.
    pub pid: u32,
    /// Its role in the measurement.
    pub part: Part,
}

impl Watched {
    /// This process: the load generator.
    pub fn this_one() -> Self {
        Self {
            name: "waybill-loadtest".to_owned(),
            pid: std::process::id(),
            part: Part::Load,
        }
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        has_ended(self.pid)
    }

    /// Parses `NAME=PID` or `NAME=PID:PART`.
    ///
    /// # Errors
    ///
    /// The error in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} must be NAME=PID or NAME=PID:PART; PART is subject, server or services"
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (pid, part) = rest.split_once(':').unwrap_or((rest, "subject"));
        let part = match part {
            "subject" => Part::Subject,
            "server" => Part::Server,
            "services" => Part::Services,
            _ => return Err(wrong()),
        };
        let pid = pid.parse().map_err(|_| wrong())?;
        if name.is_empty() {
            return Err(wrong());
        }
        let name = name.to_owned();
        Ok(Self { name, pid, part })
    }

    /// Its usage, including threads.
    ///
    /// # Errors
    ///
    /// If it has ended or cannot be read.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.pid).with_context(|| self.cannot_be_read())
    }

    /// Its usage without threads.
    ///
    /// # Errors
    ///
    /// If it has ended or cannot be read.
    pub fn totals(&self) -> anyhow::Result<Usage> {
        Usage::totals_of(self.pid).with_context(|| self.cannot_be_read())
    }

    fn cannot_be_read(&self) -> String {
        format!("cannot read process {} ({})", self.pid, self.name)
    }
}

/// Whether all subjects have ended, if there were any. Then no operation ends any more.
pub fn subjects_are_gone(processes: &[Watched]) -> bool {
    let mut subjects = processes
        .iter()
        .filter(|process| process.part == Part::Subject)
        .peekable();
    subjects.peek().is_some() && subjects.all(Watched::is_gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_process_counts_as_exited() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let watched = Watched {
            name: "cat".to_owned(),
            pid: child.id(),
            part: Part::Subject,
        };
        let all = [watched.clone(), Watched::this_one()];
        assert!(!watched.is_gone() && !subjects_are_gone(&all));
        child.kill().unwrap();
        while !watched.is_gone() {
            std::thread::yield_now();
        }
        assert!(subjects_are_gone(&all) && !subjects_are_gone(&all[1..]));
        let ended = watched.usage().unwrap_err();
        assert!(format!("{ended:#}").contains("has ended"), "{ended:#}");
        child.wait().unwrap();
        assert!(watched.is_gone());
    }

    #[test]
    fn a_process_is_named_with_its_part() {
        let watched = Watched::parse("kafka=12:server").unwrap();
        assert_eq!(
            (&*watched.name, watched.pid, watched.part),
            ("kafka", 12, Part::Server)
        );
        assert_eq!(Watched::parse("up=3").unwrap().part, Part::Subject);
        for text in ["12", "=12", "a=", "a=b", "a=1:load", "a=1:"] {
            assert!(Watched::parse(text).is_err(), "{text}");
        }
    }
}
