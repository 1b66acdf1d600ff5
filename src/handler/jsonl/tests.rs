//! Lines in files.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::handler::testing::{batch, plain};
use crate::time::{TestClock, Timestamp};

/// A path of its own, gone with its guard.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let name = format!("leasehold-jsonl-{}", uuid::Uuid::new_v4());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("records.jsonl")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> Jsonl {
    let clock = TestClock::starting_at(Timestamp::from_millis(1_700_000_000_123));
    Jsonl::new(JsonlOutput::File(path.to_owned())).clock(clock)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'), "{text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_line_tells_all_of_a_record() {
    let scratch = Scratch::new();
    let mut full = plain(1);
    full.partition_key = Some("a \"key\"\n".to_owned());
    full.data = vec![0, 159, 146, 150].into();
    full.arrived_at = Some(Timestamp::from_millis(1_699_999_999_999));
    full.sub_sequence = Some(3);
    let mut bare = plain(2);
    (bare.partition_key, bare.arrived_at) = (None, None);
    bare.data = Default::default();

    let jsonl = open(&scratch.file());
    assert_eq!(jsonl.handle(batch([full, bare])).await.unwrap(), Handled::All);
    let expected = json!([
        {
            "invocation": "invocation-1", "stream": "orders", "shard": "shardId-000000000000",
            "sequence": "1", "sub_sequence": 3, "partition_key": "a \"key\"\n",
            "arrived_at": 1_699_999_999_999_i64, "data": "AJ+Slg==", "at": 1_700_000_000_123_i64,
        },
        {
            "invocation": "invocation-1", "stream": "orders", "shard": "shardId-000000000000",
            "sequence": "2", "sub_sequence": null, "partition_key": null,
            "arrived_at": null, "data": "", "at": 1_700_000_000_123_i64,
        },
    ]);
    assert_eq!(Value::from(lines(&scratch.file())), expected);
}

#[tokio::test]
async fn what_is_there_is_appended_to_and_a_torn_line_is_ended() {
    let scratch = Scratch::new();
    std::fs::write(scratch.file(), "{\"whole\":true}\n{\"torn").unwrap();
    open(&scratch.file()).handle(batch([plain(1)])).await.unwrap();
    open(&scratch.file()).handle(batch([plain(2)])).await.unwrap();
    let text = std::fs::read_to_string(scratch.file()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["{\"whole\":true}", "{\"torn"]);
    assert!(lines[2].contains("\"sequence\":\"1\"") && lines[3].contains("\"sequence\":\"2\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_many_writers_stay_whole() {
    let scratch = Scratch::new();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        // As of several processes: each with a file handle of its own.
        let jsonl = open(&scratch.file());
        for shard in 0..2 {
            let jsonl = jsonl.clone();
            writers.spawn(async move {
                for number in 0..20 {
                    let mut record = plain(1 + writer * 1000 + shard * 100 + number);
                    record.data = vec![7; 20_000].into();
                    jsonl.handle(batch([record.clone(), record])).await.unwrap();
                }
            });
        }
    }
    writers.join_all().await;
    assert_eq!(lines(&scratch.file()).len(), 4 * 2 * 20 * 2);
}

#[tokio::test]
async fn a_dropped_future_leaves_no_half_line() {
    let scratch = Scratch::new();
    let jsonl = open(&scratch.file());
    let mut large = plain(1);
    large.data = vec![7; 3_000_000].into();
    for polls in 0..20 {
        let handling = jsonl.handle(batch([large.clone(), large.clone()]));
        let limit = Duration::from_micros(polls * 500);
        let _ = tokio::time::timeout(limit, handling).await;
    }
    jsonl.handle(batch([plain(2)])).await.unwrap();
    let lines = lines(&scratch.file());
    assert_eq!(lines.last().unwrap()["sequence"], "2");
}

#[tokio::test]
async fn nothing_is_written_for_a_future_dropped_before_its_turn() {
    let scratch = Scratch::new();
    let jsonl = open(&scratch.file());
    let busy = jsonl.sink.clone().lock_owned().await;
    let waiting = jsonl.handle(batch([plain(1)]));
    assert!(tokio::time::timeout(Duration::from_millis(1), waiting).await.is_err());
    drop(busy);
    jsonl.handle(batch([plain(2)])).await.unwrap();
    let lines = lines(&scratch.file());
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["sequence"], "2");
}

#[tokio::test]
async fn errors_name_the_path_and_what_to_do() {
    let scratch = Scratch::new();
    let missing = scratch.0.join("missing/records.jsonl");
    for (path, remedy) in
        [(missing, "create its directory first"), (scratch.0.clone(), "name a file")]
    {
        let error = open(&path).handle(batch([plain(1)])).await.unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_fails_the_batch() {
    let full = Jsonl::new(JsonlOutput::File("/dev/full".into()));
    let batch = batch([plain(1)]);
    let error = full.handle(batch.clone()).await.unwrap_err().to_string();
    assert!(error.contains("/dev/full cannot be appended to (No space left"), "{error}");
    assert!(error.contains("make room for it"), "{error}");
    assert_eq!(batch.done(), 0);
}
