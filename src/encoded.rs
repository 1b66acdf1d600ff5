//! Payloads in JSON: bytes as base64 (RFC 4648, padded), as the event source mapping writes them.

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

/// Bytes that are written as base64, piece by piece: no second copy of the payload is made.
#[derive(Clone, Copy)]
pub(crate) struct Base64<'a>(pub(crate) &'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

/// How long so many bytes are as base64.
pub(crate) fn base64_len(bytes: usize) -> usize {
    bytes.div_ceil(3).saturating_mul(4)
}
