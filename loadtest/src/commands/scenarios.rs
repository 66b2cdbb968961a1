//! `waybill-loadtest scenarios`: lists the built-in scenarios.

use clap::Args;

use crate::scenario::file::{self, BUILT_IN};

/// Its flags.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print the file of this scenario, as a template for your own
    #[arg(long, value_name = "NAME")]
    show: Option<String>,
}

/// Lists the scenarios, or prints one.
///
/// # Errors
///
/// If there is no scenario with this name.
pub fn act(arguments: &Arguments) -> anyhow::Result<bool> {
    let Some(name) = &arguments.show else {
        for (name, _) in BUILT_IN {
            println!("{name:<16}{}", file::named(name)?.description);
        }
        return Ok(true);
    };
    let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| built_in == name) else {
        let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("{name} is not one of {}", known.join(", "));
    };
    print!("{text}");
    Ok(true)
}
