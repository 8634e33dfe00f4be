//! A mutation that is sent twice with one `Idempotency-Key` happens once.
//!
//! Actions on events keep their key in the store as well, so they are safe over a restart; this memory covers everything else while the
//! process lives. It holds the last [`KEPT`] answers.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::{
    MAX_REQUEST,
    problem::{BAD_REQUEST, KEY_IN_USE, KEY_REUSED, Problem, TOO_LARGE},
    routes::Shared,
};

const KEPT: usize = 1_000;
/// Answers above this size are not remembered; no mutation has one.
const LARGEST_ANSWER: usize = 4 << 20;
const LONGEST_KEY: usize = 255;
pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

#[derive(Default)]
pub(crate) struct Answers(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_key: HashMap<String, Entry>,
    order: VecDeque<String>,
}

struct Entry {
    request: [u8; 32],
    /// None while the first request is being answered.
    answer: Option<(StatusCode, HeaderMap, Bytes)>,
}

/// The key of a request; a wrong one is an error.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(&HEADER) else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.trim().is_empty() && key.len() <= LONGEST_KEY => Ok(Some(key.to_owned())),
        _ => Err(Problem::new(
            BAD_REQUEST,
            format!("an Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters"),
        )),
    }
}

/// Forgets a key whose request was not answered, so that a repeat is not refused for ever.
struct Unanswered<'a>(&'a Answers, Option<String>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.1.take() {
            let mut kept = self.0.0.lock();
            kept.by_key.remove(&key);
            kept.order.retain(|other| *other != key);
        }
    }
}

pub(crate) async fn once(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let key = match key(request.headers()) {
        Ok(Some(key)) if request.method() != Method::GET => key,
        Ok(_) => return next.run(request).await,
        Err(problem) => return problem.into_response(),
    };
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_REQUEST).await else {
        return Problem::new(TOO_LARGE, format!("a request has at most {MAX_REQUEST} bytes")).into_response();
    };
    let mut hash = Sha256::new();
    hash.update(parts.method.as_str());
    hash.update([0]);
    hash.update(parts.uri.to_string());
    hash.update([0]);
    hash.update(&body);
    let digest: [u8; 32] = hash.finalize().into();
    if let Some(answer) = shared.answers.known(&key, digest) {
        return answer;
    }
    let mut unanswered = Unanswered(&shared.answers, Some(key.clone()));
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    // A server's failure is no answer to keep: the repeat may do better.
    if response.status().is_server_error() {
        return response;
    }
    let (parts, body) = response.into_parts();
    let Ok(body) = to_bytes(body, LARGEST_ANSWER).await else {
        return Problem::new((StatusCode::INTERNAL_SERVER_ERROR, "SPR0299"), "the answer could not be read")
            .into_response();
    };
    unanswered.1 = None;
    shared.answers.keep(&key, parts.status, parts.headers.clone(), body.clone());
    Response::from_parts(parts, Body::from(body))
}

impl Answers {
    /// The answer to a request that is known; None for a new one, which counts as begun from now on.
    fn known(&self, key: &str, request: [u8; 32]) -> Option<Response> {
        let mut kept = self.0.lock();
        if let Some(entry) = kept.by_key.get(key) {
            if entry.request != request {
                return Some(
                    Problem::new(KEY_REUSED, "this Idempotency-Key was used for another request").into_response(),
                );
            }
            return Some(match &entry.answer {
                Some((status, headers, body)) => (*status, headers.clone(), body.clone()).into_response(),
                None => Problem::new(KEY_IN_USE, "the first request with this Idempotency-Key is still being answered")
                    .into_response(),
            });
        }
        while kept.order.len() >= KEPT {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.by_key.remove(&oldest);
        }
        kept.order.push_back(key.to_owned());
        kept.by_key.insert(key.to_owned(), Entry { request, answer: None });
        None
    }

    fn keep(&self, key: &str, status: StatusCode, headers: HeaderMap, body: Bytes) {
        if let Some(entry) = self.0.lock().by_key.get_mut(key) {
            entry.answer = Some((status, headers, body));
        }
    }
}
