//! A simulated disk that knows what was synced: files and directories as the processes saw them, and as a power cut may
//! leave them.

use std::collections::BTreeMap;

use rand::Rng as _;
use rand::rngs::StdRng;

use super::Lost;
use super::calls::{Deed, SystemCall, TraceReader};
use super::image::FileTree;

/// What a disk writes whole or not at all.
const SECTOR: u64 = 512;

/// What becomes of that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// One of the others, by chance.
    Drawn,
    /// All of it is lost.
    All,
    /// What came after some moment is lost: the disk was behind.
    Late,
    /// The same, and the moment was not long ago.
    Latest,
    /// Any of it, sector by sector: the disk wrote in an order of its own.
    Any,
    /// None of it, as after `kill -9` alone.
    None,
}

impl Loss {
    fn draw(self, rng: &mut StdRng) -> Self {
        match self {
            Self::Drawn => match rng.random_range(0..20) {
                0..6 => Self::All,
                6..12 => Self::Late,
                12..19 => Self::Any,
                _ => Self::None,
            },
            drawn => drawn,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Drawn => "drawn",
            Self::All => "all lost",
            Self::Late => "late ones lost",
            Self::Latest => "latest ones lost",
            Self::Any => "any lost",
            Self::None => "none lost",
        }
    }
}

#[derive(Clone, Debug)]
enum FileDeed {
    Write { at: u64, data: Vec<u8> },
    Resize(u64),
    Grow(u64),
}

#[derive(Clone, Debug)]
enum NameDeed {
    Link(String, usize),
    Move { from: String, to: String, what: usize },
    Unlink(String),
}

/// Something as it is now, as it is for certain on the disk, and what lies between: each with the line on which it was
/// done.
#[derive(Clone, Debug)]
struct Stored<T, D> {
    now: T,
    synced: T,
    unsynced: Vec<(u64, D)>,
}

impl<T: Clone, D> Stored<T, D> {
    fn new(content: T) -> Self {
        Self { now: content.clone(), synced: content, unsynced: Vec::new() }
    }

    fn change(&mut self, line: u64, deed: D, apply: impl Fn(&mut T, &D)) {
        apply(&mut self.now, &deed);
        self.unsynced.push((line, deed));
    }

    /// What had been done when the sync began is safe.
    fn sync(&mut self, began: u64, apply: impl Fn(&mut T, &D)) {
        let safe = self.unsynced.partition_point(|(line, _)| *line < began);
        self.unsynced.drain(..safe).for_each(|(_, deed)| apply(&mut self.synced, &deed));
    }
}

type File = Stored<Vec<u8>, FileDeed>;
type Directory = Stored<BTreeMap<String, usize>, NameDeed>;

#[derive(Clone)]
enum Inode {
    File(File),
    Directory(Directory),
}

/// See the module's text.
#[derive(Clone)]
pub(super) struct Disk {
    root: String,
    nodes: Vec<Inode>,
    /// Where each descriptor stands; none for one that appends.
    places: BTreeMap<i64, Option<u64>>,
    /// Whether the last calls may not have taken place.
    unsure: bool,
}

impl Disk {
    /// A disk that has just these files, all of them synced.
    pub(super) fn at(root: &std::path::Path, base: Option<FileTree>) -> Self {
        let root = root.display().to_string();
        let mut disk = Self { root, nodes: Vec::new(), places: BTreeMap::new(), unsure: false };
        disk.take_in(base.unwrap_or(FileTree::Directory(BTreeMap::new())));
        disk
    }

    /// Gives the number of what was taken in; the first is the root.
    fn take_in(&mut self, entry: FileTree) -> usize {
        let number = self.nodes.len();
        match entry {
            FileTree::File(bytes) => self.nodes.push(Inode::File(Stored::new(bytes))),
            FileTree::Directory(entries) => {
                self.nodes.push(Inode::Directory(Stored::new(BTreeMap::new())));
                let names = entries.into_iter().map(|(name, entry)| (name, self.take_in(entry))).collect();
                self.nodes[number] = Inode::Directory(Stored::new(names));
            }
        }
        number
    }

    /// Does what the trace tells.
    pub(super) fn replay(&mut self, trace: &[u8]) -> Result<(), String> {
        let root = self.root.clone();
        let mut reader = TraceReader::new(&root);
        for line in trace.split(|byte| *byte == b'\n') {
            self.replay_line(&mut reader, line)?;
        }
        let last = reader.line() + 1;
        for call in reader.unfinished()? {
            self.unsure = true;
            self.perform(last, call).map_err(|what| format!("at the end: {what}"))?;
        }
        Ok(())
    }

    /// Does what the next line of a trace tells.
    pub(super) fn replay_line(&mut self, reader: &mut TraceReader, line: &[u8]) -> Result<(), String> {
        let Some(call) = reader.read(line)? else { return Ok(()) };
        let at = reader.line();
        self.perform(at, call).map_err(|what| format!("line {at}: {what}"))
    }

    fn perform(&mut self, line: u64, call: SystemCall) -> Result<(), String> {
        self.unsure |= !call.ended;
        match call.deed {
            Deed::Open { fd, path, create, truncate, append } => {
                if create && self.find(&path).is_err() {
                    let number = self.take_in(FileTree::File(Vec::new()));
                    self.link(line, &path, number)?;
                } else if truncate {
                    self.change_file(line, &path, FileDeed::Resize(0))?;
                }
                self.places.insert(fd, (!append).then_some(0));
            }
            Deed::Seek { fd, at } => drop(self.places.insert(fd, Some(at))),
            Deed::Write { path, at: Some(at), data, .. } => {
                self.change_file(line, &path, FileDeed::Write { at, data })?;
            }
            Deed::Write { fd, path, at: None, data } => {
                let end = self.file(&path)?.now.len() as u64;
                let place = self.places.get_mut(&fd).ok_or_else(|| format!("nobody has opened descriptor {fd}"))?;
                let at = place.unwrap_or(end);
                *place = place.map(|at| at + data.len() as u64);
                self.change_file(line, &path, FileDeed::Write { at, data })?;
            }
            Deed::Resize { path, bytes } => self.change_file(line, &path, FileDeed::Resize(bytes))?,
            Deed::Grow { path, bytes } => self.change_file(line, &path, FileDeed::Grow(bytes))?,
            Deed::Rename { from, to } => self.rename(line, &from, &to)?,
            Deed::Remove { path } => {
                let (directory, name) = self.parent(&path)?;
                directory.change(line, NameDeed::Unlink(name), apply_name);
            }
            // The root is there in any case.
            Deed::MakeDirectory { path } if path.is_empty() => {}
            Deed::MakeDirectory { path } => {
                let number = self.take_in(FileTree::Directory(BTreeMap::new()));
                self.link(line, &path, number)?;
            }
            Deed::Sync { path } => {
                let number = self.find(&path)?;
                match &mut self.nodes[number] {
                    Inode::File(file) => file.sync(call.began, apply_to_file),
                    Inode::Directory(directory) => directory.sync(call.began, apply_name),
                }
            }
        }
        Ok(())
    }

    /// What stands at a path now.
    fn find(&self, path: &[String]) -> Result<usize, String> {
        path.iter().try_fold(0, |at, name| match &self.nodes[at] {
            Inode::Directory(directory) => {
                directory.now.get(name).copied().ok_or_else(|| format!("nothing at {}", path.join("/")))
            }
            Inode::File(_) => Err(format!("no directory on the way to {}", path.join("/"))),
        })
    }

    fn file(&mut self, path: &[String]) -> Result<&mut File, String> {
        let number = self.find(path)?;
        match &mut self.nodes[number] {
            Inode::File(file) => Ok(file),
            Inode::Directory(_) => Err(format!("{} is a directory", path.join("/"))),
        }
    }

    fn parent(&mut self, path: &[String]) -> Result<(&mut Directory, String), String> {
        let (name, above) = path.split_last().ok_or("the root itself")?;
        let number = self.find(above)?;
        match &mut self.nodes[number] {
            Inode::Directory(directory) => Ok((directory, name.clone())),
            Inode::File(_) => Err(format!("{} is no directory", above.join("/"))),
        }
    }

    fn change_file(&mut self, line: u64, path: &[String], deed: FileDeed) -> Result<(), String> {
        self.file(path)?.change(line, deed, apply_to_file);
        Ok(())
    }

    fn link(&mut self, line: u64, path: &[String], number: usize) -> Result<(), String> {
        let (directory, name) = self.parent(path)?;
        directory.change(line, NameDeed::Link(name, number), apply_name);
        Ok(())
    }

    /// Within a directory a move is one step; from one to another it is two, and either may be lost.
    fn rename(&mut self, line: u64, from: &[String], to: &[String]) -> Result<(), String> {
        let what = self.find(from)?;
        let same = from.split_last().map(|(_, above)| above) == to.split_last().map(|(_, above)| above);
        let (_, new) = self.parent(to)?;
        let (directory, old) = self.parent(from)?;
        if same {
            directory.change(line, NameDeed::Move { from: old, to: new, what }, apply_name);
            return Ok(());
        }
        directory.change(line, NameDeed::Unlink(old), apply_name);
        self.link(line, to, what)
    }

    /// Says where the replayed files differ from those found: then the trace does not tell all, and nothing follows
    /// from it.
    pub(super) fn compare(&self, found: &Option<FileTree>) -> Result<(), String> {
        let replayed = self.entry(0, &|file| file.now.clone(), &|directory| directory.now.clone());
        if self.unsure || found.as_ref() == Some(&replayed) {
            return Ok(());
        }
        let differing = found.as_ref().and_then(|found| difference("", &replayed, found));
        Err(format!("the files are not as the trace tells: {}", differing.unwrap_or_else(|| "they are gone".into())))
    }

    /// Cuts the power: what is there afterwards, and what is not.
    pub(super) fn cut(&mut self, rng: &mut StdRng, loss: Loss) -> (Option<FileTree>, Lost) {
        let loss = loss.draw(rng);
        let mut cut =
            Cut { loss, moment: self.moment(loss, rng), lost: Lost { how: loss.name(), ..Lost::default() }, rng };
        for node in &mut self.nodes {
            match node {
                Inode::File(file) => cut.file(file),
                Inode::Directory(directory) => cut.names(directory),
            }
        }
        let Cut { lost, .. } = cut;
        let left = self.entry(0, &|file| file.synced.clone(), &|directory| directory.synced.clone());
        (Some(left), lost)
    }

    /// Some line since the oldest deed that is not synced; of the latest, one of the last fifth.
    fn moment(&self, loss: Loss, rng: &mut StdRng) -> u64 {
        let lines = |node: &Inode| match node {
            Inode::File(file) => file.unsynced.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            Inode::Directory(directory) => directory.unsynced.iter().map(|(line, _)| *line).collect(),
        };
        let mut all: Vec<u64> = self.nodes.iter().flat_map(lines).collect();
        all.sort_unstable();
        let count = if loss == Loss::Latest { all.len().div_ceil(5) } else { all.len() };
        if all.is_empty() { 0 } else { all[rng.random_range(all.len() - count..all.len())] }
    }

    fn entry(
        &self,
        number: usize,
        content: &dyn Fn(&File) -> Vec<u8>,
        names: &dyn Fn(&Directory) -> BTreeMap<String, usize>,
    ) -> FileTree {
        match &self.nodes[number] {
            Inode::File(file) => FileTree::File(content(file)),
            Inode::Directory(directory) => {
                let entries = names(directory).into_iter();
                FileTree::Directory(entries.map(|(name, at)| (name, self.entry(at, content, names))).collect())
            }
        }
    }
}

/// One power cut.
struct Cut<'a> {
    loss: Loss,
    /// For [`Loss::Late`] and [`Loss::Latest`]: from this line on.
    moment: u64,
    lost: Lost,
    rng: &'a mut StdRng,
}

impl Cut<'_> {
    fn file(&mut self, file: &mut File) {
        // Some disks are nearly done, some have hardly begun.
        let share = self.rng.random_range(0.0..1.0);
        for (line, deed) in std::mem::take(&mut file.unsynced) {
            if let FileDeed::Write { data, .. } = &deed {
                self.lost.unsynced_writes += 1;
                self.lost.unsynced_bytes += data.len() as u64;
            }
            match deed {
                FileDeed::Write { at, data } => {
                    let pieces = sectors(at, data);
                    let kept: Vec<_> = pieces.iter().map(|_| self.keeps(line, share)).collect();
                    let missing = kept.iter().filter(|kept| !**kept).count();
                    self.lost.sectors += missing as u64;
                    self.lost.torn += u64::from(missing > 0 && missing < kept.len());
                    for ((at, data), _) in pieces.into_iter().zip(kept).filter(|(_, kept)| *kept) {
                        apply_to_file(&mut file.synced, &FileDeed::Write { at, data });
                    }
                }
                deed if self.keeps(line, share) => apply_to_file(&mut file.synced, &deed),
                _ => self.lost.sectors += 1,
            }
        }
    }

    /// Names are kept in order, as far as they are: file systems have a journal for them.
    fn names(&mut self, directory: &mut Directory) {
        let share = self.rng.random_range(0.0..1.0);
        let unsynced = std::mem::take(&mut directory.unsynced);
        let kept = unsynced.iter().take_while(|(line, _)| self.keeps(*line, share)).count();
        self.lost.names += (unsynced.len() - kept) as u64;
        unsynced.iter().take(kept).for_each(|(_, deed)| apply_name(&mut directory.synced, deed));
    }

    fn keeps(&mut self, line: u64, share: f64) -> bool {
        match self.loss {
            Loss::All => false,
            Loss::Late | Loss::Latest => line < self.moment,
            Loss::Any => self.rng.random_bool(share),
            Loss::None | Loss::Drawn => true,
        }
    }
}

/// A write as the disk sees it.
fn sectors(at: u64, data: Vec<u8>) -> Vec<(u64, Vec<u8>)> {
    let (mut pieces, mut at, mut rest) = (Vec::new(), at, data.as_slice());
    while !rest.is_empty() {
        let here = rest.len().min((SECTOR - at % SECTOR) as usize);
        let (piece, after) = rest.split_at(here);
        pieces.push((at, piece.to_vec()));
        (at, rest) = (at + here as u64, after);
    }
    pieces
}

fn apply_to_file(content: &mut Vec<u8>, deed: &FileDeed) {
    match deed {
        FileDeed::Write { at, data } => {
            let (at, end) = (*at as usize, *at as usize + data.len());
            if content.len() < end {
                content.resize(end, 0);
            }
            content[at..end].copy_from_slice(data);
        }
        FileDeed::Resize(bytes) => content.resize(*bytes as usize, 0),
        FileDeed::Grow(bytes) => content.resize(content.len().max(*bytes as usize), 0),
    }
}

fn apply_name(names: &mut BTreeMap<String, usize>, deed: &NameDeed) {
    match deed {
        NameDeed::Link(name, what) => drop(names.insert(name.clone(), *what)),
        NameDeed::Move { from, to, what } => {
            names.remove(from);
            names.insert(to.clone(), *what);
        }
        NameDeed::Unlink(name) => drop(names.remove(name)),
    }
}

/// The first difference between two trees, for people.
fn difference(path: &str, replayed: &FileTree, found: &FileTree) -> Option<String> {
    match (replayed, found) {
        (FileTree::File(a), FileTree::File(b)) if a == b => None,
        (FileTree::File(a), FileTree::File(b)) => {
            let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
            Some(format!("{path} differs at {at} ({} and {} bytes)", a.len(), b.len()))
        }
        (FileTree::Directory(a), FileTree::Directory(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            names.into_iter().find_map(|name| match (a.get(name), b.get(name)) {
                (Some(a), Some(b)) => difference(&format!("{path}/{name}"), a, b),
                (a, _) => Some(format!("{path}/{name} is {}", if a.is_some() { "not there" } else { "there" })),
            })
        }
        _ => Some(format!("{path} is of another kind")),
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
