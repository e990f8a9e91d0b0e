//! The bytes of peer calls on their connection: frames of a length (u32), the number of the call (u64), a head, and the
//! body; integers are little-endian. The answer to a call has its number; answers come in any order.
//!
//! | frame | head |
//! |---|---|
//! | call | the kind (u8), and for how many milliseconds the caller waits (u32) |
//! | answer | 0 and the body; 1, the length of a code (u8), the code, and the text of a rejection; or 2 for no answer |

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::Receiver;
use tokio_util::codec::{Decoder, FramedRead};

use crate::error::{ServeError, invalid};
use crate::transport::PeerKind;

/// The protocol that a connection is upgraded to; it names the version of these frames.
pub const PEER_PROTOCOL: &str = "lockkeeper-peer/1";

/// Room in a frame beside its body.
const HEAD_BYTES: usize = 64;
/// The length, the number of the call, and the first byte of the head, which bounds the length.
const PREFIX_BYTES: usize = 13;
/// A longer text of a rejection is cut off.
const MAX_DETAIL_BYTES: usize = 4 * 1024;
/// Frames are gathered up to about this size for one write.
const WRITE_BYTES: usize = 64 * 1024;
/// A buffer that had to grow beyond this is given back.
const KEPT_BYTES: usize = 1024 * 1024;
const ANSWERED: u8 = 0;
const REJECTED: u8 = 1;
const NONE: u8 = 2;

/// The call of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallFrame {
    pub(crate) number: u64,
    pub(crate) kind: PeerKind,
    /// After this time the caller waits no longer.
    pub(crate) wait: Duration,
    pub(crate) body: Bytes,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerFrame {
    pub(crate) number: u64,
    pub(crate) answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Body(Bytes),
    /// The call was not acted on.
    Rejection(ServeError),
    /// The caller waits no longer; it learns that the connection is sound.
    None,
}

/// What is sent in frames.
pub(crate) trait Frame: Sized {
    /// The largest body of a frame whose head begins with this byte; `None` if there is none.
    fn max_body_bytes(head: u8) -> Option<usize>;

    fn put(&self, out: &mut BytesMut);

    /// Reads what follows the length.
    fn parse(frame: Bytes) -> io::Result<Self>;
}

impl Frame for CallFrame {
    fn max_body_bytes(head: u8) -> Option<usize> {
        PeerKind::ALL.get(usize::from(head)).map(|kind| kind.max_body_bytes())
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.number);
        out.put_u8(self.kind as u8);
        out.put_u32_le(u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX));
        out.put_slice(&self.body);
    }

    fn parse(mut frame: Bytes) -> io::Result<CallFrame> {
        let short = |_| invalid("peer call");
        let number = frame.try_get_u64_le().map_err(short)?;
        let kind = usize::from(frame.try_get_u8().map_err(short)?);
        let kind = *PeerKind::ALL.get(kind).ok_or_else(|| invalid("peer call"))?;
        let wait = Duration::from_millis(frame.try_get_u32_le().map_err(short)?.into());
        Ok(CallFrame { number, kind, wait, body: frame })
    }
}

impl Frame for AnswerFrame {
    fn max_body_bytes(head: u8) -> Option<usize> {
        match head {
            ANSWERED => Some(PeerKind::MAX_ANSWER_BYTES),
            REJECTED => Some(MAX_DETAIL_BYTES + usize::from(u8::MAX)),
            NONE => Some(0),
            _ => None,
        }
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.number);
        match &self.answer {
            Answer::Body(body) => {
                out.put_u8(ANSWERED);
                out.put_slice(body);
            }
            Answer::Rejection(rejection) => {
                let code = rejection.code.as_bytes();
                let code = &code[..code.len().min(usize::from(u8::MAX))];
                out.put_u8(REJECTED);
                out.put_u8(code.len() as u8);
                out.put_slice(code);
                out.put_slice(&rejection.detail.as_bytes()[..rejection.detail.len().min(MAX_DETAIL_BYTES)]);
            }
            Answer::None => out.put_u8(NONE),
        }
    }

    fn parse(mut frame: Bytes) -> io::Result<AnswerFrame> {
        let short = |_| invalid("answer of a peer");
        let number = frame.try_get_u64_le().map_err(short)?;
        let answer = match frame.try_get_u8().map_err(short)? {
            ANSWERED => Answer::Body(frame),
            REJECTED => {
                let code = usize::from(frame.try_get_u8().map_err(short)?);
                if frame.len() < code {
                    return Err(invalid("answer of a peer"));
                }
                let text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
                let code = text(frame.split_to(code));
                Answer::Rejection(ServeError::new(&code, text(frame)))
            }
            NONE => Answer::None,
            _ => return Err(invalid("answer of a peer")),
        };
        Ok(AnswerFrame { number, answer })
    }
}

/// Reads frames of one type.
pub(crate) struct FrameDecoder<F>(PhantomData<fn() -> F>);

impl<F: Frame> FrameDecoder<F> {
    /// Reads frames from the socket.
    pub(crate) fn read<R: AsyncRead>(socket: R) -> FramedRead<R, FrameDecoder<F>> {
        FramedRead::new(socket, FrameDecoder(PhantomData))
    }
}

impl<F: Frame> Decoder for FrameDecoder<F> {
    type Item = F;
    type Error = io::Error;

    fn decode(&mut self, read: &mut BytesMut) -> io::Result<Option<F>> {
        let Some((mut length, head)) = read.get(..4).zip(read.get(PREFIX_BYTES - 1)) else { return Ok(None) };
        let length = length.get_u32_le() as usize;
        // Before the buffer grows to the length.
        if F::max_body_bytes(*head).is_none_or(|body| length > body + HEAD_BYTES) || length < PREFIX_BYTES - 4 {
            return Err(invalid("frame of a peer"));
        }
        let missing = (4 + length).saturating_sub(read.len());
        if missing > 0 {
            read.reserve(missing);
            return Ok(None);
        }
        read.advance(4);
        F::parse(read.split_to(length).freeze()).map(Some)
    }
}

/// Appends a frame with its length.
fn put_frame<F: Frame>(frame: &F, out: &mut BytesMut) {
    let start = out.len();
    out.put_u32_le(0);
    frame.put(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Writes the frames of a queue, as many at once as there are, until the queue is closed. Leaves out those that nobody
/// wants any more.
pub(crate) async fn write_frames<F: Frame>(
    queue: &mut Receiver<F>,
    mut socket: impl AsyncWrite + Unpin,
    is_wanted: impl Fn(&F) -> bool,
) -> io::Result<()> {
    let mut out = BytesMut::new();
    while let Some(first) = queue.recv().await {
        let mut next = Some(first);
        while let Some(frame) = next {
            if is_wanted(&frame) {
                put_frame(&frame, &mut out);
            }
            next = if out.len() < WRITE_BYTES { queue.try_recv().ok() } else { None };
        }
        let has_grown = out.capacity() > KEPT_BYTES;
        socket.write_all_buf(&mut out).await?;
        socket.flush().await?;
        if has_grown {
            out = BytesMut::new();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn call(number: u64, body: &'static [u8]) -> CallFrame {
        CallFrame { number, kind: PeerKind::Propose, wait: Duration::from_millis(250), body: Bytes::from_static(body) }
    }

    fn bytes_of<F: Frame>(frames: &[F]) -> BytesMut {
        let mut out = BytesMut::new();
        frames.iter().for_each(|frame| put_frame(frame, &mut out));
        out
    }

    /// What a reader makes of these bytes, of which one comes at a time.
    async fn read<F: Frame>(bytes: &[u8]) -> Vec<io::Result<F>> {
        let (mut there, here) = tokio::io::duplex(1);
        let writing = async move { there.write_all(bytes).await };
        tokio::join!(FrameDecoder::<F>::read(here).collect(), writing).0
    }

    #[test]
    fn kinds_have_their_place_as_number() {
        for (number, kind) in PeerKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{kind}");
        }
    }

    #[tokio::test]
    async fn frames_come_back_as_they_were() {
        let calls = [call(0, b""), call(u64::MAX, b"body")];
        let back: Vec<_> = read::<CallFrame>(&bytes_of(&calls)).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(back, calls);
        let rejected = ServeError::new("going_down", "wait");
        let body = Answer::Body(Bytes::from_static(b"answer"));
        let answers = [Answer::Body(Bytes::new()), body, Answer::Rejection(rejected), Answer::None];
        let answers = [3, 1, 2, 4].into_iter().zip(answers).map(|(number, answer)| AnswerFrame { number, answer });
        let answers: Vec<_> = answers.collect();
        let back: Vec<_> = read::<AnswerFrame>(&bytes_of(&answers)).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(back, answers);
    }

    #[tokio::test]
    async fn damaged_frames_are_refused() {
        let whole = bytes_of(&[call(7, b"")]);
        // The length, twice too short and once too long for its kind; and the kind.
        for (at, byte) in [(0, 12), (0, 0), (3, 255), (12, 99)] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            let error = read::<CallFrame>(&damaged).await.remove(0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "byte {at}: {error}");
        }
        let cut = read::<CallFrame>(&whole[..whole.len() - 1]).await;
        assert!(matches!(cut.as_slice(), [Err(_)]), "a frame that ends early");
        let rejected = AnswerFrame { number: 1, answer: Answer::Rejection(ServeError::new("code", "")) };
        let mut rejected = bytes_of(&[rejected]);
        rejected[13] = 200;
        assert!(read::<AnswerFrame>(&rejected).await.remove(0).is_err(), "a code longer than the frame");
    }

    #[test]
    fn the_kind_bounds_the_length_before_the_buffer_grows() {
        for (kind, is_taken) in [(PeerKind::Append, true), (PeerKind::Vote, false)] {
            let mut prefix = bytes_of(&[CallFrame { kind, ..call(7, b"") }]);
            prefix[..4].copy_from_slice(&(1_u32 << 20).to_le_bytes());
            let decoded = FrameDecoder::<CallFrame>(PhantomData).decode(&mut prefix);
            assert_eq!(decoded.is_ok(), is_taken, "{kind}");
            assert_eq!(prefix.capacity() > 1 << 20, is_taken, "{kind}");
        }
    }

    #[tokio::test]
    async fn frames_that_nobody_wants_are_left_out() {
        let (queue, mut queued) = tokio::sync::mpsc::channel(3);
        for number in 1..=3 {
            queue.try_send(call(number, b"body")).unwrap();
        }
        drop(queue);
        let (here, mut there) = tokio::io::duplex(1024);
        write_frames(&mut queued, here, |frame| frame.number != 2).await.unwrap();
        let mut written = BytesMut::new();
        while there.read_buf(&mut written).await.unwrap() > 0 {}
        assert_eq!(written, bytes_of(&[call(1, b"body"), call(3, b"body")]));
    }
}
