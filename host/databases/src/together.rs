//! Calls that wait together share a round trip (spec 4).
//!
//! A call that finds nobody under way goes at once: there is no delay to gather others. While calls are under way those that come after them wait,
//! and go together when one is back. So an idle store costs one round trip a call, and a busy one a round trip for as many as have come meanwhile.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use sprag_store::Error;
use tokio::sync::{Semaphore, oneshot};

/// How many calls may wait; the rest wait to be let in.
const MOST_WAITING: usize = 4_096;

/// A call that can share a round trip with others of its kind.
pub(crate) trait Shared: Send + Sized + 'static {
    type Answer: Send + 'static;

    /// Takes the calls that go together off the front of those that wait, at least one.
    fn take(waiting: &mut VecDeque<Waiting<Self>>) -> Vec<Waiting<Self>>;
}

/// A call and who waits for its answer.
pub(crate) struct Waiting<C: Shared> {
    pub(crate) call: C,
    pub(crate) answer: oneshot::Sender<Result<C::Answer, Error>>,
}

/// The calls of one kind.
pub(crate) struct Together<C: Shared>(Arc<Inner<C>>);

impl<C: Shared> Clone for Together<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<C: Shared> {
    room: Semaphore,
    /// Round trips at the same time.
    most_under_way: usize,
    state: Mutex<State<C>>,
}

struct State<C: Shared> {
    waiting: VecDeque<Waiting<C>>,
    under_way: usize,
}

impl<C: Shared> Together<C> {
    pub(crate) fn new(most_under_way: usize) -> Self {
        let state = Mutex::new(State { waiting: VecDeque::new(), under_way: 0 });
        Self(Arc::new(Inner { room: Semaphore::new(MOST_WAITING), most_under_way, state }))
    }

    /// Waits for the call's answer. `run` carries out calls that go together and answers each; it is not stopped when this caller goes away.
    pub(crate) async fn call<R, F>(&self, call: C, run: R) -> Result<C::Answer, Error>
    where
        R: Fn(Vec<Waiting<C>>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let _room = self.0.room.acquire().await.map_err(|_| Error::Unavailable("the store is closed".to_owned()))?;
        let (answer, answered) = oneshot::channel();
        let goes = {
            let mut state = self.0.state.lock();
            state.waiting.push_back(Waiting { call, answer });
            let goes = state.under_way < self.0.most_under_way;
            state.under_way += usize::from(goes);
            goes
        };
        if goes {
            tokio::spawn(self.clone().go(run));
        }
        // Nobody answers only where the process is ending.
        answered.await.unwrap_or_else(|_| Err(Error::Unavailable("the call did not end".to_owned())))
    }

    /// Round trips until nobody waits.
    async fn go<R, F>(self, run: R)
    where
        R: Fn(Vec<Waiting<C>>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        // Also when a round trip panics: those that wait must not wait for it.
        let mut under_way = UnderWay { together: self, ended: false };
        while let Some(calls) = under_way.together.next() {
            run(calls).await;
        }
        under_way.ended = true;
    }

    /// Who goes next. None: nobody waits, and the one who asks is no longer under way.
    fn next(&self) -> Option<Vec<Waiting<C>>> {
        let mut state = self.0.state.lock();
        if state.waiting.is_empty() {
            state.under_way -= 1;
            return None;
        }
        Some(C::take(&mut state.waiting))
    }
}

struct UnderWay<C: Shared> {
    together: Together<C>,
    ended: bool,
}

impl<C: Shared> Drop for UnderWay<C> {
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.together.0.state.lock();
            state.under_way -= 1;
            // Their answer is that there is none: nobody else may come who would take them along.
            state.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Number(u32);

    impl Shared for Number {
        type Answer = u32;

        fn take(waiting: &mut VecDeque<Waiting<Self>>) -> Vec<Waiting<Self>> {
            let most = waiting.len().min(4);
            waiting.drain(..most).collect()
        }
    }

    fn answer(calls: Vec<Waiting<Number>>) {
        let together = u32::try_from(calls.len()).unwrap();
        for Waiting { call, answer } in calls {
            let _ = answer.send(Ok(call.0 * 10 + together));
        }
    }

    /// The first goes alone and at once; who comes meanwhile goes together, as many as fit.
    #[tokio::test(start_paused = true)]
    async fn who_waits_together_goes_together() {
        let together = Together::<Number>::new(1);
        let calls: Vec<_> = (0..6)
            .map(|n| {
                let together = together.clone();
                tokio::spawn(async move {
                    together
                        .call(Number(n), |calls| async {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                            answer(calls);
                        })
                        .await
                        .unwrap()
                })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        assert_eq!(answers.len(), 6);
        let sizes: Vec<u32> = answers.iter().map(|answer| answer % 10).collect();
        assert!(answers.iter().enumerate().all(|(n, answer)| u32::try_from(n).unwrap() == answer / 10), "{answers:?}");
        assert!(sizes.contains(&4), "{sizes:?}");
        assert_eq!(
            together.call(Number(7), |calls| async { answer(calls) }).await.unwrap(),
            71,
            "idle: at once, alone"
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_calls_and_no_later_ones() {
        let together = Together::<Number>::new(1);
        let result = together.call(Number(1), |_| async { panic!("planned") }).await;
        assert!(matches!(result, Err(Error::Unavailable(_))));
        assert_eq!(together.call(Number(2), |calls| async { answer(calls) }).await.unwrap(), 21);
    }

    /// What has begun goes on, for those who wait with it as well.
    #[tokio::test]
    async fn a_caller_that_goes_away_stops_nothing() {
        let together = Together::<Number>::new(1);
        let (begun, mut has_begun) = tokio::sync::mpsc::channel(1);
        let (go_on, wait) = oneshot::channel::<()>();
        let wait = Arc::new(tokio::sync::Mutex::new(Some(wait)));
        let first = tokio::spawn({
            let together = together.clone();
            async move {
                together
                    .call(Number(1), move |calls| {
                        let (begun, wait) = (begun.clone(), Arc::clone(&wait));
                        async move {
                            begun.send(()).await.unwrap();
                            if let Some(wait) = wait.lock().await.take() {
                                wait.await.unwrap();
                            }
                            answer(calls);
                        }
                    })
                    .await
            }
        });
        has_begun.recv().await.unwrap();
        let second = tokio::spawn({
            let together = together.clone();
            async move { together.call(Number(2), |calls| async { answer(calls) }).await }
        });
        while together.0.state.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        first.abort();
        go_on.send(()).unwrap();
        assert_eq!(second.await.unwrap().unwrap(), 21);
    }
}
