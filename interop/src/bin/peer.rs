//! A service on `ruststream-kinesis` as its users would write it: one subscription without `start_at`, its leases in
//! DynamoDB. It appends a line per record, of the kind that leasehold's handler `jsonl` writes.
//!
//! Settings, from the environment: `PEER_STREAM`, `PEER_TABLE`, `PEER_OUTPUT` (a file), and AWS's own
//! (`AWS_ENDPOINT_URL_KINESIS`, …). It stops at SIGTERM.

use std::convert::Infallible;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ruststream_kinesis::PARTITION_KEY_HEADER;
use ruststream_kinesis::prelude::*;
use serde_json::json;
use tracing_subscriber::EnvFilter;

/// A record's data as it is: by default a subscription decodes JSON.
struct Data<'a>(&'a [u8]);

impl Deserialized for Data<'_> {
    type Output<'a> = Data<'a>;
    type Error = Infallible;

    fn from_payload(payload: &[u8]) -> Result<Data<'_>, Self::Error> {
        Ok(Data(payload))
    }
}

impl Input for Data<'_> {
    type Axis = SoloDeserialized<Data<'static>>;
}

/// Appends the records to a file.
struct Append {
    stream: String,
    instance: String,
    output: File,
}

impl Append {
    /// One write for one line, so that several processes may append to one file.
    fn append(
        &self,
        shard: &str,
        sequence: &str,
        key: Option<&str>,
        data: &[u8],
    ) -> io::Result<()> {
        // Serialized by hand for its order: readers look for how a line begins.
        let line = format!(
            "{{\"invocation\":{},\"stream\":{},\"shard\":{},\"sequence\":{},\"sub_sequence\":null,\
             \"partition_key\":{},\"arrived_at\":null,\"data\":{}}}\n",
            json!(self.instance),
            json!(self.stream),
            json!(shard),
            json!(sequence),
            json!(key),
            json!(BASE64_STANDARD.encode(data)),
        );
        (&self.output).write_all(line.as_bytes())
    }
}

impl<'d> Handle<Data<'d>, (), (), KinesisContext> for Append {
    async fn handle(
        &self,
        data: &Data<'d>,
        _outs: &(),
        context: &mut Context<'_, KinesisContext>,
    ) -> Result<(), HandlerOutcome> {
        let KinesisPosition::Sequence { shard, sequence } = context.context(Position) else {
            return Err(HandlerOutcome::retry());
        };
        let key = context.headers().get_str(PARTITION_KEY_HEADER);
        self.append(&shard, &sequence, key, data.0).map_err(|_| HandlerOutcome::retry())
    }
}

fn setting(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
    let (stream, table) = (setting("PEER_STREAM")?, setting("PEER_TABLE")?);
    let append = Append {
        stream: stream.clone(),
        instance: format!("peer-{}", std::process::id()),
        output: OpenOptions::new().append(true).create(true).open(setting("PEER_OUTPUT")?)?,
    };
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let leases = Arc::new(DynamoLeaseStore::new(&config, table));
    let broker = KinesisBroker::from_config(config).lease_store(leases);
    let service = RustStream::new(AppInfo::new("peer", "0.1.0")).with_broker(broker, |scope| {
        scope.include(subscriber(KinesisStream::new(stream), append).build());
    });
    service.run().await?;
    Ok(())
}
