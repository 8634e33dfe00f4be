//! One line for each scenario, and an exit code that says whether all went well.

use std::{
    error::Error,
    fmt::Debug,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Longer than the client's own time for an operation, so that a call that hangs is told as such by the client where it can tell.
const PATIENCE: Duration = Duration::from_secs(90);

/// Not optimized, the futures of this client are large.
pub(crate) const STACK: usize = 16 << 20;

pub(crate) struct Suite {
    only: String,
    passed: usize,
    failed: Vec<&'static str>,
}

impl Suite {
    pub(crate) fn new(only: Option<String>) -> Self {
        Self { only: only.unwrap_or_default(), passed: 0, failed: Vec::new() }
    }

    /// Runs it on a thread and a runtime of its own, which is how this client is used: what hangs is left behind whole, with its client and
    /// its connections, and nobody goes on with it.
    pub(crate) fn scenario(&mut self, name: &'static str, body: impl AsyncFnOnce() -> Outcome + Send + 'static) {
        if !name.contains(&self.only) {
            return;
        }
        let began = Instant::now();
        let (done, ended) = mpsc::channel();
        let work = move || {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| on_one_thread(body())));
            let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", text(panic.as_ref())).into()));
            // Nobody listens any more once the patience is over.
            drop(done.send(outcome));
        };
        let outcome = match thread::Builder::new().stack_size(STACK).spawn(work) {
            Ok(_) => ended.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(format!("no end after {PATIENCE:?}").into())),
            Err(error) => Err(error.into()),
        };
        let took = began.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok   {name} ({took:.2} s)");
            }
            Err(failure) => {
                self.failed.push(name);
                println!("FAIL {name} ({took:.2} s): {failure}");
            }
        }
    }

    pub(crate) fn end(self) -> ExitCode {
        println!("{} passed, {} failed {:?}", self.passed, self.failed.len(), self.failed);
        ExitCode::from(u8::from(!self.failed.is_empty() || self.passed == 0))
    }
}

/// On more than one thread this client's sends hang now and then, until their time is over.
pub(crate) fn on_one_thread<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a text").to_owned()
}

pub(crate) fn equal<A: Debug + PartialEq<B>, B: Debug>(found: A, expected: B) -> Outcome {
    holds(found == expected, || format!("{found:?} instead of {expected:?}"))
}

pub(crate) fn holds(condition: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(otherwise().into()) }
}

/// The error's text, and that it is one and names `part`. The client's own kinds are private: the condition that the broker gave stands in
/// the `Debug` text only.
pub(crate) fn refused<T, E: Debug>(result: Result<T, E>, part: &str) -> Outcome {
    match result {
        Ok(_) => Err(format!("{part} was expected, and it went well").into()),
        Err(error) => {
            let text = format!("{error:?}");
            holds(text.contains(part), || format!("{part} was expected, and {text} came"))
        }
    }
}
