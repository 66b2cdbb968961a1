//! The rate limits of tenants.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_api::tenant_limits::{Rate, TenantRates};
use waybill_config::numbers;

/// The `http.tenantLimits` section.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TenantLimitsConfig {
    /// Requests per second of each tenant; requests without a tenant count as one. `null`: no
    /// limit.
    #[serde(deserialize_with = "numbers::at_least_one_if_any")]
    pub per_second: Option<NonZeroU32>,
    /// The largest burst of a tenant, in requests; `null` for as many as in one second.
    #[serde(deserialize_with = "numbers::at_least_one_if_any")]
    pub burst: Option<NonZeroU32>,
    /// The limits of single tenants, by name.
    pub tenants: BTreeMap<String, TenantLimit>,
}

/// The limit of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TenantLimit {
    /// Sustained requests per second.
    #[serde(deserialize_with = "numbers::at_least_one")]
    pub per_second: NonZeroU32,
    /// The largest burst, in requests; `null`: as many as in a second.
    #[serde(default, deserialize_with = "numbers::at_least_one_if_any")]
    pub burst: Option<NonZeroU32>,
}

impl TenantLimit {
    fn rate(self) -> Rate {
        Rate {
            per_second: self.per_second,
            burst: self.burst.unwrap_or(self.per_second),
        }
    }
}

impl TenantLimitsConfig {
    /// The limits in the form that ingestion uses.
    #[must_use]
    pub fn rates(&self) -> TenantRates {
        let each = self.per_second.map(|per_second| TenantLimit {
            per_second,
            burst: self.burst,
        });
        let named = self.tenants.iter();
        TenantRates {
            each: each.map(TenantLimit::rate),
            named: named
                .map(|(tenant, limit)| (tenant.clone(), limit.rate()))
                .collect(),
        }
    }
}
