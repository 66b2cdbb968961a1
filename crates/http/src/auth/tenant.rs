//! Valid names of tenants.

use waybill_telemetry::visible::is_name;

/// The longest name of a tenant, in characters.
const TENANT_CHARS_MAX: usize = 256;

/// Checks the name of a tenant.
///
/// # Errors
///
/// If the name is invalid: why.
pub fn check_tenant(tenant: &str) -> Result<(), String> {
    if tenant.chars().count() > TENANT_CHARS_MAX || !is_name(tenant) {
        return Err(format!(
            "must be at most {TENANT_CHARS_MAX} visible characters, with single spaces between words, and no word may begin \
             with a combining mark"
        ));
    }
    Ok(())
}
