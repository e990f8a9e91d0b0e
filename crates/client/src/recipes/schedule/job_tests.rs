//! Changes that are repeated until their outcome is known.

use std::cell::Cell;

use super::*;

fn refused(code: Code) -> RecipeError {
    Error::refused(code, "test").into()
}

/// What comes of a change with these answers, and how often it was made and reported.
async fn retried(answers: &[Option<Code>], lost_after: Duration) -> (Result<usize, RecipeError>, usize, usize) {
    let (made, reported) = (Cell::new(0), std::sync::atomic::AtomicUsize::new(0));
    let report = |_: &RecipeError| {
        reported.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let lost = async {
        sleep(lost_after).await;
        Error::Lost("test".into()).into()
    };
    let result = retry_until_known(TIMING, &report, lost, || {
        let number = made.replace(made.get() + 1);
        async move {
            match answers[number.min(answers.len() - 1)] {
                Some(code) => Err(refused(code)),
                None => Ok(number),
            }
        }
    });
    (result.await, made.get(), reported.into_inner())
}

const TIMING: RetryTiming = RetryTiming {
    pause: Duration::from_millis(1),
    longest: Duration::from_millis(60),
    report_every: Duration::from_millis(20),
};
const LONG: Duration = Duration::from_secs(100);

#[tokio::test(start_paused = true)]
async fn an_end_without_room_is_tried_until_there_is_room() {
    let no_room = [Some(Code::StateFull), Some(Code::NamespaceFull), Some(Code::Overloaded), None];
    let (result, made, reported) = retried(&no_room, LONG).await;
    assert_eq!((result.unwrap(), made), (3, 4));
    assert!(reported >= 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_pass_is_not_tried_again() {
    let (result, made, reported) = retried(&[Some(Code::Forbidden), None], LONG).await;
    assert_eq!((result.unwrap_err().code(), made, reported), (Some(Code::Forbidden), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_bound_and_with_the_session() {
    let began = Instant::now();
    let (result, _, reported) = retried(&[Some(Code::StateFull)], LONG).await;
    assert_eq!(result.unwrap_err().code(), Some(Code::StateFull));
    assert!(began.elapsed() >= TIMING.longest);
    assert!((1..=3).contains(&reported), "{reported}");
    let (result, ..) = retried(&[Some(Code::StateFull)], Duration::ZERO).await;
    assert!(result.unwrap_err().is_lost());
}
