//! The URL: what libpq's says about TLS, and the rest for the driver.
//!
//! The driver knows three of libpq's `sslmode`s and no `sslrootcert`; both are taken out of the URL here, so that a URL that `psql` takes means
//! the same to us.

use std::path::PathBuf;

use tokio_postgres::config::{Host, SslMode};

use super::options::{OpenError, Options};

/// libpq's `sslmode`: whether the connection is encrypted, and what of the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// Never encrypted.
    Disable,
    /// Encrypted where the server offers it. Nothing is checked: no protection from somebody in between.
    Prefer,
    /// Always encrypted. Nothing is checked, but that with a file of authorities it is as [`TlsMode::VerifyCa`].
    Require,
    /// Encrypted, and the certificate comes from a known authority. Its name is not looked at.
    VerifyCa,
    /// Encrypted, from a known authority, and for this host's name.
    VerifyFull,
}

impl TlsMode {
    const ALL: [(&str, Self); 5] = [
        ("disable", Self::Disable),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

/// A URL, read.
pub(crate) struct Address {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) mode: TlsMode,
    pub(crate) roots: Vec<PathBuf>,
}

impl Address {
    pub(crate) fn read(options: &Options) -> Result<Self, OpenError> {
        let wrong = |text: &str| OpenError::Options(text.to_owned());
        let url = options.url.reveal();
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(wrong(
                "the URL of a PostgreSQL database begins with postgres://, as in postgres://user:password@host:5432/database?sslmode=verify-full",
            ));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots, mut rest) = (TlsMode::Prefer, options.extra_roots.clone(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => {
                    let known = TlsMode::ALL.into_iter().find(|(name, _)| *name == value);
                    mode = known.map(|(_, mode)| mode).ok_or_else(|| {
                        let names = TlsMode::ALL.map(|(name, _)| name).join(", ");
                        OpenError::Options(format!("sslmode in the database's URL is one of {names}"))
                    })?;
                }
                Some(("sslrootcert", value)) => roots.push(unescape(value)?.into()),
                _ => rest.push(pair),
            }
        }
        if mode == TlsMode::Require && !roots.is_empty() {
            mode = TlsMode::VerifyCa;
        }
        let plain = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
        // The driver's own error can repeat a part of the URL, so it goes nowhere.
        let mut config: tokio_postgres::Config = plain.parse().map_err(|_| {
            wrong("the database's URL cannot be read: it is postgres://user:password@host:port/database?option=value, with other characters in the parts written as %XX")
        })?;
        config.ssl_mode(match mode {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        if config.get_hosts().is_empty() {
            return Err(wrong("the database's URL names no host"));
        }
        if config.get_user().is_none() {
            return Err(wrong("the database's URL names no user"));
        }
        if config.get_application_name().is_none() {
            config.application_name("sprag");
        }
        config.connect_timeout(options.connect_timeout);
        // A server that is gone without a word is noticed by these, not by the operating system's two hours.
        config.keepalives_idle(std::time::Duration::from_secs(30));
        config.tcp_user_timeout(options.statement_timeout + options.connect_timeout);
        Ok(Self { config, mode, roots })
    }

    /// Hosts and ports, for people.
    pub(crate) fn at(&self) -> String {
        let ports = self.config.get_ports();
        let one = |(n, host): (usize, &Host)| {
            let port = ports.get(n).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => format!("{}:{port}", path.display()),
            }
        };
        self.config.get_hosts().iter().enumerate().map(one).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn user(&self) -> String {
        self.config.get_user().unwrap_or_default().to_owned()
    }

    /// The database's name: the user's where the URL has none, as the server has it.
    pub(crate) fn database(&self) -> String {
        self.config.get_dbname().map_or_else(|| self.user(), str::to_owned)
    }
}

/// `%XX` in a value of the URL.
fn unescape(text: &str) -> Result<String, OpenError> {
    let wrong =
        || OpenError::Options("sslrootcert in the database's URL has a % that no two hex digits follow".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first == b'%' {
            let digits = rest.split_at_checked(2).ok_or_else(wrong)?;
            let code = std::str::from_utf8(digits.0).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(code.ok_or_else(wrong)?);
            rest = digits.1;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, OpenError> {
        Address::read(&Options::new(url))
    }

    #[test]
    fn modes_are_libpqs() {
        for (query, mode, driver) in [
            ("", TlsMode::Prefer, SslMode::Prefer),
            ("?sslmode=disable", TlsMode::Disable, SslMode::Disable),
            ("?sslmode=prefer&connect_timeout=3", TlsMode::Prefer, SslMode::Prefer),
            ("?sslmode=require", TlsMode::Require, SslMode::Require),
            ("?sslmode=require&sslrootcert=%2Fetc%2Fa.pem", TlsMode::VerifyCa, SslMode::Require),
            ("?application_name=x&sslmode=verify-ca", TlsMode::VerifyCa, SslMode::Require),
            ("?sslmode=verify-full", TlsMode::VerifyFull, SslMode::Require),
        ] {
            let address = read(&format!("postgres://u:p@h:1/d{query}")).unwrap();
            assert_eq!((address.mode, address.config.get_ssl_mode()), (mode, driver), "{query}");
        }
        let address = read("postgres://u@h/d?sslrootcert=%2Fetc%2Fa%20b.pem").unwrap();
        assert_eq!(address.roots, [PathBuf::from("/etc/a b.pem")]);
    }

    #[test]
    fn what_is_named() {
        let address = read("postgresql://me:pass@one:1,two:2/").unwrap();
        assert_eq!(
            (address.at(), address.user(), address.database()),
            ("one:1,two:2".into(), "me".into(), "me".into())
        );
        assert_eq!(read("postgres://me@h/d").unwrap().at(), "h:5432");
    }

    /// Whatever is wrong with it, the text does not show it.
    #[test]
    fn a_wrong_url_is_refused_without_being_shown() {
        for url in [
            "",
            "hush",
            "mysql://u:hush@h/d",
            "host=h password=hush",
            "postgres://u:hush@h:port/d",
            "postgres://u:hush@h/d?hush=hush",
            "postgres://u:hush@h/d?sslmode=hush",
            "postgres://u:hush@h/d?sslrootcert=%hush",
            "postgres://u:hush@/d",
            "postgres://h/d?password=hush",
        ] {
            let Err(error) = read(url) else { panic!("{url} is taken") };
            assert!(!error.to_string().contains("hush"), "{url}: {error}");
            assert!(!format!("{error:?} {:?}", Options::new(url)).contains("hush"), "{url}");
        }
    }
}
