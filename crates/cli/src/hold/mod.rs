//! Runs CMD while a lock, permit, leadership or gate is held, and never longer.
//!
//! CMD's process group must be dead before the cluster can grant to another. So CMD gets SIGTERM when only the grace
//! period of the session is left, and SIGKILL when the client considers the session lost, which is before it can
//! expire. The lock is released only after the whole group has ended.

mod capture;
pub(crate) mod nested;
mod pause;
pub(crate) mod queue;
mod supervision;
pub(crate) mod unprotected;
pub(crate) mod waiting;

use std::ffi::OsString;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_client::api::{Code, Credential};
use lockkeeper_client::{Client, Error, Moment, Session, SessionOptions, process_label};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::getpgrp;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::args::{Common, HoldArgs, IfUnreachable};
use crate::connect::client;
use crate::failure::{
    EXIT_INTERNAL, EXIT_LOCK_LOST, EXIT_OK, EXIT_UNKNOWN_OUTCOME, EXIT_UNREACHABLE, Failure, print_error,
};
use crate::runtime::runtime;
use crate::signals::{Arrivals, bit};
use crate::supervise::{Exit, terminal};
use capture::Capture;
use pause::again_after_pauses;
use supervision::{End, supervise};
use waiting::Waiting;

const SHORTEST_TTL: Duration = Duration::from_millis(100);
/// Longest wait for the session to be closed.
const LONGEST_CLOSE: Duration = Duration::from_secs(1);

/// Something that can be held while CMD runs.
pub(crate) trait Hold {
    /// The grant.
    type Held;

    /// The lockkeeper command's name.
    fn command(&self) -> &'static str;

    /// Its name in messages.
    fn name(&self) -> String;

    /// Acquires it, or finds that CMD need not run. Dropping the future cancels.
    async fn obtain(&self, session: &Session) -> Result<Obtained<Self::Held>, Failure>;

    /// What [`obtain`](Self::obtain) waits for now; `None` if that cannot be told.
    async fn waiting(&self, session: &Session) -> Option<Waiting>;

    /// CMD's environment variables.
    fn variables(&self, held: &Self::Held) -> Vec<(&'static str, String)>;

    /// Most bytes of CMD's standard output to keep for [`release`](Self::release); CMD is ended if it prints more.
    /// `None` if CMD writes to lockkeeper's own standard output.
    fn output_limit(&self) -> Option<usize> {
        None
    }

    /// A session that a surrounding lockkeeper holds the locks with, to be used instead of a new one. It is not closed.
    fn session_above(&self) -> Option<Credential> {
        None
    }

    /// Whether others use the session when this process ends, so that it must not be closed.
    fn is_left_open(&self) -> bool {
        false
    }

    /// The option that limits how long CMD may run, in messages.
    fn time_limit(&self) -> &'static str {
        "its time limit"
    }

    /// When the grant ends even though the session is alive.
    fn ends_at(&self, _held: &Self::Held) -> Option<Moment> {
        None
    }

    /// Completes with the reason when the grant was revoked although the session is alive.
    async fn revoked(&self, session: &Session, held: &Self::Held) -> String;

    /// Releases the grant after CMD and its whole group have ended.
    async fn release(&self, session: &Session, held: Self::Held, ended: Ended) -> Result<u8, Failure>;

    /// How long [`release`](Self::release) may go on after SIGTERM or SIGINT, for a release that waits for room or for
    /// a connection; `None` if it ends soon by itself.
    fn longest_report_after_signal(&self) -> Option<Duration> {
        None
    }

    /// Gives the grant back without a report, where CMD did not come to its own end. What this process's own session
    /// holds goes with that session.
    async fn abandon(&self, _session: &Session, _held: Self::Held) {}

    /// What the caller has declared for an outage before CMD is run.
    fn if_unreachable(&self) -> IfUnreachable {
        IfUnreachable::Refuse
    }

    /// The pause before trying again with a new session after this failure; `None` to give up.
    fn retry_after(&self, _failure: &Failure) -> Option<Duration> {
        None
    }
}

/// How CMD exited.
pub(crate) struct Ended {
    pub(crate) code: u8,
    /// Its standard output, if that is kept.
    pub(crate) output: Vec<u8>,
    /// Whether lockkeeper, and with it CMD, got SIGTERM or SIGINT.
    pub(crate) told_to_end: bool,
}

/// Result of acquiring.
pub(crate) enum Obtained<T> {
    Held(T),
    /// CMD is not run; exit with this code.
    ExitWith(u8),
}

/// Acquires and runs CMD.
pub(crate) fn run(common: &Common, args: &HoldArgs, hold: &impl Hold) -> Result<u8, Failure> {
    on_signals(common, args, hold.command(), async |client, signals| {
        loop {
            let result = once(client, args, hold, signals).await;
            let Err(failure) = &result else { return result };
            let Some(pause) = hold.retry_after(failure) else { return result };
            // CMD got the signal: it is not in the queue any more.
            if signals.told_to_end() {
                return result;
            }
            failure.print(hold.command());
            tokio::select! {
                biased;
                Some(signal) = signals.received.recv() => return Err(Failure::by_signal(signal)),
                () = tokio::time::sleep(pause) => {}
            }
        }
    })
}

/// Acquires and runs CMD again and again, until a signal ends it: SIGTERM and SIGINT without a failure.
pub(crate) fn run_each(common: &Common, args: &HoldArgs, hold: &impl Hold) -> Result<u8, Failure> {
    let after = |signal| if is_end(signal) { Ok(EXIT_OK) } else { Err(Failure::by_signal(signal)) };
    on_signals(common, args, hold.command(), async |client, signals| {
        loop {
            let failure = match each_in_session(client, args, hold, signals).await {
                Ok(signal) => return after(signal),
                Err(failure) => failure,
            };
            let Some(pause) = hold.retry_after(&failure) else { return Err(failure) };
            failure.print(hold.command());
            // CMD got the signal: it is not in the queue any more.
            if signals.told_to_end() {
                return Ok(EXIT_OK);
            }
            tokio::select! {
                biased;
                Some(signal) = signals.received.recv() => return after(signal),
                () = tokio::time::sleep(pause) => {}
            }
        }
    })
}

fn on_signals(
    common: &Common,
    args: &HoldArgs,
    command: &'static str,
    work: impl AsyncFnOnce(&Client, &mut Signals) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    if args.ttl() < SHORTEST_TTL {
        let message = format!("--ttl is at least {} ms", SHORTEST_TTL.as_millis());
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    let client = client(common).map_err(|failure| failure.with_code(EXIT_INTERNAL))?;
    // CMD must be started from this thread; see `Supervised::start`.
    runtime()?.block_on(async {
        let mut signals = Signals::receive(command)?;
        let result = work(&client, &mut signals).await;
        if let Some(signal) = signals.typed {
            // A script around would have got it, had CMD run in its group.
            let _ = killpg(getpgrp(), signal);
        }
        result
    })
}

async fn once(client: &Client, args: &HoldArgs, hold: &impl Hold, signals: &mut Signals) -> Result<u8, Failure> {
    let opened = tokio::select! {
        opened = open(client, args, hold) => opened,
        Some(signal) = signals.received.recv() => return Err(Failure::by_signal(signal)),
    };
    let (session, is_own) = match opened {
        Ok(opened) => opened,
        Err(why) => return not_begun(client, args, hold, signals, why).await,
    };
    let mut capture = None;
    let result = match obtain_and_run(&session, args, hold, signals, &mut capture).await {
        Ok(Ran::Ended(code)) => Ok(code),
        Ok(Ran::Signalled(signal)) => Err(Failure::by_signal(signal)),
        Ok(Ran::NotBegun(failure)) => {
            if is_own {
                close(session, hold).await;
            }
            let known = if failure.code == EXIT_UNREACHABLE { Known::Nothing } else { Known::NoOutage };
            return not_begun(client, args, hold, signals, NotBegun { failure, known }).await;
        }
        Err(failure) => Err(failure),
    };
    if is_own && !hold.is_left_open() {
        close(session, hold).await;
    }
    // Last, because the reader of the output may be slow.
    if let Some(capture) = capture {
        capture.finish();
    }
    result
}

/// The session to hold with, and whether it is this process's own.
async fn open(client: &Client, args: &HoldArgs, hold: &impl Hold) -> Result<(Session, bool), NotBegun> {
    if let Some(credential) = hold.session_above() {
        match Session::adopt(client, credential).await {
            Ok(session) => {
                report_unused_ttl(hold, args.ttl, session.timeout());
                return Ok((session, false));
            }
            // It is over, or of another cluster: there is nothing of it to wait for.
            Err(Error::Lost(why)) => print_error(&format!(
                "lockkeeper {}: the session in LOCKKEEPER_HELD is not known here, so {} is acquired anew: {why}",
                hold.command(),
                hold.name()
            )),
            // It may be alive and hold what is asked for: acquiring that anew would be waiting for the command around.
            Err(error) if matches!(error.code(), Some(Code::Unauthenticated | Code::Forbidden)) => {
                let message = format!(
                    "{} is held by a lockkeeper around this one, and its session was refused to this one: {error}; use \
                     the same access token as the one around",
                    hold.name()
                );
                return Err(NotBegun { failure: Failure::new(EXIT_INTERNAL, message), known: Known::NoOutage });
            }
            // An overloaded cluster, a failed TLS handshake and another program look the same here.
            Err(error) => return Err(NotBegun { failure: before_command(error), known: Known::Nothing }),
        }
    }
    let options = SessionOptions { timeout: args.ttl(), label: label(args), ..SessionOptions::default() };
    let is_declared = hold.if_unreachable() != IfUnreachable::Refuse;
    let attempt = async || {
        // Asked at the same time: an outage takes the caller's patience once.
        let asking = async { Ok::<_, Session>(is_declared && client.is_outage().await) };
        let opening = async {
            match Session::open(client, &options).await {
                Ok(session) => Err(session),
                Err(error) => Ok(error),
            }
        };
        // A session ends both.
        futures::try_join!(opening, asking)
    };
    // The time in which this process stood still says nothing about the cluster.
    let is_unreachable = |opened: &Result<(Error, bool), Session>| matches!(opened, Ok((Error::Unreachable { .. }, _)));
    match again_after_pauses(attempt, is_unreachable).await {
        (Err(session), _) => {
            report_other_ttl(hold.command(), args.ttl(), session.timeout());
            Ok((session, true))
        }
        (Ok((error, is_outage)), in_doubt) => {
            let is_outage = is_outage && error.is_outage() && !in_doubt;
            let known = if is_outage { Known::Outage } else { Known::NoOutage };
            Err(NotBegun { failure: before_command(error), known })
        }
    }
}

/// A session is opened with its timeout, which nobody can change afterwards.
fn report_unused_ttl(hold: &impl Hold, asked: Option<Duration>, given: Duration) {
    if let Some(asked) = asked.filter(|asked| millis(*asked) != millis(given)) {
        print_error(&format!(
            "lockkeeper {}: --ttl {} has no effect: {} is held in the session of the lockkeeper around this one, whose \
             --ttl is {}",
            hold.command(),
            humantime::format_duration(asked),
            hold.name(),
            humantime::format_duration(given)
        ));
    }
}

/// The cluster's limits change a session's timeout without a refusal.
fn report_other_ttl(command: &str, asked: Duration, given: Duration) {
    let (asked, given) = (Duration::from_millis(millis(asked)), Duration::from_millis(millis(given)));
    if asked != given {
        let (relation, limit) = if asked < given { ("less", "min") } else { ("more", "max") };
        print_error(&format!(
            "lockkeeper {command}: --ttl {} is {relation} than the cluster allows \
             (timing.{limit}_session_timeout_ms), so it is {}",
            humantime::format_duration(asked),
            humantime::format_duration(given)
        ));
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Runs CMD for each grant, in one session; returns the signal that ended it.
async fn each_in_session(
    client: &Client,
    args: &HoldArgs,
    hold: &impl Hold,
    signals: &mut Signals,
) -> Result<Signal, Failure> {
    let (session, is_own) = tokio::select! {
        opened = open(client, args, hold) => opened.map_err(|not_begun| not_begun.failure)?,
        Some(signal) = signals.received.recv() => return Ok(signal),
    };
    let result = loop {
        match obtain_and_run(&session, args, hold, signals, &mut None).await {
            Ok(Ran::Ended(_)) if signals.told_to_end() => break Ok(Signal::SIGTERM),
            Ok(Ran::Ended(_)) => {}
            Ok(Ran::Signalled(signal)) => break Ok(signal),
            Ok(Ran::NotBegun(failure)) | Err(failure) => break Err(failure),
        }
    };
    if is_own {
        close(session, hold).await;
    }
    result
}

/// What came of one wait for a grant.
enum Ran {
    /// This exit code: CMD's, or without it.
    Ended(u8),
    /// By a signal that came before the grant, or that killed CMD too.
    Signalled(Signal),
    /// There is no grant, for this reason.
    NotBegun(Failure),
}

async fn obtain_and_run(
    session: &Session,
    args: &HoldArgs,
    hold: &impl Hold,
    signals: &mut Signals,
    capture: &mut Option<Capture>,
) -> Result<Ran, Failure> {
    let mut obtaining = pin!(hold.obtain(session));
    let obtained = tokio::select! {
        obtained = &mut obtaining => obtained,
        never = waiting::report(args, hold, session) => match never {},
        because = session.lost() => Err(before_command(Error::Lost(because))),
        Some(signal) = signals.received.recv() => {
            // A session that outlives this process keeps what was just taken; that is not waited for, so it ends soon.
            if hold.session_above() == Some(session.credential())
                && let Ok(Ok(Obtained::Held(held))) = timeout(LONGEST_CLOSE, obtaining).await
            {
                abandon(session, hold, held).await;
            }
            return Ok(Ran::Signalled(signal));
        }
    };
    let held = match obtained {
        Ok(Obtained::Held(held)) => held,
        Ok(Obtained::ExitWith(code)) => return Ok(Ran::Ended(code)),
        Err(failure) => return Ok(Ran::NotBegun(failure)),
    };
    let failure = match supervise(session, args, hold, &held, &mut signals.received, capture).await {
        Ok(End::Exited(exit, output)) => {
            let killed_by = signals.that_killed(exit);
            let ran = |code| killed_by.map_or(Ran::Ended(code), Ran::Signalled);
            let ended = Ended { code: exit.code, output, told_to_end: signals.told_to_end() };
            let released = hold.release(session, held, ended);
            let Some(longest) = hold.longest_report_after_signal() else { return released.await.map(ran) };
            return tokio::select! {
                code = released => code.map(ran),
                () = signals.ended_for(longest) => {
                    let why = format!("the end of {} is not known to the cluster after {longest:?}", hold.name());
                    Err(Failure::new(EXIT_UNKNOWN_OUTCOME, why))
                }
            };
        }
        Ok(End::Lost(because)) => lost(hold, &because),
        Err(failure) => failure,
    };
    abandon(session, hold, held).await;
    Err(failure)
}

/// [`Hold::abandon`], for as long as closing a session may take.
async fn abandon<H: Hold>(session: &Session, hold: &H, held: H::Held) {
    // What the session held is gone with it, so the caller need not wait.
    if !session.left().is_zero() {
        // Out of time: the grant ends with its session.
        let _ = timeout(LONGEST_CLOSE, hold.abandon(session, held)).await;
    }
}

/// Why CMD was not run.
struct NotBegun {
    failure: Failure,
    known: Known,
}

/// What a failure says of the cluster.
enum Known {
    /// Nothing could be reached.
    Outage,
    /// The cluster is there, or what was to be held may be held.
    NoOutage,
    /// Nothing is held; whether anything can be reached has to be asked. A session may also be lost to a cluster that
    /// is there, such as when an operator has closed it.
    Nothing,
}

/// CMD was not run. In an outage the caller's declaration decides whether it is run without the grant.
async fn not_begun(
    client: &Client,
    args: &HoldArgs,
    hold: &impl Hold,
    signals: &mut Signals,
    why: NotBegun,
) -> Result<u8, Failure> {
    let NotBegun { failure, known } = why;
    if hold.if_unreachable() == IfUnreachable::Refuse {
        return Err(failure);
    }
    let is_outage = match known {
        Known::Outage => true,
        Known::NoOutage => false,
        Known::Nothing => tokio::select! {
            is_outage = is_outage(client) => is_outage,
            Some(signal) = signals.received.recv() => return Err(Failure::by_signal(signal)),
        },
    };
    if is_outage { unprotected::run(hold, args, signals, &failure).await } else { Err(failure) }
}

/// Asks again if this process stood still meanwhile: that is no outage.
async fn is_outage(client: &Client) -> bool {
    let ask = async || client.is_outage().await;
    let (is_outage, in_doubt) = again_after_pauses(ask, |is_outage: &bool| *is_outage).await;
    is_outage && !in_doubt
}

/// The grant was lost before CMD exited.
pub(crate) fn lost(hold: &impl Hold, because: &str) -> Failure {
    Failure::new(EXIT_LOCK_LOST, format!("lost {} while CMD ran: {because}", hold.name()))
}

/// A failure before CMD ran. Without a code of its own it becomes `EXIT_INTERNAL`.
pub(crate) fn before_command(error: Error) -> Failure {
    let failure = match error {
        Error::Lost(because) => {
            Failure::new(EXIT_UNREACHABLE, format!("the session was lost while waiting: {because}"))
        }
        other => Failure::from(other),
    };
    match failure.code {
        EXIT_UNREACHABLE | EXIT_UNKNOWN_OUTCOME => failure,
        _ => failure.with_code(EXIT_INTERNAL),
    }
}

async fn close(session: Session, hold: &impl Hold) {
    // The session has run out, so the caller need not wait for it to be closed.
    if session.left().is_zero() {
        return;
    }
    if let Ok(Err(error)) = timeout(LONGEST_CLOSE, session.close()).await
        && !matches!(error, Error::Unreachable { .. })
    {
        let (command, name) = (hold.command(), hold.name());
        print_error(&format!("lockkeeper {command}: cannot close the session of {name}, which will expire: {error}"));
    }
}

/// The given label, or that of this process with CMD's name. Never CMD's arguments.
pub(crate) fn label(args: &HoldArgs) -> String {
    let program = || args.command.first().map(OsString::as_os_str).unwrap_or_default();
    args.label.clone().unwrap_or_else(|| process_label(program()))
}

const FORWARDED: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Whether the signal asks this process to end.
fn is_end(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT)
}

/// The signals that are forwarded to CMD.
struct Signals {
    received: mpsc::Receiver<Signal>,
    /// All that came so far.
    came: Arc<AtomicU64>,
    /// The one that was typed at the terminal and killed CMD.
    typed: Option<Signal>,
}

impl Signals {
    /// `command` is lockkeeper's, for messages.
    fn receive(command: &'static str) -> Result<Self, Failure> {
        let (sender, received) = mpsc::channel(64);
        let came = Arc::new(AtomicU64::new(0));
        let arrivals_of = |which| {
            Arrivals::of(which).map_err(|e| Failure::new(EXIT_INTERNAL, format!("cannot receive {which}: {e}")))
        };
        for which in FORWARDED {
            let mut arrivals = arrivals_of(which)?;
            let (sender, came) = (sender.clone(), came.clone());
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() {
                    // Before CMD gets it.
                    came.fetch_or(bit(which), Ordering::Relaxed);
                    if sender.send(which).await.is_err() {
                        return;
                    }
                }
            });
        }
        let mut suspended = arrivals_of(Signal::SIGTSTP)?;
        tokio::spawn(async move {
            while suspended.recv().await.is_some() {
                print_error(&format!(
                    "lockkeeper {command}: not suspended, because a suspended lockkeeper loses its session; to go on \
                     in the background, start it with &"
                ));
                terminal::continue_pipeline().await;
            }
        });
        Ok(Self { received, came, typed: None })
    }

    /// The signal that killed CMD, if it came to this process too, or would have, had CMD not had the terminal. So a
    /// script around ends as it would with CMD alone, by what shells call wait and cooperative exit: a signal that CMD
    /// has handled does not end it, even if CMD then exits with 130, nor does one that CMD has sent to itself.
    fn that_killed(&mut self, exit: Exit) -> Option<Signal> {
        let signal = Signal::try_from(exit.signal?).ok()?;
        // Otherwise lockkeeper's group had it in any case.
        if exit.from_keyboard && !self.has_come(signal) {
            self.came.fetch_or(bit(signal), Ordering::Relaxed);
            self.typed = Some(signal);
        }
        self.has_come(signal).then_some(signal)
    }

    fn has_come(&self, signal: Signal) -> bool {
        self.came.load(Ordering::Relaxed) & bit(signal) != 0
    }

    /// Completes so long after SIGTERM or SIGINT.
    async fn ended_for(&mut self, time: Duration) {
        while !self.told_to_end() {
            if self.received.recv().await.is_none() {
                // No more signals can come.
                std::future::pending::<()>().await;
            }
        }
        tokio::time::sleep(time).await;
    }

    /// Whether SIGTERM or SIGINT came.
    fn told_to_end(&self) -> bool {
        FORWARDED.into_iter().any(|signal| is_end(signal) && self.has_come(signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(label: Option<&str>, command: &[&str]) -> String {
        let command = command.iter().map(Into::into).collect();
        super::label(&HoldArgs { ttl: None, grace: None, label: label.map(Into::into), quiet: false, command })
    }

    #[test]
    fn the_default_label_names_the_program_and_none_of_its_arguments() {
        let label = of(None, &["/usr/bin/pg_dump", "--dbname", "postgres://shop:s3cret@db/shop"]);
        let expected = format!(", {}, pg_dump", std::process::id());
        assert!(label.contains('@') && label.ends_with(&expected), "{label}");
        assert!(!label.contains("s3cret") && !label.contains("dbname"), "{label}");
        assert_eq!(of(Some("backup"), &["pg_dump"]), "backup");
    }
}
