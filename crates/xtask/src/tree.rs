//! The text files under version control.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;

/// Paths from the root of the repository, and what the files contain.
pub(crate) struct Tree(Vec<(String, String)>);

/// A line of a file; shown as `path:number:text`.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) path: &'a str,
    pub(crate) number: usize,
    pub(crate) text: &'a str,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path, self.number, self.text)
    }
}

impl Tree {
    /// The files of this checkout as they are now. Leaves out what is no text.
    pub(crate) fn of_checkout() -> io::Result<Tree> {
        let root = git(&["rev-parse", "--show-toplevel"])?;
        let root = Path::new(root.trim_end());
        let paths = git(&["-C", &root.to_string_lossy(), "ls-files", "-z"])?;
        let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root.join(path)).ok()?));
        Ok(Tree(paths.split_terminator('\0').filter_map(read).collect()))
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text of a file.
    ///
    /// # Panics
    /// There is no such file: what is looked up in it would pass unseen.
    pub(crate) fn text(&self, path: &str) -> &str {
        let (_, text) = self.files().find(|(own, _)| *own == path).unwrap_or_else(|| panic!("{path} is not here"));
        text
    }

    /// The lines of the files that `select` takes.
    pub(crate) fn lines(&self, select: fn(&str) -> bool) -> impl Iterator<Item = Line<'_>> {
        self.files().filter(move |(path, _)| select(path)).flat_map(|(path, text)| {
            text.lines().enumerate().map(move |(at, text)| Line { path, number: at + 1, text })
        })
    }
}

fn git(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("git").args(arguments).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("git {}: {}", arguments.join(" "), output.status)));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

pub(crate) fn is_page(path: &str) -> bool {
    path.ends_with(".md")
}

/// Code, configuration and scripts.
pub(crate) fn is_code(path: &str) -> bool {
    [".rs", ".toml", ".py"].iter().any(|end| path.ends_with(end)) || path.starts_with("scripts/") || path == ".ci/run"
}

/// Whether a character is part of a name.
pub(crate) fn in_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character| !in_word(character)).filter(|word| !word.is_empty())
}

/// A line of code without what its string literals contain.
pub(crate) fn without_literals(text: &str) -> String {
    let mut text = text.to_owned();
    if let (Some(first), Some(last)) = (text.find("r#\""), text.rfind("\"#"))
        && first + 3 <= last
    {
        text.replace_range(first + 3..last, "");
    }
    let (mut kept, mut rest) = (String::new(), text.as_str());
    while let Some((before, literal)) = rest.split_once('"') {
        let Some(length) = end_of_literal(literal) else { break };
        kept.push_str(before);
        kept.push_str("\"\"");
        rest = &literal[length + 1..];
    }
    kept + rest
}

/// Where the quote is that ends a literal.
pub(crate) fn end_of_literal(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, character)| {
        let ends = character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        ends.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_cut_and_the_rest_is_kept() {
        for (line, kept) in [
            (r#"let a = "a \" b"; b("c")"#, r#"let a = ""; b("")"#),
            (r##"let a = r#"one "word" here"#;"##, r##"let a = r#""#;"##),
            (r#"a("b", "the next line goes on"#, r#"a("", "the next line goes on"#),
            ("// plain text", "// plain text"),
        ] {
            assert_eq!(without_literals(line), kept);
        }
    }

    #[test]
    fn lines_show_where_they_are() {
        let tree = Tree::of(&[("a.rs", "one\ntwo\n"), ("b.md", "three")]);
        let shown: Vec<String> = tree.lines(is_code).map(|line| line.to_string()).collect();
        assert_eq!(shown, ["a.rs:1:one", "a.rs:2:two"]);
        assert_eq!(tree.text("b.md"), "three");
    }
}
