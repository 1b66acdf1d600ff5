//! What a run tells of a stream while it goes on, for CloudWatch or whoever watches.

use std::sync::Arc;

use serde_json::json;

use crate::counters::Counters;
use crate::time::Timestamp;

/// The namespace of the metrics in CloudWatch.
const NAMESPACE: &str = "leasehold";

/// What has happened on one stream since it was last told; it is told once a minute and at the end of a
/// run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamMetrics {
    /// The stream's name.
    pub stream: String,
    /// Records done.
    pub records: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// Records that a filter left out.
    pub filtered: u64,
    /// Records that a handler failed on, counted once per try.
    pub failed_records: u64,
    /// Records that were given up.
    pub given_up: u64,
    /// Batches that were tried again.
    pub retries: u64,
    /// The time that handlers took, in milliseconds, of all shards together.
    pub handler_ms: u64,
    /// Calls that Kinesis or the lease table throttled.
    pub throttles: u64,
    /// Losses to the stream's retention.
    pub gaps: u64,
    /// Leases taken.
    pub leases_taken: u64,
    /// Leases lost.
    pub leases_lost: u64,
    /// Leases held by this run now.
    pub leases_held: u64,
    /// How far the shard that is furthest behind is behind, in milliseconds, whoever holds it, if
    /// anybody; `None`: unknown. It is the age of what was done last or, where nothing is left, of the
    /// last read.
    pub lag_ms: Option<u64>,
}

impl StreamMetrics {
    /// The metrics as a line of CloudWatch's embedded metric format, in the namespace `leasehold`, with
    /// the dimension `Stream`
    /// (<https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html>).
    pub fn embedded(&self, at: Timestamp) -> String {
        let counts = [
            ("Records", "Count", Some(self.records)),
            ("Bytes", "Bytes", Some(self.bytes)),
            ("FilteredRecords", "Count", Some(self.filtered)),
            ("FailedRecords", "Count", Some(self.failed_records)),
            ("GivenUpRecords", "Count", Some(self.given_up)),
            ("Retries", "Count", Some(self.retries)),
            ("HandlerMilliseconds", "Milliseconds", Some(self.handler_ms)),
            ("Throttles", "Count", Some(self.throttles)),
            ("Gaps", "Count", Some(self.gaps)),
            ("LeasesTaken", "Count", Some(self.leases_taken)),
            ("LeasesLost", "Count", Some(self.leases_lost)),
            ("LeasesHeld", "Count", Some(self.leases_held)),
            ("LagMilliseconds", "Milliseconds", self.lag_ms),
        ];
        let known =
            || counts.iter().filter_map(|(name, unit, value)| Some((name, unit, (*value)?)));
        let metrics: Vec<_> =
            known().map(|(name, unit, _)| json!({ "Name": name, "Unit": unit })).collect();
        let mut document = json!({
            "_aws": {
                "Timestamp": at.as_millis(),
                "CloudWatchMetrics": [
                    { "Namespace": NAMESPACE, "Dimensions": [["Stream"]], "Metrics": metrics },
                ],
            },
            "Stream": self.stream,
        });
        for (name, _, value) in known() {
            document[*name] = value.into();
        }
        document.to_string()
    }
}

/// Tells what is new of one stream.
#[derive(Debug)]
pub(crate) struct Meter {
    counters: Arc<Counters>,
    told: StreamMetrics,
}

impl Meter {
    pub(crate) fn new(stream: &str, counters: Arc<Counters>) -> Self {
        Self { counters, told: StreamMetrics { stream: stream.to_owned(), ..Default::default() } }
    }

    /// What is new since the last time.
    pub(crate) fn tell(&mut self) -> StreamMetrics {
        let counters = &self.counters;
        let told = &mut self.told;
        let new = |counter: u64, told: &mut u64| counter - std::mem::replace(told, counter);
        StreamMetrics {
            stream: told.stream.clone(),
            records: new(counters.records.get(), &mut told.records),
            bytes: new(counters.bytes.get(), &mut told.bytes),
            filtered: new(counters.filtered.get(), &mut told.filtered),
            failed_records: new(counters.failed_records.get(), &mut told.failed_records),
            given_up: new(counters.given_up.get(), &mut told.given_up),
            retries: new(counters.retries.get(), &mut told.retries),
            handler_ms: new(counters.handler_ms.get(), &mut told.handler_ms),
            throttles: new(counters.throttled.get(), &mut told.throttles),
            gaps: new(counters.gaps.get(), &mut told.gaps),
            leases_taken: new(counters.taken.get(), &mut told.leases_taken),
            leases_lost: new(counters.lost.get(), &mut told.leases_lost),
            leases_held: counters.taken.get().saturating_sub(counters.ended.get()),
            lag_ms: counters.lags.most(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again() {
        let counters = Arc::new(Counters::default());
        let mut meter = Meter::new("orders", counters.clone());
        counters.records.add(5);
        counters.taken.add(2);
        assert_eq!((meter.tell().records, meter.tell().records), (5, 0));
        counters.records.add(3);
        counters.ended.add(1);
        let told = meter.tell();
        assert_eq!((told.records, told.leases_taken, told.leases_held), (3, 0, 1));
    }

    #[test]
    fn a_line_has_each_metric_that_it_announces() {
        let metrics = StreamMetrics {
            stream: "orders".to_owned(),
            records: 7,
            lag_ms: None,
            ..StreamMetrics::default()
        };
        let line = metrics.embedded(Timestamp::from_secs(1));
        assert!(!line.contains('\n'));
        let document: serde_json::Value = serde_json::from_str(&line).unwrap();
        let announced = &document["_aws"]["CloudWatchMetrics"][0];
        for metric in announced["Metrics"].as_array().unwrap() {
            let name = metric["Name"].as_str().unwrap();
            assert!(document[name].is_u64(), "{name}");
            assert_ne!(name, "LagMilliseconds", "unknown");
        }
        assert_eq!(announced["Dimensions"][0][0], "Stream");
        assert_eq!((&document["Stream"], &document["Records"]), (&json!("orders"), &json!(7)));
        assert_eq!(document["_aws"]["Timestamp"], 1_000);
    }
}
