//! `top` against a real cluster: single frames, and the live screen on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::tcgetattr;

use crate::support::{Dev, Killed, eventually, json, lockkeeper};

#[test]
fn one_frame_names_members_locks_and_waits() {
    let dev = Dev::start(3, &[]);
    let holder = Killed(dev.lock(&["orders/42", "--label", "the holder"], "sleep 60").spawn().unwrap());
    eventually("it holds", || dev.holders("orders/42") == 1);
    let waiter = Killed(dev.lock(&["orders/42"], "true").spawn().unwrap());
    let _other = Killed(dev.lock(&["others/1"], "sleep 60").spawn().unwrap());

    let mut frame = serde_json::Value::Null;
    eventually("a waiter is shown with its wait", || {
        frame = json(&dev.run(&["--json", "top", "--once"]));
        frame["locks"].as_array().unwrap().len() == 2 && frame["locks"][0]["oldest_wait_ms"].as_u64() > Some(0)
    });
    let first = &frame["locks"][0];
    assert_eq!(
        (first["lock"].as_str(), first["holder"].as_str()),
        (Some("orders/42"), Some("the holder")),
        "{frame:#}"
    );
    assert_eq!((first["holding"].as_u64(), first["waiting"].as_u64()), (Some(1), Some(1)), "{frame:#}");
    assert_eq!(frame["members"].as_array().unwrap().len(), 3, "{frame:#}");
    assert!(frame["rates"]["grants"].as_f64() > Some(0.0), "since the members started: {frame:#}");
    assert!(frame["members"][0]["memory_bytes"].as_f64() > Some(1e6), "{frame:#}");

    let text = |arguments: &[&str]| String::from_utf8(dev.run(arguments).stdout).unwrap();
    let all = text(&["top", "--once"]);
    for expected in ["3 of 3 members ready", "OLDEST WAIT", "orders/42", "others/1", "the holder", "leader"] {
        assert!(all.contains(expected), "{expected} is missing in\n{all}");
    }
    let some = text(&["top", "--once", "--prefix", "others/"]);
    assert!(some.contains("others/1") && !some.contains("orders/42"), "{some}");
    drop((holder, waiter));
}

#[test]
fn without_a_terminal_or_a_cluster_it_says_so() {
    let no_terminal = lockkeeper().args(["top"]).output().unwrap();
    assert_eq!(no_terminal.status.code(), Some(2), "{no_terminal:?}");
    assert!(String::from_utf8(no_terminal.stderr).unwrap().contains("--once"));
    let nobody =
        lockkeeper().args(["--endpoints", "127.0.0.1:1", "--patience", "1s", "top", "--once"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(122), "{nobody:?}");
    let often = lockkeeper().args(["top", "--every", "1ms"]).output().unwrap();
    assert_eq!(often.status.code(), Some(2), "{often:?}");
}

#[test]
fn the_screen_fits_the_terminal_and_is_given_back() {
    const COLUMNS: usize = 40;
    let dev = Dev::start(1, &[]);
    let size = Winsize { ws_row: 8, ws_col: 40, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&size), None).unwrap();
    let output: Stdio = terminal.slave.into();
    // The command would keep the terminal open, and reading would not end.
    let mut top = {
        let mut command = dev.command(&["top", "--every", "200ms"]);
        Killed(command.stdout(output).stderr(Stdio::null()).spawn().unwrap())
    };
    let (sender, pieces) = mpsc::channel();
    let mut master = File::from(terminal.master);
    let reader = thread::spawn(move || {
        let mut piece = [0; 4096];
        // Reading ends with an error when the last process has closed the terminal.
        while let Ok(read @ 1..) = master.read(&mut piece) {
            let _ = sender.send(piece[..read].to_vec());
        }
    });
    let mut shown = Vec::new();
    let frames = |shown: &[u8]| String::from_utf8_lossy(shown).matches("\x1b[H").count();
    eventually("some frames are drawn", || {
        shown.extend(pieces.try_iter().flatten());
        frames(&shown) >= 3
    });
    kill(top.pid(), Signal::SIGINT).unwrap();
    assert_eq!(top.code(), Some(0));
    reader.join().unwrap();
    shown.extend(pieces.try_iter().flatten());
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.starts_with("\x1b[?1049h\x1b[?25l"), "{shown:?}");
    assert!(shown.ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l"), "{shown:?}");
    let frame = shown.split("\x1b[H").nth(1).unwrap();
    assert!(frame.contains("cluster dev"), "{frame:?}");
    let lines: Vec<&str> = frame.split("\r\n").map(|line| line.split('\x1b').next().unwrap()).collect();
    assert!(lines.len() <= 8 && lines.iter().all(|line| line.chars().count() <= COLUMNS), "{lines:?}");
}

/// What a command that succeeds shows on a terminal of 80 columns. `key` is pressed once the command says what it
/// is for.
fn on_a_terminal(mut command: Command, mut key: &[u8]) -> String {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&size), None).unwrap();
    let (input, modes) = (terminal.slave.try_clone().unwrap(), tcgetattr(&terminal.slave).unwrap());
    command.stdin(input).stdout(terminal.slave).stderr(Stdio::null()).env("TERM", "xterm");
    let mut child = Killed(command.spawn().unwrap());
    // It would keep the terminal open.
    drop(command);
    let mut master = File::from(terminal.master);
    let (mut shown, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = master.read(&mut piece) {
        shown.extend(&piece[..read]);
        if String::from_utf8_lossy(&shown).contains("leave") {
            master.write_all(std::mem::take(&mut key)).unwrap();
        }
    }
    assert_eq!(child.code(), Some(0));
    assert_eq!(tcgetattr(&master).unwrap().local_flags, modes.local_flags, "the terminal is as it was");
    String::from_utf8(shown).unwrap()
}

#[test]
fn q_leaves_and_states_have_colours() {
    let dev = Dev::start(1, &[]);
    let shown = on_a_terminal(dev.command(&["top"]), b"q");
    let frame = shown.split("\x1b[H").nth(1).unwrap();
    assert!(frame.contains("q or Ctrl-C: leave") && frame.contains("\x1b[") && frame.contains("ready"), "{frame:?}");
    let (good, plain) = ("\x1b[32mok", "  ok ");
    let coloured = on_a_terminal(dev.command(&["doctor"]), b"");
    assert!(coloured.contains(good) && !coloured.contains(plain), "{coloured:?}");
    let mut without = dev.command(&["doctor"]);
    without.env("NO_COLOR", "1");
    let plainly = on_a_terminal(without, b"");
    assert!(plainly.contains(plain) && !plainly.contains('\x1b'), "{plainly:?}");
}

#[test]
fn help_has_the_width_of_the_terminal() {
    for arguments in
        [&["help"][..], &["help", "lock"], &["lock", "--help"], &["bench", "--help"], &["help", "auth", "role"]]
    {
        let mut command = lockkeeper();
        command.args(arguments).env("NO_COLOR", "1");
        let shown = on_a_terminal(command, b"");
        let plain: String = shown
            .split('\x1b')
            .enumerate()
            .map(|(at, part)| match at {
                0 => part,
                _ => part.split_once('m').map_or("", |(_, rest)| rest),
            })
            .collect();
        assert!(plain.contains("Usage: lockkeeper"), "{plain}");
        assert!(plain.lines().all(|line| line.trim_end().chars().count() <= 80), "{plain}");
    }
}
