//! The script's notation. A line is a step on one connection:
//!
//! ```text
//! a create2 /x hello ephemeral         a request and its arguments
//! a create /y ; delete /y ; exists /y  several, sent in one piece and answered in order
//! a multi create /z one | check /z v=0
//! b connect timeout=4000               `b` is a connection from here on; its session is called `b` too
//! a2 connect session=a ends=a          moves the session of `a` to `a2`; the server closes `a`
//! c connect at=1                       connects to the second server (the first may follow or lead)
//! a ping quiet=c                       ignores `c` after this step
//! a reconfig ~ key                     the answers differ, for the reason in `known` under this key
//! a exists /x ~ key => ok {czxid=0…    Lockkeeper's line starts with this; ` / ` separates lines
//! ```
//!
//! `#` starts a comment. Arguments contain no blanks: `\_` is a blank, `\n` a newline, `\u{1}` any character, `\a{300}`
//! 300 letters a, `""` the empty string. Requests have ZooKeeper's names; `request` has their arguments.

mod modes;
mod request;

use std::collections::BTreeMap;

use crate::error::CompareError;
use crate::names;

pub(crate) use request::{Ask, Marks, written};

/// The parts in order. Each starts with new connections and leaves no node that disturbs another part.
const PARTS: &[(&str, &str)] = &[
    ("connect", include_str!("../../../../script/connect.txt")),
    ("create", include_str!("../../../../script/create.txt")),
    ("paths", include_str!("../../../../script/paths.txt")),
    ("sequence", include_str!("../../../../script/sequence.txt")),
    ("delete", include_str!("../../../../script/delete.txt")),
    ("data", include_str!("../../../../script/data.txt")),
    ("acl", include_str!("../../../../script/acl.txt")),
    ("multi", include_str!("../../../../script/multi.txt")),
    ("watch", include_str!("../../../../script/watch.txt")),
    ("persistent", include_str!("../../../../script/persistent.txt")),
    ("again", include_str!("../../../../script/again.txt")),
    ("ephemeral", include_str!("../../../../script/ephemeral.txt")),
    ("order", include_str!("../../../../script/order.txt")),
    ("strange", include_str!("../../../../script/strange.txt")),
    ("moved", include_str!("../../../../script/moved.txt")),
    ("special", include_str!("../../../../script/special.txt")),
    ("service", include_str!("../../../../script/service.txt")),
];

/// The whole script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
}

/// One line of the script.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// From 1, over all parts.
    pub(crate) number: usize,
    pub(crate) part: &'static str,
    pub(crate) text: String,
    /// The connection's name.
    pub(crate) on: String,
    pub(crate) act: Act,
    /// Connections that the server closes in this step.
    pub(crate) ends: Vec<String>,
    /// Connections to ignore after this step.
    pub(crate) quiet: Vec<String>,
    /// Its events have no defined order.
    pub(crate) unordered: bool,
    /// The known difference that it has.
    pub(crate) known: Option<Shown>,
}

/// A known difference in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its key.
    pub(crate) key: String,
    /// All of Lockkeeper's lines; `…` stands for the rest of a line, `{here}` for this step's zxid and `{newest}` for
    /// the latest zxid before it.
    pub(crate) lines: Option<Vec<String>>,
}

impl Shown {
    fn parse(text: &str) -> Self {
        let (key, lines) = match text.split_once(" => ") {
            Some((key, lines)) => (key, Some(lines.split(" / ").map(|line| line.trim().to_owned()).collect())),
            None => (text, None),
        };
        Self { key: key.trim().to_owned(), lines }
    }

    /// Whether Lockkeeper's lines are as expected, if the script has them.
    pub(crate) fn is_told(&self, told: &[String], here: usize, newest: &str) -> bool {
        let Some(lines) = &self.lines else { return true };
        let is_so = |(told, line): (&String, &String)| {
            let line = line.replace("{here}", &names::first_of(here)).replace("{newest}", newest);
            line.strip_suffix('…').map_or(*told == line, |beginning| told.starts_with(beginning))
        };
        told.len() == lines.len() && told.iter().zip(lines).all(is_so)
    }
}

/// A step's action.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Opens a connection and sends the first frame.
    Connect(BTreeMap<String, String>),
    /// Sends requests in one piece and waits for the replies.
    Ask(Vec<String>),
    /// Sends arbitrary bytes and reads until the server closes the connection.
    Bytes(Vec<String>),
    /// Sends a four-letter word on a new connection.
    Word(String),
    /// Closes the connection without closing the session.
    Drop,
    /// Polls until a node is deleted.
    AwaitGone(String),
    /// Remembers the latest zxid of this connection under a name.
    Mark(String),
}

impl Script {
    /// Parses the parts whose names start with one of `only`; all parts if it is empty.
    pub(crate) fn load(only: &[String]) -> Result<Self, CompareError> {
        let mut steps = Vec::new();
        for (part, text) in PARTS {
            if !only.is_empty() && !only.iter().any(|prefix| part.starts_with(prefix.as_str())) {
                continue;
            }
            for (index, line) in text.lines().enumerate() {
                let line = line.split(" #").next().unwrap_or_default().trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let step = parse(steps.len() + 1, part, line);
                let complain = |why| CompareError::Script { part: (*part).to_owned(), line: index + 1, why };
                steps.push(step.map_err(complain)?);
            }
        }
        Ok(Self { steps })
    }
}

fn parse(number: usize, part: &'static str, line: &str) -> Result<Step, String> {
    let (rest, known) = match line.split_once(" ~ ") {
        Some((rest, shown)) => (rest, Some(Shown::parse(shown))),
        None => (line, None),
    };
    let (mut ends, mut quiet, mut unordered, mut words) = (Vec::new(), Vec::new(), false, Vec::new());
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("ends", names)) => ends.extend(names.split(',').map(ToOwned::to_owned)),
            Some(("quiet", names)) => quiet.extend(names.split(',').map(ToOwned::to_owned)),
            _ if word == "unordered" => unordered = true,
            _ => words.push(word),
        }
    }
    let [on, verb, arguments @ ..] = &words[..] else {
        return Err("a step has a connection and something to do".into());
    };
    let act = match (*verb, arguments) {
        ("connect", settings) => Act::Connect(settings.iter().map(|word| setting(word)).collect::<Result<_, _>>()?),
        ("bytes", tokens) => Act::Bytes(owned(tokens)),
        ("word", [word]) => Act::Word((*word).to_owned()),
        ("drop", []) => Act::Drop,
        ("awaitGone", [path]) => Act::AwaitGone((*path).to_owned()),
        ("mark", [name]) => Act::Mark((*name).to_owned()),
        _ => Act::Ask(words[1..].split(|word| *word == ";").map(|ask| ask.join(" ")).collect()),
    };
    if let Act::Ask(asks) = &act {
        for ask in asks {
            Ask::parse(ask, &Marks::anything())?;
        }
    }
    Ok(Step { number, part, text: line.to_owned(), on: (*on).to_owned(), act, ends, quiet, unordered, known })
}

fn setting(word: &str) -> Result<(String, String), String> {
    let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no setting of a connection"))?;
    match key {
        "timeout" | "session" | "password" | "seen" | "readonly" | "protocol" | "at" => Ok((key.into(), value.into())),
        _ => Err(format!("a connection has no `{key}`")),
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lockkeeper_zookeeper::OpCode;

    use super::*;

    #[test]
    fn the_script_can_be_read_and_its_differences_are_known() {
        let script = Script::load(&[]).unwrap();
        for step in &script.steps {
            let Some(shown) = &step.known else { continue };
            let known = crate::known::find(&shown.key).unwrap_or_else(|| panic!("{}: {}", step.part, step.text));
            let said = shown.lines.is_some() || !known.seen[1].is_empty();
            assert!(said, "what Lockkeeper tells is said nowhere: {}: {}", step.part, step.text);
        }
    }

    #[test]
    fn the_script_asks_for_every_operation() {
        let steps = Script::load(&[]).unwrap().steps;
        let asks = steps.iter().filter_map(|step| if let Act::Ask(asks) = &step.act { Some(asks) } else { None });
        let asked: BTreeSet<i32> =
            asks.flatten().map(|ask| Ask::parse(ask, &Marks::anything()).unwrap().opcode).collect();
        for operation in OpCode::ALL {
            assert!(asked.contains(&operation.number()), "no step asks for {}", operation.row().name);
        }
    }

    #[test]
    fn a_line_says_what_else_is_to_happen() {
        let step = parse(1, "x", "a create /x ; delete /x ends=b,c unordered ~ some-key => ok / b hears").unwrap();
        let shown = Shown { key: "some-key".into(), lines: Some(vec!["ok".into(), "b hears".into()]) };
        assert_eq!((step.ends, step.unordered, step.known), (vec!["b".into(), "c".into()], true, Some(shown)));
        assert!(matches!(step.act, Act::Ask(asks) if asks == ["create /x", "delete /x"]));
        let told = ["ok at z7".to_owned(), "b hears: x at z9".to_owned()];
        let shown = |text| Shown::parse(text).is_told(&told, 9, "z7");
        assert!(shown("some-key") && shown("some-key => ok at {newest} / b hears…"));
        assert!(shown("some-key => ok… / b hears: x at {here}") && !shown("some-key => ok at z7"));
        assert!(
            !shown("some-key => ok… / ok…") && !shown("some-key => ok / b…") && !shown("some-key => ok at {here} / b…")
        );
        assert!(parse(1, "x", "a fly /x").is_err());
        assert!(parse(1, "x", "a connect speed=1").is_err());
    }
}
