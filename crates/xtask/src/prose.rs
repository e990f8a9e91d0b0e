//! Rules of code and pages.

use std::collections::HashSet;

use crate::Check;
use crate::citations;
use crate::tree::{Tree, is_code, is_page, without_literals, words};

pub(crate) const CHECKS: [Check; 5] = [
    ("a page that is too long", long_readme),
    ("lines that name one machine or a registry host", foreign_names),
    ("lines over 120 columns", wide_lines),
    ("retired names (scripts/retired-names has their successors)", retired_names),
    ("links to and citations of a path or a heading that does not exist", citations::dead),
];

const WIDTH: usize = 120;
const WORDS: usize = 700;
const RETIRED: &str = "scripts/retired-names";

fn long_readme(tree: &Tree) -> Vec<String> {
    let mut fenced = false;
    let lines = tree.text("README.md").lines().filter(|line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !(fence || fenced || line.starts_with("<!--") && line.ends_with("-->"))
    });
    let words = lines.flat_map(str::split_whitespace).count();
    let found = format!("README.md has {words} words beside its code, {WORDS} are allowed: move some to docs/");
    if words > WORDS { vec![found] } else { Vec::new() }
}

fn foreign_names(tree: &Tree) -> Vec<String> {
    // In two halves, so that they are not found here.
    let names =
        [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("static.", "crates.io"), concat!("index.", "crates.io")];
    let lines = tree.lines(|path| path != "Cargo.lock");
    lines.filter(|line| names.iter().any(|name| line.text.contains(name))).map(|line| line.to_string()).collect()
}

/// Tables, fenced blocks, string literals and the targets of links cannot always be split, and do not count.
fn wide_lines(tree: &Tree) -> Vec<String> {
    let is_wide = |text: &str| text.chars().count() > WIDTH;
    let code = tree.lines(is_code).filter(|line| {
        is_wide(line.text) && {
            let text = line.text.trim_start();
            let comment = text.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim_start());
            let is_table = comment.is_some_and(|comment| comment.starts_with('|'));
            !is_table && (comment.is_some() || text.starts_with("# ") || is_wide(&without_literals(line.text)))
        }
    });
    let mut fenced = false;
    let pages = tree.lines(is_page).filter(|line| {
        let text = line.text.trim_start();
        fenced = (fenced && line.number > 1) ^ text.starts_with("```");
        !fenced && !text.starts_with('|') && is_wide(line.text) && is_wide(&without_targets(line.text))
    });
    code.chain(pages).map(|line| line.to_string()).collect()
}

/// Markdown without the targets of its links.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push(']');
        kept.push_str(part.split_once(')').map_or(part, |(_, after)| after));
    }
    while let Some(start) = kept.find("http://").or_else(|| kept.find("https://")) {
        let end = kept[start..].find([' ', ')', '>']).map_or(kept.len(), |length| start + length);
        kept.replace_range(start..end, "");
    }
    kept
}

/// Literals do not count: some of these words are part of a wire form or a file format.
fn retired_names(tree: &Tree) -> Vec<String> {
    let listed = tree.text(RETIRED).lines().filter(|line| !line.starts_with('#'));
    let listed: HashSet<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    let files: HashSet<&str> = listed.iter().map(|name| name.trim_end_matches('/')).collect();

    let lines = tree.lines(|path| (is_code(path) || is_page(path)) && path != RETIRED && path != ".ci/run");
    let named = lines.filter(|line| {
        words(line.text).any(|word| listed.contains(word))
            && words(&without_literals(line.text)).any(|word| listed.contains(word))
    });
    let modules =
        tree.lines(|path| path.ends_with(".rs")).filter(|line| module(line.text).is_some_and(|it| files.contains(it)));
    let ours =
        tree.files().map(|(path, _)| path).filter(|path| path.starts_with("crates") || path.starts_with("jepsen"));
    let paths = ours.filter(|path| path.split('/').any(|part| files.contains(part.trim_end_matches(".rs"))));
    named.chain(modules).map(|line| line.to_string()).chain(paths.map(str::to_owned)).collect()
}

/// The module that a line declares.
fn module(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let text = match text.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => text,
    };
    words(text.strip_prefix("mod ")?).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: fn(&Tree) -> Vec<String>, files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files))
    }

    #[test]
    fn code_and_comments_of_the_readme_are_no_words() {
        let page = |words| format!("{}\n<!-- a comment -->\n```sh\n{}```\n", "word ".repeat(words), "x ".repeat(900));
        assert_eq!(found(long_readme, &[("README.md", &page(700))]), [""; 0]);
        assert!(found(long_readme, &[("README.md", &page(701))])[0].contains("has 701 words"));
    }

    #[test]
    fn only_lines_that_could_be_split_are_too_wide() {
        let long = "x".repeat(120);
        let code = format!("let a = \"{long}\";\n/// | {long} |\n# {long}\n    // {long}\nlet {long} = 1;\n");
        assert_eq!(found(wide_lines, &[("a.rs", &code)]).len(), 3);
        let page = format!("| {long}\n[a]({long})\n<https://{long}>\n```\nx {long}\n```\nü{long}\n");
        assert_eq!(found(wide_lines, &[("a.md", &page)]), [format!("a.md:7:ü{long}")]);
        assert_eq!(found(wide_lines, &[("a.md", "```\n"), ("b.md", &format!("x{long}"))]).len(), 1);
    }

    #[test]
    fn a_machines_paths_are_foreign() {
        let path = concat!("/ro", "ot/x");
        assert_eq!(found(foreign_names, &[("a", path), ("b", "/roots")]), [format!("a:1:{path}")]);
    }

    #[test]
    fn retired_names_are_found_as_words_modules_and_files() {
        let list = (RETIRED, "# old new\nOld New\nway/ direction\n");
        let code = "let a = Old;\nlet b = \"Old\";\nlet c = Older + way;\npub(crate) mod way;\n";
        let expected =
            ["crates/a/src/b.rs:1:let a = Old;", "crates/a/src/b.rs:4:pub(crate) mod way;", "crates/a/src/way.rs"];
        assert_eq!(found(retired_names, &[list, ("crates/a/src/b.rs", code), ("crates/a/src/way.rs", "")]), expected);
    }
}
