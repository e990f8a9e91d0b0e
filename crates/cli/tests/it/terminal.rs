//! What a user types at a terminal: Ctrl-C, Ctrl-Z, `&` and `fg`, and answers to a CMD that asks. An interactive bash
//! on a pseudo-terminal gets each line as if it were typed. A new step is a function in the list of the test.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};

use crate::support::{Dev, Killed, PROGRAM, alive, eventually, numbers};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";
/// CMD that says so and runs until a signal ends it.
const RUNS: &str = "sh -c 'echo started; exec sleep 1000'";
/// CMD that asks at the terminal, wherever its standard input comes from.
const ASKS: &str = "sh -c 'echo asks; read answer < /dev/tty; echo got $answer'";

/// A terminal with an interactive shell.
struct Terminal {
    keyboard: File,
    pieces: Receiver<Vec<u8>>,
    /// All that was shown so far, and how much of it was awaited.
    shown: String,
    awaited: usize,
    directory: tempfile::TempDir,
    shell: Killed,
}

impl Terminal {
    fn start(dev: &Dev) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pty = openpty(None, None).unwrap();
        // Without an echo, what is shown was printed by a program.
        let mut modes = tcgetattr(&pty.slave).unwrap();
        modes.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &modes).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let path = format!("{}:{}", Path::new(PROGRAM).parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("env");
        shell.args(["--default-signal", "setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        shell.env("PATH", path).env("PS1", "").env("LOCKKEEPER_ENDPOINTS", dev.endpoints.join(","));
        shell.env_remove("LOCKKEEPER_HELD").current_dir(directory.path());
        let shell = Killed(shell.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap());
        let keyboard = File::from(pty.master);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, pieces) = mpsc::channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            // Reading ends with an error when the last process has closed the terminal.
            while let Ok(read @ 1..) = screen.read(&mut piece) {
                let _ = sender.send(piece[..read].to_vec());
            }
        });
        Self { keyboard, pieces, shown: String::new(), awaited: 0, directory, shell }
    }

    fn key(&mut self, key: &str) {
        self.keyboard.write_all(key.as_bytes()).unwrap();
    }

    /// Types a line.
    fn line(&mut self, line: &str) {
        self.key(&format!("{line}\n"));
    }

    /// Waits until this is shown. Returns what came before it since the last wait.
    #[track_caller]
    fn shows(&mut self, text: &str) -> String {
        let give_up_at = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(at) = self.shown[self.awaited..].find(text) {
                let before = self.shown[self.awaited..self.awaited + at].to_owned();
                self.awaited += at + text.len();
                return before;
            }
            let Ok(piece) = self.pieces.recv_timeout(give_up_at.saturating_duration_since(Instant::now())) else {
                panic!("{text:?} was never shown after {} bytes of:\n{}", self.awaited, self.shown);
            };
            self.shown.push_str(&String::from_utf8_lossy(&piece));
        }
    }

    /// Waits for the end of the last command, which the shell must report so. Returns what was shown before it.
    #[track_caller]
    fn ends(&mut self, code: i32) -> String {
        self.line("echo \"the shell has code $?.\"");
        self.shows(&format!("the shell has code {code}."))
    }

    /// Writes a script into the shell's directory.
    fn script(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }
}

#[test]
fn a_command_at_a_terminal() {
    let dev = Dev::start(1, &[]);
    let mut terminal = Terminal::start(&dev);
    for step in [
        a_real_time_signal_ends_the_command,
        an_interrupt_ends_the_script_around,
        an_interrupt_ends_the_script_that_waits_for_the_lock,
        a_quit_ends_lockkeeper,
        a_command_that_handles_the_interrupt_has_its_own_code,
        a_signal_that_a_command_sends_itself_is_its_own_affair,
        an_interrupt_ends_cron,
        a_command_asks_at_the_terminal,
        a_command_asks_in_the_background,
        a_command_that_waits_for_the_terminal_is_terminated,
        a_pager_keeps_the_terminal,
        a_pager_and_a_command_ask_in_turns,
        nothing_is_suspended,
        a_wait_is_one_line_that_is_kept_up_to_date,
        a_command_under_nohup_outlives_the_terminal,
    ] {
        step(&mut terminal, &dev);
        // A shell that dies at once does not wait for lockkeeper's end.
        eventually("nothing is held any more", || dev.holders("x") == 0);
    }
}

fn a_real_time_signal_ends_the_command(terminal: &mut Terminal, _: &Dev) {
    terminal.line("lockkeeper lock x -- sh -c 'kill -64 $$'");
    terminal.ends(128 + 64);
}

fn an_interrupt_ends_the_script_around(terminal: &mut Terminal, _: &Dev) {
    for (input, form) in [("", "lock x"), ("< /dev/null", "lock x"), ("", "elect x --forever"), ("", "gate x")] {
        let step = format!("lockkeeper {form} -- {RUNS} {input}");
        terminal.script("steps", &format!("{step}\necho next step\n"));
        terminal.script("loop", &format!("for i in 1 2 3; do {step}; done\necho next step\n"));
        for script in ["bash steps", "bash loop", "sh steps", "sh loop"] {
            terminal.line(script);
            terminal.shows("started");
            terminal.key(CTRL_C);
            let shown = terminal.ends(130);
            assert!(!shown.contains("next step") && !shown.contains("started"), "{script} {step}: {shown}");
        }
    }
    terminal.line("lockkeeper lock y -- lockkeeper lock z -- bash steps");
    terminal.shows("started");
    terminal.key(CTRL_C);
    assert!(!terminal.ends(130).contains("next step"), "{}", terminal.shown);
}

fn an_interrupt_ends_the_script_that_waits_for_the_lock(terminal: &mut Terminal, dev: &Dev) {
    let holder = Killed(dev.lock(&["queue"], "sleep 1000").spawn().unwrap());
    eventually("it is held", || dev.holders("queue") == 1);
    terminal.script("waits", &format!("echo waits\nlockkeeper lock queue -- {RUNS}\necho next step\n"));
    terminal.line("bash waits");
    terminal.shows("waits");
    let waiting = || crate::support::json(&dev.run(&["--json", "locks", "queue"]))["waiting"] == 1;
    eventually("it waits", waiting);
    terminal.key(CTRL_C);
    assert!(!terminal.ends(130).contains("next step"), "{}", terminal.shown);
    assert!(!waiting(), "it has left the queue before it died");
    drop(holder);
}

fn a_quit_ends_lockkeeper(terminal: &mut Terminal, _: &Dev) {
    terminal.line(&format!("ulimit -c 0; lockkeeper lock x -- {RUNS}"));
    terminal.shows("started");
    terminal.key(CTRL_BACKSLASH);
    terminal.ends(131);
}

fn a_command_that_handles_the_interrupt_has_its_own_code(terminal: &mut Terminal, _: &Dev) {
    terminal.line("lockkeeper lock x -- sh -c 'trap \"exit 7\" INT; echo started; sleep 1000 & wait'");
    terminal.shows("started");
    terminal.key(CTRL_C);
    terminal.ends(7);
    // What ends a script is not the exit code, but that CMD died of the signal, be it by its own hand in the end.
    for (handler, goes_on) in [("exit 130", true), ("trap - INT; kill -INT $$", false)] {
        for input in ["", "< /dev/null"] {
            let cmd = format!("sh -c 'trap \"{handler}\" INT; echo started; sleep 1000 & wait'");
            terminal.script("steps", &format!("lockkeeper lock x -- {cmd} {input}\necho next step after $?\n"));
            terminal.line("bash steps");
            terminal.shows("started");
            terminal.key(CTRL_C);
            let shown = terminal.ends(if goes_on { 0 } else { 130 });
            assert_eq!(shown.contains("next step after 130"), goes_on, "{cmd} {input}: {shown}");
        }
    }
}

fn a_signal_that_a_command_sends_itself_is_its_own_affair(terminal: &mut Terminal, _: &Dev) {
    for input in ["", "< /dev/null"] {
        let step = format!("lockkeeper lock x -- sh -c 'kill -INT $$' {input}");
        terminal.script("steps", &format!("{step}\necho next step after $?\n"));
        terminal.line("bash steps");
        let shown = terminal.ends(0);
        assert!(shown.contains("next step after 130"), "{step}: {shown}");
    }
}

fn an_interrupt_ends_cron(terminal: &mut Terminal, _: &Dev) {
    terminal.line(&format!("lockkeeper cron x --at '* * * * * *' -- {RUNS}"));
    terminal.shows("started");
    terminal.key(CTRL_C);
    terminal.ends(0);
}

fn a_command_asks_at_the_terminal(terminal: &mut Terminal, _: &Dev) {
    for line in [
        format!("lockkeeper lock x -- {ASKS}"),
        format!("lockkeeper lock x -- {ASKS} < /dev/null"),
        format!("echo data | lockkeeper lock x -- {ASKS} | cat"),
        format!("lockkeeper gate asks --keep 1ms -- {ASKS} < /dev/null"),
        // The terminal's modes are changed only from the foreground.
        "lockkeeper lock x -- sh -c 'stty -F /dev/tty -echo; echo asks; read a < /dev/tty; echo got $a' < /dev/null"
            .into(),
        // As bash and other shells do at their start.
        "lockkeeper lock x -- bash --norc --noediting -ic 'echo asks; read a; echo got $a' | cat".into(),
    ] {
        terminal.line(&line);
        terminal.shows("asks");
        terminal.line("the answer");
        terminal.shows("got the answer");
        terminal.ends(0);
    }
}

fn a_command_asks_in_the_background(terminal: &mut Terminal, dev: &Dev) {
    terminal.line(&format!("lockkeeper lock x -- {ASKS} &"));
    terminal.shows("bring it to the foreground with fg");
    assert_eq!(dev.holders("x"), 1);
    terminal.line("fg");
    terminal.line("the answer");
    terminal.shows("got the answer");
    terminal.ends(0);
}

fn a_command_that_waits_for_the_terminal_is_terminated(terminal: &mut Terminal, _: &Dev) {
    terminal.line(&format!("lockkeeper lock x -- {ASKS} &"));
    terminal.shows("bring it to the foreground with fg");
    terminal.line("kill $!; wait $!");
    terminal.ends(128 + 15);
}

/// A pager is of lockkeeper's group and reads the keyboard, while CMD runs.
fn a_pager_keeps_the_terminal(terminal: &mut Terminal, dev: &Dev) {
    for (key, file) in [("", "done"), (CTRL_Z, "resumed")] {
        let cmd = format!("sh -c 'echo text; while ! [ -e {file} ]; do sleep 0.01; done'");
        let pager = format!("sh -c 'head -n 1; echo asks; read key < /dev/tty; echo got $key; : > {file}'");
        terminal.line(&format!("lockkeeper lock x -- {cmd} | {pager}"));
        terminal.shows("asks");
        terminal.key(key);
        if key == CTRL_Z {
            terminal.shows("not suspended");
            assert_eq!(dev.holders("x"), 1);
        }
        terminal.line("the key");
        terminal.shows("got the key");
        terminal.ends(0);
    }
}

/// CMD asks while the pager waits for text, and the pager while CMD waits for its end, more than once.
fn a_pager_and_a_command_ask_in_turns(terminal: &mut Terminal, dev: &Dev) {
    let turns = |turn: &str| format!("sh -c 'for n in 1 2; do {turn}; done'");
    let cmd = turns("read a < /dev/tty; echo $a; while ! [ -e turn$n ]; do sleep 0.01; done");
    let pager = turns("read text; echo shows $text; read key < /dev/tty; echo got $key; : > turn$n");
    terminal.line(&format!("lockkeeper lock x -- {cmd} | {pager}"));
    for turn in [1, 2] {
        terminal.line(&format!("answer {turn}"));
        terminal.shows(&format!("shows answer {turn}"));
        terminal.line(&format!("key {turn}"));
        terminal.shows(&format!("got key {turn}"));
        assert!(turn == 2 || dev.holders("x") == 1);
    }
    terminal.ends(0);
}

fn nothing_is_suspended(terminal: &mut Terminal, dev: &Dev) {
    for (input, says) in [("", "CMD is continued"), ("< /dev/null", "not suspended")] {
        // It starts nothing while Ctrl-Z is typed: a dash that is stopped between vfork and exec of a child cannot be
        // seen to be stopped, by nobody.
        let cmd = "sh -c 'sleep 1000 & trap \"kill $!; exit 7\" USR1; echo $$ > pid; echo started; wait'";
        terminal.line(&format!("lockkeeper lock x -- {cmd} {input}"));
        terminal.shows("started");
        terminal.key(CTRL_Z);
        terminal.shows(says);
        let pid = numbers(&terminal.directory.path().join("pid"))[0];
        assert_eq!(dev.holders("x"), 1);
        // It runs: a stopped process would not handle the signal.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGUSR1).unwrap();
        terminal.ends(7);
    }
}

fn a_wait_is_one_line_that_is_kept_up_to_date(terminal: &mut Terminal, dev: &Dev) {
    const LINE: &str = "\r\x1b[Klockkeeper lock: waiting for x, place 1, held by the holder, queued ";
    let holder = Killed(dev.lock(&["x", "--label", "the holder"], "exec sleep 1000").spawn().unwrap());
    eventually("the lock is held", || dev.holders("x") == 1);
    terminal.line("TERM=xterm lockkeeper lock x -- echo granted");
    terminal.shows(LINE);
    terminal.shows(LINE);
    nix::sys::signal::kill(holder.pid(), nix::sys::signal::Signal::SIGTERM).unwrap();
    let waited = terminal.shows("granted");
    assert!(!waited.contains('\n') && waited.ends_with("\r\x1b[K"), "one line, which is erased: {waited:?}");
    terminal.ends(0);
}

/// The last step: it closes the terminal.
fn a_command_under_nohup_outlives_the_terminal(terminal: &mut Terminal, dev: &Dev) {
    let cmd = "sh -c 'trap \"exit 7\" USR1; echo $$ > pid; while :; do sleep 0.01; done'";
    terminal.script("work", &format!("lockkeeper lock nohup -- {cmd}\necho $? > code\n"));
    let [pid, code] = ["pid", "code"].map(|name| terminal.directory.path().join(name));
    std::fs::remove_file(&pid).unwrap();
    terminal.line("nohup sh work > out 2>&1 < /dev/null &");
    eventually("CMD runs", || numbers(&pid).len() == 1);
    // As a login shell does at its end.
    terminal.line("kill -HUP -- -$!; echo hung up");
    terminal.shows("hung up");
    terminal.line("exit");
    terminal.shell.code();
    let pid = numbers(&pid)[0];
    assert!(alive(pid) && dev.holders("nohup") == 1 && !code.exists());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGUSR1).unwrap();
    eventually("it has ended by itself", || numbers(&code) == [7]);
    assert_eq!(dev.holders("nohup"), 0);
}
