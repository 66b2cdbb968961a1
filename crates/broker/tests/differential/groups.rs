//! Consumer groups: members, commits, and what operators see.

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest,
    SyncGroupRequest,
};

use crate::common::topic_name;
use crate::{Client, Different, code, compare, text};

#[tokio::test]
async fn members_join_and_leave_as_on_kafka() {
    compare(
        ask_as_a_member,
        &[
            Different {
                question: "describing a group without members",
                embedded: r#"("OK", "Empty", "", 0)"#,
                kafka: r#"("OK", "Empty", "consumer", 0)"#,
                because: "only offsets are left of such a group here",
            },
            Different {
                question: "joining with a session of a second",
                embedded: r#""MemberIdRequired""#,
                kafka: r#""InvalidSessionTimeout""#,
                because: "short sessions are for tests; Kafka begins at six seconds",
            },
        ],
    )
    .await;
}

async fn ask_as_a_member(client: &mut Client) {
    client.coordinator("g").await;
    let topic = client.topic("t", 1, &[]).await;
    let request = join(client, "g");
    for (question, request) in [
        ("no group", request.clone().with_group_id(text("").into())),
        ("no time-out", request.clone().with_session_timeout_ms(0)),
        (
            "a session of a second",
            request.clone().with_session_timeout_ms(1_000),
        ),
        (
            "a session of a day",
            request.clone().with_session_timeout_ms(86_400_000),
        ),
        ("no protocols", request.clone().with_protocols(Vec::new())),
        ("its own id", request.clone().with_member_id(text("mine"))),
    ] {
        let answer = client.wire.ask(5, &request).await;
        client.answered(format!("joining with {question}"), code(answer.error_code));
    }

    // A new member gets an id first, and joins with it.
    let answer = client.wire.ask(5, &request).await;
    let given = (
        code(answer.error_code),
        answer.generation_id,
        answer.member_id.is_empty(),
    );
    client.answered("joining again", given);
    let request = request.with_member_id(answer.member_id);
    let joined = client.wire.ask(5, &request).await;
    client.answered(
        "joining with the id given",
        (
            code(joined.error_code),
            joined.generation_id,
            joined.leader == joined.member_id,
            joined.members.len(),
            joined.protocol_name.as_deref(),
        ),
    );
    // The leader has not sent the assignment yet.
    let answer = commit(client, &topic, &joined, joined.generation_id, 1).await;
    client.answered("committing before the assignment", answer);
    let answer = heartbeat(client, &joined, joined.generation_id).await;
    client.answered("a heartbeat before the assignment", answer);

    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(joined.member_id.clone())
        .with_assignment(Bytes::from_static(b"all"));
    let sync = SyncGroupRequest::default()
        .with_group_id(client.group("g"))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(vec![assignment]);
    for (question, request) in [
        ("of another generation", sync.clone().with_generation_id(9)),
        ("of a stranger", sync.clone().with_member_id(text("who"))),
        ("of its leader", sync.clone()),
        (
            "of its leader, repeated",
            sync.clone().with_assignments(Vec::new()),
        ),
    ] {
        let answer = client.wire.ask(3, &request).await;
        client.answered(
            format!("a sync {question}"),
            (code(answer.error_code), answer.assignment),
        );
    }

    for (question, generation) in [
        ("current", joined.generation_id),
        ("older", 0),
        ("later", 9),
    ] {
        let beat = heartbeat(client, &joined, generation).await;
        client.answered(format!("a heartbeat of the {question} generation"), beat);
        let committed = commit(client, &topic, &joined, generation, 2).await;
        client.answered(
            format!("committing in the {question} generation"),
            committed,
        );
    }
    let stranger = joined.clone().with_member_id(text("who"));
    let answer = heartbeat(client, &stranger, joined.generation_id).await;
    client.answered("a heartbeat of a stranger", answer);
    let answer = commit(client, &topic, &stranger, joined.generation_id, 2).await;
    client.answered("committing as a stranger", answer);
    let nobody = joined.clone().with_member_id(text(""));
    let answer = commit(client, &topic, &nobody, -1, 2).await;
    client.answered(
        "committing without a member id while there are members",
        answer,
    );

    let other = join(client, "g").with_protocol_type(text("connect"));
    let answer = client.wire.ask(5, &other).await;
    client.answered("joining with another type", code(answer.error_code));
    let answer = delete_group(client, "g").await;
    client.answered("deleting a group with members", answer);
    let answer = describe(client, "g").await;
    client.answered("describing a group", answer);

    for (question, member) in [
        ("a stranger", text("who")),
        ("a member", joined.member_id.clone()),
    ] {
        let leaver = MemberIdentity::default().with_member_id(member);
        let request = LeaveGroupRequest::default()
            .with_group_id(client.group("g"))
            .with_members(vec![leaver]);
        let answer = client.wire.ask(4, &request).await;
        let of_member = answer.members.first().map(|member| code(member.error_code));
        client.answered(
            format!("{question} leaves"),
            (code(answer.error_code), of_member),
        );
    }
    let answer = describe(client, "g").await;
    client.answered("describing a group without members", answer);
    let answer = commit(client, &topic, &nobody, -1, 3).await;
    client.answered("committing without a member id", answer);
    let answer = commit(client, &topic, &nobody, 4, 3).await;
    client.answered("committing without a member id in a generation", answer);
    let answer = committed(client, "g", &topic).await;
    client.answered("what was committed", answer);
    let answer = delete_group(client, "g").await;
    client.answered("deleting a group", answer);
    let answer = committed(client, "g", &topic).await;
    client.answered("the remaining group", answer);
}

#[tokio::test]
async fn missing_groups_are_answered_as_on_kafka() {
    compare(
        ask_of_nothing,
        &[Different {
            question: "committing as somebody",
            embedded: r#""UnknownMemberId""#,
            kafka: r#""IllegalGeneration""#,
            because: "a client joins again after either",
        }],
    )
    .await;
}

async fn ask_of_nothing(client: &mut Client) {
    client.coordinator("g").await;
    let topic = client.topic("t", 1, &[]).await;
    let unknown = client.name("unknown");
    let nobody = JoinGroupResponse::default();
    let somebody = nobody.clone().with_member_id(text("who"));
    let answer = heartbeat(client, &somebody, 1).await;
    client.answered("a heartbeat", answer);
    let answer = commit(client, &topic, &somebody, 1, 1).await;
    client.answered("committing as somebody", answer);
    let answer = delete_group(client, "g").await;
    client.answered("deleting", answer);
    let answer = describe(client, "g").await;
    client.answered("describing", answer);
    let answer = committed(client, "g", &topic).await;
    client.answered("what was committed", answer);
    let answer = committed(client, "g", &unknown).await;
    client.answered("what was committed for an unknown topic", answer);
    let answer = commit(client, &unknown, &nobody, -1, 1).await;
    client.answered("committing for an unknown topic", answer);
    let leaver = MemberIdentity::default().with_member_id(text("who"));
    let request = LeaveGroupRequest::default()
        .with_group_id(client.group("g"))
        .with_members(vec![leaver]);
    let answer = client.wire.ask(4, &request).await;
    let of_member = answer.members.first().map(|member| code(member.error_code));
    client.answered("leaving", (code(answer.error_code), of_member));
}

fn join(client: &Client, group: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(&[0; 10]));
    JoinGroupRequest::default()
        .with_group_id(client.group(group))
        .with_session_timeout_ms(30_000)
        .with_rebalance_timeout_ms(30_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

async fn heartbeat(client: &mut Client, member: &JoinGroupResponse, generation: i32) -> String {
    let request = HeartbeatRequest::default()
        .with_group_id(client.group("g"))
        .with_generation_id(generation)
        .with_member_id(member.member_id.clone());
    code(client.wire.ask(4, &request).await.error_code)
}

async fn commit(
    client: &mut Client,
    topic: &str,
    member: &JoinGroupResponse,
    generation: i32,
    offset: i64,
) -> String {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1)
        .with_committed_metadata(Some(text("")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(client.group("g"))
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(member.member_id.clone())
        .with_topics(vec![topic]);
    let answer = client.wire.ask(8, &request).await;
    code(answer.topics[0].partitions[0].error_code)
}

/// The group's error, and the partition's with its offset.
async fn committed(
    client: &mut Client,
    group: &str,
    topic: &str,
) -> (String, Option<(String, i64)>) {
    let topic = OffsetFetchRequestTopics::default()
        .with_name(topic_name(topic))
        .with_partition_indexes(vec![0]);
    let wanted = OffsetFetchRequestGroup::default()
        .with_group_id(client.group(group))
        .with_topics(Some(vec![topic]));
    let request = OffsetFetchRequest::default().with_groups(vec![wanted]);
    let answer = client.wire.ask(8, &request).await;
    let group = &answer.groups[0];
    let partition = group.topics.first().map(|topic| &topic.partitions[0]);
    let of_partition =
        partition.map(|partition| (code(partition.error_code), partition.committed_offset));
    (code(group.error_code), of_partition)
}

async fn delete_group(client: &mut Client, group: &str) -> String {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![client.group(group)]);
    code(client.wire.ask(2, &request).await.results[0].error_code)
}

async fn describe(client: &mut Client, group: &str) -> (String, String, String, usize) {
    let request = DescribeGroupsRequest::default().with_groups(vec![client.group(group)]);
    let answer = client.wire.ask(5, &request).await;
    let group = &answer.groups[0];
    (
        code(group.error_code),
        group.group_state.to_string(),
        group.protocol_type.to_string(),
        group.members.len(),
    )
}
