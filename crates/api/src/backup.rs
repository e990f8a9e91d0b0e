//! The file of a backup, and how its bytes are checked: by the client while it receives them, and by whoever reads the
//! file later.
//!
//! ```text
//! magic 8 · format 4 · header length 4 · header (JSON)               numbers are little-endian
//! body: a snapshot of the replicated state, in its own format
//! body length 8 · SHA-256 of all before this field's end 32 · magic 8
//! ```
//!
//! The length and the checksum come last because the node sends the state while it encodes it. A file without its end
//! was cut off; one with another checksum was altered.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The content type of a backup over HTTP.
pub const CONTENT_TYPE: &str = "application/vnd.lockkeeper.backup";
/// Header of the reply: about how many bytes will come, for a progress bar.
pub const SIZE_HEADER: &str = "lockkeeper-backup-size";

const MAGIC: [u8; 8] = *b"LKBACKUP";
const END: [u8; 8] = *b"LKBCKEND";
/// The format that this program writes, and the newest that it reads.
const FORMAT: u32 = 1;
const PREAMBLE_BYTES: usize = 16;
const MAX_HEADER_BYTES: usize = 64 * 1024;
const LENGTH_BYTES: usize = 8;
/// The end of the file: body length, checksum, magic.
const END_BYTES: usize = LENGTH_BYTES + 32 + END.len();

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The cluster's name.
    pub cluster: String,
    /// The member that wrote it.
    pub node_id: u64,
    /// The version of that member's program.
    pub version: String,
    /// The state holds everything up to this zxid, and nothing after it.
    pub zxid: u64,
    /// The replicated time of the state, in milliseconds since 1970.
    pub time_ms: u64,
    /// Term of the last log entry in the state that changed something.
    pub log_term: u64,
    /// Index of that entry.
    pub log_index: u64,
}

/// Why a file is no usable backup.
#[derive(Debug, Error)]
pub enum BackupError {
    /// It begins with other bytes.
    #[error("this is no backup of Lockkeeper: it begins with other bytes")]
    Foreign,
    /// A later program wrote it.
    #[error("the backup has format {0}, and this program reads up to format {FORMAT}: use a newer lockkeeper")]
    Newer(u32),
    /// It ends too early.
    #[error("the backup is cut off after {0} bytes: take another, or copy the file again")]
    Truncated(u64),
    /// Its bytes are not those that were written.
    #[error("the backup is damaged: {0}; take another, or copy the file again")]
    Altered(String),
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn preamble(header: &Header) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(header)?;
    if json.len() > MAX_HEADER_BYTES {
        return Err(io::Error::other(format!("a header of {} bytes", json.len())));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// Writes a backup: what is written to it is the body.
pub struct BackupWriter<W: Write> {
    to: W,
    hash: Sha256,
    body_bytes: u64,
}

impl<W: Write> BackupWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn new(header: &Header, mut to: W) -> io::Result<Self> {
        let bytes = preamble(header)?;
        to.write_all(&bytes)?;
        Ok(Self { to, hash: Sha256::new_with_prefix(&bytes), body_bytes: 0 })
    }

    /// Writes the end.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn finish(mut self) -> io::Result<W> {
        let length = self.body_bytes.to_le_bytes();
        self.hash.update(length);
        self.to.write_all(&length)?;
        self.to.write_all(&self.hash.finalize())?;
        self.to.write_all(&END)?;
        self.to.flush()?;
        Ok(self.to)
    }
}

impl<W: Write> Write for BackupWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.to.write(bytes)?;
        self.hash.update(&bytes[..taken]);
        self.body_bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Checks the bytes of a backup as they come, in pieces of any size.
#[derive(Default)]
pub struct BackupCheck {
    header: Option<Header>,
    hash: Sha256,
    /// What is not hashed yet: a header that is incomplete, or what may be the end.
    pending: Vec<u8>,
    bytes: u64,
    body_bytes: u64,
}

impl BackupCheck {
    /// The header, once it has come. To be trusted when the end was checked.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// How many bytes have come.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes, and gives those of the body that are known to belong to it.
    ///
    /// # Errors
    /// They do not begin as a backup does.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<u8>, BackupError> {
        self.bytes += bytes.len() as u64;
        self.pending.extend_from_slice(bytes);
        if self.header.is_none() && !self.take_header()? {
            return Ok(Vec::new());
        }
        let certain = self.pending.len().saturating_sub(END_BYTES);
        let body: Vec<u8> = self.pending.drain(..certain).collect();
        self.hash.update(&body);
        self.body_bytes += body.len() as u64;
        Ok(body)
    }

    /// Takes the header if all of it is there.
    fn take_header(&mut self) -> Result<bool, BackupError> {
        let pending = &self.pending;
        let start = pending.len().min(MAGIC.len());
        if pending[..start] != MAGIC[..start] {
            return Err(BackupError::Foreign);
        }
        let Some(preamble) = pending.get(..PREAMBLE_BYTES) else { return Ok(false) };
        let number = |at: usize| preamble[at..at + 4].iter().rev().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let (format, length) = (number(8), number(12) as usize);
        if format != FORMAT {
            return Err(BackupError::Newer(format));
        }
        if length > MAX_HEADER_BYTES {
            return Err(BackupError::Altered(format!("a header of {length} bytes")));
        }
        let Some(json) = pending.get(PREAMBLE_BYTES..PREAMBLE_BYTES + length) else { return Ok(false) };
        let header = serde_json::from_slice(json).map_err(|error| BackupError::Altered(format!("header: {error}")))?;
        self.header = Some(header);
        let taken: Vec<u8> = self.pending.drain(..PREAMBLE_BYTES + length).collect();
        self.hash.update(&taken);
        Ok(true)
    }

    /// Checks the end, when everything has come.
    ///
    /// # Errors
    /// The bytes are not those of a whole backup.
    pub fn finish(self) -> Result<Header, BackupError> {
        let Self { header, mut hash, pending, bytes, body_bytes } = self;
        let Some(header) = header else { return Err(BackupError::Truncated(bytes)) };
        if pending.len() != END_BYTES || pending[END_BYTES - END.len()..] != END {
            return Err(BackupError::Truncated(bytes));
        }
        let (length, rest) = pending.split_at(LENGTH_BYTES);
        hash.update(length);
        if length != body_bytes.to_le_bytes() {
            return Err(BackupError::Altered(format!(
                "its body has {body_bytes} bytes, which is not what its end says"
            )));
        }
        if rest[..32] != *hash.finalize() {
            return Err(BackupError::Altered("it does not match its checksum".into()));
        }
        Ok(header)
    }
}

/// Reads the body of a backup. It reports the end only if the whole backup matches its checksum.
pub struct BackupReader<R: Read> {
    from: R,
    check: Option<BackupCheck>,
    header: Header,
    ready: Vec<u8>,
    given: usize,
}

/// Read at a time.
const READ_BYTES: usize = 256 * 1024;

impl<R: Read> BackupReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no backup, or the stream fails.
    pub fn open(mut from: R) -> Result<Self, BackupError> {
        let mut check = BackupCheck::default();
        let mut ready = Vec::new();
        loop {
            if let Some(header) = check.header() {
                return Ok(Self { from, header: header.clone(), check: Some(check), ready, given: 0 });
            }
            let piece = read_piece(&mut from)?;
            if piece.is_empty() {
                return Err(BackupError::Truncated(check.bytes()));
            }
            ready.extend(check.take(&piece)?);
        }
    }

    /// The header; to be trusted when the end was reported.
    pub fn header(&self) -> &Header {
        &self.header
    }
}

fn read_piece(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut piece = Vec::new();
    from.by_ref().take(READ_BYTES as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

impl<R: Read> Read for BackupReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let damaged = |error: BackupError| io::Error::new(io::ErrorKind::InvalidData, error);
        while self.given == self.ready.len() {
            let Some(check) = &mut self.check else { return Ok(0) };
            let piece = read_piece(&mut self.from)?;
            if piece.is_empty() {
                self.check.take().map(BackupCheck::finish).transpose().map_err(damaged)?;
                return Ok(0);
            }
            (self.ready, self.given) = (check.take(&piece).map_err(damaged)?, 0);
        }
        let count = buffer.len().min(self.ready.len() - self.given);
        buffer[..count].copy_from_slice(&self.ready[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            cluster: "c".into(),
            node_id: 3,
            version: "0.1.0".into(),
            zxid: 7,
            time_ms: 1_700_000_000_000,
            log_term: 2,
            log_index: 9,
        }
    }

    fn backup(body: &[u8]) -> Vec<u8> {
        let mut writer = BackupWriter::new(&header(), Vec::new()).unwrap();
        writer.write_all(body).unwrap();
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(Header, Vec<u8>), String> {
        let mut reader = BackupReader::open(bytes).map_err(|error| error.to_string())?;
        let mut body = Vec::new();
        reader.read_to_end(&mut body).map_err(|error| error.to_string())?;
        Ok((reader.header().clone(), body))
    }

    #[test]
    fn a_backup_comes_back_in_pieces_of_any_size() {
        for body in [&b""[..], b"x", &[7; 1000]] {
            let bytes = backup(body);
            assert_eq!(read(&bytes).unwrap(), (header(), body.to_vec()));
            for size in [1, 3, 47, 48, 49, 5000] {
                let mut check = BackupCheck::default();
                let got: Vec<u8> = bytes.chunks(size).flat_map(|piece| check.take(piece).unwrap()).collect();
                assert_eq!((got.as_slice(), check.finish().unwrap()), (body, header()));
            }
        }
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_noticed() {
        let good = backup(b"some body");
        for cut in 0..good.len() {
            assert!(read(&good[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(read(&bytes).is_err(), "bit {at}");
        }
        assert!(read(&[&good[..], b"x"].concat()).is_err(), "something follows");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(read(b"PK\x03\x04 a zip file").unwrap_err().contains("no backup"));
        let mut newer = backup(b"");
        newer[8] = 2;
        assert!(read(&newer).unwrap_err().contains("format 2"));
        let good = backup(b"body");
        assert!(read(&good[..good.len() - 1]).unwrap_err().contains("cut off after"));
        let mut altered = good.clone();
        let at = good.len() - END_BYTES - 1;
        altered[at] ^= 1;
        assert!(read(&altered).unwrap_err().contains("does not match its checksum"));
    }

    /// Backups outlive programs: to change these bytes, change the format.
    #[test]
    fn the_bytes_of_format_1_stay_what_they_are() {
        let bytes = backup(b"body");
        assert_eq!(&bytes[..16], b"LKBACKUP\x01\0\0\0\x69\0\0\0");
        let json = br#"{"cluster":"c","node_id":3,"version":"0.1.0","zxid":7,"time_ms":1700000000000,"log_term":2,"log_index":9}"#;
        assert_eq!(&bytes[16..16 + json.len()], json);
        assert_eq!(&bytes[16 + json.len()..][..12], b"body\x04\0\0\0\0\0\0\0");
    }
}
