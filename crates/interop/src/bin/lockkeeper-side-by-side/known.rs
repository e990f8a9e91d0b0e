//! Where the two differ, and why that is right. Each entry must show itself in each run: an excuse that nothing needs any
//! more is a failure.

/// A difference that has a reason.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its name in the script, behind `~`.
    pub(crate) key: &'static str,
    /// What differs.
    pub(crate) what: &'static str,
    /// A piece of ZooKeeper's line, wherever the lines differ.
    pub(crate) zookeeper: &'static str,
    /// A piece of Lockkeeper's line, wherever the lines differ.
    pub(crate) lockkeeper: &'static str,
    /// Why Lockkeeper does otherwise.
    pub(crate) reason: &'static str,
}

/// The one that is in no line: events with a zxid.
pub(crate) const EVENT_ZXID: &str = "event-zxid";

/// All of them.
pub(crate) const KNOWN: &[Known] = &[
    Known {
        key: EVENT_ZXID,
        what: "The zxid in the header of a watch event",
        zookeeper: "none (-1)",
        lockkeeper: "that of the change",
        reason: "ZooKeeper 3.9 tells it too; Debian's is 3.8",
    },
];

/// The entry of that key.
pub(crate) fn find(key: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.key == key)
}

/// All of them as a table in Markdown.
pub(crate) fn table() -> String {
    let mut text = String::from("| what | ZooKeeper 3.8 | Lockkeeper | why |\n|---|---|---|---|\n");
    for known in KNOWN {
        let cell = |cell: &str| cell.replace('|', "\\|");
        let row = [known.what, known.zookeeper, known.lockkeeper, known.reason].map(cell).join(" | ");
        text.push_str(&format!("| {row} |\n"));
    }
    text
}
