//! What a page is expected to take, and how many records fit. Pure.

/// The most records that Kinesis puts on one page.
pub(in crate::shard) const MOST_RECORDS: u32 = 10_000;

/// The most bytes of payload that Kinesis puts on one page, and so that one record may have.
const LARGEST_PAGE: usize = 10 * 1024 * 1024;

/// The least that is expected of a shard that has nothing new: something may just have come in.
const LITTLE: usize = 32 * 1024;

/// What is expected at the tip of a shard whose records nobody has seen: few are larger.
const ASSUMED: usize = 1024 * 1024;

/// How many times as many records as the last page had the next one may have where memory is short: what
/// is known of a few records says little of ten thousand.
const GROWTH: u32 = 16;

/// Base64 takes this many thousandths of what it stands for.
const BASE64: usize = 1_334;

/// What a page was like.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct PageSize {
    pub(in crate::shard) records: usize,
    /// What its records take in memory.
    pub(in crate::shard) bytes: usize,
    /// How many it could have had.
    pub(in crate::shard) limit: u32,
    pub(in crate::shard) behind_ms: Option<u64>,
}

/// What the next page of a shard is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// Bytes of a record.
    record: usize,
    /// Whether this shard's own records were seen.
    seen: bool,
    /// Bytes of all that the shard has, if that is known to be little.
    all: Option<usize>,
    /// The most records to ask for, unless there is room for whatever comes.
    most: u32,
}

/// A page that there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// The most records that it may have.
    pub(super) limit: u32,
    /// What it is expected to take until it is decoded.
    pub(super) cost: usize,
}

impl Expected {
    /// Of a shard of which nothing has been read; the size of a record is that of its stream's others.
    pub(super) fn first(record: Option<usize>) -> Self {
        let record = record.unwrap_or(LARGEST_PAGE);
        Self { record, seen: false, all: None, most: GROWTH }
    }

    /// After a page like this.
    pub(super) fn after(self, page: PageSize) -> Self {
        let at_tip = page.behind_ms == Some(0) && page.records < page.limit as usize;
        let records = u32::try_from(page.records).unwrap_or(MOST_RECORDS).clamp(1, MOST_RECORDS);
        let most = (GROWTH * records).min(MOST_RECORDS);
        // Sizes vary: a page of small records does not at once make one forget the large ones.
        let before = if self.seen { self.record / 4 * 3 } else { 0 };
        let (record, seen) = match page.bytes.checked_div(page.records) {
            Some(mean) => (mean.max(before).clamp(1, LARGEST_PAGE), true),
            None => (self.record, self.seen),
        };
        let one = if seen { record } else { record.min(ASSUMED) };
        let all = at_tip.then(|| (2 * page.bytes).max(one).max(LITTLE));
        Self { record, seen, all, most }
    }

    /// Bytes of a record.
    pub(super) fn record(self) -> usize {
        self.record
    }

    /// As much as may be taken for `bytes`; `None` if that is not even one record.
    pub(super) fn within(self, bytes: usize) -> Option<Room> {
        let whole = self.page(MOST_RECORDS);
        if decoding(LARGEST_PAGE, self.record) <= bytes {
            return Some(whole);
        }
        let by_body = bytes / thousandths(self.record, 2 * BASE64).max(1);
        let by_record = bytes.saturating_sub(thousandths(self.record, BASE64))
            / thousandths(self.record, 1_000 + BASE64).max(1);
        let limit = u32::try_from(by_body.min(by_record)).unwrap_or(MOST_RECORDS).min(self.most);
        (limit > 0).then(|| self.page(limit))
    }

    /// A page of one record.
    pub(super) fn single(self) -> Room {
        self.page(1)
    }

    fn page(self, limit: u32) -> Room {
        let payload = self.record.saturating_mul(limit as usize).min(LARGEST_PAGE);
        let payload = self.all.map_or(payload, |all| all.min(payload));
        Room { limit, cost: decoding(payload, self.record.min(payload)).max(1) }
    }
}

/// What a page takes while it is decoded. Its body comes in pieces, which are then put together: it is
/// there twice. Then each record is taken out, decoded, and stays: there are the body, what is decoded,
/// and the base64 of one record.
fn decoding(payload: usize, record: usize) -> usize {
    let coming = thousandths(payload, 2 * BASE64);
    let decoded = thousandths(payload, 1_000 + BASE64) + thousandths(record, BASE64);
    coming.max(decoded)
}

fn thousandths(bytes: usize, factor: usize) -> usize {
    bytes.saturating_mul(factor) / 1_000
}
