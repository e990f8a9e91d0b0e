//! `lockkeeper top`: a live view of members, rates and locks.

use lockkeeper_api::locks::Locks;
use lockkeeper_client::{Client, Paging};
use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{MissedTickBehavior, interval};

use crate::args::{Common, Top};
use crate::connect::client;
use crate::doctor::survey::Survey;
use crate::failure::{EXIT_UNREACHABLE, Failure};
use crate::output::{now_ms, print_json, print_json_line, print_line};
use crate::signals::Stops;
use crate::top::frame::Frame;
use crate::top::render::lines;
use crate::top::screen::Screen;

/// Locks of one refresh: the most that a node gives at once.
const LOCKS: u32 = 1_000;

/// Shows frames until a signal ends it, or one frame.
pub(crate) async fn run(common: &Common, args: &Top) -> Result<(), Failure> {
    let client = client(common)?;
    if args.once {
        return once(common, args, &client).await;
    }
    if !common.json && !Screen::is_possible() {
        return Err(Failure::usage("standard output is no terminal; print single frames with --once, or use --json"));
    }
    let cannot = |error| Failure::failed(format!("cannot receive signals: {error}"));
    let mut stops = Stops::of(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]).map_err(cannot)?;
    tokio::select! {
        shown = show(common, args, &client) => shown,
        () = stops.next() => Ok(()),
    }
}

async fn once(common: &Common, args: &Top, client: &Client) -> Result<(), Failure> {
    let (survey, locks) = ask(common, args, client).await;
    if survey.statuses().is_empty() {
        let first = survey.answers.into_iter().find_map(|answer| answer.status.err());
        return Err(match first {
            Some(refused) if refused.code().is_some() => refused.into(),
            _ => Failure::new(EXIT_UNREACHABLE, "no endpoint can be reached; check --endpoints or start the cluster"),
        });
    }
    let frame = Frame::new(&survey, None, &locks, now_ms());
    if common.json { print_json(&frame) } else { print_line(&lines(&frame, None).join("\n")) }
}

/// Draws a frame at each refresh, until `q` or an error ends it. Its screen is restored when it is dropped.
async fn show(common: &Common, args: &Top, client: &Client) -> Result<(), Failure> {
    let mut suspended = signal(SignalKind::from_raw(Signal::SIGTSTP as i32))
        .map_err(|error| Failure::failed(format!("cannot receive signals: {error}")))?;
    let mut screen = if common.json { None } else { Some(Screen::enter()?) };
    let mut keys = if common.json { None } else { Some(Screen::keys()) };
    let mut refresh = interval(args.every);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<Survey> = None;
    loop {
        tokio::select! {
            _ = refresh.tick() => {}
            Some(key) = pressed(&mut keys) => match key {
                b'q' => return Ok(()),
                _ => continue,
            },
            _ = suspended.recv() => {
                // The shell gets its screen, and this one comes back with the process.
                drop(screen.take());
                raise(Signal::SIGSTOP)?;
                screen = if common.json { None } else { Some(Screen::enter()?) };
                continue;
            }
        }
        let (survey, locks) = ask(common, args, client).await;
        let frame = Frame::new(&survey, before.as_ref(), &locks, now_ms());
        match &screen {
            Some(screen) => screen.draw(&lines(&frame, Some(Screen::size())))?,
            None => print_json_line(&frame)?,
        }
        before = Some(survey);
    }
}

/// The next key, if any comes.
async fn pressed(keys: &mut Option<UnboundedReceiver<u8>>) -> Option<u8> {
    match keys {
        Some(keys) => keys.recv().await,
        None => None,
    }
}

/// One request to each member for its status, one for its metrics, and one page of locks.
async fn ask(common: &Common, args: &Top, client: &Client) -> (Survey, Result<Locks, String>) {
    let page = Paging { limit: Some(LOCKS), ..Paging::default() };
    let (survey, locks) =
        futures::join!(Survey::take(client, common.patience), client.locks(args.prefix.as_deref(), &page));
    (survey, locks.map_err(|error| error.to_string()))
}
