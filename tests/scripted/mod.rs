//! A DynamoDB that answers by a script, as it does over the wire.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Config, Credentials, Region};
use aws_smithy_mocks::{MockResponseInterceptor, Rule, create_mock_http_client};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use serde_json::{Value, json};

/// What a client needs besides an endpoint.
pub fn config() -> Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
}

/// A client whose calls the rules answer.
pub fn client(rules: &[Rule]) -> Client {
    let answers =
        rules.iter().fold(MockResponseInterceptor::new(), |answers, rule| answers.with_rule(rule));
    let config = config().http_client(create_mock_http_client()).interceptor(answers);
    Client::from_conf(config.build())
}

/// A reply.
pub fn reply(status: u16, body: &Value) -> HttpResponse {
    HttpResponse::new(StatusCode::try_from(status).unwrap(), SdkBody::from(body.to_string()))
}

/// A reply that is an error.
pub fn fails(status: u16, code: &str, message: &str) -> HttpResponse {
    let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
    reply(status, &json!({ "__type": kind, "message": message }))
}
