//! Names of attributes: OpenTelemetry's where its conventions have one
//! (<https://opentelemetry.io/docs/specs/semconv/>), ours begin with `waybill.`.

/// What carries messages: `kafka`.
pub const MESSAGING_SYSTEM: &str = "messaging.system";
/// What is done with a message: `send` or `process`.
pub const MESSAGING_OPERATION: &str = "messaging.operation.type";
/// The topic.
pub const MESSAGING_DESTINATION: &str = "messaging.destination.name";
/// The partition, as a text.
pub const MESSAGING_PARTITION: &str = "messaging.destination.partition.id";
/// The offset.
pub const MESSAGING_OFFSET: &str = "messaging.kafka.offset";
/// The request's method.
pub const HTTP_METHOD: &str = "http.request.method";
/// The kind of address that was asked for.
pub const HTTP_ROUTE: &str = "http.route";
/// The answer's status.
pub const HTTP_STATUS: &str = "http.response.status_code";
/// The host that was asked.
pub const SERVER_ADDRESS: &str = "server.address";
/// Its port.
pub const SERVER_PORT: &str = "server.port";
/// What went wrong: a stable code.
pub const ERROR_TYPE: &str = "error.type";
/// The operation's id.
pub const OPERATION: &str = "waybill.operation.id";
/// The operation's workflow.
pub const WORKFLOW: &str = "waybill.workflow";
/// The operation's tenant.
pub const TENANT: &str = "waybill.tenant";
/// The operation's state.
pub const STATE: &str = "waybill.state";
/// The step.
pub const STEP: &str = "waybill.step";
/// The agent.
pub const AGENT: &str = "waybill.agent";
/// What the attempt does: `Run`, `Compensate` or `Probe`.
pub const ACTION: &str = "waybill.action";
/// The number of the attempt at the step.
pub const ATTEMPT: &str = "waybill.attempt";
/// How the attempt ended.
pub const OUTCOME: &str = "waybill.outcome";
