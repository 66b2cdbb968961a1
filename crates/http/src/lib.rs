//! The server kit of every HTTP listener: connections and their limits, request heads, TLS,
//! callers.
//!
//! A [`Server`] accepts connections within its [limits](ServerLimits), encrypts them if [`Tls`] is
//! on, checks every HTTP/1 request head in a [`gate`](Gate) before the parser sees it, gives each
//! request an [id](RequestId), and passes it to a [`Service`]. [`Hosts`] determines which hosts a
//! listener answers for, and [`Cors`] which pages of other origins may use it. [`auth`]
//! authenticates callers by their tokens, and [`problem`] has the answers that refuse a request.
//!
//! What must hold: clients that connect and send little or nothing keep no other client out; memory
//! per connection is bounded; and a request that two readers could frame differently is refused.
//!
//! Deliberately absent: routes, and the scope that each route needs.

pub mod auth;
mod body;
mod cors;
mod gate;
mod hosts;
pub mod json;
pub mod limits;
pub mod media_type;
mod meter;
pub mod payload;
pub mod problem;
mod request_id;
mod server;
mod tls;

pub use body::{ArrivingBody, RequestBody};
pub use cors::{ANY_ORIGIN, BadOrigin, Cors, ORIGINS_MAX, check_origin};
pub use gate::{Gate, GateLimits, HEADERS_LIMIT_MAX, Refusal};
pub use hosts::{Foreign, Hosts, is_from_page};
pub use meter::{METRICS, RefusalMeter};
pub use request_id::{RequestId, X_REQUEST_ID};
pub use server::{REQUESTS_PER_CONNECTION_MAX, Server, ServerLimits, Service};
pub use tls::{Tls, TlsConfig};
pub use waybill_tls::{FileRefused, Stream, reread};
