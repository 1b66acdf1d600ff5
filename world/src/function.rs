//! The real binary as a Lambda function: a process with a runtime API of its own.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client;
use crate::output::Output;
use crate::runtime::{
    Deadline, FUNCTION_NAME, Invocation, InvocationError, LambdaRuntime, Outcome,
};

/// The unit of `utime` and `stime` in `/proc`: 100 a second on every Linux there is.
const CLOCK_TICKS: u64 = 100;

/// How a [`Function`] is started.
#[derive(Clone, Debug)]
#[must_use = "nothing runs until it is spawned"]
pub struct Builder {
    binary: PathBuf,
    env: BTreeMap<String, String>,
    kill_at_deadline: bool,
}

impl Builder {
    /// Sets a variable of its environment, which holds nothing of ours but `PATH` and `HOME`.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets several, as [`World::env`](crate::World::env) gives them.
    pub fn envs<N: Into<String>, V: Into<String>>(
        self,
        all: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        all.into_iter().fold(self, |builder, (name, value)| builder.env(name, value))
    }

    /// The function's memory, which it is only told: nothing enforces it.
    pub fn memory_mb(self, megabytes: u32) -> Self {
        self.env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", megabytes.to_string())
    }

    /// Kills the process when an invocation outlives its deadline, as Lambda does. Off by default, so
    /// that a run which overstays is seen to. An absolute deadline is only told, never enforced.
    pub fn kill_at_deadline(mut self) -> Self {
        self.kill_at_deadline = true;
        self
    }

    /// Starts the process.
    ///
    /// # Panics
    /// If the binary cannot be run.
    pub async fn spawn(self) -> Function {
        let runtime = Arc::new(LambdaRuntime::start().await);
        let mut command = Command::new(&self.binary);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["PATH", "HOME"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(client::env()).envs([
            ("AWS_LAMBDA_FUNCTION_NAME", FUNCTION_NAME),
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
            ("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/shard-processor"),
            ("AWS_LAMBDA_LOG_STREAM_NAME", "world"),
            ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ]);
        command.env("AWS_LAMBDA_RUNTIME_API", runtime.address().to_string());
        command.envs(&self.env).kill_on_drop(true);
        let spawned = Instant::now();
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("run {}: {error}", self.binary.display()));
        let id = child.id().expect("it has not been waited for");
        let output = Arc::new(Output::default());
        let readers = [
            Output::read(&output, child.stdout.take().expect("it is piped"), false),
            Output::read(&output, child.stderr.take().expect("it is piped"), true),
        ];
        let exit = watch::Sender::new(None);
        let exited = exit.subscribe();
        tokio::spawn(watch_over(child, readers, Arc::clone(&runtime), exit));
        let process =
            Process { id: Pid::from_raw(i32::try_from(id).expect("a process id")), exited };
        Function {
            process: Arc::new(process),
            runtime,
            output,
            spawned,
            kill_at_deadline: self.kill_at_deadline,
        }
    }
}

fn timed_out(time: Duration) -> InvocationError {
    let message = format!("Task timed out after {:.2} seconds", time.as_secs_f64());
    InvocationError { error_type: "Sandbox.Timedout".to_owned(), message }
}

/// Waits for the end of the process and tells everyone who waits for it.
async fn watch_over(
    mut child: Child,
    readers: [tokio::task::JoinHandle<()>; 2],
    runtime: Arc<LambdaRuntime>,
    exit: watch::Sender<Option<ExitStatus>>,
) {
    let status = child.wait().await.expect("a child can be waited for");
    // What it wrote last is part of how it ended. A child of its own could keep the pipe open for ever.
    for reader in readers {
        let _ = tokio::time::timeout(Duration::from_secs(1), reader).await;
    }
    let message = format!("Runtime exited: {status}");
    runtime.close(InvocationError { error_type: "Runtime.ExitError".to_owned(), message });
    exit.send_replace(Some(status));
}

#[derive(Debug)]
struct Process {
    id: Pid,
    exited: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Sends a signal, unless the process has ended and its id may be somebody else's.
    fn signal(&self, signal: Signal) {
        if self.exited.borrow().is_none() {
            // It may end between the look and the signal.
            let _ = kill(self.id, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// A process that believes to be a Lambda function; killed when dropped.
#[derive(Debug)]
pub struct Function {
    process: Arc<Process>,
    runtime: Arc<LambdaRuntime>,
    output: Arc<Output>,
    spawned: Instant,
    kill_at_deadline: bool,
}

impl Function {
    /// A function of this binary.
    pub fn builder(binary: impl AsRef<Path>) -> Builder {
        Builder {
            binary: binary.as_ref().to_owned(),
            env: BTreeMap::new(),
            kill_at_deadline: false,
        }
    }

    /// Queues an invocation at once; the future is of its outcome and may be awaited later. If the process
    /// ends first, the outcome is a `Runtime.ExitError`.
    pub fn invoke(
        &self,
        invocation: Invocation,
    ) -> impl Future<Output = Outcome> + Send + 'static + use<> {
        let deadline = invocation.deadline;
        let kill_at_deadline = self.kill_at_deadline;
        let process = Arc::downgrade(&self.process);
        let runtime = Arc::clone(&self.runtime);
        let mut ticket = runtime.queue(invocation);
        // In a task, so that the deadline holds while nobody awaits the outcome.
        let settled = tokio::spawn(async move {
            let (true, Deadline::In(time)) = (kill_at_deadline, deadline) else {
                return ticket.outcome.await;
            };
            if ticket.started.await.is_ok() {
                match tokio::time::timeout(time, &mut ticket.outcome).await {
                    Ok(outcome) => return outcome,
                    Err(_late) => {
                        if let Some(process) = process.upgrade() {
                            process.signal(Signal::SIGKILL);
                        }
                        return Ok(Err(timed_out(time)));
                    }
                }
            }
            ticket.outcome.await
        });
        async move {
            let stopped = || InvocationError {
                error_type: "Runtime.ExitError".to_owned(),
                message: "the function is gone".to_owned(),
            };
            settled.await.ok().and_then(Result::ok).unwrap_or_else(|| Err(stopped()))
        }
    }

    /// The runtime API of this process.
    pub fn runtime(&self) -> &LambdaRuntime {
        &self.runtime
    }

    /// The time from the start of the process to its first poll.
    pub async fn cold_start(&self) -> Duration {
        self.runtime.first_poll().await.duration_since(self.spawned)
    }

    /// Stops it where it stands (SIGSTOP), as Lambda does between invocations.
    pub fn freeze(&self) {
        self.process.signal(Signal::SIGSTOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&self) {
        self.process.signal(Signal::SIGKILL);
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.process.signal(Signal::SIGTERM);
    }

    /// Waits until it has ended, by itself or not.
    pub async fn wait(&self) -> ExitStatus {
        let mut exited = self.process.exited.clone();
        let status = exited.wait_for(Option::is_some).await.expect("its watcher outlives it");
        status.expect("just seen")
    }

    /// Whether it still runs (or is frozen).
    pub fn is_alive(&self) -> bool {
        self.process.exited.borrow().is_none()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id.as_raw().unsigned_abs()
    }

    /// What it wrote so far, to stdout and stderr, line by line as it came.
    pub fn output(&self) -> String {
        self.output.all()
    }

    /// What it wrote so far to stdout.
    pub fn stdout(&self) -> String {
        self.output.of(false)
    }

    /// What it wrote so far to stderr.
    pub fn stderr(&self) -> String {
        self.output.of(true)
    }

    /// Waits until it has written a line that contains `text`; false if it ended without.
    pub async fn printed(&self, text: &str) -> bool {
        let mut exited = self.process.exited.clone();
        tokio::select! {
            biased;
            () = self.output.contains(text) => true,
            // The readers are done by then.
            _ = exited.wait_for(Option::is_some) => self.output.all().contains(text),
        }
    }

    /// The most memory that it ever held (`VmHWM`), in bytes; `None` once it has ended.
    pub fn peak_rss(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }

    /// The CPU time that it used, its own and the kernel's; `None` once it has ended.
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The name, in brackets, may hold spaces; utime and stime are the 12th and 13th field after it.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        let used = ticks.next()?.ok()? + ticks.next()?.ok()?;
        Some(Duration::from_millis(used * 1000 / CLOCK_TICKS))
    }
}
