//! to be written
pub struct KinesisSource;
