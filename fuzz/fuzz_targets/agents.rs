//! Files of agents, with the templates in them.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use waybill_agent::http::{AgentsFile, Variables};

fuzz_target!(|text: &str| {
    let Ok(file) = AgentsFile::from_yaml(text) else {
        return;
    };
    let program = BTreeMap::from([("services".to_owned(), "127.0.0.1:1".to_owned())]);
    _ = file.load(&Variables::new(program, BTreeMap::new()));
});
