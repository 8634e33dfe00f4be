//! Who may come in: the right host name, the right token. And what every answer says to a browser.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

use crate::{
    problem::{Problem, UNAUTHORIZED, WRONG_HOST},
    routes::Shared,
};

/// A token that can only be compared, in a time that does not depend on where two tokens differ.
pub(crate) struct Token([u8; 32]);

impl Token {
    pub(crate) fn new(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn is(&self, shown: &str) -> bool {
        let shown: [u8; 32] = Sha256::digest(shown).into();
        self.0.iter().zip(shown).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
    }
}

/// A page of another site can make a browser send requests here under its own name (DNS rebinding); such a name is refused.
pub(crate) async fn right_host(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if is_ours(request.headers(), request.uri(), shared.address) {
        return next.run(request).await;
    }
    Problem::new(WRONG_HOST, format!("this is {}; the request names another host", shared.address)).into_response()
}

fn is_ours(headers: &HeaderMap, uri: &Uri, address: SocketAddr) -> bool {
    let named = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .or_else(|| uri.authority().map(|authority| authority.as_str()));
    let Some(named) = named else { return false };
    let port = address.port();
    [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}"), address.to_string()]
        .iter()
        .any(|ours| named.eq_ignore_ascii_case(ours) || (port == 80 && ours.strip_suffix(":80") == Some(named)))
}

pub(crate) async fn authenticated(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let detail = match shown {
        Some(token) if shared.token.is(token) => return next.run(request).await,
        Some(_) => "the token is not this host's",
        None => "send the header `Authorization: Bearer TOKEN`; the token is in .sprag/host.json",
    };
    Problem::new(UNAUTHORIZED, detail).into_response()
}

/// Answers carry messages of others: a browser shall not guess, frame, cache or run anything in them.
pub(crate) async fn safe_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_the_token() {
        let token = Token::new("secret");
        assert!(token.is("secret"));
        for other in ["", "secre", "secret ", "Secret"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn another_host_name_is_refused() {
        let address = "127.0.0.1:8080".parse().expect("an address");
        let named = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            is_ours(&headers, &Uri::from_static("/"), address)
        };
        assert!(named("127.0.0.1:8080") && named("LOCALHOST:8080") && named("[::1]:8080"));
        assert!(
            !named("evil.example:8080")
                && !named("127.0.0.1:8081")
                && !named("127.0.0.1")
                && !named("127.0.0.1:8080.evil.example")
        );
        assert!(!is_ours(&HeaderMap::new(), &Uri::from_static("/"), address), "no host at all");
    }
}
