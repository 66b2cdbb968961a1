//! The JSON Schemas of the units. A pattern accepts every spelling that the parser accepts; only
//! the parser knows the maximum.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{ByteSize, DurationText, FreeMin};

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A whole number and its unit: ms, s, m, h or d.",
            "pattern": r"^\s*[0-9]+\s*(ms|s|m|h|d)\s*$",
            "examples": ["200ms", "5s", "2m", "1h", "7d"],
        })
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A whole number and its unit: B, KiB, MiB or GiB.",
            "pattern": r"^\s*[0-9]+\s*(B|KiB|MiB|GiB)\s*$",
            "examples": ["512B", "64KiB", "16MiB", "8GiB"],
        })
    }
}

impl JsonSchema for FreeMin {
    fn schema_name() -> Cow<'static, str> {
        "FreeMin".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "`auto`, a share of the file system below 100%, or a size.",
            "pattern": r"^\s*(auto|\+?0*[0-9]{1,2}\s*%|[0-9]+\s*(B|KiB|MiB|GiB))\s*$",
            "examples": ["auto", "5%", "2GiB"],
        })
    }
}

/// The schema of an address to listen on; for `#[schemars(with = "…")]`.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddress;

impl JsonSchema for ListenAddress {
    fn schema_name() -> Cow<'static, str> {
        "ListenAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "An IP address and a port; port 0 picks a free one.",
            "pattern": r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]{1,5}$",
            "examples": ["127.0.0.1:8080", "0.0.0.0:8080", "[::1]:8080"],
        })
    }
}
