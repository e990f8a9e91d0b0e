//! Links between pages, and paths that code and pages cite. A link is relative to its page. A path may be cited from
//! the crate or the folder that it is in; a heading by its anchor. The tests of this crate cite what there is not.

use std::collections::HashSet;

use crate::tree::{Tree, in_word, is_code, is_page};

/// A path below one of these folders, of the repository or of a crate, is a citation; elsewhere a file with one of
/// [`EXTENSIONS`] is.
const FOLDERS: [&str; 9] = ["src", "tests", "benches", "crates", "docs", "scripts", "cluster-config", ".ci", ".cargo"];
const EXTENSIONS: [&str; 2] = [".rs", ".md"];

/// What there is to cite.
struct Targets<'a> {
    /// Files and folders from the root.
    paths: HashSet<&'a str>,
    /// The same without some of the folders above.
    ends: HashSet<&'a str>,
    /// `page#anchor`, by the page's path and by its name.
    headings: HashSet<String>,
}

/// Links and citations of what does not exist.
pub(crate) fn dead(tree: &Tree) -> Vec<String> {
    let targets = Targets::of(tree);
    let pages = tree.lines(is_page).flat_map(|line| links(line.text).map(move |link| (line, link)));
    let dead_links =
        pages.filter(|(line, link)| !targets.has_link(line.path, link)).map(|(line, link)| (line, link.into()));
    let citing = |path: &str| (is_code(path) || is_page(path)) && path != "CHANGELOG.md" && !is_own(path);
    let lines = tree.lines(citing).flat_map(|line| cited(line.text).map(move |cited| (line, cited)));
    let dead_paths = lines.filter(|(_, cited)| !targets.has_cited(cited));
    let found = dead_links.chain(dead_paths);
    let found = found.map(|(line, to): (_, String)| format!("{}:{} {to}", line.path, line.number));
    found.chain(private_citations(tree)).collect()
}

fn is_own(path: &str) -> bool {
    path.starts_with("crates/xtask/")
}

/// Of the design, which is no part of the repository.
fn private_citations(tree: &Tree) -> impl Iterator<Item = String> {
    let citing = |path: &str| (is_page(path) || path.ends_with(".rs") || path.starts_with("scripts/")) && !is_own(path);
    let lines = tree.lines(citing);
    let found = lines.filter(move |line| {
        let mut numbers =
            line.text.match_indices(" of the design").filter_map(|(at, _)| line.text[..at].rsplit_once(' '));
        line.text.contains("DESIGN.md")
            || line.text.contains("DESIGN section")
            || numbers
                .any(|(before, number)| before.ends_with("section") && number.starts_with(|c: char| c.is_ascii_digit()))
    });
    found.map(|line| line.to_string())
}

impl<'a> Targets<'a> {
    fn of(tree: &'a Tree) -> Self {
        let (mut paths, mut ends, mut headings) = (HashSet::new(), HashSet::new(), HashSet::new());
        for (file, text) in tree.files() {
            for (cut, _) in file.match_indices('/').chain([(file.len(), "")]) {
                let path = &file[..cut];
                paths.insert(path);
                ends.extend(path.match_indices('/').map(|(at, _)| &path[at + 1..]));
            }
            if is_page(file) {
                let lines = text.lines().filter(|line| line.starts_with('#'));
                for heading in lines.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
                    let anchor = anchor(heading);
                    headings.insert(format!("{file}#{anchor}"));
                    headings.insert(format!("{}#{anchor}", name(file)));
                }
            }
        }
        Self { paths, ends, headings }
    }

    fn has_link(&self, page: &str, link: &str) -> bool {
        let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
        let path = if path.is_empty() { page.to_owned() } else { resolved(page, path) };
        let has_heading = |heading| !is_page(&path) || self.headings.contains(&format!("{path}#{heading}"));
        self.paths.contains(path.as_str()) && heading.is_none_or(has_heading)
    }

    fn has_cited(&self, cited: &str) -> bool {
        let mut path = cited;
        while let Some(rest) = path.trim_start_matches('.').strip_prefix('/') {
            path = rest;
        }
        let (path, heading) = path.split_once('#').map_or((path, None), |(path, heading)| (path, Some(heading)));
        // A lower-case page without a folder is the output of a program.
        if is_page(path) && !path.contains('/') && path.starts_with(|first: char| first.is_ascii_lowercase()) {
            return true;
        }
        heading.is_none_or(|heading| self.headings.contains(&format!("{}#{heading}", name(path))))
            && (self.paths.contains(path) || self.ends.contains(path))
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-')).collect()
}

/// The path from the root to which a path on a page leads.
fn resolved(page: &str, path: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        if part == ".." && parts.last().is_some_and(|last| *last != "..") {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The targets of the links in a line, but for those that leave the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|to| !to.is_empty() && !to.starts_with("http:") && !to.starts_with("https:"))
}

/// The paths that a line cites, each with the anchor that follows.
fn cited(text: &str) -> impl Iterator<Item = String> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + text[from..].find(in_path)?;
        let end = text[start..].find(|c| !in_path(c)).map_or(text.len(), |length| start + length);
        from = end;
        // Part of a pattern or of an expression.
        let is_whole = !text[..start].ends_with(['*', '$', '}']);
        Some(citation(&text[start..end], is_whole, &text[end..]).unwrap_or_default())
    })
    .filter(|cited| !cited.is_empty())
}

fn citation(token: &str, is_whole: bool, after: &str) -> Option<String> {
    let folder = |(at, _)| at + 1 < token.len() && FOLDERS.contains(&name(&token[..at]));
    let path = if is_whole && token.match_indices('/').any(folder) {
        token.trim_end_matches(['.', '/', '-'])
    } else {
        file(token)?
    };
    let anchor = after.strip_prefix('#').filter(|_| path == token && is_page(path)).map(|rest| {
        rest.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')).next().unwrap_or_default()
    });
    Some(anchor.filter(|anchor| !anchor.is_empty()).map_or(path.to_owned(), |anchor| format!("{path}#{anchor}")))
}

/// The longest part of a token that names a file with one of [`EXTENSIONS`].
fn file(token: &str) -> Option<&str> {
    let ends = EXTENSIONS
        .iter()
        .flat_map(|extension| token.match_indices(extension).map(|(at, found)| (at, at + found.len())));
    let ends = ends.filter(|(at, end)| token[..*at].ends_with(in_word) && !token[*end..].starts_with(in_word));
    ends.map(|(_, end)| &token[..end]).max_by_key(|path| path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, code: &str) -> Vec<String> {
        dead(&Tree::of(&[
            ("README.md", "# Top\n[a](docs/a.md#a-heading), [b](docs/), [c](https://example.org/x)"),
            ("docs/a.md", &format!("# A `heading`\n{page}")),
            ("crates/one/src/state/mod.rs", code),
        ]))
    }

    #[test]
    fn what_exists_may_be_linked_and_cited() {
        let page =
            "[up](../README.md#top), [here](#a-heading), [code](../crates/one/src/), src/state/mod.rs, report.md";
        let code =
            "// See `state/mod.rs`, docs/a.md#a-heading, `crates/one/src/*.rs`, `*/src/x`, ${x}/docs/y and mod.rs.";
        assert_eq!(found(page, code), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_found_where_it_stands() {
        let page = "[a](b.md), [b](#another)\nsee src/other/, docs/a.md#another and Nowhere.md.";
        let code = "// section 2.1 of the design, other.rs";
        assert_eq!(
            found(page, code),
            [
                "docs/a.md:2 b.md",
                "docs/a.md:2 #another",
                "docs/a.md:3 src/other",
                "docs/a.md:3 docs/a.md#another",
                "docs/a.md:3 Nowhere.md",
                "crates/one/src/state/mod.rs:1 other.rs",
                "crates/one/src/state/mod.rs:1:// section 2.1 of the design, other.rs",
            ]
        );
    }
}
