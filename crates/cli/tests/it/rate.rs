//! `lockkeeper rate` with real processes.

use std::process::Output;

use crate::support::{Dev, complaint, json};

fn run(dev: &Dev, arguments: &[&str]) -> Output {
    let mut command = dev.command(&["rate"]);
    command.args(arguments).output().unwrap()
}

#[test]
fn a_rate_limit_on_the_command_line() {
    let dev = Dev::start(1, &[]);
    let hourly = |more: &[&'static str]| run(&dev, &[&["api/mails", "--limit", "3", "--per", "1h"], more].concat());

    let granted = hourly(&[]);
    assert_eq!((granted.status.code(), &granted.stdout[..]), (Some(0), &b"granted; about 2 permits are left\n"[..]));
    let ran = hourly(&["--", "sh", "-c", "echo sent; exit 7"]);
    assert_eq!((ran.status.code(), &ran.stdout[..]), (Some(7), &b"sent\n"[..]));

    // Not granted: CMD is not run, and the message tells how long it takes.
    let refused = hourly(&["--permits", "2", "--", "sh", "-c", "echo sent"]);
    assert_eq!((refused.status.code(), &refused.stdout[..]), (Some(120), &b""[..]));
    let why = complaint(&refused);
    assert!(why.contains("api/mails has 1 of 3 permits") && why.contains("2 will be there in 19m"), "{why}");
    let asked = std::time::Instant::now();
    assert_eq!(hourly(&["--permits", "2", "--wait", "1m"]).status.code(), Some(120));
    assert!(asked.elapsed() < std::time::Duration::from_secs(20), "a wait that would take longer ends at once");

    let waited = |permits| run(&dev, &["w", "--limit", "2", "--per", "300ms", "--permits", permits, "--wait", "20s"]);
    assert_eq!((waited("2").status.code(), waited("2").status.code()), (Some(0), Some(0)));

    let other = run(&dev, &["api/mails", "--limit", "4", "--per", "1h"]);
    assert_eq!(other.status.code(), Some(125), "{other:?}");
    assert!(complaint(&other).contains("3 permits in 3600000 ms"));
    let shown = run(&dev, &["api/mails", "--limit", "4", "--per", "1h", "--reconfigure", "--json"]);
    assert_eq!(json(&shown)["granted"], true);
    for bad in [
        &["a", "--limit", "0", "--per", "1s"][..],
        &["a", "--limit", "1", "--per", "0s"],
        &["a", "--limit", "1", "--per", "1us"],
        &["a", "--limit", "1", "--per", "367d"],
        &["a", "--limit", "1", "--per", "1s", "--permits", "2"],
        &["a", "--per", "1s"],
    ] {
        assert_eq!(run(&dev, bad).status.code(), Some(125), "{bad:?}");
    }
    assert_eq!(run(&dev, &["a", "--limit", "1", "--per", "1s", "--", "/none/such"]).status.code(), Some(127));
}
