//! Kinesis as the npm package kinesis-local has it: a process of its own, under Node.
//!
//! It does what the one in process does not: it names `ChildShards`, reports a lag, caps pages and knows
//! `ShardFilter`. It is slow to start, and slow. `tools/bootstrap` puts it, and Node, into `.venv`.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::client;
use crate::kinesis::Kinesis;
use crate::output::Output;

/// Names another folder with `node` and `package/main.js` in it.
const FOLDER: &str = "KINESIS_LOCAL";
/// A port that was free a moment ago may be taken.
const TRIES: u32 = 3;
/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(40);

/// A kinesis-local of its own, empty at the start and killed when dropped.
#[derive(Debug)]
pub struct KinesisLocal {
    /// The service.
    pub kinesis: Kinesis,
    _process: Child,
}

impl KinesisLocal {
    /// Starts one.
    ///
    /// # Panics
    /// If it is not installed, or does not come up.
    pub async fn start() -> Self {
        let folder = folder();
        let mut told = String::new();
        for _ in 0..TRIES {
            let [plain, tls] = [(); 2].map(|()| free_port());
            let (mut process, output) = spawn(&folder, plain, tls);
            let kinesis = Kinesis::at(&format!("http://{}:{plain}", Ipv4Addr::LOCALHOST));
            if is_up(&mut process, &kinesis).await {
                return Self { kinesis, _process: process };
            }
            told = output.all();
        }
        panic!("kinesis-local does not come up: {told}");
    }
}

/// Where `tools/bootstrap` has put it.
fn folder() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/kinesis-local");
    let folder = std::env::var_os(FOLDER).map_or_else(default, PathBuf::from);
    let found = [folder.join("node"), main(&folder)].iter().all(|file| file.exists());
    assert!(
        found,
        "this test needs kinesis-local and Node, which are not in {}: run tools/bootstrap (make test \
         does), or set {FOLDER} to a folder with `node` and `package/main.js` in it",
        folder.display()
    );
    folder
}

fn main(folder: &Path) -> PathBuf {
    folder.join("package/main.js")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

fn spawn(folder: &Path, plain: u16, tls: u16) -> (Child, Arc<Output>) {
    let mut command = Command::new(folder.join("node"));
    command.arg(main(folder)).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.env("KINESIS_MOCK_PLAIN_PORT", plain.to_string());
    command.env("KINESIS_MOCK_TLS_PORT", tls.to_string());
    command.env("KINESIS_MOCK_CERT_PATH", folder.join("package/server.json"));
    command.env("AWS_ACCOUNT_ID", client::ACCOUNT).env("AWS_REGION", client::REGION);
    command.env("SHARD_LIMIT", "500").env("LOG_LEVEL", "ERROR");
    for change in ["CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS"] {
        command.env(format!("{change}_DURATION"), "20ms");
    }
    let mut process = command.spawn().expect("Node can be run");
    let output = Arc::new(Output::default());
    Output::read(&output, process.stdout.take().expect("it is piped"), false);
    Output::read(&output, process.stderr.take().expect("it is piped"), true);
    (process, output)
}

/// Waits until the service answers, unless the process ends first.
async fn is_up(process: &mut Child, kinesis: &Kinesis) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && process.try_wait().is_ok_and(|ended| ended.is_none()) {
        if kinesis.client().list_streams().send().await.is_ok() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}
