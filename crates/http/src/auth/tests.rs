use std::path::Path;

use hyper::header::{AUTHORIZATION, HeaderValue};

use super::*;

fn entry(name: &str, token: &NewToken, scopes: &str, tenant: &str) -> String {
    let sha256 = tokens::to_hex(&token.hash);
    format!("- {{name: {name}, sha256: '{sha256}', scopes: [{scopes}], tenant: '{tenant}'}}\n")
}

fn of_file(path: &Path) -> Auth {
    let config = AuthConfig {
        tokens_file: Some(path.to_owned()),
        ..AuthConfig::default()
    };
    Auth::load(&config).unwrap()
}

fn with(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    [(AUTHORIZATION, value)].into_iter().collect()
}

#[test]
fn a_caller_with_a_known_token_has_the_rights_of_its_entry() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let token = NewToken::make();
    std::fs::write(file.path(), entry("orders", &token, "submit", "acme")).unwrap();
    let auth = of_file(file.path());
    let headers = with(token.token.reveal());

    let caller = auth.admit(&headers, Scope::Submit).unwrap();
    assert_eq!(caller.name(), Some("orders"));
    assert!(caller.tenants().include("acme") && !caller.tenants().include(""));
    let refused = |headers: &HeaderMap, scope| auth.admit(headers, scope).unwrap_err();
    assert_eq!(refused(&headers, Scope::Read), Denied::Scope(Scope::Read));
    assert_eq!(refused(&HeaderMap::new(), Scope::Submit), Denied::NoToken);
    let other = NewToken::make();
    assert_eq!(
        refused(&with(other.token.reveal()), Scope::Submit),
        Denied::UNKNOWN_TOKEN
    );
    assert!(!format!("{auth:?} {caller:?}").contains(token.token.reveal()));
}

#[test]
fn changes_of_the_token_file_take_effect() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let [old, new] = [(); 2].map(|()| NewToken::make());
    std::fs::write(file.path(), entry("a", &old, "read", "*")).unwrap();
    let auth = of_file(file.path());
    let known = || {
        auth.authenticator().unwrap().reload();
        [&old, &new].map(|token| auth.caller(&with(token.token.reveal())).is_ok())
    };
    assert_eq!(known(), [true, false]);
    let both = entry("a", &old, "read", "*") + &entry("b", &new, "read", "*");
    std::fs::write(file.path(), &both).unwrap();
    assert_eq!(known(), [true, true]);
    std::fs::write(file.path(), &both[..both.len() - 9]).unwrap();
    assert_eq!(known(), [true, true], "a broken file changes nothing");
    std::fs::write(file.path(), entry("b", &new, "read", "*")).unwrap();
    assert_eq!(known(), [false, true]);
}

#[test]
fn without_authentication_every_caller_may_do_everything() {
    let auth = Auth::load(&AuthConfig::default()).unwrap();
    for scope in Scope::ALL {
        let caller = auth.admit(&HeaderMap::new(), scope).unwrap();
        assert_eq!(caller.tenants(), &Tenants::All);
        assert_eq!(caller.name(), None);
    }
}

#[test]
fn the_internal_token_is_valid_only_in_its_process() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[]").unwrap();
    let [here, elsewhere] = [(); 2].map(|()| of_file(file.path()));
    let token = here.authenticator().unwrap().own_token(Principal {
        name: "samples".into(),
        scopes: [Scope::Submit].into_iter().collect(),
        tenants: Tenants::All,
        agents: std::sync::Arc::default(),
    });
    let headers = with(token.reveal());
    assert!(here.admit(&headers, Scope::Submit).is_ok());
    assert!(here.admit(&headers, Scope::Repair).is_err());
    assert!(elsewhere.caller(&headers).is_err());
}
