//! to be written
pub struct DynamoLeaseStore;
