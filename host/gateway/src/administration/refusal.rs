//! Why a request is not carried out, and how Azure says so.
//!
//! The body is `<Error><Code>…</Code><Detail>…</Detail></Error>`. The clients tell errors of one status apart by `SubCode=` in the detail.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use sprag_broker::DeclareError;

use super::xml::{Element, XmlError};

#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("SubCode=40000. Bad Request. {0}")]
    BadRequest(String),
    /// Also for who is known and has not the right, as on Azure.
    #[error("SubCode=40100. Unauthorized. {0}")]
    Unauthorized(String),
    #[error("SubCode=40400. Not Found. {0}")]
    NotFound(String),
    #[error("SubCode=40500. Method Not Allowed. {0}")]
    MethodNotAllowed(String),
    /// The clients know it as `MessagingEntityAlreadyExists`.
    #[error("SubCode=40900. Conflict. MessagingEntityAlreadyExists: {0}")]
    Exists(String),
    #[error("Precondition Failed. {0}")]
    PreconditionFailed(String),
    #[error("Request Entity Too Large. {0}")]
    TooLarge(String),
    #[error("SubCode=50300. Server Busy. {0}")]
    Unavailable(String),
}

impl Refusal {
    pub(super) fn bad(problem: impl Into<String>) -> Self {
        Self::BadRequest(problem.into())
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Exists(_) => StatusCode::CONFLICT,
            Self::PreconditionFailed(_) => StatusCode::PRECONDITION_FAILED,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<DeclareError> for Refusal {
    fn from(error: DeclareError) -> Self {
        let text = error.to_string();
        match error {
            DeclareError::Exists(_) | DeclareError::RuleExists { .. } => Self::Exists(text),
            DeclareError::NoSuchEntity(_) | DeclareError::NoSuchRule { .. } => Self::NotFound(text),
            DeclareError::Invalid { .. } | DeclareError::Fixed { .. } | DeclareError::Filter { .. } => {
                Self::BadRequest(text)
            }
            DeclareError::Store(_) => Self::Unavailable(text),
        }
    }
}

impl From<XmlError> for Refusal {
    fn from(error: XmlError) -> Self {
        Self::BadRequest(format!("The body cannot be read: {error}"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = Element::new("Error")
            .containing([Element::text("Code", status.as_u16()), Element::text("Detail", self.to_string())]);
        (status, [(header::CONTENT_TYPE, "application/xml; charset=utf-8")], body.write()).into_response()
    }
}
