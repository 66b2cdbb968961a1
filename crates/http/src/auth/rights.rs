//! The rights that the claims of a JWT give.
//!
//! They come from the groups of its subject, which the configuration maps to scopes and tenants;
//! or, without such a mapping, from a claim with the scopes and one with the tenant.
//!
//! What must hold: groups never give a scope for a tenant that none of them has it for. The groups
//! of one token therefore give rights for the same tenants, or none at all.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Denied, JwtConfig, Scope, Scopes, Tenants};
use waybill_tls::reread::FileRefused;

/// How claims are read as rights.
#[derive(Debug)]
pub(super) struct RightsRules {
    tenant_claim: String,
    scope_claim: String,
    groups: Option<Groups>,
}

/// The rights of groups.
#[derive(Debug)]
struct Groups {
    /// The name of the claim, or a JSON pointer.
    claim: String,
    rights: BTreeMap<String, GroupRights>,
}

#[derive(Debug)]
struct GroupRights {
    scopes: Vec<Scope>,
    /// `None` for the tenant that the token names.
    tenants: Option<Tenants>,
}

const NO_TENANT: Denied = Denied::BadToken("The token names no tenant.");
const NO_GROUP: Denied =
    Denied::Groups("No group of the token has rights here (auth.jwt.groups lists those that do).");
const SEVERAL_TENANTS: Denied = Denied::Groups(
    "The groups of the token have rights for different tenants; those of one token must be for \
     the same tenant, or all for all tenants.",
);

type Claims = Map<String, Value>;

impl RightsRules {
    pub(super) fn new(config: &JwtConfig) -> Result<Self, FileRefused> {
        let mut rights = BTreeMap::new();
        for (name, group) in &config.groups {
            let tenants = group.tenants().map_err(|problem| FileRefused {
                key: "auth.jwt.groups".into(),
                problem: format!("{name}: {problem}"),
            })?;
            let scopes = group.scopes.clone();
            rights.insert(name.clone(), GroupRights { scopes, tenants });
        }
        Ok(Self {
            tenant_claim: config.tenant_claim.clone(),
            scope_claim: config.scope_claim.clone(),
            groups: (!rights.is_empty()).then(|| Groups {
                claim: config.groups_claim.clone(),
                rights,
            }),
        })
    }

    /// The rights that these claims give.
    pub(super) fn of(&self, claims: &Claims) -> Result<(Scopes, Tenants), Denied> {
        match &self.groups {
            Some(groups) => groups.rights(claims, || self.tenants(claims)),
            None => Ok((self.scopes(claims), self.tenants(claims)?)),
        }
    }

    fn scopes(&self, claims: &Claims) -> Scopes {
        match claims.get(&self.scope_claim) {
            Some(Value::String(scopes)) => scopes.split(' ').filter_map(Scope::named).collect(),
            Some(Value::Array(scopes)) => scopes
                .iter()
                .filter_map(|scope| Scope::named(scope.as_str()?))
                .collect(),
            // A token without scopes is valid. The error for the missing scope is clearer.
            _ => Scopes::default(),
        }
    }

    fn tenants(&self, claims: &Claims) -> Result<Tenants, Denied> {
        let named = claims.get(&self.tenant_claim).and_then(Value::as_str);
        let tenants = named.and_then(|tenant| Tenants::named(tenant).ok());
        tenants.ok_or(NO_TENANT)
    }
}

impl Groups {
    fn rights(
        &self,
        claims: &Claims,
        named_tenants: impl Fn() -> Result<Tenants, Denied>,
    ) -> Result<(Scopes, Tenants), Denied> {
        let mut scopes = Vec::new();
        let mut tenants = None;
        for name in self.names(claims) {
            let Some(group) = self.rights.get(name) else {
                continue;
            };
            let of_group = group.tenants.clone().map_or_else(&named_tenants, Ok)?;
            if tenants.get_or_insert_with(|| of_group.clone()) != &of_group {
                return Err(SEVERAL_TENANTS);
            }
            scopes.extend(&group.scopes);
        }
        let tenants = tenants.ok_or(NO_GROUP)?;
        Ok((scopes.into_iter().collect(), tenants))
    }

    /// The groups that the claims name: a list, or a single name.
    fn names<'a>(&self, claims: &'a Claims) -> Vec<&'a str> {
        match self.claim(claims) {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    fn claim<'a>(&self, claims: &'a Claims) -> Option<&'a Value> {
        let Some(path) = self.claim.strip_prefix('/') else {
            return claims.get(&self.claim);
        };
        let end = path.find('/').unwrap_or(path.len());
        let (first, rest) = path.split_at(end);
        let first = first.replace("~1", "/").replace("~0", "~");
        claims.get(&first)?.pointer(rest)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::GroupConfig;

    fn group(name: &str, scopes: &[Scope], tenant: Option<&str>) -> (String, GroupConfig) {
        let group = GroupConfig {
            scopes: scopes.to_vec(),
            tenant: tenant.map(str::to_owned),
        };
        (name.to_owned(), group)
    }

    fn rules(claim: &str) -> RightsRules {
        let config = JwtConfig {
            groups_claim: claim.to_owned(),
            groups: BTreeMap::from([
                group("operators", &[Scope::Read, Scope::Repair], Some("*")),
                group("admins", &[Scope::Admin], Some("*")),
                group("acme", &[Scope::Submit], Some("acme")),
                group("acme readers", &[Scope::Read], Some("acme")),
                group("toys", &[Scope::Submit], Some("toyland")),
                group("users", &[Scope::Read], None),
            ]),
            ..JwtConfig::default()
        };
        RightsRules::new(&config).unwrap()
    }

    fn rights(claim: &str, claims: Value) -> Result<(Scopes, Tenants), Denied> {
        rules(claim).of(claims.as_object().unwrap())
    }

    fn given(scopes: &[Scope], tenant: &str) -> Result<(Scopes, Tenants), Denied> {
        let tenants = Tenants::named(tenant).unwrap();
        Ok((scopes.iter().copied().collect(), tenants))
    }

    #[test]
    fn groups_give_the_scopes_of_all_of_them_for_their_tenant() {
        use Scope::{Admin, Read, Repair, Submit};
        for (groups, expected) in [
            (json!(["operators"]), given(&[Read, Repair], "*")),
            (json!("operators"), given(&[Read, Repair], "*")),
            (
                json!(["admins", "others", "operators", 7, null]),
                given(&[Read, Repair, Admin], "*"),
            ),
            (
                json!(["acme", "acme readers"]),
                given(&[Submit, Read], "acme"),
            ),
            (json!(["users"]), given(&[Read], "acme")),
            (json!(["users", "acme"]), given(&[Read, Submit], "acme")),
        ] {
            let claims = json!({"groups": groups, "tenant": "acme"});
            assert_eq!(rights("groups", claims), expected, "{groups}");
        }
    }

    #[test]
    fn a_token_without_a_mapped_group_has_no_rights() {
        for groups in [
            json!(null),
            json!([]),
            json!(["others"]),
            json!("acme toys"),
            json!(["OPERATORS", "operators ", "/operators"]),
            json!({"operators": true}),
            json!([["operators"]]),
            json!(true),
        ] {
            let claims = json!({"groups": groups, "scope": "read admin", "tenant": "*"});
            assert_eq!(rights("groups", claims), Err(NO_GROUP), "{groups}");
        }
        let claims = json!({"scope": "read admin", "tenant": "*"});
        assert_eq!(rights("groups", claims), Err(NO_GROUP));
        let claims = json!({"groups": ["users"]});
        assert_eq!(rights("groups", claims), Err(NO_TENANT));
    }

    #[test]
    fn groups_of_different_tenants_give_no_rights() {
        for groups in [
            ["acme", "toys"],
            ["operators", "acme"],
            ["users", "operators"],
        ] {
            let claims = json!({"groups": groups, "tenant": "acme"});
            assert_eq!(rights("groups", claims), Err(SEVERAL_TENANTS), "{groups:?}");
        }
    }

    #[test]
    fn the_claim_with_the_groups_is_named_or_pointed_to() {
        let claims = json!({
            "realm_access": {"roles": ["operators"]},
            "https://waybill.example/groups": ["operators"],
            "a/b": {"c~d": [{"roles": "operators"}]},
        });
        for (claim, is_found) in [
            ("/realm_access/roles", true),
            ("https://waybill.example/groups", true),
            ("/a~1b/c~0d/0/roles", true),
            ("realm_access", false),
            ("/realm_access", false),
            ("/realm_access/roles/0/x", false),
            ("/nothing/roles", false),
            ("/", false),
        ] {
            let rights = rights(claim, claims.clone());
            assert_eq!(rights.is_ok(), is_found, "{claim}: {rights:?}");
        }
    }

    #[test]
    fn without_a_mapping_the_token_names_its_scopes() {
        let rules = RightsRules::new(&JwtConfig::default()).unwrap();
        let claims = json!({"groups": ["operators"], "scope": "read", "tenant": "acme"});
        let rights = rules.of(claims.as_object().unwrap());
        assert_eq!(rights, given(&[Scope::Read], "acme"));
    }
}
