//! The required scopes in the document, taken from the routes themselves.

use hyper::Method;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr};
use waybill_api::form::Forms;
use waybill_http::problem::Kind;

use super::refuse;
use crate::route::Route;

/// The name of the only security scheme.
const BEARER: &str = "bearer";

const ABOUT: &str = "A token of this server, or a JWT that it accepts. A token has scopes \
                     (`submit`, `read`, `repair`, `admin`) for one tenant or for all. Operations \
                     of other tenants are not found.";

/// Adds to each operation of the document its scope, and the refusals of callers without it.
pub(super) fn secure(document: &mut OpenApi, forms: &Forms) {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(ABOUT))
        .build();
    if let Some(components) = &mut document.components {
        let schemes = &mut components.security_schemes;
        schemes.insert(BEARER.to_owned(), RefOr::T(SecurityScheme::Http(scheme)));
    }
    each(document, |path, method, operation| {
        if let Some(scope) = Route::of(path, forms).scope(&method) {
            let needs = SecurityRequirement::new(BEARER, [scope.as_str()]);
            operation.security = Some(vec![needs]);
            refuse(operation, &[Kind::Unauthenticated, Kind::InsufficientScope]);
        }
    });
}

/// Adds to each operation of the document the refusals of web pages that use their own host name or
/// another origin.
pub(super) fn stay_local(document: &mut OpenApi) {
    each(document, |_, method, operation| {
        refuse(operation, &[Kind::UnknownHost]);
        if method != Method::GET {
            refuse(operation, &[Kind::ForeignOrigin]);
        }
    });
}

fn each(document: &mut OpenApi, change: impl Fn(&str, Method, &mut Operation)) {
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in [
            (Method::GET, &mut item.get),
            (Method::POST, &mut item.post),
            (Method::PATCH, &mut item.patch),
            (Method::DELETE, &mut item.delete),
        ] {
            if let Some(operation) = operation {
                change(path, method, operation);
            }
        }
    }
}
