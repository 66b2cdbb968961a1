//! Finds the line of an agents file that an error is about.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::LoadError;

/// An agents file, as far as its lines matter.
#[derive(Deserialize)]
struct File {
    agents: Vec<Agent>,
}

#[derive(Deserialize)]
struct Agent {
    name: Spanned<String>,
    http: Http,
}

#[derive(Deserialize)]
struct Http {
    request: Option<Spanned<IgnoredAny>>,
    #[serde(default)]
    steps: BTreeMap<String, Spanned<IgnoredAny>>,
}

impl LoadError {
    /// The line of the agents file `text` that the error is about, from 1: where the request for
    /// the step begins, or else the agent's name. `None` if the error names no agent of the file.
    #[must_use]
    pub fn line(&self, text: &str) -> Option<u64> {
        let (name, step) = match self {
            Self::Agent { agent, .. } => (agent, None),
            Self::UnmetRequirement { agent, step, .. } => (agent, Some(step)),
            Self::Yaml { .. } | Self::Invalid { .. } | Self::Template { .. } | Self::Tls { .. } => {
                return None;
            }
        };
        let file: File = serde_saphyr::from_str(text).ok()?;
        // Of two agents with the same name, the second is refused.
        let agents = file.agents.into_iter().rev();
        let Agent { name, http } = agents.into_iter().find(|agent| agent.name.value == *name)?;
        let request = step.and_then(|step| http.steps.get(step).or(http.request.as_ref()));
        let place = request.map_or(name.referenced, |request| request.referenced);
        Some(place.line())
    }
}

#[cfg(test)]
mod tests {
    use super::LoadError;

    const FILE: &str = "\
agents:
  - name: walker
    http:
      baseUrl: http://walker.example
      request:
        method: PUT
      steps:
        go: { method: POST }
  - name: walker
    http:
      baseUrl: http://walker.example
";

    fn unmet(agent: &str, step: &str) -> LoadError {
        LoadError::UnmetRequirement {
            agent: agent.to_owned(),
            workflow: "errand".to_owned(),
            version: 1,
            step: step.to_owned(),
            key: "compensate".to_owned(),
            why: "is missing".to_owned(),
        }
    }

    #[test]
    fn an_error_is_about_the_request_for_its_step_or_else_the_agent() {
        let one = FILE.rsplit_once("  - name").unwrap().0;
        assert_eq!(unmet("walker", "go").line(one), Some(8));
        assert_eq!(unmet("walker", "return").line(one), Some(6));
        assert_eq!(unmet("walker", "go").line(FILE), Some(9));
        assert_eq!(unmet("runner", "go").line(FILE), None);
        let invalid = LoadError::invalid("name", "two agents have this name");
        assert_eq!(invalid.line(FILE), None);
        assert_eq!(invalid.of_agent("walker").line(FILE), Some(9));
    }
}
