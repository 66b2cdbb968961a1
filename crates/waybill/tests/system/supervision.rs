//! Supervision from outside: services that fail, hang, refuse and become unreachable, with
//! processes that are killed. In the end every accepted delivery has ended or is parked, and the
//! services' ledger balances.

mod audit;
mod faults;
mod outage;
mod parked;

use waybill_test_support::supervision::ends::Ends;
use waybill_test_support::supervision::setting::{SERVICES, Setting, replaced};
