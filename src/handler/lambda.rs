//! to be written
pub struct LambdaTarget; pub struct LambdaTargetOptions;
