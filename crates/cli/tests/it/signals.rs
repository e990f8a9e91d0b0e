//! Signals and the commands that run CMD: those that the caller ignores stay ignored, and those that kill show.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Dev, Killed, alive, by_env, eventually, lockkeeper, numbers, pid_of};

/// The commands that hold something while they run CMD.
const FORMS: [&[&str]; 5] = [
    &["lock", "x"],
    &["semaphore", "x/permits", "--permits", "2"],
    &["elect", "x"],
    &["gate", "x"],
    &["cron", "x", "--at", "* * * * * *"],
];
const IGNORED: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];

fn ignores_all(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    IGNORED.iter().all(|signal| mask >> (*signal as u32 - 1) & 1 == 1)
}

fn ignoring() -> Command {
    by_env(&["--ignore-signal=HUP,INT,QUIT"])
}

/// This CMD of the shell, under each command, until a signal.
fn each_with(dev: &Dev, program: fn() -> Command, cmd: &str, work: impl Fn(&[&str], Command)) {
    for form in FORMS {
        let mut command = dev.as_client(program(), form);
        command.args(["--", "sh", "-c", cmd]).stdout(Stdio::null()).stderr(Stdio::null());
        work(form, command);
    }
}

#[test]
fn signals_reach_their_ends() {
    let dev = Dev::start(1, &[]);
    what_the_caller_ignores_stays_ignored(&dev);
    it_dies_of_the_signal_that_ended_it(&dev);
    a_real_time_signal_is_an_end_as_any_other(&dev);
    a_stopped_command_can_be_terminated(&dev);
}

fn what_the_caller_ignores_stays_ignored(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!("trap 'exit 7' TERM; echo $$ > {}; while :; do sleep 0.01; done", file.display());
    each_with(dev, ignoring, &script, |form, mut command| {
        let mut wrapper = Killed(command.spawn().unwrap());
        eventually("CMD runs", || numbers(&file).len() == 1);
        let cmd = Pid::from_raw(numbers(&file)[0]);
        assert!(ignores_all(wrapper.pid()) && ignores_all(cmd), "{form:?}");
        for signal in IGNORED {
            kill(wrapper.pid(), signal).unwrap();
        }
        kill(wrapper.pid(), Signal::SIGTERM).unwrap();
        // cron ends well if a signal ends it.
        assert_eq!(wrapper.code(), Some(if form[0] == "cron" { 0 } else { 7 }), "{form:?}");
        std::fs::remove_file(&file).unwrap();
    });
}

#[test]
fn a_cluster_in_the_background_ignores_what_its_caller_does() {
    // SIGTERM ends a server nevertheless.
    let mut dev = Dev::by(by_env(&["--ignore-signal=HUP,INT,QUIT,TERM"]), 1, &[]);
    let process = pid_of(&dev.process);
    for pid in [process, dev.pids[0]] {
        assert!(ignores_all(pid));
        IGNORED.iter().for_each(|signal| kill(pid, *signal).unwrap());
    }
    assert!(dev.run(&["create", "/x"]).status.success());
    kill(process, Signal::SIGTERM).unwrap();
    assert_eq!(dev.process.wait().unwrap().code(), Some(0));
}

fn it_dies_of_the_signal_that_ended_it(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!("ulimit -c 0; echo $$ > {}; exec sleep 1000", file.display());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1] {
        each_with(dev, lockkeeper, &script, |form, mut command| {
            let mut wrapper = Killed(command.spawn().unwrap());
            eventually("CMD runs", || numbers(&file).len() == 1);
            kill(wrapper.pid(), signal).unwrap();
            let status = wrapper.0.wait().unwrap();
            if form[0] == "cron" && matches!(signal, Signal::SIGTERM | Signal::SIGINT) {
                assert_eq!(status.code(), Some(0));
            } else {
                assert_eq!(status.signal(), Some(signal as i32), "{form:?} {signal}: {status}");
            }
            assert!(!status.core_dumped() && !alive(numbers(&file)[0]));
            std::fs::remove_file(&file).unwrap();
        });
    }
    // A signal that lockkeeper did not get is CMD's own affair.
    let own = dev.lock(&["x"], "kill -TERM $$").status().unwrap();
    assert_eq!(own.code(), Some(128 + 15));
    let holder = Killed(dev.lock(&["queue"], "sleep 1000").spawn().unwrap());
    eventually("it is held", || dev.holders("queue") == 1);
    let mut waits = Killed(dev.lock(&["queue"], "true").spawn().unwrap());
    let waiting = || crate::support::json(&dev.run(&["--json", "locks", "queue"]))["waiting"].as_u64().unwrap();
    eventually("it waits", || waiting() == 1);
    kill(waits.pid(), Signal::SIGINT).unwrap();
    assert_eq!((waits.0.wait().unwrap().signal(), waiting()), (Some(2), 0));
    drop(holder);
}

fn a_real_time_signal_is_an_end_as_any_other(dev: &Dev) {
    for signal in [34, 64] {
        let script = format!("kill -{signal} $$");
        for form in &FORMS[..4] {
            let mut command = dev.command(form);
            let mut wrapper = Killed(command.args(["--", "sh", "-c", &script]).spawn().unwrap());
            eventually("it has ended", || wrapper.0.try_wait().unwrap().is_some());
            assert_eq!(wrapper.code(), Some(128 + signal), "{form:?}");
        }
        assert_eq!(dev.holders("x"), 0);
        // One that CMD leaves behind, too.
        let leaves = format!("(sh -c '{script}' &); sleep 0.2; exit 3");
        assert_eq!(dev.lock(&["x"], &leaves).status().unwrap().code(), Some(3));
    }
}

fn a_stopped_command_can_be_terminated(dev: &Dev) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let script = format!("echo $$ > {}; exec sleep 1000", file.display());
        let mut wrapper = Killed(dev.lock(&["x"], &script).spawn().unwrap());
        eventually("CMD runs", || numbers(&file).len() == 1);
        kill(Pid::from_raw(numbers(&file)[0]), Signal::SIGSTOP).unwrap();
        kill(wrapper.pid(), signal).unwrap();
        eventually("it has ended", || wrapper.0.try_wait().unwrap().is_some());
        assert_eq!(wrapper.code(), Some(128 + signal as i32));
        assert_eq!(dev.holders("x"), 0);
        std::fs::remove_file(&file).unwrap();
    }
}

/// As a package manager replaces a program: a new file takes the old one's name.
#[test]
fn an_upgrade_of_the_program_disturbs_no_command() {
    let dev = Dev::start(1, &[]);
    let built = Path::new(crate::support::PROGRAM);
    let directory = tempfile::tempdir_in(built.parent().unwrap()).unwrap();
    let [program, next] = ["lockkeeper", "next"].map(|name| directory.path().join(name));
    std::fs::hard_link(built, &program).unwrap();
    std::fs::write(&next, "the next version").unwrap();
    let runs = directory.path().join("runs");
    let mut held = Killed(dev.lock(&["x"], "sleep 1000").spawn().unwrap());
    eventually("it is held", || dev.holders("x") == 1);
    let start = |form: &[&str], cmd: &str| {
        let mut command = Command::new(&program);
        command.args(["--endpoints", &dev.endpoints.join(",")]).args(form).args(["--", "sh", "-c", cmd]);
        Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    };
    let mut waits = start(&["lock", "x"], "exit 7");
    let count = format!("echo 1 >> {}", runs.display());
    let cron = start(&["cron", "x", "--at", "* * * * * *"], &count);
    let elect = format!("echo $$ > {}; exec sleep 1000", directory.path().join("leads").display());
    let leads = start(&["elect", "x", "--forever"], &elect);
    let leader = || numbers(&directory.path().join("leads")).first().copied();
    eventually("all are at work", || {
        let waiting = crate::support::json(&dev.run(&["--json", "locks", "x"]))["waiting"] == 1;
        waiting && leader().is_some() && !numbers(&runs).is_empty()
    });
    std::fs::rename(&next, &program).unwrap();

    kill(held.pid(), Signal::SIGTERM).unwrap();
    held.code();
    assert_eq!(waits.code(), Some(7));
    let before = numbers(&runs).len();
    eventually("cron runs more ticks", || numbers(&runs).len() >= before + 2);
    let first = leader().unwrap();
    let view = crate::support::json(&dev.run(&["--json", "locks", "elections/x"]));
    let token = view["holders"][0]["token"].to_string();
    assert!(dev.run(&["unlock", "elections/x", "--force", "--token", &token]).status.success());
    eventually("it leads again", || leader().is_some_and(|leader| leader != first && alive(leader)));
    drop((cron, leads));
}
