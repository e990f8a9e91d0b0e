//! Four-letter words: a client that sends `ruok` where a frame's length belongs wants a line of text, not a session.
//!
//! This module recognises them. Which are allowed, and what they answer, is the server's business.

/// A word that a server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourLetterWord(&'static str);

/// All words of ZooKeeper 3.9. `stmk` is followed by an 8-byte mask, which closing the connection discards.
const WORDS: [&str; 18] = [
    "ruok", "srvr", "stat", "mntr", "conf", "cons", "crst", "dump", "envi", "wchs", "wchc", "wchp", "dirs", "isro",
    "srst", "gtmk", "stmk", "hash",
];

impl FourLetterWord {
    /// All of them.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        WORDS.iter().copied().map(Self)
    }

    /// The word that these four bytes spell, if it is known.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        Self::all().find(|word| word.as_str().as_bytes() == bytes)
    }

    /// The word by its name, as a configuration's allow-list spells it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|word| word.as_str() == name)
    }

    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl std::fmt::Display for FourLetterWord {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0)
    }
}
