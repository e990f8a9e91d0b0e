//! Compilations, counted from the messages of cargo (`--message-format=json`), and what the compiler warned of.

use std::collections::BTreeSet;
use std::io;

use crate::tree::end_of_literal;

/// The units with code generation in cargo's messages, each as its first file and the program that it links, if any.
fn units(messages: &str) -> BTreeSet<(&str, &str)> {
    messages.lines().filter_map(unit).collect()
}

fn unit(message: &str) -> Option<(&str, &str)> {
    if !message.contains("\"reason\":\"compiler-artifact\"") {
        return None;
    }
    let after = |key: &str| message.split_once(key).map(|(_, rest)| rest);
    let files = after("\"filenames\":[\"")?.split_once(']')?.0;
    // A unit that is only checked has just this file.
    if files.ends_with(".rmeta\"") && !files.contains(',') {
        return None;
    }
    let program = after("\"executable\":\"").and_then(|rest| rest.split('"').next());
    Some((files.split('"').next()?, program.unwrap_or_default()))
}

/// What the compiler says, also of what it compiled earlier.
fn warnings(messages: &str) -> impl Iterator<Item = String> {
    let said = messages.lines().filter(|message| message.contains("\"reason\":\"compiler-message\""));
    let rendered = said.filter_map(|message| Some(message.split_once("\"rendered\":\"")?.1));
    rendered.map(|text| text[..end_of_literal(text).unwrap_or(text.len())].replace("\\n", "\n"))
}

/// Counts what cargo reports on standard input. Whether that is more than `at_most` units or links, or has warnings.
pub(crate) fn count(list: bool, at_most: Option<(usize, usize)>) -> io::Result<bool> {
    let messages = io::read_to_string(io::stdin())?;
    let units = units(&messages);
    if units.is_empty() {
        return Err(io::Error::other("cargo names no compilation"));
    }
    if list {
        units.iter().for_each(|(file, program)| println!("{file} {program}"));
    }
    let links = units.iter().filter(|(_, program)| !program.is_empty()).count();
    println!("units: {}, links: {links}", units.len());
    let Some((most_units, most_links)) = at_most else { return Ok(false) };
    let warned = warnings(&messages).inspect(|warning| eprintln!("{warning}")).count();
    let more = units.len() > most_units || links > most_links;
    if more {
        eprintln!("more than {most_units} units or {most_links} links: scripts/units --list names them");
    }
    Ok(more || warned > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_shown_as_the_compiler_does() {
        let message =
            r#"{"reason":"compiler-message","message":{"rendered":"warning: unused\n --> a.rs","level":"warning"}}"#;
        assert_eq!(warnings(message).collect::<Vec<_>>(), ["warning: unused\n --> a.rs"]);
        assert_eq!(warnings("{\"reason\":\"build-finished\"}").count(), 0);
    }

    #[test]
    fn each_unit_counts_once_and_checked_ones_do_not() {
        let artifact = |rest: &str| format!("{{\"reason\":\"compiler-artifact\",{rest}}}\n");
        let library = artifact(r#""filenames":["/t/liba.rlib","/t/liba.rmeta"],"executable":null"#);
        let program = artifact(r#""filenames":["/t/b"],"executable":"/t/b","fresh":true"#);
        let checked = artifact(r#""filenames":["/t/libc.rmeta"],"executable":null"#);
        let messages = [&library, &program, &checked, &library, "{\"reason\":\"build-finished\"}\n"].concat();
        assert_eq!(units(&messages).into_iter().collect::<Vec<_>>(), [("/t/b", "/t/b"), ("/t/liba.rlib", "")]);
    }
}
