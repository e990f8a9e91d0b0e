//! How a batch is written into the log: one byte of version, then postcard. The bytes of a version never change their meaning,
//! since logs outlive the programs that wrote them.

use thiserror::Error;

use crate::command::Batch;

/// The version that is written.
const VERSION: u8 = 1;

/// Why bytes are no batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// There is nothing at all.
    #[error("an encoded batch is not empty")]
    Empty,
    /// A later program wrote it.
    #[error("the batch has format version {0}, this program reads up to {VERSION}: upgrade this node")]
    Version(u8),
    /// It is damaged, or never was a batch.
    #[error("the batch is damaged: {0}")]
    Damaged(postcard::Error),
    /// There is more than a batch.
    #[error("{0} bytes follow the batch")]
    Trailing(usize),
}

impl Batch {
    /// The bytes of this batch for the log and for other nodes.
    pub fn encode(&self) -> Vec<u8> {
        // Encoding these types into memory cannot fail: no length is unknown and nothing is skipped. Were it to, the result
        // would be an empty vector, which no reader takes for a batch.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if *version != VERSION {
            return Err(DecodeError::Version(*version));
        }
        let (batch, rest) = postcard::take_from_bytes(body).map_err(DecodeError::Damaged)?;
        if !rest.is_empty() {
            return Err(DecodeError::Trailing(rest.len()));
        }
        Ok(batch)
    }
}
