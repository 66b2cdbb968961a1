//! Finds the line of an agents file that an error is about.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::LoadError;

/// A node of an agents file: a mapping, a list or a scalar.
enum Node {
    Keys(Vec<(String, Spanned<Node>)>),
    Items(Vec<Spanned<Node>>),
    Text(String),
    Other,
}

impl LoadError {
    /// The line of the agents file `text` that the error is about, from 1: that of the key at
    /// fault, where the request for the step begins, or else the agent's name. `None` if the error
    /// names no agent of the file.
    #[must_use]
    pub fn line(&self, text: &str) -> Option<u64> {
        let (Self::Agent { agent, .. } | Self::UnmetRequirement { agent, .. }) = self else {
            return None;
        };
        let file: Node = serde_saphyr::from_str(text).ok()?;
        let Node::Items(agents) = &file.get("agents")?.value else {
            return None;
        };
        // Of two agents with the same name, the second is refused.
        let (name, agent) = agents.iter().rev().find_map(|node| {
            let name = node.value.get("name")?;
            matches!(&name.value, Node::Text(text) if text == agent).then_some((name, node))
        })?;
        let http = agent.value.get("http").map(|http| &http.value);
        let line = http.and_then(|http| self.line_in(http));
        Some(line.unwrap_or_else(|| name.referenced.line()))
    }

    /// The line below the agent's `http`, if the error is about a part of it.
    fn line_in(&self, http: &Node) -> Option<u64> {
        match self {
            Self::Agent { source, .. } => match &**source {
                Self::Invalid { key, .. } | Self::Template { key, .. } => http.line_of(key),
                Self::Yaml { .. } | Self::Agent { .. } | Self::UnmetRequirement { .. } => None,
            },
            Self::UnmetRequirement { step, .. } => {
                let of_step = http.get("steps").and_then(|steps| steps.value.get(step));
                let request = of_step.or_else(|| http.get("request"))?;
                Some(request.referenced.line())
            }
            Self::Yaml { .. } | Self::Invalid { .. } | Self::Template { .. } => None,
        }
    }
}

impl Node {
    fn get(&self, key: &str) -> Option<&Spanned<Self>> {
        let Self::Keys(keys) = self else {
            return None;
        };
        let (_, value) = keys.iter().find(|(name, _)| name == key)?;
        Some(value)
    }

    /// The line of the node at this path, or of the last node on the way there. A key may contain
    /// dots, and an index names the item of a list.
    fn line_of(&self, path: &str) -> Option<u64> {
        let after = |name: &str| {
            let rest = path.strip_prefix(name)?;
            match rest.strip_prefix('.') {
                Some(rest) => Some(rest),
                None => rest.is_empty().then_some(rest),
            }
        };
        let (rest, value) = match self {
            Self::Keys(keys) => {
                let mut keys = keys.iter();
                keys.find_map(|(name, value)| Some((after(name)?, value)))?
            }
            Self::Items(items) => {
                let mut indexed = items.iter().enumerate();
                indexed.find_map(|(index, value)| Some((after(&index.to_string())?, value)))?
            }
            Self::Text(_) | Self::Other => return None,
        };
        value.value.line_of(rest).or(Some(value.referenced.line()))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Nodes)
    }
}

struct Nodes;

impl<'de> Visitor<'de> for Nodes {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut keys = Vec::new();
        while let Some(entry) = map.next_entry()? {
            keys.push(entry);
        }
        Ok(Node::Keys(keys))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Items(items))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Other)
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
