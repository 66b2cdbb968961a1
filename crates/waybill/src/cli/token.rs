//! `waybill token`: bearer tokens for the API and the admin port.

use clap::{Args, Subcommand};
use waybill_http::auth::{NewToken, Scope, Tenants, check_name, check_rights, to_hex};

/// What to do with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token; print it once, on standard error, and its entry for auth.tokensFile on
    /// standard output
    Create(CreateArgs),
}

/// The arguments of `waybill token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    /// The name of the token's owner, as shown in the history of operations
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The scopes of the token
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        required_unless_present = "agents"
    )]
    scopes: Vec<Scope>,
    /// Agents that may use this token on the embedded broker, to read their requests and write
    /// replies
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    agents: Vec<Box<str>>,
    #[command(flatten)]
    whose: Whose,
}

/// The tenants of a token. Required, so that no token for all tenants results from a forgotten
/// flag.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct Whose {
    /// Allow only the operations of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Allow the operations of all tenants, and those without a tenant
    #[arg(long)]
    all_tenants: bool,
}

impl Whose {
    /// The tenant as the tokens file writes it.
    fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or(Tenants::ALL)
    }
}

impl TokenCommand {
    /// Creates a token, prints it, and returns its entry for the tokens file.
    ///
    /// # Errors
    ///
    /// If the arguments do not make a valid token.
    pub fn run(&self) -> anyhow::Result<String> {
        let Self::Create(arguments) = self;
        let token = NewToken::make();
        let entry = arguments.entry(&token)?;
        eprintln!("{}", token.token.reveal());
        Ok(entry)
    }
}

impl CreateArgs {
    fn entry(&self, token: &NewToken) -> anyhow::Result<String> {
        check_name(&self.name).map_err(|problem| anyhow::anyhow!("--{problem}"))?;
        let tenant = self.whose.tenant();
        let tenants = Tenants::named(tenant);
        let tenants = tenants.map_err(|problem| anyhow::anyhow!("--tenant {problem}"))?;
        let scopes = self.scopes.iter().copied().collect();
        check_rights(scopes, &self.agents, &tenants)
            .map_err(|problem| anyhow::anyhow!("--scopes and --agents: {problem}"))?;
        // A JSON string is also a valid YAML string, whatever it contains.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let scopes: Vec<&str> = self.scopes.iter().map(|scope| scope.as_str()).collect();
        let agents: Vec<String> = self.agents.iter().map(|agent| quoted(agent)).collect();
        let agents = match agents.is_empty() {
            true => String::new(),
            false => format!("\n  agents: [{}]", agents.join(", ")),
        };
        // A token for one tenant allows nothing on the embedded broker.
        let scram = match tenants.only() {
            None => format!("\n  scram: {}", quoted(&token.verifier().to_string())),
            Some(_) => String::new(),
        };
        Ok(format!(
            "- name: {}\n  sha256: {}{scram}\n  scopes: [{}]\n  tenant: {}{agents}",
            quoted(&self.name),
            quoted(&to_hex(&token.hash)),
            scopes.join(", "),
            quoted(tenant),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_token_settings_are_refused_by_their_flag() {
        let entry = |name: &str, scopes: &[Scope], tenant: &str| {
            let arguments = CreateArgs {
                name: name.to_owned(),
                scopes: scopes.to_owned(),
                agents: Vec::new(),
                whose: Whose {
                    tenant: Some(tenant.to_owned()),
                    all_tenants: false,
                },
            };
            let token = NewToken {
                token: "wb_x".into(),
                hash: [0xab; 32],
            };
            arguments.entry(&token).map_err(|error| error.to_string())
        };
        assert_eq!(
            entry("orders", &[Scope::Submit, Scope::Read], "acme: 1").unwrap(),
            format!(
                "- name: \"orders\"\n  sha256: \"{}\"\n  scopes: [submit, read]\n  tenant: \"acme: 1\"",
                "ab".repeat(32)
            )
        );
        for (name, scopes, tenant, refused) in [
            ("", &[Scope::Read][..], "*", "--name must be"),
            ("a b", &[Scope::Read], "*", "--name must be"),
            ("a", &[Scope::Read], "", "--tenant must name"),
            (
                "a",
                &[Scope::Admin],
                "acme",
                "--scopes and --agents: a token with the scope admin",
            ),
        ] {
            let error = entry(name, scopes, tenant).unwrap_err();
            assert!(error.starts_with(refused), "{error}");
        }
    }

    #[test]
    fn a_token_requires_a_tenant_or_all_tenants() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            create: CreateArgs,
        }
        let tenant = |flags: &str| {
            let line = format!("create --name a --scopes read {flags}");
            let parsed = <Line as clap::Parser>::try_parse_from(line.split_whitespace());
            let parsed = parsed.map_err(|error| error.to_string());
            parsed.map(|line| line.create.whose.tenant().to_owned())
        };
        assert_eq!(tenant("--tenant acme").unwrap(), "acme");
        assert_eq!(tenant("--all-tenants").unwrap(), "*");
        for flags in ["", "--tenant acme --all-tenants"] {
            let refused = tenant(flags).unwrap_err();
            for flag in ["--tenant", "--all-tenants"] {
                assert!(refused.contains(flag), "{flags}: {refused}");
            }
        }
    }
}
