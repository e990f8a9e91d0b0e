//! The answering end of a peer's connection.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connection::frame::{Answer, AnswerFrame, CallFrame, FrameDecoder, write_frames};
use crate::error::ServeError;
use crate::transport::PeerKind;

/// Most calls of a connection at work, and most bytes of their bodies; further calls are read later.
const MAX_AT_WORK: usize = 1_024;
const MAX_BYTES_AT_WORK: usize = 64 * 1024 * 1024;
/// Most answers that wait to be written.
const MAX_ANSWERS: usize = 64;
/// No caller waits longer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Answers the calls that come over an upgraded connection, many at a time, until it breaks. Once `stop` is cancelled
/// it reads no further ones, and ends when those at work are answered.
///
/// All run in the task that calls this. Work on a call ends when its caller said that it would wait no longer.
///
/// # Errors
/// The connection broke, or its other end does not keep to the protocol.
pub async fn serve_calls<A>(
    socket: impl AsyncRead + AsyncWrite,
    serve: impl Fn(PeerKind, Bytes) -> A,
    stop: CancellationToken,
) -> io::Result<()>
where
    A: Future<Output = Result<Bytes, ServeError>>,
{
    let (reading, writing) = tokio::io::split(socket);
    let (answers, mut queue) = channel(MAX_ANSWERS);
    tokio::try_join!(answer_calls(reading, answers, serve, stop), write_frames(&mut queue, writing, |_| true))?;
    Ok(())
}

async fn answer_calls<A>(
    socket: impl AsyncRead + Unpin,
    answers: Sender<AnswerFrame>,
    serve: impl Fn(PeerKind, Bytes) -> A,
    stop: CancellationToken,
) -> io::Result<()>
where
    A: Future<Output = Result<Bytes, ServeError>>,
{
    let mut calls = FrameDecoder::<CallFrame>::read(socket);
    let (mut at_work, mut bytes_at_work) = (FuturesUnordered::new(), 0);
    loop {
        // Read once: it may be cancelled at any moment.
        let is_stopping = stop.is_cancelled();
        if is_stopping && at_work.is_empty() {
            return Ok(());
        }
        let has_room = at_work.len() < MAX_AT_WORK && bytes_at_work < MAX_BYTES_AT_WORK;
        tokio::select! {
            Some((bytes, answer)) = at_work.next() => {
                bytes_at_work -= bytes;
                answers.send(answer).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
            }
            call = calls.next(), if has_room && !is_stopping => {
                let CallFrame { number, kind, wait, body } = call.ok_or(io::ErrorKind::UnexpectedEof)??;
                let bytes = body.len();
                bytes_at_work += bytes;
                let answer = timeout(wait.min(LONGEST_WAIT), serve(kind, body));
                at_work.push(async move {
                    let answer = answer.await.map_or(Answer::None, |answer| within_bound(kind, answer));
                    (bytes, AnswerFrame { number, answer })
                });
            }
            () = stop.cancelled(), if !is_stopping => {}
        }
    }
}

/// A longer answer would end the connection.
fn within_bound(kind: PeerKind, answer: Result<Bytes, ServeError>) -> Answer {
    match answer {
        Ok(body) if body.len() > kind.max_answer_bytes() => {
            tracing::error!(%kind, "an answer to a peer is longer than answers may be, and was not sent");
            Answer::None
        }
        Ok(body) => Answer::Body(body),
        Err(rejection) => Answer::Rejection(rejection),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use tokio::io::{AsyncWriteExt, DuplexStream, ReadHalf, duplex, split};
    use tokio::sync::Notify;
    use tokio_util::codec::FramedRead;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The other end of a connection.
    struct Caller {
        calls: Sender<CallFrame>,
        answers: FramedRead<ReadHalf<DuplexStream>, FrameDecoder<AnswerFrame>>,
    }

    impl Caller {
        fn new(socket: DuplexStream) -> Caller {
            let (reading, writing) = split(socket);
            let (calls, mut queued) = channel(2 * MAX_AT_WORK);
            tokio::spawn(async move { write_frames(&mut queued, writing, |_| true).await });
            Caller { calls, answers: FrameDecoder::read(reading) }
        }

        fn call(&self, number: u64, wait: Duration, body: &'static [u8]) {
            let frame = CallFrame { number, kind: PeerKind::Service, wait, body: Bytes::from_static(body) };
            self.calls.try_send(frame).unwrap();
        }

        async fn answered(&mut self) -> (u64, Answer) {
            let AnswerFrame { number, answer } = self.answers.next().await.unwrap().unwrap();
            (number, answer)
        }
    }

    #[tokio::test]
    async fn calls_are_answered_as_they_end_and_a_stop_waits_for_those_at_work() {
        let (here, there) = duplex(16);
        let (release, stop) = (Notify::new(), CancellationToken::new());
        let released = release.notified().shared();
        let serve = |_: PeerKind, body: Bytes| {
            let released = released.clone();
            async move {
                match &body[..] {
                    b"slow" => released.map(|()| Ok(body)).await,
                    b"bad" => Err(ServeError::new("bad", "no")),
                    _ => Ok(body),
                }
            }
        };
        let caller = async {
            let mut caller = Caller::new(there);
            caller.call(1, LONG, b"slow");
            caller.call(2, LONG, b"bad");
            caller.call(3, LONG, b"quick");
            assert_eq!(caller.answered().await, (2, Answer::Rejection(ServeError::new("bad", "no"))));
            assert_eq!(caller.answered().await, (3, Answer::Body(Bytes::from_static(b"quick"))));
            stop.cancel();
            release.notify_one();
            assert_eq!(caller.answered().await, (1, Answer::Body(Bytes::from_static(b"slow"))));
            assert!(caller.answers.next().await.is_none());
        };
        let (served, ()) = tokio::join!(serve_calls(here, serve, stop.clone()), caller);
        served.unwrap();
    }

    #[tokio::test]
    async fn further_calls_are_read_when_callers_wait_no_longer() {
        let (here, there) = duplex(1024);
        let most = AtomicUsize::new(0);
        let at_work = Arc::new(());
        let serve = |_: PeerKind, body: Bytes| {
            let one = at_work.clone();
            most.fetch_max(Arc::strong_count(&at_work) - 1, Ordering::Relaxed);
            async move {
                let _one = one;
                if body.is_empty() { std::future::pending().await } else { Ok(body) }
            }
        };
        let caller = async {
            let mut caller = Caller::new(there);
            for number in 0..MAX_AT_WORK as u64 {
                caller.call(number, Duration::from_millis(50), b"");
            }
            caller.call(9_999, LONG, b"after them");
            // The last call is read as soon as one of the others has ended, so its answer may precede theirs.
            let mut answers = Vec::new();
            for _ in 0..=MAX_AT_WORK {
                answers.push(caller.answered().await);
            }
            assert_eq!(answers[0].1, Answer::None);
            let answered: Vec<_> = answers.into_iter().filter(|(_, answer)| *answer != Answer::None).collect();
            assert_eq!(answered, [(9_999, Answer::Body(Bytes::from_static(b"after them")))]);
        };
        let (served, ()) = tokio::join!(serve_calls(here, serve, CancellationToken::new()), caller);
        assert_eq!(served.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(most.into_inner() <= MAX_AT_WORK);
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_ends_no_other_call() {
        let (here, there) = duplex(1024);
        let long = Bytes::from(vec![0; PeerKind::Service.max_answer_bytes() + 1]);
        let serve = |_: PeerKind, body: Bytes| {
            let long = long.clone();
            async move { Ok(if body.is_empty() { long } else { body }) }
        };
        let caller = async {
            let mut caller = Caller::new(there);
            caller.call(1, LONG, b"");
            caller.call(2, LONG, b"short");
            let mut answers = [caller.answered().await, caller.answered().await];
            answers.sort_by_key(|(number, _)| *number);
            assert_eq!(answers, [(1, Answer::None), (2, Answer::Body(Bytes::from_static(b"short")))]);
        };
        let (_, ()) = tokio::join!(serve_calls(here, serve, CancellationToken::new()), caller);
    }

    #[tokio::test]
    async fn bytes_that_are_no_call_end_the_connection() {
        let (here, mut there) = duplex(1024);
        there.write_all(b"POST /peer/v1/append HTTP/1.1\r\n").await.unwrap();
        let served = serve_calls(here, |_: PeerKind, body| async move { Ok(body) }, CancellationToken::new()).await;
        assert_eq!(served.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
