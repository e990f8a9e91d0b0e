//! Where the secrets turn up: everything that an intruder could read is searched for each of them.

use crate::proofs::prelude::*;

/// Shorter texts would be found by chance.
const LEAST_BYTES: usize = 12;

/// The tokens, secrets of sessions and passwords that are in use.
#[derive(Clone, Default)]
pub(super) struct Secrets(Arc<Mutex<Vec<String>>>);

impl Secrets {
    /// Adds one.
    pub(super) fn add(&self, secret: &str) {
        debug_assert!(secret.len() >= LEAST_BYTES, "too short to be searched for");
        let mut all = self.0.lock();
        if !all.iter().any(|known| known == secret) {
            all.push(secret.to_owned());
        }
    }

    /// Adds that of a session, by its credential.
    pub(super) fn add_credential(&self, credential: &str) {
        if let Some((_, secret)) = credential.split_once('.') {
            self.add(secret);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// How many times one of them stands in these bytes.
    pub(super) fn found_in(&self, bytes: &[u8]) -> usize {
        let all = self.0.lock().clone();
        // Megabytes are searched for dozens of them: most places are ruled out by their first two bytes.
        let mut begins = vec![false; 1 << 16];
        let pair = |bytes: &[u8]| (usize::from(bytes[0]) << 8) | usize::from(bytes[1]);
        for secret in &all {
            begins[pair(secret.as_bytes())] = true;
        }
        let places = (0..bytes.len().saturating_sub(LEAST_BYTES - 1)).filter(|at| begins[pair(&bytes[*at..])]);
        places.map(|at| all.iter().filter(|secret| bytes[at..].starts_with(secret.as_bytes())).count()).sum()
    }

    /// How many stand in the files below a directory: the count, and the bytes that were read.
    ///
    /// # Errors
    /// A directory cannot be read. A file that is gone meanwhile is skipped.
    pub(super) fn found_below(&self, directory: &Path) -> std::io::Result<(usize, u64)> {
        let (mut found, mut read) = (0, 0);
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                let (more, bytes) = self.found_below(&path)?;
                (found, read) = (found + more, read + bytes);
            } else if let Ok(bytes) = std::fs::read(&path) {
                (found, read) = (found + self.found_in(&bytes), read + bytes.len() as u64);
            }
        }
        Ok((found, read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_each_secret_is_found() {
        let secrets = Secrets::default();
        secrets.add("lk_0123456789abcdef");
        secrets.add("lk_0123456789abcdef");
        secrets.add_credential("17.00112233445566778899aabbccddeeff");
        assert_eq!(secrets.count(), 2);
        assert_eq!(secrets.found_in(b""), 0);
        assert_eq!(secrets.found_in(b"lk_0123456789abcde"), 0, "not all of it");
        let text = b"\x00lk_0123456789abcdef 17.00112233445566778899aabbccddeeff lk_0123456789abcdef";
        assert_eq!(secrets.found_in(text), 3);
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        std::fs::write(directory.path().join("data/log"), text).unwrap();
        assert_eq!(secrets.found_below(directory.path()).unwrap(), (3, text.len() as u64));
    }
}
