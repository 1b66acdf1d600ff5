//! What a process writes, kept line by line.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The lines of stdout and stderr in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Output {
    lines: Mutex<Vec<Line>>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Line {
    is_error: bool,
    text: String,
}

impl Output {
    /// Reads one of the two pipes to its end.
    pub(crate) fn read<R>(output: &Arc<Self>, pipe: R, is_error: bool) -> JoinHandle<()>
    where
        R: AsyncRead + Unpin + Send + 'static,
    {
        let output = Arc::clone(output);
        tokio::spawn(async move {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            // Not `lines()`: a process that dies may leave half a character.
            while pipe.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).into_owned();
                output.lines.lock().expect("not poisoned").push(Line { is_error, text });
                output.changed.send_replace(());
                line.clear();
            }
        })
    }

    pub(crate) fn all(&self) -> String {
        self.lines.lock().expect("not poisoned").iter().map(|line| line.text.as_str()).collect()
    }

    pub(crate) fn of(&self, errors: bool) -> String {
        let lines = self.lines.lock().expect("not poisoned");
        lines.iter().filter(|line| line.is_error == errors).map(|line| line.text.as_str()).collect()
    }

    /// Waits until a line contains `text`.
    pub(crate) async fn contains(&self, text: &str) {
        let mut changed = self.changed.subscribe();
        let mut seen = 0;
        loop {
            {
                let lines = self.lines.lock().expect("not poisoned");
                if lines[seen..].iter().any(|line| line.text.contains(text)) {
                    return;
                }
                seen = lines.len();
            }
            // The sender is ours.
            let _ = changed.changed().await;
        }
    }
}
