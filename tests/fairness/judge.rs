//! What came of a case.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::lease::{Edit, OwnerId};

use crate::scene::{Case, Played, run_of};
use crate::stream::shard_index;

/// A shard passes from one to another, or to nobody.
#[derive(Clone, Debug)]
pub struct Passing {
    pub at: f64,
    pub shard: usize,
    pub from: Option<OwnerId>,
    pub to: Option<OwnerId>,
}

/// How fair it was.
#[derive(Debug)]
pub struct Outcome {
    /// Seconds from the last start until the shares were fair for good.
    pub fair_after: f64,
    /// Takes of a shard by a run that had given it away.
    pub taken_back: usize,
    /// How often shards changed hands, all in all and the most of any.
    pub moves: usize,
    pub most_moves: usize,
    /// Shards per run at the end, the most first. With fewer shards than runs, those without any do
    /// not count, nor do those that have left.
    pub shares: Vec<usize>,
}

impl Played {
    /// A time, in seconds from the beginning.
    pub fn secs(&self, at: tokio::time::Instant) -> f64 {
        (at - self.began).as_secs_f64()
    }

    /// Every change of owner, in order.
    pub fn passings(&self) -> Vec<Passing> {
        let mut holders: BTreeMap<usize, OwnerId> = BTreeMap::new();
        let mut passings = Vec::new();
        for write in &self.applied {
            let (shard, to) = (shard_index(write.key.as_str()), write.row.owner.clone());
            let from = match &to {
                Some(to) => holders.insert(shard, to.clone()),
                None => holders.remove(&shard),
            };
            if from != to {
                passings.push(Passing { at: self.secs(write.at), shard, from, to });
            }
        }
        passings
    }

    /// Takes from somebody else, be it directly or after a release.
    pub fn hand_overs(&self) -> Vec<Passing> {
        let mut last: BTreeMap<usize, OwnerId> = BTreeMap::new();
        let is_hand_over = |passing: &Passing| {
            let Some(to) = passing.to.clone() else { return false };
            last.insert(passing.shard, to.clone()).is_some_and(|former| former != to)
        };
        self.passings().into_iter().filter(is_hand_over).collect()
    }

    /// From each release to the first page that anybody reads of the shard after it, in seconds;
    /// sorted. What nobody reads again is left out.
    pub fn gaps(&self) -> Vec<f64> {
        let mut gaps: Vec<f64> = self
            .passings()
            .iter()
            .filter(|passing| passing.to.is_none())
            .filter_map(|release| Some(self.read_after(release.shard, release.at)? - release.at))
            .collect();
        gaps.sort_by(f64::total_cmp);
        gaps
    }

    /// When the first page of a shard came to anybody after this time.
    pub fn read_after(&self, shard: usize, at: f64) -> Option<f64> {
        let later = self.reads.partition_point(|read| self.secs(read.at) <= at);
        let read = self.reads[later..].iter().find(|read| read.shard == shard)?;
        Some(self.secs(read.at))
    }

    /// How often the run that took one shard most often did so.
    pub fn most_takes(&self) -> usize {
        let mut takes: BTreeMap<(usize, OwnerId), usize> = BTreeMap::new();
        for Passing { shard, to, .. } in self.passings() {
            let Some(to) = to else { continue };
            *takes.entry((shard, to)).or_default() += 1;
        }
        takes.into_values().max().unwrap_or(0)
    }

    /// The claims that were made: when, on which shard, by which run.
    pub fn claims(&self) -> Vec<(f64, usize, usize)> {
        let claim =
            |write: &crate::support::Applied| match (&write.change.claim, &write.change.counter) {
                // An owner that carries one forward writes its counter, too.
                (Edit::Set(claim), Edit::Leave) => {
                    let shard = shard_index(write.key.as_str());
                    Some((self.secs(write.at), shard, run_of(&claim.by)?))
                }
                _ => None,
            };
        self.applied.iter().filter_map(claim).collect()
    }

    pub fn outcome(&self, case: &Case) -> Outcome {
        let last_start = case.runs.iter().map(|run| run.start).fold(0.0, f64::max);
        let mut counts: BTreeMap<usize, usize> = (0..case.runs.len())
            .filter(|run| !self.returned.contains_key(run))
            .map(|run| (run, 0))
            .collect();
        let (mut held, mut taken_back, mut unfair_until) = (0, 0, last_start);
        let mut given = BTreeSet::new();
        for Passing { at, shard, from, to } in self.passings() {
            if let Some(from) = from.as_ref().and_then(run_of) {
                *counts.entry(from).or_default() -= 1;
                held -= 1;
                if to.is_none() {
                    given.insert((shard, from));
                }
            }
            if let Some(to) = to.as_ref().and_then(run_of) {
                *counts.entry(to).or_default() += 1;
                held += 1;
                taken_back += usize::from(given.contains(&(shard, to)));
            }
            if !is_fair(&shares(&counts, case.shards)) || held < case.shards {
                unfair_until = f64::max(unfair_until, at);
            }
        }
        let shares = shares(&counts, case.shards);
        let fair = is_fair(&shares) && held == case.shards;
        let mut moves: BTreeMap<usize, usize> = BTreeMap::new();
        for hand_over in self.hand_overs() {
            *moves.entry(hand_over.shard).or_default() += 1;
        }
        Outcome {
            fair_after: if fair { unfair_until - last_start } else { f64::INFINITY },
            taken_back,
            moves: moves.values().sum(),
            most_moves: moves.values().copied().max().unwrap_or(0),
            shares,
        }
    }
}

fn is_fair(shares: &[usize]) -> bool {
    shares.first().unwrap_or(&0) - shares.last().unwrap_or(&0) <= 1
}

fn shares(counts: &BTreeMap<usize, usize>, shards: usize) -> Vec<usize> {
    let mut shares: Vec<usize> = counts.values().copied().collect();
    shares.sort_unstable_by(|a, b| b.cmp(a));
    shares.truncate(shards.max(1));
    shares
}

/// A part of sorted values: 0.5 is their median.
pub fn part(sorted: &[f64], part: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        len => sorted[((len - 1) as f64 * part).round() as usize],
    }
}
