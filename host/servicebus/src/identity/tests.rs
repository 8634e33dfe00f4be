//! Identities against a fake credential and a fake Entra.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use azure_core::{
    credentials::{AccessToken, TokenRequestOptions},
    error::ErrorKind,
    http::{AsyncRawResponse, Body, Method, Request, Url, headers::Headers},
    time::OffsetDateTime,
};
use parking_lot::Mutex;

use super::*;

const ORDERS: &str = "sb://somewhere.servicebus.windows.net/orders";
const TENANT_ID: &str = "11111111-2222-3333-4444-555555555555";
const CLIENT_ID: &str = "66666666-7777-8888-9999-000000000000";
/// With what an URL would encode.
const THE_SECRET: &str = "s3cret~Q";

/// A credential that answers as it is told, and remembers what it was asked for.
#[derive(Debug, Default)]
struct Fake {
    asked: Mutex<Vec<String>>,
    refuses: Option<StatusCode>,
    /// In seconds.
    ends: i64,
}

#[async_trait]
impl TokenCredential for Fake {
    async fn get_token(
        &self,
        scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.asked.lock().push(scopes.join(" "));
        match self.refuses {
            None => Ok(AccessToken::new("a.b.c", OffsetDateTime::from_unix_timestamp(self.ends).expect("a time"))),
            Some(status) => {
                let kind = ErrorKind::HttpResponse { status, error_code: None, raw_response: None };
                let cause = AzureError::with_message(kind, "AADSTS1:\r\nno");
                Err(AzureError::with_error(ErrorKind::Credential, cause, "the credential failed.\nSee there"))
            }
        }
    }
}

fn faked(fake: Fake) -> (Arc<Fake>, Identity) {
    let fake = Arc::new(fake);
    (Arc::clone(&fake), Identity { credential: fake })
}

async fn refused(identity: &Identity) -> TokenError {
    identity.token(ORDERS).await.err().expect("it is refused")
}

#[tokio::test]
async fn a_token_is_for_service_bus() {
    let (fake, identity) = faked(Fake { ends: 9_999_999_999, ..Fake::default() });
    let token = identity.token(ORDERS).await.expect("it is given");
    assert_eq!((token.text.as_str(), token.kind), ("a.b.c", "jwt"));
    assert_eq!(token.expires_at, Timestamp(9_999_999_999_000));
    assert_eq!(*fake.asked.lock(), ["https://servicebus.azure.net/.default"]);
}

#[tokio::test]
async fn a_token_that_has_ended_is_not_shown() {
    let (_fake, identity) = faked(Fake { ends: 1_000, ..Fake::default() });
    let refused = refused(&identity).await;
    assert!(matches!(&refused, TokenError::Unavailable(text) if text.contains("1970")), "{refused}");
}

#[tokio::test]
async fn what_is_refused_and_what_may_work_again() {
    for (status, denied) in [
        (StatusCode::BadRequest, true),
        (StatusCode::Unauthorized, true),
        (StatusCode::Forbidden, true),
        (StatusCode::NotFound, false),
        (StatusCode::TooManyRequests, false),
        (StatusCode::ServiceUnavailable, false),
    ] {
        let (_fake, identity) = faked(Fake { refuses: Some(status), ..Fake::default() });
        let refused = refused(&identity).await;
        assert_eq!(matches!(refused, TokenError::Denied(_)), denied, "{status}: {refused}");
        assert_eq!(refused.to_string(), "no token: the credential failed. See there: AADSTS1: no");
    }
}

/// An Entra that gives one answer to everything, and remembers the requests.
#[derive(Debug)]
struct FakeEntra {
    asked: Mutex<Vec<(String, String)>>,
    status: StatusCode,
    answer: &'static str,
}

impl FakeEntra {
    fn new(status: StatusCode, answer: &'static str) -> Arc<Self> {
        Arc::new(Self { asked: Mutex::default(), status, answer })
    }

    /// The address and the body of the only request.
    fn only(&self) -> (String, String) {
        let asked = self.asked.lock();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked[0].clone()
    }
}

#[async_trait]
impl HttpClient for FakeEntra {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let Body::Bytes(body) = request.body() else { panic!("bytes") };
        let body = String::from_utf8(body.to_vec()).expect("a form");
        self.asked.lock().push((request.url().to_string(), body));
        Ok(AsyncRawResponse::from_bytes(self.status, Headers::new(), self.answer))
    }
}

const GIVEN: &str = r#"{"token_type":"Bearer","expires_in":3600,"ext_expires_in":3600,"access_token":"a.b.c"}"#;

/// What is set where a client with a secret runs.
fn with_secret(variable: &str) -> Option<String> {
    let set = [(TENANT, TENANT_ID), (CLIENT, CLIENT_ID), (SECRET, THE_SECRET)];
    set.iter().find(|(name, _)| *name == variable).map(|(_, value)| (*value).to_owned())
}

#[tokio::test]
async fn a_client_with_its_secret() {
    let entra = FakeEntra::new(StatusCode::Ok, GIVEN);
    let identity = Identity::described("environment", with_secret, entra.clone()).expect("all is set");
    let (before, token) = (clock::now(), identity.token(ORDERS).await.expect("it is given"));
    assert_eq!((token.text.as_str(), token.kind), ("a.b.c", "jwt"));
    let hour = Duration::from_secs(3_600);
    assert!(token.expires_at >= before.after(hour) && token.expires_at <= clock::now().after(hour));
    // It is good for every entity, and kept.
    identity.token("sb://somewhere.servicebus.windows.net/mails").await.expect("it is given");
    let (url, body) = entra.only();
    assert!(url.starts_with("https://") && url.ends_with(&format!("/{TENANT_ID}/oauth2/v2.0/token")), "{url}");
    for part in [
        "grant_type=client_credentials",
        "scope=https%3A%2F%2Fservicebus.azure.net%2F.default",
        &format!("client_id={CLIENT_ID}"),
        "client_secret=s3cret%7EQ",
    ] {
        assert!(body.split('&').any(|field| field == part), "{part}: {body}");
    }
}

#[tokio::test]
async fn a_refusal_says_why_and_not_what_was_shown() {
    let answer = r#"{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided.","error_codes":[7000215]}"#;
    let entra = FakeEntra::new(StatusCode::Unauthorized, answer);
    let identity = Identity::described("environment", with_secret, entra).expect("all is set");
    let refused = refused(&identity).await;
    let TokenError::Denied(text) = &refused else { panic!("{refused}") };
    assert!(text.contains("AADSTS7000215: Invalid client secret provided.") && !text.contains('\n'), "{text}");
    for shown in [format!("{refused:?}"), format!("{identity:?}")] {
        assert!(!shown.contains(THE_SECRET), "{shown}");
    }
}

#[tokio::test]
async fn a_workload_shows_its_file() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("token");
    let environment = |variable: &str| match variable {
        TOKEN_FILE => Some(file.display().to_string()),
        other => with_secret(other),
    };
    let entra = FakeEntra::new(StatusCode::Ok, GIVEN);
    let missing = Identity::described("workload-identity", environment, entra.clone()).expect_err("there is no file");
    let text = missing.to_string();
    assert!(text.contains(&file.display().to_string()) && text.contains("No such file"), "{text}");

    std::fs::write(&file, "the.clusters.word").expect("it is written");
    let identity = Identity::described("workload-identity", environment, entra.clone()).expect("all is set");
    assert_eq!(identity.token(ORDERS).await.expect("it is given").text, "a.b.c");
    let (_, body) = entra.only();
    assert!(body.contains("client_assertion=the.clusters.word") && !body.contains("client_secret"), "{body}");
}

#[tokio::test]
async fn a_managed_identity_is_the_platforms() {
    let answer = r#"{"access_token":"a.b.c","expires_on":"9999999999","token_type":"Bearer","resource":"https://servicebus.azure.net"}"#;
    for client in [None, Some(CLIENT_ID)] {
        let platform = FakeEntra::new(StatusCode::Ok, answer);
        let environment = |variable: &str| client.filter(|_| variable == CLIENT).map(str::to_owned);
        let identity =
            Identity::described("managed-identity", environment, platform.clone()).expect("nothing is needed");
        let token = identity.token(ORDERS).await.expect("it is given");
        assert_eq!((token.text.as_str(), token.expires_at), ("a.b.c", Timestamp(9_999_999_999_000)));
        let (url, _) = platform.only();
        assert!(url.contains("resource=https%3A%2F%2Fservicebus.azure.net"), "{url}");
        assert_eq!(url.contains(&format!("client_id={CLIENT_ID}")), client.is_some(), "{url}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let entra = FakeEntra::new(StatusCode::Ok, GIVEN);
    for (name, missing) in [("environment", SECRET), ("environment", TENANT), ("workload-identity", TOKEN_FILE)] {
        // Set to nothing is not set.
        let environment =
            |variable: &str| if variable == missing { Some(" ".to_owned()) } else { with_secret(variable) };
        let error = Identity::described(name, environment, entra.clone()).expect_err("it is missing").to_string();
        assert_eq!(error, format!("{missing} is not set, which the identity {name:?} needs"));
    }
    let error = Identity::described("password", with_secret, entra).expect_err("there is none").to_string();
    assert_eq!(error, r#""password" is no identity; there are environment, workload-identity, managed-identity"#);
}

#[test]
fn a_tenant_that_is_none_is_refused_without_the_secret() {
    let environment =
        |variable: &str| if variable == TENANT { Some("ten ant!".to_owned()) } else { with_secret(variable) };
    let entra = FakeEntra::new(StatusCode::Ok, GIVEN);
    let error = Identity::described("environment", environment, entra).expect_err("it is no tenant");
    assert!(matches!(error, IdentityError::Unusable(_)), "{error}");
    assert!(!format!("{error:?}").contains(THE_SECRET), "{error:?}");
}

/// The client itself, over a socket: what is sent, what comes back, and that nobody is sent on to somewhere else.
#[tokio::test]
async fn requests_go_out_as_they_are() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/token?x=1", listener.local_addr().expect("it has one"));
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client comes");
        let (mut said, mut part) = (Vec::new(), [0; 1_024]);
        while !said.ends_with(b"a=b") {
            let len = stream.read(&mut part).expect("it says something");
            assert_ne!(len, 0, "it says all");
            said.extend_from_slice(&part[..len]);
        }
        let answer =
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
        stream.write_all(answer).expect("it listens");
        String::from_utf8(said).expect("a text")
    });
    let http = Http::new(&[]).expect("this machine has authorities");
    let mut request = Request::new(Url::parse(&url).expect("an address"), Method::Post);
    request.insert_header("metadata", "true");
    request.set_body("a=b");
    let response = http.execute_request(&request).await.expect("it is answered");
    assert_eq!(response.status(), StatusCode::Found);
    let body = response.into_body().collect().await.expect("it is all there");
    assert_eq!(&body[..], b"no");
    let said = answering.join().expect("it was asked").to_lowercase();
    assert!(said.starts_with("post /token?x=1 http/1.1\r\n") && said.contains("\r\nmetadata: true\r\n"), "{said}");

    // Nobody listens there any more.
    let unanswered = http.execute_request(&request).await.expect_err("nobody answers").to_string();
    assert!(unanswered.starts_with("no answer to the request for a token"), "{unanswered}");
}
