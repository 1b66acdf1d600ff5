//! to be written
pub struct Jsonl;
