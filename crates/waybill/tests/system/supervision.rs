//! Supervision, proved from outside: services that fail, hang, refuse and go away, under processes
//! that are killed. At the end every accepted delivery has ended or waits for a person, and the
//! services' ledger balances.

mod audit;
mod faults;
mod outage;
mod parked;

use waybill_test_support::supervision::ends::Ends;
use waybill_test_support::supervision::setting::{SERVICES, Setting, replaced};
