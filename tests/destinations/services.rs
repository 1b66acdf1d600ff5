//! Queues, topics and buckets in moto, and what is in them.

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use leasehold_world::moto::{ACCOUNT, Moto};

/// Where everything is. What programs are configured with is another region: an ARN names its own.
const REGION: &str = "us-west-2";

/// The configuration of a program in `region`, with everything at moto's address.
fn aws_in(region: &'static str) -> SdkConfig {
    let credentials = Credentials::new("id", "secret", None, None, "test");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(region))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(Moto::shared().url())
        .build()
}

/// What the program under test is configured with.
pub fn aws() -> SdkConfig {
    aws_in("us-east-1")
}

pub struct Queue {
    pub arn: String,
    url: String,
    client: aws_sdk_sqs::Client,
}

pub struct Message {
    pub body: String,
    pub group: Option<String>,
}

pub async fn queue(name: &str) -> Queue {
    let client = aws_sdk_sqs::Client::new(&aws_in(REGION));
    let mut request = client.create_queue().queue_name(name);
    if name.ends_with(".fifo") {
        request = request.attributes(QueueAttributeName::FifoQueue, "true");
    }
    let url = request.send().await.unwrap().queue_url.unwrap();
    Queue { arn: format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"), url, client }
}

impl Queue {
    /// All that is in the queue, which is empty then.
    pub async fn messages(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let request = self.client.receive_message().queue_url(&self.url);
            let request = request
                .max_number_of_messages(10)
                .message_system_attribute_names(MessageSystemAttributeName::All);
            let received = request.send().await.unwrap().messages.unwrap_or_default();
            if received.is_empty() {
                return messages;
            }
            for message in received {
                let handle = message.receipt_handle.unwrap();
                let request = self.client.delete_message().queue_url(&self.url);
                request.receipt_handle(handle).send().await.unwrap();
                let mut attributes = message.attributes.unwrap_or_default();
                let group = attributes.remove(&MessageSystemAttributeName::MessageGroupId);
                messages.push(Message { body: message.body.unwrap(), group });
            }
        }
    }

    pub async fn bodies(&self) -> Vec<String> {
        self.messages().await.into_iter().map(|message| message.body).collect()
    }
}

/// A topic's ARN; `subscriber` gets what it is told, as it is.
pub async fn topic(name: &str, subscriber: &Queue) -> String {
    let client = aws_sdk_sns::Client::new(&aws_in(REGION));
    let mut request = client.create_topic().name(name);
    if name.ends_with(".fifo") {
        request = request.attributes("FifoTopic", "true");
    }
    let arn = request.send().await.unwrap().topic_arn.unwrap();
    let request = client.subscribe().topic_arn(&arn).protocol("sqs").endpoint(&subscriber.arn);
    request.attributes("RawMessageDelivery", "true").send().await.unwrap();
    arn
}

pub struct Bucket {
    pub arn: String,
    name: String,
    client: aws_sdk_s3::Client,
}

pub struct Object {
    pub key: String,
    pub content_type: String,
    pub body: String,
}

pub async fn bucket(name: &str) -> Bucket {
    let client = aws_sdk_s3::Client::new(&aws());
    client.create_bucket().bucket(name).send().await.unwrap();
    Bucket { arn: format!("arn:aws:s3:::{name}"), name: name.to_owned(), client }
}

impl Bucket {
    /// All that is in the bucket.
    pub async fn objects(&self) -> Vec<Object> {
        let listed = self.client.list_objects_v2().bucket(&self.name).send().await.unwrap();
        let mut objects = Vec::new();
        for key in listed.contents().iter().map(|object| object.key().unwrap().to_owned()) {
            let object = self.client.get_object().bucket(&self.name).key(&key).send();
            let object = object.await.unwrap();
            let content_type = object.content_type.unwrap();
            let body = object.body.collect().await.unwrap().to_vec();
            objects.push(Object { key, content_type, body: String::from_utf8(body).unwrap() });
        }
        objects
    }
}

pub fn missing_queue() -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT}:nowhere")
}

pub fn missing_topic() -> String {
    format!("arn:aws:sns:{REGION}:{ACCOUNT}:nowhere")
}

pub fn missing_bucket() -> String {
    "arn:aws:s3:::nowhere".to_owned()
}
