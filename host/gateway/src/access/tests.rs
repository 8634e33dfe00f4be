use super::*;

/// Made by the official clients' own code: see `vectors/README.md`.
const VECTORS: &str = include_str!("../../vectors/shared-access-signatures.json");

#[derive(serde::Deserialize)]
struct Vector {
    made_by: String,
    name: String,
    key: String,
    path: String,
    /// Seconds since 1970.
    expires: i64,
    token: String,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(VECTORS).expect("the file is whole")
}

fn key(vector: &Vector) -> Key {
    Key::new(&vector.name, &vector.key, Rights::ALL)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1_000)
}

/// The first vector: a namespace's key and a queue.
fn sample() -> (Vector, Access) {
    let vector = vectors().into_iter().find(|it| it.path == "orders").expect("it is there");
    let access = Access::with_keys([key(&vector)]);
    (vector, access)
}

#[test]
fn tokens_of_the_official_clients_are_taken() {
    let all = vectors();
    assert!(all.len() >= 10, "{}", all.len());
    for vector in all {
        let access = Access::with_keys([Key::new("other", "x", Rights::ALL), key(&vector)]);
        let grant = access.check(&vector.token, at(vector.expires - 1));
        let expected = Grant { path: vector.path.clone(), expires_at: at(vector.expires), rights: Rights::ALL };
        assert_eq!(grant, Ok(expected), "{}", vector.made_by);
        let expired = access.check(&vector.token, at(vector.expires));
        assert_eq!(expired, Err(Denied::Expired(at(vector.expires))), "{}", vector.made_by);
        let secondary = Key::new(&vector.name, "x", Rights::ALL).with_secondary(&vector.key);
        assert!(Access::with_keys([secondary]).check(&vector.token, at(0)).is_ok(), "{}", vector.made_by);
        let wrong = Access::with_keys([Key::new(&vector.name, "x", Rights::ALL)]).check(&vector.token, at(0));
        assert!(matches!(wrong, Err(Denied::WrongSignature { .. })), "{}", vector.made_by);
        let unknown = Access::with_keys([Key::new("other", &vector.key, Rights::ALL)]).check(&vector.token, at(0));
        assert!(matches!(unknown, Err(Denied::UnknownKey { .. })), "{}", vector.made_by);
    }
}

#[test]
fn what_was_changed_after_signing_is_refused() {
    let (vector, access) = sample();
    for (old, new) in [("orders", "invoices"), ("se=", "se=1"), ("orders", "Orders")] {
        let token = vector.token.replacen(old, new, 1);
        assert_ne!(token, vector.token);
        let denied = access.check(&token, at(0));
        assert!(matches!(denied, Err(Denied::WrongSignature { .. })), "{old} {new}: {denied:?}");
    }
}

#[test]
fn fields_come_in_any_order() {
    let (vector, access) = sample();
    let (prefix, fields) = vector.token.split_once(' ').unwrap();
    let mut fields: Vec<_> = fields.split('&').collect();
    for _ in 0..fields.len() {
        fields.rotate_left(1);
        let token = format!("{} {}&extra=1", prefix.to_lowercase(), fields.join("&"));
        assert!(access.check(&token, at(0)).is_ok(), "{token}");
    }
}

#[test]
fn malformed_tokens_are_named() {
    let sr = "sr=sb%3A%2F%2Fh%2Fq";
    for (token, problem) in [
        (String::new(), "no shared access signature"),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln".into(), "no shared access signature"),
        ("SharedAccessSignature ".into(), "no shared access signature"),
        ("SharedAccessSignature sr".into(), "has no value"),
        (format!("SharedAccessSignature {sr}&sig=YQ==&se=1"), "missing"),
        (format!("SharedAccessSignature {sr}&sig=YQ==&skn=k"), "missing"),
        (format!("SharedAccessSignature {sr}&{sr}&sig=YQ==&se=1&skn=k"), "twice"),
        (format!("SharedAccessSignature {sr}&sig=YQ==&se=soon&skn=k"), "seconds"),
        (format!("SharedAccessSignature {sr}&sig=YQ==&se=-1&skn=k"), "seconds"),
        (format!("SharedAccessSignature {sr}&sig=%%&se=1&skn=k"), "base64"),
        ("SharedAccessSignature sr=orders&sig=YQ==&se=1&skn=k".into(), "no address"),
        ("SharedAccessSignature sr=%FF&sig=YQ==&se=1&skn=k".into(), "no address"),
        (format!("SharedAccessSignature {sr}&sig=YQ==&se=1&skn=%FF"), "UTF-8"),
        (format!("SharedAccessSignature {sr}&sig=YQ==&se=1&skn={}", "k".repeat(5_000)), "too long"),
        ("SharedAccessSignaturé sr=".into(), "no shared access signature"),
    ] {
        for access in [Access::open(), Access::emulator()] {
            let denied = access.check(&token, at(0)).expect_err(&token);
            assert!(denied.to_string().contains(problem), "{token}: {denied}");
        }
    }
}

#[test]
fn an_end_beyond_all_numbers_is_no_panic() {
    let token = format!("SharedAccessSignature sr=sb%3A%2F%2Fh&sig=YQ==&se={}&skn=k", u64::MAX);
    assert!(Access::open().check(&token, at(0)).is_ok());
    assert!(matches!(Access::emulator().check(&token, at(0)), Err(Denied::UnknownKey { .. })));
}

#[test]
fn a_key_of_an_entity_opens_that_entity_alone() {
    let (vector, _) = sample();
    let limited = |path: &str| Access::with_keys([key(&vector).for_entity(path)]);
    assert!(limited("/Orders/").check(&vector.token, at(0)).is_ok());
    for path in ["order", "orders/sub", "invoices"] {
        let denied = limited(path).check(&vector.token, at(0));
        assert!(matches!(denied, Err(Denied::UnknownKey { .. })), "{path}");
    }
    // The same name at two entities: each has its own key.
    let both = Access::with_keys([Key::new(&vector.name, "x", Rights::ALL).for_entity("orders"), key(&vector)]);
    assert!(both.check(&vector.token, at(0)).is_ok());
    // A token for everything, signed with the key of one entity.
    let wide = vectors().into_iter().find(|it| it.path.is_empty()).unwrap();
    let denied = Access::with_keys([key(&wide).for_entity("orders")]).check(&wide.token, at(0));
    assert!(matches!(denied, Err(Denied::UnknownKey { .. })));
}

#[test]
fn a_grant_covers_what_is_below_it_until_it_ends() {
    let grant = |path: &str, rights: &[Right]| Grant {
        path: path.into(),
        expires_at: at(10),
        rights: rights.iter().copied().collect(),
    };
    let all = grant("", &[Right::Manage]);
    for right in [Right::Send, Right::Listen, Right::Manage] {
        assert!(all.allows("anything/at all", right, at(9)));
        assert!(!all.allows("anything", right, at(10)), "it has ended");
    }
    let listen = grant("t", &[Right::Listen]);
    for path in ["t", "T/", "/t", "t/Subscriptions/s", "t/$management", "t/Subscriptions/s/$DeadLetterQueue"] {
        assert!(listen.allows(path, Right::Listen, at(0)), "{path}");
    }
    for path in ["", "other", "tt", "t2/Subscriptions/s"] {
        assert!(!listen.allows(path, Right::Listen, at(0)), "{path}");
    }
    assert!(!listen.allows("t", Right::Send, at(0)) && !listen.allows("t", Right::Manage, at(0)));
    assert!(!grant("t", &[Right::Send, Right::Listen]).allows("t", Right::Manage, at(0)));
}

/// Case A85: nobody comes in by SASL PLAIN without the key.
#[test]
fn names_and_keys_are_checked_too() {
    let access = Access::with_keys([
        Key::new("sender", "one", [Right::Send].into_iter().collect()).with_secondary("two").for_entity("orders"),
        Key::new("empty", "", Rights::ALL).with_secondary(""),
    ]);
    for secret in ["one", "two"] {
        let grant = access.check_plain("sender", secret).unwrap();
        assert!(grant.allows("orders", Right::Send, at(1_000_000)) && !grant.allows("orders", Right::Listen, at(0)));
        assert!(!grant.allows("other", Right::Send, at(0)));
    }
    assert_eq!(access.check_plain("sender", "on"), Err(Denied::WrongSignature { name: "sender".into() }));
    assert_eq!(access.check_plain("nobody", "one"), Err(Denied::UnknownKey { name: "nobody".into() }));
    assert_eq!(access.check_plain("empty", ""), Err(Denied::WrongSignature { name: "empty".into() }));
    assert!(Access::emulator().check_plain(Access::EMULATOR_NAME, Access::EMULATOR_KEY).is_ok());
    assert!(Access::open().check_plain("", "").unwrap().allows("x", Right::Manage, at(i64::MAX / 1_000 - 1)));
    assert_eq!((access.anonymous(), Access::open().anonymous().is_some()), (None, true));
}

#[test]
fn no_key_is_ever_shown() {
    let (vector, _) = sample();
    let secret = "s3cret-value";
    let access = Access::with_keys([Key::new(&vector.name, secret, Rights::ALL).with_secondary(secret)]);
    let denied = access.check(&vector.token, at(0)).unwrap_err();
    let grant = Access::with_keys([key(&vector)]).check(&vector.token, at(0)).unwrap();
    let plain = access.check_plain(&vector.name, "gu3ss").unwrap_err();
    let shown = format!("{access:?} {denied:?} {denied} {grant:?} {plain:?} {plain}");
    let signature = vector.token.split("sig=").nth(1).unwrap().split('&').next().unwrap();
    for hidden in [secret, "gu3ss", &vector.key, signature] {
        assert!(!shown.contains(hidden), "{shown}");
    }
    assert!(shown.contains(&vector.name), "{shown}");
}

/// What the JavaScript administration client sends beside a request that forwards.
#[test]
fn a_host_without_a_scheme_counts_where_it_is_known() {
    let token = "SharedAccessSignature sr=localhost%3A5300&sig=YQ==&se=1&skn=k";
    let access = Access::with_keys([Key::new("k", "x", Rights::ALL)]);
    assert!(matches!(access.check(token, at(0)), Err(Denied::Malformed(_))));
    assert!(matches!(access.check_at(token, "other", at(0)), Err(Denied::Malformed(_))));
    assert!(matches!(access.check_at(token, "localhost:5300", at(0)), Err(Denied::WrongSignature { .. })));
}
