//! Errors as problem details (RFC 9457).

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use sprag_core::operations;

/// An error as the API writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// What `sprag explain` takes.
    pub code: String,
    /// Endpoints to choose from, when an id was not unique.
    #[serde(default)]
    pub choices: Vec<String>,
}

pub(crate) const UNAUTHORIZED: (StatusCode, &str) = (StatusCode::UNAUTHORIZED, "SPR0210");
pub(crate) const WRONG_HOST: (StatusCode, &str) = (StatusCode::MISDIRECTED_REQUEST, "SPR0211");
pub(crate) const TOO_LARGE: (StatusCode, &str) = (StatusCode::PAYLOAD_TOO_LARGE, "SPR0212");
pub(crate) const BAD_REQUEST: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "SPR0213");
pub(crate) const NO_SUCH_PLACE: (StatusCode, &str) = (StatusCode::NOT_FOUND, "SPR0214");
pub(crate) const WRONG_METHOD: (StatusCode, &str) = (StatusCode::METHOD_NOT_ALLOWED, "SPR0215");
pub(crate) const KEY_REUSED: (StatusCode, &str) = (StatusCode::UNPROCESSABLE_ENTITY, "SPR0216");
pub(crate) const KEY_IN_USE: (StatusCode, &str) = (StatusCode::CONFLICT, "SPR0217");

impl Problem {
    pub(crate) fn new((status, code): (StatusCode, &str), detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:sprag:error:{code}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            code: code.to_owned(),
            choices: Vec::new(),
        }
    }
}

impl From<operations::Error> for Problem {
    fn from(error: operations::Error) -> Self {
        use operations::Error::{Ambiguous, Conflict, Full, Invalid, NotFound, Unavailable};
        let status = match &error {
            NotFound(_) => StatusCode::NOT_FOUND,
            Ambiguous { .. } => StatusCode::MULTIPLE_CHOICES,
            Conflict(_) => StatusCode::CONFLICT,
            Invalid(_) => StatusCode::BAD_REQUEST,
            Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Full(_) => StatusCode::INSUFFICIENT_STORAGE,
        };
        let mut problem = Self::new((status, error.code()), error.to_string());
        if let Ambiguous { choices, .. } = error {
            problem.choices = choices;
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).expect("made from a status");
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(&self).into_response().into_body())
                .into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}
