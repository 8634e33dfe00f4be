//! The URL or connection string.
//!
//! Both are read here and not by the driver, which has no TLS of its own in this build: it would refuse `Encrypt=true`, and it does not tell
//! what it has read of the certificate's settings.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use super::options::{OpenError, Options};

const SHAPE: &str = "the address of a SQL Server database is mssql://user:password@host:1433/database?encrypt=true, with other characters in the \
     parts written as %XX, or a connection string: Server=tcp:host,1433;Database=...;User Id=...;Password=...;Encrypt=true";

/// What an address says.
#[derive(Default)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) database: Option<String>,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) application: String,
    /// Nothing is sent but under TLS, the login included. False: nothing is encrypted, the login included.
    pub(crate) encrypt: bool,
    /// Any certificate will do.
    pub(crate) trust_any: bool,
    pub(crate) roots: Vec<PathBuf>,
    /// The name that the certificate must have, where it is not the host's.
    pub(crate) certificate_name: Option<String>,
}

fn wrong(text: &str) -> OpenError {
    OpenError::Options(text.to_owned())
}

impl Address {
    pub(crate) fn read(options: &Options) -> Result<Self, OpenError> {
        let url = options.url.reveal();
        let scheme = ["mssql://", "sqlserver://"].into_iter().find_map(|scheme| url.strip_prefix(scheme));
        let pairs = match scheme {
            Some(rest) => of_url(rest)?,
            None if url.contains("://") => return Err(wrong(SHAPE)),
            None => of_connection_string(url)?,
        };
        let mut address = Self {
            port: 1433,
            encrypt: true,
            application: "sprag".to_owned(),
            roots: options.extra_roots.clone(),
            ..Self::default()
        };
        for (key, value) in pairs {
            address.take(&key, value)?;
        }
        if address.host.is_empty() {
            return Err(wrong("the database's address names no server"));
        }
        if address.user.is_empty() {
            return Err(wrong("the database's address names no user; only logins with a password are supported"));
        }
        if address.trust_any && !address.roots.is_empty() {
            return Err(wrong(
                "TrustServerCertificate takes any certificate, and authorities are named as well: use one of the two",
            ));
        }
        Ok(address)
    }

    fn take(&mut self, key: &str, value: String) -> Result<(), OpenError> {
        match key {
            "server" | "datasource" | "address" | "addr" | "networkaddress" => self.take_server(&value)?,
            "database" | "initialcatalog" | "databasename" => self.database = Some(value).filter(|it| !it.is_empty()),
            "userid" | "uid" | "user" | "username" => self.user = value,
            "password" | "pwd" => self.password = value,
            "applicationname" | "app" => self.application = value,
            "encrypt" => self.encrypt = mode(&value)?,
            "trustservercertificate" | "trustcert" => self.trust_any = yes(key, &value)?,
            "trustservercertificateca" | "ca" => self.roots.push(value.into()),
            "hostnameincertificate" => self.certificate_name = Some(value).filter(|it| !it.is_empty()),
            "integratedsecurity" | "trustedconnection" => {
                if value.eq_ignore_ascii_case("sspi") || yes(key, &value)? {
                    return Err(wrong(
                        "Integrated Security is not supported: the address names a login and its password",
                    ));
                }
            }
            // What only other drivers need.
            "persistsecurityinfo"
            | "multipleactiveresultsets"
            | "connecttimeout"
            | "connectiontimeout"
            | "commandtimeout"
            | "pooling"
            | "minpoolsize"
            | "maxpoolsize"
            | "multisubnetfailover"
            | "applicationintent"
            | "packetsize"
            | "workstationid" => {}
            _ => {
                return Err(wrong(
                    "the database's address has a setting that is not known, or a secret with an unquoted ; in it",
                ));
            }
        }
        Ok(())
    }

    /// `tcp:host,port`, as ADO.NET has it.
    fn take_server(&mut self, value: &str) -> Result<(), OpenError> {
        let value = value.strip_prefix("tcp:").unwrap_or(value);
        let (host, port) = value.split_once(',').map_or((value, None), |(host, port)| (host, Some(port)));
        if let Some(port) = port {
            self.port = port.trim().parse().map_err(|_| wrong("the server's port in the address is not a number"))?;
        }
        let host = match host.split_once('\\') {
            Some((_, _)) if port.is_none() => {
                return Err(wrong("a named instance is reached by its port: Server=tcp:host,port"));
            }
            Some((host, _)) => host,
            None => host,
        };
        self.host =
            if matches!(host.trim(), "." | "(local)") { "localhost".to_owned() } else { host.trim().to_owned() };
        Ok(())
    }

    /// Host and port, for people.
    pub(crate) fn at(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

fn yes(key: &str, value: &str) -> Result<bool, OpenError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" | "on" => Ok(true),
        "false" | "no" | "0" | "off" => Ok(false),
        _ => Err(OpenError::Options(format!("{key} in the database's address is true or false"))),
    }
}

fn mode(value: &str) -> Result<bool, OpenError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "mandatory" => Ok(true),
        "optional" => Ok(false),
        "strict" => Err(wrong(
            "Encrypt=strict (TDS 8.0) is not supported; Encrypt=true encrypts everything and checks the certificate",
        )),
        other => yes("encrypt", other),
    }
}

/// Keys compare without case, spaces, `_` and `-`.
fn key(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '_' | '-')).flat_map(char::to_lowercase).collect()
}

type Pairs = Vec<(String, String)>;

fn of_url(rest: &str) -> Result<Pairs, OpenError> {
    let text =
        |part: &str| percent_decode_str(part).decode_utf8().map(|text| text.into_owned()).map_err(|_| wrong(SHAPE));
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = base.split_once('/').unwrap_or((base, ""));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (name, port) = match host.strip_prefix('[') {
        Some(six) => {
            six.split_once(']').map(|(name, port)| (name, port.strip_prefix(':'))).ok_or_else(|| wrong(SHAPE))?
        }
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let server = match port {
        Some(port) => format!("{},{port}", text(name)?),
        None => text(name)?,
    };
    let mut pairs = vec![
        ("server".to_owned(), server),
        ("database".to_owned(), text(database)?),
        ("user".to_owned(), text(user)?),
        ("password".to_owned(), text(password)?),
    ];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| wrong(SHAPE))?;
        pairs.push((key(&text(name)?), text(value)?));
    }
    Ok(pairs)
}

/// `key=value` with `;` between. A value that holds a `;`, or spaces at its ends, is in single or double quotes, and a quote of its own is
/// written twice; or it is in braces.
fn of_connection_string(text: &str) -> Result<Pairs, OpenError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(more) = rest.strip_prefix(';') {
            rest = more.trim_start();
            continue;
        }
        let (name, after) = rest.split_once('=').ok_or_else(|| wrong(SHAPE))?;
        if name.contains(';') {
            return Err(wrong(SHAPE));
        }
        let (value, more) = value(after.trim_start())?;
        pairs.push((key(name), value));
        rest = more.trim_start();
        if !rest.is_empty() && !rest.starts_with(';') {
            return Err(wrong(SHAPE));
        }
    }
    Ok(pairs)
}

/// A value and what comes after it.
fn value(text: &str) -> Result<(String, &str), OpenError> {
    if let Some(inner) = text.strip_prefix('{') {
        let (value, rest) = inner.split_once('}').ok_or_else(|| wrong(SHAPE))?;
        return Ok((value.to_owned(), rest));
    }
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
        let end = text.find(';').unwrap_or(text.len());
        return Ok((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut rest = &text[1..];
    loop {
        let (before, after) = rest.split_once(quote).ok_or_else(|| wrong(SHAPE))?;
        value.push_str(before);
        match after.strip_prefix(quote) {
            Some(more) => {
                value.push(quote);
                rest = more;
            }
            None => return Ok((value, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, OpenError> {
        Address::read(&Options::new(url))
    }

    #[test]
    fn a_url_and_a_connection_string_say_the_same() {
        for text in [
            "mssql://me:p%40%3Bss@db.example:1444/shop%20one?encrypt=true&trust_server_certificate=yes&application_name=x",
            "Server=tcp:db.example,1444;Initial Catalog=shop one;User Id=me;Password='p@;ss';Encrypt=Mandatory;TrustServerCertificate=True;Application Name=x;",
            "data source=db.example,1444; database={shop one}; UID=me; pwd=\"p@;ss\"; trust_cert=true; app=x",
        ] {
            let address = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (address.at().as_str(), address.database.as_deref()),
                ("db.example:1444", Some("shop one")),
                "{text}"
            );
            assert_eq!((address.user.as_str(), address.password.as_str()), ("me", "p@;ss"), "{text}");
            assert_eq!((address.encrypt, address.trust_any, address.application.as_str()), (true, true, "x"), "{text}");
        }
    }

    /// A56: who does not ask for plain text gets TLS, and the certificate is checked.
    #[test]
    fn encryption_is_the_default() {
        let address = read("mssql://u:p@h").unwrap();
        assert!(address.encrypt && !address.trust_any);
        assert_eq!((address.port, address.database), (1433, None));
        assert!(!read("Server=.;User=u;Password=p;Encrypt=false").unwrap().encrypt);
        let address = read("mssql://u:p@[::1]:7/d?ca=%2Fa.pem&hostnameincertificate=x").unwrap();
        assert_eq!((address.at().as_str(), address.roots.as_slice()), ("[::1]:7", &[PathBuf::from("/a.pem")][..]));
        assert_eq!(address.certificate_name.as_deref(), Some("x"));
    }

    #[test]
    fn a_quote_is_written_twice() {
        let address = read("Server=h;User=u;Password=\"a\"\"b'c=\"; Encrypt=no").unwrap();
        assert_eq!((address.password.as_str(), address.encrypt), ("a\"b'c=", false));
        assert_eq!(read("Server=h;User=u;Password=Zm9v==").unwrap().password, "Zm9v==");
    }

    /// Whatever is wrong with it, the text does not show it.
    #[test]
    fn a_wrong_address_is_refused_without_being_shown() {
        for text in [
            "",
            "hush",
            "postgres://u:hush@h/d",
            "mssql://u:hush@h:port/d",
            "mssql://u:hush@/d",
            "mssql://:hush@h/d",
            "mssql://u:hush@h/d?encrypt=hush",
            "mssql://u:hush@h/d?encrypt=strict",
            "mssql://u:hush@h/d?hush=hush",
            "mssql://u:%ffhush@h/d",
            "Server=h;User=u;Password='hush",
            "Server=h;User=u;Password=a;hush;Encrypt=true",
            "Server=h\\hush;User=u;Password=hush",
            "Server=h;Integrated Security=SSPI;Password=hush",
            "Server=h;User=u;Password=hush;TrustServerCertificate=yes;TrustServerCertificateCA=/a.pem",
        ] {
            let Err(error) = read(text) else { panic!("{text} is taken") };
            assert!(!error.to_string().contains("hush"), "{text}: {error}");
            assert!(!format!("{error:?} {:?}", Options::new(text)).contains("hush"), "{text}");
        }
    }
}
