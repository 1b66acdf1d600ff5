//! SQS, SNS and S3: moto's server, a process of its own.
//!
//! It is what `tools/bootstrap` has put into `.venv` of the checkout. Only these services: moto's
//! conditional updates of DynamoDB are not atomic.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The account id of everything that moto makes.
pub const ACCOUNT: &str = "123456789012";

/// Serves on a free port, tells which, and ends when whoever started it does.
const SERVE: &str = r#"
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"#;

/// A server, empty at the start and gone when dropped.
#[derive(Debug)]
pub struct Moto {
    url: String,
    process: Child,
}

impl Moto {
    /// The one server of this process, started by whoever asks first. It takes some seconds.
    ///
    /// # Panics
    /// If it cannot be started: the text says what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Moto> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts one.
    ///
    /// # Panics
    /// If it cannot be started: the text says what to do.
    pub fn start() -> Self {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
        assert!(
            python.exists(),
            "this test needs moto, which stands in for SQS, SNS and S3 and is not installed here: run \
             `tools/bootstrap` (or `make tools`), once"
        );
        let mut process = Command::new(&python)
            .args(["-c", SERVE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", python.display()));
        let output = process.stdout.take().expect("its output is a pipe");
        let mut url = String::new();
        let read = BufReader::new(output).read_line(&mut url);
        let url = url.trim().to_owned();
        assert!(
            read.is_ok() && url.starts_with("http://"),
            "moto did not start (see above): run `tools/bootstrap` to install it anew"
        );
        Self { url, process }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
