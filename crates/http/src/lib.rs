//! The server kit of every HTTP listener: who may connect, how long they may take, and what a request head must be.
//!
//! A [`Server`] accepts connections within its [limits](ServerLimits), encrypts them where [`Tls`] is on, checks every
//! HTTP/1 request head in a [`gate`](Gate) before the parser sees it, and hands requests to a [`Service`]. Which hosts a
//! listener answers for is said by [`Hosts`]. [`auth`] knows callers by their tokens, and [`problem`] has the answers that refuse
//! a request.
//!
//! What must hold: clients that connect and send nothing, or little, keep nobody out; memory per connection is bounded;
//! and what two readers of a request could frame differently is refused.
//!
//! Deliberately absent: routes, and which scope each of them needs.

pub mod auth;
mod body;
mod gate;
mod hosts;
pub mod json;
mod meter;
pub mod payload;
pub mod problem;
pub mod reread;
mod server;
mod tls;

pub use body::{ArrivingBody, RequestBody};
pub use gate::{Gate, GateLimits, HEADERS_LIMIT_MAX, Refusal};
pub use hosts::{Foreign, Hosts, is_from_page};
pub use meter::{METRICS, RefusalMeter};
pub use reread::FileRefused;
pub use server::{REQUESTS_PER_CONNECTION_MAX, Server, ServerLimits, Service};
pub use tls::{Stream, Tls, TlsConfig};
