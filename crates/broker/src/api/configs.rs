//! The settings of topics, read and changed.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::{Call, Refusal, each_once, outcome};
use crate::TopicConfig;
use crate::server::{NODE, Server};
use crate::topic_config::NAMES;
use crate::topics::TopicError;

const RESOURCE_TOPIC: i8 = 2;
const RESOURCE_BROKER: i8 = 4;
/// The value was set for this topic.
pub(super) const SOURCE_TOPIC: i8 = 1;
/// The value is the broker's default.
pub(super) const SOURCE_DEFAULT: i8 = 5;
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;
const TYPE_STRING: i8 = 2;
const TYPE_LONG: i8 = 5;

/// The settings of topics. The broker's own are in its configuration, not here.
pub(super) fn describe(call: &Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let with_synonyms = request.include_synonyms;
    let resources = each_once(request.resources, |resource| {
        (resource.resource_type, resource.resource_name.clone())
    });
    let results = resources.into_iter().map(|resource| {
        let described = describe_one(call, with_synonyms, &resource);
        let (code, message) = outcome(&described);
        DescribeConfigsResult::default()
            .with_error_code(code)
            .with_error_message(message)
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name)
            .with_configs(described.unwrap_or_default())
    });
    let results = results.collect();
    DescribeConfigsResponse::default().with_results(results)
}

fn describe_one(
    call: &Call,
    with_synonyms: bool,
    resource: &DescribeConfigsResource,
) -> Result<Vec<DescribeConfigsResourceResult>, Refusal> {
    let (server, version) = (&*call.server, call.head.version);
    if resource.resource_type == RESOURCE_BROKER && *resource.resource_name == *NODE.to_string() {
        return Ok(Vec::new());
    }
    if resource.resource_type == RESOURCE_TOPIC {
        call.may_see(&resource.resource_name)
            .map_err(|error| Refusal::new(error, "the login does not allow this topic"))?;
    }
    let config = topic_config(server, resource.resource_type, &resource.resource_name)?;
    let wanted = |name: &&&str| match &resource.configuration_keys {
        Some(keys) => keys.iter().any(|key| **key == ***name),
        None => true,
    };
    let described = NAMES.iter().filter(wanted).map(|name| {
        let value = config.get(name);
        let default = server.config.topic_defaults.get(name);
        let source = if value == default {
            SOURCE_DEFAULT
        } else {
            SOURCE_TOPIC
        };
        let synonym = |value: &Option<String>, source| {
            DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(value.clone().map(StrBytes::from_string))
                .with_source(source)
        };
        let mut synonyms = Vec::new();
        if with_synonyms {
            if source == SOURCE_TOPIC {
                synonyms.push(synonym(&value, SOURCE_TOPIC));
            }
            synonyms.push(synonym(&default, SOURCE_DEFAULT));
        }
        let described = DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(value.map(StrBytes::from_string))
            .with_config_source(source)
            .with_synonyms(synonyms);
        let value_type = if *name == "cleanup.policy" {
            TYPE_STRING
        } else {
            TYPE_LONG
        };
        if version >= 3 {
            described.with_config_type(value_type)
        } else {
            described
        }
    });
    Ok(described.collect())
}

/// Changes settings of topics. Blocks.
pub(super) fn alter(
    call: &Call,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let validate_only = request.validate_only;
    let responses = request.resources.into_iter().map(|resource| {
        let altered = call
            .may_administer(ResponseError::TopicAuthorizationFailed)
            .and_then(|()| alter_one(&call.server, &resource, validate_only));
        let (code, message) = outcome(&altered);
        AlterConfigsResourceResponse::default()
            .with_error_code(code)
            .with_error_message(message)
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name)
    });
    let responses = responses.collect();
    IncrementalAlterConfigsResponse::default().with_responses(responses)
}

fn alter_one(
    server: &Server,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refusal> {
    let mut config = topic_config(server, resource.resource_type, &resource.resource_name)?;
    let defaults = &server.config.topic_defaults;
    for setting in &resource.configs {
        let value = match setting.config_operation {
            OPERATION_SET => setting.value.as_deref(),
            OPERATION_DELETE => None,
            _ => {
                return Err(Refusal::new(
                    ResponseError::InvalidConfig,
                    "topic settings are not lists: set or delete the setting",
                ));
            }
        };
        config
            .set(&setting.name, value, defaults)
            .map_err(|error| Refusal::new(ResponseError::InvalidConfig, error.to_string()))?;
    }
    if validate_only {
        return Ok(());
    }
    Ok(server.topics.configure(&resource.resource_name, config)?)
}

fn topic_config(server: &Server, resource_type: i8, name: &str) -> Result<TopicConfig, Refusal> {
    if resource_type != RESOURCE_TOPIC {
        return Err(Refusal::new(
            ResponseError::InvalidRequest,
            "this broker supports only settings of topics",
        ));
    }
    Ok(server.topics.get(name).ok_or(TopicError::Unknown)?.config)
}
