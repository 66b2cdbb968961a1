//! What each request does. Requests are translated here; the work is done by the logs, the
//! registry of topics and the groups.

mod commits;
mod configs;
mod fetch;
mod groups;
mod metadata;
mod offsets;
mod produce;
mod topics;

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};

pub(crate) use self::fetch::LongPoll;
use crate::access::{Action, Login, Rights};
use crate::frame::{Frame, Pending};
use crate::server::{Ends, Server};
use crate::stats::add;
use waybill_wire::{self as wire, APIS, Head, Malformed, OK};

/// The key of produce requests.
pub(crate) const PRODUCE: i16 = ApiKey::Produce as i16;
/// A field for authorised operations that were not asked for, or are not known.
const NO_OPERATIONS: i32 = i32::MIN;

/// Requests that are longer are handled on a thread for work that blocks.
const SHORT_REQUEST_BYTES: usize = 16 << 10;

/// Whether memory for a request is counted until its answer is sent. Not for records to be written,
/// and not for members that wait for their group.
pub(crate) fn is_control(key: i16) -> bool {
    let others = [ApiKey::Produce, ApiKey::JoinGroup, ApiKey::SyncGroup];
    !others.iter().any(|other| *other as i16 == key)
}

/// How a request is answered.
pub(crate) enum Reply {
    /// Not at all.
    None,
    /// With these bytes.
    Now(Bytes),
    /// When this is done; later requests are handled in the meantime.
    Later(Pending),
    /// Like `Later`. Meanwhile only this much of the request is kept.
    LaterKeeping { answer: Pending, kept_bytes: usize },
    /// When this is done; later requests are not handled before.
    Exclusive(Pending),
}

/// A request on its way: everything but its body.
pub(crate) struct Call {
    server: Arc<Server>,
    ends: Ends,
    head: Head,
    /// `None` if everything is allowed.
    rights: Option<Arc<dyn Rights>>,
}

/// Handles one request.
pub(crate) fn handle(
    server: &Arc<Server>,
    ends: Ends,
    long_poll: &Arc<LongPoll>,
    login: &mut Login,
    mut frame: Bytes,
) -> Result<Reply, Malformed> {
    // An ApiVersions request that is too new has a header that may be unknown too; its answer is
    // in version 0, which every client understands.
    if let Some((key, version)) = wire::peek(&frame)
        && key == ApiKey::ApiVersions as i16
        && !(0..=API_VERSIONS_MAX).contains(&version)
    {
        let correlation_id = frame.get(4..8).and_then(|b| b.first_chunk().copied());
        let correlation_id = i32::from_be_bytes(correlation_id.ok_or(Malformed::Header)?);
        let head = Head {
            key,
            version,
            correlation_id,
        };
        let answer = api_versions(ResponseError::UnsupportedVersion.code());
        return head.answer_in(&answer, 0).map(Reply::Now);
    }
    let (head, client_id) = Head::read(&mut frame)?;
    let Some(api) = wire::api(head.key).filter(|api| (api.min..=api.max).contains(&head.version))
    else {
        return refuse(&head).map(Reply::Now);
    };
    if login.is_refused() || login.is_awaited() && !BEFORE_LOGIN.contains(&api.key) {
        return Err(Malformed::NotLoggedIn { key: head.key });
    }
    let call = Call {
        server: Arc::clone(server),
        ends,
        head,
        rights: login.rights().map(Arc::clone),
    };
    let head = &call.head;
    let bytes = frame.len();
    match api.key {
        ApiKey::SaslHandshake => call.now(&login.handshake(&head.decode(api, frame)?)),
        ApiKey::SaslAuthenticate => {
            let answer = login.authenticate(
                server.logins(ends),
                &server.login_secret,
                &head.decode(api, frame)?,
            );
            if login.is_refused() {
                add(&server.counters.logins_refused, 1);
                let reason = answer.error_message.as_deref().unwrap_or_default();
                tracing::warn!(peer = %ends.peer.ip(), reason, "a login was refused");
            }
            call.now(&answer)
        }
        ApiKey::Produce => produce::produce(call.clone_parts(), head.decode(api, frame)?),
        ApiKey::Fetch => fetch::fetch(
            call.clone_parts(),
            Arc::clone(long_poll),
            head.decode(api, frame)?,
        ),
        ApiKey::ListOffsets => {
            let (version, request) = (head.version, head.decode(api, frame)?);
            match offsets::reads_much(&request) {
                true => call.blocking(move |call| offsets::list_offsets(call, version, request)),
                false => call.answer(bytes, move |call| {
                    offsets::list_offsets(call, version, request)
                }),
            }
        }
        ApiKey::Metadata => metadata::metadata(&call, bytes, head.decode(api, frame)?),
        ApiKey::OffsetCommit => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| commits::commit(call, request))
        }
        ApiKey::OffsetFetch => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| commits::committed(call, request))
        }
        ApiKey::FindCoordinator => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| metadata::find_coordinator(call, request))
        }
        ApiKey::JoinGroup => groups::join(call.clone_parts(), &client_id, head.decode(api, frame)?),
        ApiKey::Heartbeat => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| groups::heartbeat(call, &request))
        }
        ApiKey::LeaveGroup => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| groups::leave(call, request))
        }
        ApiKey::SyncGroup => groups::sync(call.clone_parts(), head.decode(api, frame)?),
        ApiKey::DescribeGroups => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| groups::describe(call, request))
        }
        ApiKey::ListGroups => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| groups::list(call, &request))
        }
        ApiKey::ApiVersions => {
            let _: ApiVersionsRequest = head.decode(api, frame)?;
            call.now(&api_versions(OK))
        }
        ApiKey::CreateTopics => {
            let request = head.decode(api, frame)?;
            call.blocking(|call| topics::create(call, request))
        }
        ApiKey::DeleteTopics => {
            let request = head.decode(api, frame)?;
            call.blocking(|call| topics::delete(call, request))
        }
        ApiKey::DeleteRecords => {
            let request = head.decode(api, frame)?;
            call.blocking(|call| offsets::delete_records(call, request))
        }
        ApiKey::InitProducerId => {
            let request = head.decode(api, frame)?;
            call.blocking(move |call| produce::init_producer_id(call, &request))
        }
        ApiKey::OffsetForLeaderEpoch => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| {
                offsets::offset_for_leader_epoch(call, request)
            })
        }
        ApiKey::DescribeConfigs => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| configs::describe(call, request))
        }
        ApiKey::CreatePartitions => {
            let request = head.decode(api, frame)?;
            call.blocking(|call| topics::create_partitions(call, request))
        }
        ApiKey::DeleteGroups => {
            let request = head.decode(api, frame)?;
            call.answer(bytes, move |call| groups::delete(call, request))
        }
        ApiKey::IncrementalAlterConfigs => {
            let request = head.decode(api, frame)?;
            call.blocking(|call| configs::alter(call, request))
        }
        ApiKey::DescribeCluster => {
            let _: DescribeClusterRequest = head.decode(api, frame)?;
            call.now(&metadata::describe_cluster(server, ends, head.version))
        }
        _ => refuse(head).map(Reply::Now),
    }
}

impl Call {
    fn clone_parts(&self) -> Self {
        Self {
            server: Arc::clone(&self.server),
            ends: self.ends,
            head: self.head.clone(),
            rights: self.rights.clone(),
        }
    }

    /// Whether the login of the connection may do this. Counts denials.
    fn may(&self, action: Action<'_>) -> bool {
        let allowed = self.sees(action);
        if !allowed {
            add(&self.server.counters.unauthorized, 1);
        }
        allowed
    }

    /// Like [`Self::may`], but counts no denial: for lists, which leave out entries that the login
    /// does not allow.
    fn sees(&self, action: Action<'_>) -> bool {
        let rights = self.rights.as_ref();
        rights.is_none_or(|rights| rights.allow(action))
    }

    /// Whether the login may know that a topic exists.
    fn sees_topic(&self, topic: &str) -> bool {
        self.sees(Action::Read(topic)) || self.sees(Action::Write(topic))
    }

    /// Like [`Self::sees_topic`], for a topic that the client named.
    fn may_see(&self, topic: &str) -> Result<(), ResponseError> {
        let allowed = self.sees_topic(topic);
        if !allowed {
            add(&self.server.counters.unauthorized, 1);
        }
        allowed
            .then_some(())
            .ok_or(ResponseError::TopicAuthorizationFailed)
    }

    fn may_read(&self, topic: &str) -> Result<(), ResponseError> {
        self.may(Action::Read(topic))
            .then_some(())
            .ok_or(ResponseError::TopicAuthorizationFailed)
    }

    fn may_use_group(&self, group: &str) -> Result<(), ResponseError> {
        self.may(Action::Group(group))
            .then_some(())
            .ok_or(ResponseError::GroupAuthorizationFailed)
    }

    /// Whether the login may administer the broker; a refusal carries `error`.
    fn may_administer(&self, error: ResponseError) -> Result<(), Refusal> {
        match self.may(Action::Administer) {
            true => Ok(()),
            false => Err(Refusal::new(error, "the login does not allow this")),
        }
    }

    fn now<R: Encodable + HeaderVersion>(&self, answer: &R) -> Result<Reply, Malformed> {
        self.head.answer(answer).map(Reply::Now)
    }

    /// Answers a request of `bytes` bytes with the result of `work`.
    fn answer<R, W>(&self, bytes: usize, work: W) -> Result<Reply, Malformed>
    where
        R: Encodable + HeaderVersion + Send + 'static,
        W: FnOnce(&Call) -> R + Send + 'static,
    {
        match bytes <= SHORT_REQUEST_BYTES {
            true => self.now(&work(self)),
            false => self.blocking(work),
        }
    }

    /// Answers with the result of `work`, which may block on the disk.
    fn blocking<R, W>(&self, work: W) -> Result<Reply, Malformed>
    where
        R: Encodable + HeaderVersion + Send + 'static,
        W: FnOnce(&Call) -> R + Send + 'static,
    {
        let call = self.clone_parts();
        let work = tokio::task::spawn_blocking(move || {
            let answer = work(&call);
            call.head.answer(&answer)
        });
        let (key, version) = (self.head.key, self.head.version);
        Ok(Reply::Exclusive(Box::pin(async move {
            match work.await {
                Ok(frame) => frame.map(Frame::from),
                Err(error) => Err(Malformed::Answer {
                    key,
                    version,
                    cause: error.to_string(),
                }),
            }
        })))
    }
}

/// The requests that a connection may send before it has logged in.
const BEFORE_LOGIN: [ApiKey; 3] = [
    ApiKey::ApiVersions,
    ApiKey::SaslHandshake,
    ApiKey::SaslAuthenticate,
];

/// The highest version of `ApiVersions` itself.
const API_VERSIONS_MAX: i16 = 4;

fn api_versions(error_code: i16) -> ApiVersionsResponse {
    let keys = APIS.iter().map(|api| {
        ApiVersion::default()
            .with_api_key(api.key as i16)
            .with_min_version(api.advertised_min)
            .with_max_version(api.max)
    });
    ApiVersionsResponse::default()
        .with_error_code(error_code)
        .with_api_keys(keys.collect())
}

/// Answers an unsupported request with the protocol's error, if its answer has a place for one.
/// Otherwise closes the connection, as Kafka does.
fn refuse(head: &Head) -> Result<Bytes, Malformed> {
    let code = ResponseError::UnsupportedVersion.code();
    macro_rules! with_error {
        ($($api:ident => $response:ident),* $(,)?) => {
            match ApiKey::try_from(head.key) {
                $(Ok(ApiKey::$api)
                    if $response::default().compute_size(head.version).is_ok() =>
                {
                    head.answer(&$response::default().with_error_code(code))
                })*
                _ => Err(Malformed::Unsupported { key: head.key, version: head.version }),
            }
        };
    }
    with_error! {
        AddOffsetsToTxn => AddOffsetsToTxnResponse,
        ConsumerGroupHeartbeat => ConsumerGroupHeartbeatResponse,
        DescribeAcls => DescribeAclsResponse,
        DescribeCluster => DescribeClusterResponse,
        DescribeUserScramCredentials => DescribeUserScramCredentialsResponse,
        EndTxn => EndTxnResponse,
        GetTelemetrySubscriptions => GetTelemetrySubscriptionsResponse,
        Heartbeat => HeartbeatResponse,
        InitProducerId => InitProducerIdResponse,
        JoinGroup => JoinGroupResponse,
        LeaveGroup => LeaveGroupResponse,
        ListGroups => ListGroupsResponse,
        ListTransactions => ListTransactionsResponse,
        PushTelemetry => PushTelemetryResponse,
        SaslAuthenticate => SaslAuthenticateResponse,
        SaslHandshake => SaslHandshakeResponse,
        ShareGroupHeartbeat => ShareGroupHeartbeatResponse,
        SyncGroup => SyncGroupResponse,
    }
}

/// A protocol error and its message.
struct Refusal {
    error: ResponseError,
    message: String,
}

impl Refusal {
    fn new(error: ResponseError, message: impl Into<String>) -> Self {
        Self {
            error,
            message: message.into(),
        }
    }
}

/// The code and message of a result.
fn outcome<T>(result: &Result<T, Refusal>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(_) => (OK, None),
        Err(refusal) => (
            refusal.error.code(),
            Some(StrBytes::from_string(refusal.message.clone())),
        ),
    }
}

/// The items of a request, each once, so that the answer is no longer than the items that exist.
fn each_once<T, K: Hash + Eq>(items: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = HashSet::with_capacity(items.len());
    let mut items = items;
    items.retain(|item| seen.insert(key(item)));
    items
}

/// Whole numbers of the protocol are signed; counts that do not fit are cut.
fn int(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
