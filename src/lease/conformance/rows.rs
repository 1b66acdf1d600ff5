//! What is written is what is read, of shards' rows and of streams'.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{Bench, Broken, Outcome, at, owner, same};
use crate::lease::{Attempts, Behind, IssuedIterator, Partial, Resume};
use crate::lease::{
    Change, Checkpoint, Claim, Condition, Edit, LeaseKey, OwnerId, ReleasePlan, Row,
};
use crate::lease::{Standing, StreamRow, Update};
use crate::time::Timestamp;

super::rules![
    every_attribute_is_read_as_it_was_written,
    every_attribute_can_be_removed,
    an_attribute_that_is_not_named_is_left_alone,
    rows_are_read_in_the_order_of_their_keys,
    hundreds_of_rows_can_be_read_at_once,
    rows_of_other_shards_streams_and_namespaces_are_others,
    a_stream_that_nobody_opened_has_an_empty_row,
    whoever_opens_a_stream_first_decides,
    what_a_stream_lacks_is_filled_in_later,
    of_many_that_open_a_stream_at_once_one_decides,
    a_streams_row_is_no_shards_row,
];

/// A change that sets everything.
fn full(time: Timestamp) -> Result<Change, Broken> {
    let me = owner("request-1/00000000000000ff \u{1F980}");
    let checkpoint = at(&"9".repeat(129))?.checkpoint;
    let Some(Checkpoint::At(sequence)) = &checkpoint else {
        return Err(Broken("a checkpoint that is no sequence number".to_owned()));
    };
    fn behind<T>(value: T) -> Behind<T> {
        Behind { checkpoint: Some(Checkpoint::ShardEnd), value }
    }
    Ok(Change {
        owner: Edit::Set(me.clone()),
        expiry: Edit::Set(time),
        counter: Edit::Set(u64::MAX),
        checkpoint: checkpoint.clone().into(),
        checkpoint_at: Edit::Set(time),
        since: Edit::Set(time),
        partial: Edit::Set(behind(Partial { sequence: sequence.clone(), done: 3 })),
        resume: Edit::Set(behind(Resume {
            iterator: Some(IssuedIterator { iterator: "AAAA/+=".to_owned(), at: time }),
            empty_at: Some(time),
            read_until: Some(time),
        })),
        attempts: Edit::Set(behind(Attempts { tries: 7, size: Some(1) })),
        parked: Edit::Set(["customer-7".to_owned(), "\u{1F980}".to_owned()].into()),
        release: Edit::Set(ReleasePlan { owner: me.clone(), at: Some(time) }),
        claim: Edit::Set(Claim { by: owner("other"), until: time }),
    })
}

/// Writes `change` to a row of which `row` is what it was.
async fn write(bench: &Bench, row: &Row, change: &Change) -> Result<Row, Broken> {
    let owner = row.owner.clone().unwrap_or_else(|| owner("me"));
    let condition = Condition::Free { owner, now: bench.store.now(), counter: row.counter };
    match bench.store.update(&bench.key(), &condition, change).await? {
        Update::Applied(row) => Ok(row),
        Update::Refused(row) => Err(Broken(format!("the write was refused by {row:?}"))),
    }
}

async fn every_attribute_is_read_as_it_was_written(bench: &Bench) -> Outcome {
    let change = full(bench.store.now())?;
    let mut expected = Row::default();
    change.apply(&mut expected);
    let written = write(bench, &Row::default(), &change).await?;
    same("the row in the reply", &written, &expected)?;
    same("the row as it is read", bench.row().await?, expected)
}

async fn every_attribute_can_be_removed(bench: &Bench) -> Outcome {
    let row = write(bench, &Row::default(), &full(bench.store.now())?).await?;
    let change = Change {
        owner: Edit::Remove,
        expiry: Edit::Remove,
        counter: Edit::Remove,
        checkpoint: Edit::Remove,
        checkpoint_at: Edit::Remove,
        since: Edit::Remove,
        partial: Edit::Remove,
        resume: Edit::Remove,
        attempts: Edit::Remove,
        parked: Edit::Remove,
        release: Edit::Remove,
        claim: Edit::Remove,
    };
    same("the row in the reply", write(bench, &row, &change).await?, Row::default())?;
    same("the row as it is read", bench.row().await?, Row::default())
}

async fn an_attribute_that_is_not_named_is_left_alone(bench: &Bench) -> Outcome {
    let row = write(bench, &Row::default(), &full(bench.store.now())?).await?;
    let untouched = write(bench, &row, &Change::default()).await?;
    same("the row in the reply", &untouched, &row)?;
    let checkpoint = Edit::Set(Checkpoint::ShardEnd);
    let change = Change { checkpoint, claim: Edit::Remove, ..Change::default() };
    let changed = write(bench, &row, &change).await?;
    let expected = Row { checkpoint: Some(Checkpoint::ShardEnd), claim: None, ..row };
    same("the row in the reply", &changed, &expected)?;
    same("the row as it is read", bench.row().await?, expected)
}

/// Takes each of `keys` for an owner that is named after it.
async fn take_all(bench: &Bench, keys: &[LeaseKey]) -> Outcome {
    for key in keys {
        bench.store.acquire(key, &owner(key.as_str()), None, None).await?;
    }
    Ok(())
}

/// Reads `keys`: each row must be that of its owner, or not be there.
async fn read_owners(bench: &Bench, keys: &[LeaseKey], there: impl Fn(usize) -> bool) -> Outcome {
    let rows = bench.store.read(keys).await?;
    same("the number of rows", rows.len(), keys.len())?;
    for (i, (row, key)) in rows.into_iter().zip(keys).enumerate() {
        let found = row?.and_then(|row| row.owner);
        same(key.as_str(), found, there(i).then(|| owner(key.as_str())))?;
    }
    Ok(())
}

async fn rows_are_read_in_the_order_of_their_keys(bench: &Bench) -> Outcome {
    let keys: Vec<LeaseKey> = ["c", "a", "d", "b"].iter().map(|id| bench.shard(id)).collect();
    take_all(bench, &keys[..2]).await?;
    read_owners(bench, &keys, |i| i < 2).await?;
    let twice = [keys[1].clone(), keys[3].clone(), keys[1].clone()];
    read_owners(bench, &twice, |i| i != 1).await?;
    read_owners(bench, &[], |_| false).await
}

async fn hundreds_of_rows_can_be_read_at_once(bench: &Bench) -> Outcome {
    let keys: Vec<LeaseKey> = (0..450).map(|id| bench.shard(&format!("{id:04}"))).collect();
    let taken: Vec<LeaseKey> = keys.iter().step_by(50).cloned().collect();
    take_all(bench, &taken).await?;
    read_owners(bench, &keys, |i| i % 50 == 0).await
}

async fn rows_of_other_shards_streams_and_namespaces_are_others(bench: &Bench) -> Outcome {
    let (shard, stream) = ("shardId-000000000000", bench.stream.as_str());
    let keys = [
        bench.key(),
        bench.shard("shardId-000000000001"),
        LeaseKey::shard(None, &format!("{stream}-b"), shard),
        LeaseKey::shard(Some("replay"), stream, shard),
    ];
    take_all(bench, &keys).await?;
    read_owners(bench, &keys, |_| true).await
}

/// A stream row that says `n` everywhere.
fn offer(n: i64) -> StreamRow {
    StreamRow {
        arn: Some(format!("arn:aws:kinesis:eu-west-1:123456789012:stream/{n}")),
        created_at: Some(Timestamp::from_secs(n)),
        opened_at: Some(Timestamp::from_millis(n)),
        paused: false,
    }
}

async fn a_stream_that_nobody_opened_has_an_empty_row(bench: &Bench) -> Outcome {
    let key = LeaseKey::stream(None, &bench.stream);
    same("the row", bench.store.read_stream(&key).await?, StreamRow::default())?;
    let opened = bench.store.open_stream(&key, &StreamRow::default()).await?;
    same("the row after an empty offer", opened, StreamRow::default())
}

async fn whoever_opens_a_stream_first_decides(bench: &Bench) -> Outcome {
    let key = LeaseKey::stream(None, &bench.stream);
    same("the first one's row", bench.store.open_stream(&key, &offer(1)).await?, offer(1))?;
    same("the second one's row", bench.store.open_stream(&key, &offer(2)).await?, offer(1))?;
    same("the row as it is read", bench.store.read_stream(&key).await?, offer(1))
}

async fn what_a_stream_lacks_is_filled_in_later(bench: &Bench) -> Outcome {
    let key = LeaseKey::stream(None, &bench.stream);
    let first = StreamRow { opened_at: None, ..offer(1) };
    same("the first one's row", bench.store.open_stream(&key, &first).await?, first)?;
    let expected = StreamRow { opened_at: offer(2).opened_at, ..offer(1) };
    same("the second one's row", bench.store.open_stream(&key, &offer(2)).await?, expected)
}

async fn of_many_that_open_a_stream_at_once_one_decides(bench: &Bench) -> Outcome {
    let key = LeaseKey::stream(None, &bench.stream);
    let mut runs = JoinSet::new();
    for n in 1..=16 {
        let (store, key) = (bench.store.clone(), key.clone());
        runs.spawn(async move { store.open_stream(&key, &offer(n)).await });
    }
    let decided = bench.store.open_stream(&key, &offer(17)).await?;
    for run in runs.join_all().await {
        same("another one's row", &run?, &decided)?;
    }
    Ok(())
}

async fn a_streams_row_is_no_shards_row(bench: &Bench) -> Outcome {
    let key = LeaseKey::stream(None, &bench.stream);
    bench.store.open_stream(&key, &offer(1)).await?;
    let taken = bench.take(&OwnerId::unique("me")).await?;
    bench.store.release(&mut taken.lease.clone(), &Standing::default()).await?;
    bench.clock.advance(Duration::from_secs(1));
    same("the stream's row", bench.store.read_stream(&key).await?, offer(1))
}
