//! How the help texts are laid out: the commands in groups, and each text wrapped once, at the width of the terminal.
//! The texts in the source are wrapped at the width of the source.

use clap::{Command, CommandFactory};

use super::CommandLine;

/// Wider lines are hard to read.
const WIDEST: usize = 120;
/// Where there is no terminal, and `COLUMNS` does not say.
const WIDTH: usize = 80;

/// The commands by what they are for.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run a command", &["lock", "semaphore", "elect", "gate", "rate", "cron"]),
    ("See who has what", &["locks", "unlock", "gates", "schedules", "sessions"]),
    ("Nodes of the tree", &["ls", "get", "set", "create", "delete", "watch"]),
    ("Run a cluster", &["dev", "serve", "status", "health", "doctor", "top", "member", "snapshot", "recover", "bench"]),
    ("Who may do what", &["auth", "certs", "namespaces"]),
    ("This program", &["help", "version", "completions", "man"]),
];

/// The width for help on standard output.
pub(crate) fn width() -> usize {
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let of_terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    of_terminal.or_else(of_variable).map_or(WIDTH, |width| width.clamp(40, WIDEST))
}

/// The command line with its help texts laid out. Only those who show them need it.
pub(crate) fn laid_out(width: usize) -> Command {
    let mut command = CommandLine::command().term_width(width);
    command.build();
    let groups = groups(&command, width);
    lay_out(&mut command, width);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\n{}\n{{options}}{{after-help}}",
        heading(&command, "Options")
    );
    command.help_template(template)
}

fn lay_out(command: &mut Command, width: usize) {
    // The same in errors and manual pages as in help: without the options that were given, and with the `--`.
    let usage = command.render_usage().to_string();
    let usage = filled(&format!("Usage: {}", usage.trim_start_matches("Usage:").trim()), "Usage: ".len(), width);
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let (short, long) = [command.get_after_help(), command.get_after_long_help()]
        .map(|text| text.map(|text| reflowed(&text.to_string(), width)))
        .into();
    let mut own = std::mem::take(command).override_usage(usage);
    if let Some(text) = short {
        own = own.after_help(text);
    }
    if let Some(text) = long {
        own = own.after_long_help(text);
    }
    *command = own;
    for sub in command.get_subcommands_mut() {
        lay_out(sub, width);
    }
}

/// A heading as clap styles its own.
fn heading(command: &Command, text: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{text}:{style:#}")
}

fn groups(command: &Command, width: usize) -> String {
    let style = command.get_styles().get_literal();
    let longest = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("\n{}\n", heading(command, title)));
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let entry = filled(&format!("  {name:longest$}  {about}"), longest + 4, width);
            text.push_str(&entry.replacen(name, &format!("{style}{name}{style:#}"), 1));
            text.push('\n');
        }
    }
    text
}

/// The text with its paragraphs filled to the width. A line that begins with spaces stands for itself, and its lines
/// hang below the text after `  word  `. An example is broken as a shell allows it.
fn reflowed(text: &str, width: usize) -> String {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut joins = false;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match blocks.last_mut() {
            Some((hanging, block)) if joins && !line.is_empty() && indent == *hanging => {
                block.push(' ');
                block.push_str(line.trim());
            }
            _ => {
                let hanging = line[indent..].find("  ").map_or(indent, |key| {
                    let gap = &line[indent + key..];
                    indent + key + gap.len() - gap.trim_start().len()
                });
                // A shell command is not a paragraph, nor are two of them one.
                joins = !is_example(line) && !line.is_empty() && (indent == 0 || hanging > indent);
                blocks.push((hanging, line.to_owned()));
            }
        }
    }
    let laid_out = |(hanging, block): &(usize, String)| match is_example(block) {
        true => example(block, width),
        false => filled(block, *hanging, width),
    };
    blocks.iter().map(laid_out).collect::<Vec<_>>().join("\n")
}

fn is_example(line: &str) -> bool {
    line.starts_with("  lockkeeper ")
}

/// A command of a shell; if it is too wide, below its comment, and with `\` at the end of its lines.
fn example(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let (command, comment) = line.split_once("  # ").unwrap_or((line, ""));
    let mut text = if comment.is_empty() { String::new() } else { format!("  # {comment}\n") };
    let mut column = 0;
    for word in words(command.trim_end()) {
        let length = word.chars().count();
        // For the ` \`.
        if column > 2 && column + length > width - 2 {
            text.push_str("\\\n      ");
            column = 6;
        }
        text.push_str(&word);
        column += length;
    }
    text
}

fn filled(block: &str, hanging: usize, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in block.split_inclusive(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        let fits = line + word.trim_end().chars().count() <= width;
        match lines.last_mut() {
            Some(last) if fits || last.trim().is_empty() => last.push_str(word),
            _ => lines.push(" ".repeat(hanging) + word),
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// The words of a command, each with the space after it. What is in quotes is one word.
fn words(command: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for piece in command.split_inclusive(' ') {
        match words.last_mut() {
            Some(word) if word.matches('\'').count() % 2 == 1 => word.push_str(piece),
            _ => words.push(piece.to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = laid_out(80);
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut all: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn texts_are_filled_and_hang() {
        let text = "Some words that\nare a paragraph.\n\nTable:\n  key   the meaning\n        of the key\n  run it\n  run that";
        assert_eq!(
            reflowed(text, 20),
            "Some words that are\na paragraph.\n\nTable:\n  key   the meaning\n        of the key\n  run it\n  run that"
        );
        assert!(
            reflowed(text, 40).contains("Some words that are a paragraph.\n\nTable:\n  key   the meaning of the key\n")
        );
    }

    #[test]
    fn an_example_stays_a_command() {
        let text = "Examples:\n  lockkeeper lock a --wait 30s -- sh -c 'one two three' four   # why";
        assert_eq!(reflowed(text, 80), text);
        assert_eq!(
            reflowed(text, 42),
            "Examples:\n  # why\n  lockkeeper lock a --wait 30s -- sh -c \\\n      'one two three' four"
        );
    }

    /// Each line is as it was laid out: clap wraps none again, and no example is broken in two.
    #[test]
    fn no_line_is_wrapped_twice_or_too_wide() {
        fn check(command: &mut Command, width: usize) {
            let name = command.get_name().to_owned();
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= width, "{name} at {width}: {line:?}");
            }
            let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
            assert!(help.trim_end().ends_with(after.unwrap_or_default().trim_end()), "{name} at {width}: {help}");
            for sub in command.get_subcommands_mut() {
                check(sub, width);
            }
        }
        for width in [80, 100, 120] {
            check(&mut laid_out(width), width);
        }
    }

    #[test]
    fn own_options_come_before_those_of_all_commands() {
        let mut command = laid_out(80);
        let lock = command.find_subcommand_mut("lock").unwrap().render_long_help().to_string();
        let at = |text: &str| lock.find(text).unwrap_or_else(|| panic!("{text} is not in {lock}"));
        assert!(at("Options:") < at("--shared") && at("--label") < at("Options of all commands:"), "{lock}");
        assert!(at("Options of all commands:") < at("--endpoints") && at("--patience") < at("Exit codes:"), "{lock}");
        assert!(lock.contains("Usage: lockkeeper lock [OPTIONS] <NAME>... -- <CMD>..."), "{lock}");
        // The codes stand below each other.
        for code in 120..=127 {
            assert!(code == 124 || lock.contains(&format!("\n  {code}  ")), "{code}: {lock}");
        }
    }
}
