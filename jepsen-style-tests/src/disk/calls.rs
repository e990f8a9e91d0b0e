//! Parses the lines of a system-call trace (`strace -f -y`) into the calls that changed something below one directory,
//! in the order in which they ended.
//!
//! It must never skip a call that it does not understand: a directory rebuilt without it would prove nothing.

use std::collections::BTreeMap;

/// What a call did. Paths are the names below the directory, from the outside in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Open {
        fd: i64,
        path: Vec<String>,
        create: bool,
        truncate: bool,
        append: bool,
    },
    Seek {
        fd: i64,
        at: u64,
    },
    /// Without a place it goes where the descriptor stands.
    Write {
        fd: i64,
        path: Vec<String>,
        at: Option<u64>,
        data: Vec<u8>,
    },
    Resize {
        path: Vec<String>,
        bytes: u64,
    },
    /// Never shrinks.
    Grow {
        path: Vec<String>,
        bytes: u64,
    },
    Rename {
        from: Vec<String>,
        to: Vec<String>,
    },
    Remove {
        path: Vec<String>,
    },
    MakeDirectory {
        path: Vec<String>,
    },
    Sync {
        path: Vec<String>,
    },
}

/// A call that succeeded, or whose end the trace does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemCall {
    /// The line on which it began.
    pub(super) began: u64,
    /// Whether the trace tells its end.
    pub(super) ended: bool,
    pub(super) deed: Deed,
}

/// Reads a trace line by line.
pub(super) struct TraceReader {
    root: String,
    line: u64,
    /// Calls that have begun, by thread.
    begun: BTreeMap<String, (u64, Vec<u8>)>,
}

impl TraceReader {
    pub(super) fn new(root: &str) -> Self {
        Self { root: root.to_owned(), line: 0, begun: BTreeMap::new() }
    }

    /// The number of the last line.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The call that ends on this line, if it changed anything.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<Option<SystemCall>, String> {
        self.line += 1;
        let Some(space) = line.iter().position(|byte| *byte == b' ') else { return Ok(None) };
        let (thread, text) = (String::from_utf8_lossy(&line[..space]).into_owned(), line[space..].trim_ascii());
        // The second is said of a thread that died before its line was whole.
        let start = text.strip_suffix(b"<unfinished ...>").or_else(|| text.strip_suffix(b"<detached ...>"));
        if let Some(start) = start {
            self.begun.insert(thread, (self.line, start.to_vec()));
            return Ok(None);
        }
        let (began, whole) = match text.strip_prefix(b"<... ") {
            None => (self.line, text.to_vec()),
            Some(resumed) => {
                let Some((began, mut start)) = self.begun.remove(&thread) else { return Ok(None) };
                let end = resumed.iter().position(|byte| *byte == b'>').map_or(resumed.len(), |at| at + 1);
                start.extend_from_slice(&resumed[end..]);
                (began, start)
            }
        };
        self.understand(began, &whole)
    }

    /// The calls whose end was not written: the process was killed in the middle.
    pub(super) fn unfinished(&mut self) -> Result<Vec<SystemCall>, String> {
        let begun = std::mem::take(&mut self.begun);
        let mut calls = Vec::new();
        for (began, mut text) in begun.into_values() {
            text.extend_from_slice(b") = ?");
            calls.extend(self.understand(began, &text)?);
        }
        Ok(calls)
    }

    fn understand(&self, began: u64, text: &[u8]) -> Result<Option<SystemCall>, String> {
        if !contains(text, self.root.as_bytes()) {
            return Ok(None);
        }
        let complain = |what: &str| {
            let shown: String = String::from_utf8_lossy(text).chars().take(200).collect();
            format!("line {began}: {what}: {shown}")
        };
        let Some(open) = text.iter().position(|byte| *byte == b'(') else { return Ok(None) };
        let name = String::from_utf8_lossy(&text[..open]).into_owned();
        let (arguments, rest) = split(&text[open + 1..]).ok_or_else(|| complain("not a whole call"))?;
        let result = String::from_utf8_lossy(rest).trim().trim_start_matches('=').trim().to_owned();
        if result.starts_with('-') {
            return Ok(None);
        }
        let result = if result.starts_with('?') { None } else { Some(result) };
        let call = CallArguments { root: &self.root, arguments: &arguments, result: result.as_deref() };
        let deed = call.deed(&name).map_err(|what| complain(&what))?;
        Ok(deed.map(|deed| SystemCall { began, ended: result.is_some(), deed }))
    }
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    // The path stands near the beginning, or at the end behind data.
    text.windows(what.len()).any(|window| window == what)
}

/// The arguments of a call, from behind its opening bracket on, and what follows the closing one.
fn split(text: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (mut arguments, mut start, mut depth, mut at) = (Vec::new(), 0, 0_u32, 0);
    while at < text.len() {
        match text[at] {
            b'"' => at += string_end(&text[at + 1..])? + 1,
            // What strace adds to a descriptor.
            b'<' if at > 0 && text[at - 1].is_ascii_alphanumeric() => {
                at += text[at..].iter().position(|byte| *byte == b'>')?;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                arguments.push(text[start..at].trim_ascii());
                return Some((arguments, &text[at + 1..]));
            }
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                arguments.push(text[start..at].trim_ascii());
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where the quotation mark stands that ends a string.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'"' => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

struct CallArguments<'a> {
    root: &'a str,
    arguments: &'a [&'a [u8]],
    result: Option<&'a str>,
}

type Path = Option<Vec<String>>;

impl CallArguments<'_> {
    fn deed(&self, name: &str) -> Result<Option<Deed>, String> {
        Ok(match name {
            "open" => self.opened(self.path_at(0)?, 1)?,
            "creat" => return Err("not understood".into()),
            "openat" => self.opened(self.path_beside(0)?, 2)?,
            "lseek" => {
                let fd = self.descriptor(0)?.0;
                self.result.and_then(|at| at.parse().ok()).map(|at| Deed::Seek { fd, at })
            }
            "write" | "pwrite64" => {
                let (fd, path) = self.descriptor(0)?;
                let mut data = self.text(1)?;
                if let Some(written) = self.result {
                    data.truncate(written.parse().map_err(|_| "no count of bytes written")?);
                }
                let at = if name == "write" { None } else { Some(self.number(3)?) };
                path.map(|path| Deed::Write { fd, path, at, data })
            }
            "ftruncate" => self.file(0)?.zip(self.number(1).ok()).map(|(path, bytes)| Deed::Resize { path, bytes }),
            "truncate" => self.path_at(0)?.zip(self.number(1).ok()).map(|(path, bytes)| Deed::Resize { path, bytes }),
            "fallocate" if self.raw(1)? == b"0" => {
                let bytes = self.number(2)? + self.number(3)?;
                self.file(0)?.map(|path| Deed::Grow { path, bytes })
            }
            "rename" => self.renamed(self.path_at(0)?, self.path_at(1)?)?,
            "renameat" | "renameat2" => self.renamed(self.path_beside(0)?, self.path_beside(2)?)?,
            "unlink" | "rmdir" => self.path_at(0)?.map(|path| Deed::Remove { path }),
            "unlinkat" => self.path_beside(0)?.map(|path| Deed::Remove { path }),
            "mkdir" => self.path_at(0)?.map(|path| Deed::MakeDirectory { path }),
            "mkdirat" => self.path_beside(0)?.map(|path| Deed::MakeDirectory { path }),
            // One that did not end made nothing durable for certain.
            "fsync" | "fdatasync" => self.file(0)?.filter(|_| self.result.is_some()).map(|path| Deed::Sync { path }),
            // Sent to somebody, with one of our paths in what is said.
            "writev" | "pwritev" | "pwritev2" if self.descriptor(0)?.1.is_none() => None,
            _ => return Err("not understood".into()),
        })
    }

    fn opened(&self, path: Path, flags: usize) -> Result<Option<Deed>, String> {
        let flags = String::from_utf8_lossy(self.raw(flags)?).into_owned();
        if flags.contains("SYNC") || flags.contains("O_TMPFILE") {
            return Err("opened in a way that is not understood".into());
        }
        let has = |flag: &str| flags.split('|').any(|set| set == flag);
        let fd = self.result.and_then(|fd| fd.split('<').next()?.trim().parse().ok());
        let (create, truncate, append) = (has("O_CREAT"), has("O_TRUNC"), has("O_APPEND"));
        Ok(path.map(|path| Deed::Open { fd: fd.unwrap_or(-1), path, create, truncate, append }))
    }

    fn renamed(&self, from: Path, to: Path) -> Result<Option<Deed>, String> {
        match (from, to) {
            (None, None) => Ok(None),
            (Some(from), Some(to)) => Ok(Some(Deed::Rename { from, to })),
            _ => Err("moved into the directory, or out of it".into()),
        }
    }

    fn raw(&self, at: usize) -> Result<&[u8], String> {
        self.arguments.get(at).copied().ok_or_else(|| format!("argument {at} is missing"))
    }

    fn number(&self, at: usize) -> Result<u64, String> {
        let text = String::from_utf8_lossy(self.raw(at)?).into_owned();
        text.parse().map_err(|_| format!("argument {at} is no number"))
    }

    /// A quoted argument, whole.
    fn text(&self, at: usize) -> Result<Vec<u8>, String> {
        let quoted = self.raw(at)?.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
        unescape(quoted.ok_or_else(|| format!("argument {at} is not a whole string"))?)
            .ok_or_else(|| format!("argument {at} cannot be read"))
    }

    /// A descriptor and the names of its file, if that is below the directory and still has a name.
    fn descriptor(&self, at: usize) -> Result<(i64, Path), String> {
        let text = String::from_utf8_lossy(self.raw(at)?).into_owned();
        let (fd, path) = text.split_once('<').ok_or_else(|| format!("argument {at} is no descriptor"))?;
        let fd = fd.parse().map_err(|_| format!("argument {at} is no descriptor"))?;
        Ok((fd, path.strip_suffix('>').and_then(|path| self.below(path))))
    }

    fn file(&self, at: usize) -> Result<Path, String> {
        self.descriptor(at).map(|(_, path)| path)
    }

    fn path_at(&self, at: usize) -> Result<Path, String> {
        let path = String::from_utf8(self.text(at)?).map_err(|_| "a path is no text")?;
        match path.starts_with('/') {
            true => Ok(self.below(&path)),
            false => Err("a relative path".into()),
        }
    }

    /// The path in the argument behind that of its directory.
    fn path_beside(&self, at: usize) -> Result<Path, String> {
        let path = String::from_utf8(self.text(at + 1)?).map_err(|_| "a path is no text")?;
        if path.starts_with('/') {
            return Ok(self.below(&path));
        }
        let directory = String::from_utf8_lossy(self.raw(at)?).into_owned();
        let directory = directory.split_once('<').and_then(|(_, rest)| rest.strip_suffix('>'));
        let directory = directory.ok_or("a relative path without its directory")?;
        Ok(self.below(&format!("{directory}/{path}")))
    }

    fn below(&self, path: &str) -> Path {
        let rest = path.strip_prefix(self.root)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| names(rest))
    }
}

fn names(path: &str) -> Vec<String> {
    path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What strace wrote as a C string.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut at = 0;
    while at < text.len() {
        if text[at] != b'\\' {
            bytes.push(text[at]);
            at += 1;
            continue;
        }
        at += 1;
        let octal = text[at..].iter().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
        if octal > 0 {
            let value = text[at..at + octal].iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(u8::try_from(value).ok()?);
            at += octal;
            continue;
        }
        bytes.push(match text.get(at)? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            quoted @ (b'"' | b'\\') => *quoted,
            _ => return None,
        });
        at += 1;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<SystemCall> {
        let mut reader = TraceReader::new("/d");
        let mut calls: Vec<SystemCall> =
            lines.iter().filter_map(|line| reader.read(line.as_bytes()).unwrap()).collect();
        calls.extend(reader.unfinished().unwrap());
        calls
    }

    fn deeds(lines: &[&str]) -> Vec<Deed> {
        read(lines).into_iter().map(|call| call.deed).collect()
    }

    fn path(text: &str) -> Vec<String> {
        names(text)
    }

    #[test]
    fn calls_below_the_directory_are_understood() {
        let file = || path("log/db");
        assert_eq!(
            deeds(&[
                r#"7 openat(AT_FDCWD</w>, "/d/log/db", O_RDWR|O_CREAT|O_CLOEXEC, 0666) = 9</d/log/db>"#,
                r#"7 pwrite64(9</d/log/db>, "a)\",\0\0011\n", 9, 512) = 7"#,
                r#"7 write(9</d/log/db>, "xy", 2) = 2"#,
                r#"7 lseek(9</d/log/db>, 3, SEEK_SET) = 3"#,
                r#"7 fdatasync(9</d/log/db>)          = 0"#,
                r#"7 rename("/d/a", "/d/b") = 0"#,
                r#"7 unlinkat(4</d/log>, "db", 0) = 0"#,
                r#"7 mkdir("/d/log", 0777) = -1 EEXIST (File exists)"#,
                r#"7 write(5<socket:[1]>, "/d/", 3) = 3"#,
                r#"7 openat(AT_FDCWD</w>, "/data", O_RDONLY) = 9</data>"#,
                r#"7 +++ exited with 0 +++"#,
            ]),
            [
                Deed::Open { fd: 9, path: file(), create: true, truncate: false, append: false },
                Deed::Write { fd: 9, path: file(), at: Some(512), data: b"a)\",\0\x011".to_vec() },
                Deed::Write { fd: 9, path: file(), at: None, data: b"xy".to_vec() },
                Deed::Seek { fd: 9, at: 3 },
                Deed::Sync { path: file() },
                Deed::Rename { from: path("a"), to: path("b") },
                Deed::Remove { path: file() },
            ]
        );
    }

    #[test]
    fn a_call_counts_from_when_it_began_and_one_without_an_end_is_told_of() {
        let calls = read(&[
            r#"7 fsync(9</d/x> <unfinished ...>"#,
            r#"8 pwrite64(9</d/x>, "ab", 2, 0 <unfinished ...>"#,
            r#"7 <... fsync resumed>)             = 0"#,
            r#"9 fsync(9</d/x> <detached ...>"#,
        ]);
        let x = || path("x");
        assert_eq!(calls[0], SystemCall { began: 1, ended: true, deed: Deed::Sync { path: x() } });
        let write = Deed::Write { fd: 9, path: x(), at: Some(0), data: b"ab".to_vec() };
        assert_eq!(calls[1..], [SystemCall { began: 2, ended: false, deed: write }], "a sync without an end is none");
    }

    #[test]
    fn what_is_not_understood_is_not_passed_over() {
        for line in [
            r#"7 writev(9</d/x>, [{iov_base="a", iov_len=1}], 1) = 1"#,
            r#"7 write(9</d/x>, "ab"..., 4000) = 4000"#,
            r#"7 openat(AT_FDCWD</w>, "/d/x", O_WRONLY|O_DSYNC) = 9</d/x>"#,
            r#"7 rename("/d/x", "/elsewhere") = 0"#,
        ] {
            assert!(TraceReader::new("/d").read(line.as_bytes()).is_err(), "{line}");
        }
    }
}
