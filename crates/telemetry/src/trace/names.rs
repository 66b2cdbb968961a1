//! Names of attributes: OpenTelemetry's where its conventions define one
//! (<https://opentelemetry.io/docs/specs/semconv/>); Waybill's own begin with `waybill.`.

/// The messaging system: `kafka`.
pub const MESSAGING_SYSTEM: &str = "messaging.system";
/// The operation on a message: `send` or `process`.
pub const MESSAGING_OPERATION: &str = "messaging.operation.type";
/// The topic.
pub const MESSAGING_DESTINATION: &str = "messaging.destination.name";
/// The partition, as a text.
pub const MESSAGING_PARTITION: &str = "messaging.destination.partition.id";
/// The offset.
pub const MESSAGING_OFFSET: &str = "messaging.kafka.offset";
/// The request's method.
pub const HTTP_METHOD: &str = "http.request.method";
/// The route of the request.
pub const HTTP_ROUTE: &str = "http.route";
/// The status of the response.
pub const HTTP_STATUS: &str = "http.response.status_code";
/// The host of the request.
pub const SERVER_ADDRESS: &str = "server.address";
/// Its port.
pub const SERVER_PORT: &str = "server.port";
/// The error, as a stable code.
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
/// The action of the attempt: `Run`, `Compensate` or `Probe`.
pub const ACTION: &str = "waybill.action";
/// The number of the attempt at the step.
pub const ATTEMPT: &str = "waybill.attempt";
/// The outcome of the attempt.
pub const OUTCOME: &str = "waybill.outcome";
