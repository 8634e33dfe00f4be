//! Reads a filter expression: the conditions of SQL-92 as Service Bus takes them.
//!
//! ```text
//! or      = and { OR and }            and  = not { AND not }          not = NOT not | test
//! test    = sum [ compare sum | [NOT] LIKE text [ESCAPE text] | [NOT] IN ( sum {, sum} ) | IS [NOT] NULL ]
//! sum     = product { (+|-) product } product = sign { (*|/|%) sign } sign = [+|-] sign | primary
//! primary = number | text | TRUE | FALSE | NULL | EXISTS ( name ) | name | ( or )
//! name    = [sys.|user.] (word | [any text] | "any text")
//! ```

use super::FilterError;

/// How deep parentheses, NOT and signs may lie in each other.
const MAX_DEPTH: u32 = 64;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Literal(Literal),
    Name(Name),
    Exists(Name),
    Not(Box<Expression>),
    Minus(Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Compare(Compare, Box<Expression>, Box<Expression>),
    Calculate(Calculate, Box<Expression>, Box<Expression>),
    Like { text: Box<Expression>, pattern: Vec<Piece>, not: bool },
    In { value: Box<Expression>, list: Vec<Expression>, not: bool },
    IsNull { value: Box<Expression>, not: bool },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Name {
    System(System),
    Application(String),
}

/// A property that the message itself has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    MessageId,
    SessionId,
    Subject,
    ContentType,
    CorrelationId,
    To,
    ReplyTo,
    ReplyToSessionId,
    PartitionKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calculate {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A part of a LIKE pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    Is(char),
    One,
    Any,
}

pub(crate) fn parse(text: &str) -> Result<Expression, FilterError> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, end: text.chars().count() + 1, depth: 0 };
    let expression = parser.or()?;
    match parser.peek() {
        None => Ok(expression),
        Some(token) => Err(error(token.position, format!("{} was not expected here", token.kind.shown()))),
    }
}

fn error(position: usize, problem: impl Into<String>) -> FilterError {
    FilterError { position, problem: problem.into() }
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// A word as it is written; it may be a keyword.
    Word(String),
    /// A name in brackets or double quotes: never a keyword.
    Quoted(String),
    Text(String),
    Int(i64),
    Double(f64),
    Mark(&'static str),
}

impl Kind {
    fn shown(&self) -> String {
        match self {
            Self::Word(text) | Self::Quoted(text) => format!("{text:?}"),
            Self::Text(text) => format!("the text '{text}'"),
            Self::Int(n) => n.to_string(),
            Self::Double(n) => n.to_string(),
            Self::Mark(mark) => format!("{mark:?}"),
        }
    }
}

#[derive(Debug, Clone)]
struct Token {
    kind: Kind,
    position: usize,
}

const MARKS: [&str; 17] = ["<>", "<=", ">=", "!=", "=", "<", ">", "(", ")", ",", ".", "+", "-", "*", "/", "%", ";"];

fn tokens(text: &str) -> Result<Vec<Token>, FilterError> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let start = at;
        let kind = match c {
            _ if c.is_whitespace() => {
                at += 1;
                continue;
            }
            '\'' => Kind::Text(quoted(&chars, &mut at, '\'')?),
            '"' => Kind::Quoted(quoted(&chars, &mut at, '"')?),
            '[' => Kind::Quoted(quoted(&chars, &mut at, ']')?),
            _ if c.is_alphabetic() || c == '_' => {
                while chars.get(at).is_some_and(|c| c.is_alphanumeric() || "_-:$@#".contains(*c)) {
                    at += 1;
                }
                Kind::Word(chars[start..at].iter().collect())
            }
            _ if c.is_ascii_digit() => number(&chars, &mut at)?,
            _ => {
                let mark = MARKS.into_iter().find(|mark| mark.chars().eq(chars[at..].iter().copied().take(mark.len())));
                let mark = mark.ok_or_else(|| error(start + 1, format!("{c:?} means nothing here")))?;
                at += mark.len();
                Kind::Mark(mark)
            }
        };
        tokens.push(Token { kind, position: start + 1 });
    }
    Ok(tokens)
}

/// A doubled closing quote stands for one.
fn quoted(chars: &[char], at: &mut usize, close: char) -> Result<String, FilterError> {
    let start = *at;
    *at += 1;
    let mut text = String::new();
    loop {
        match chars.get(*at) {
            Some(&c) if c == close && chars.get(*at + 1) == Some(&close) => {
                text.push(c);
                *at += 2;
            }
            Some(&c) if c == close => {
                *at += 1;
                return Ok(text);
            }
            Some(&c) => {
                text.push(c);
                *at += 1;
            }
            None => return Err(error(start + 1, format!("the closing quote {close:?} is missing"))),
        }
    }
}

fn number(chars: &[char], at: &mut usize) -> Result<Kind, FilterError> {
    let start = *at;
    let wrong = |text: &str| error(start + 1, format!("{text:?} is not a number"));
    let digits = |at: &mut usize, hex: bool| {
        while chars.get(*at).is_some_and(|c| if hex { c.is_ascii_hexdigit() } else { c.is_ascii_digit() }) {
            *at += 1;
        }
    };
    if chars[start] == '0' && matches!(chars.get(start + 1), Some('x' | 'X')) {
        *at += 2;
        digits(at, true);
        let text: String = chars[start..*at].iter().collect();
        return i64::from_str_radix(&text[2..], 16).map(Kind::Int).map_err(|_| wrong(&text));
    }
    digits(at, false);
    let mut whole = true;
    if chars.get(*at) == Some(&'.') {
        whole = false;
        *at += 1;
        digits(at, false);
    }
    if matches!(chars.get(*at), Some('e' | 'E')) {
        whole = false;
        *at += 1;
        if matches!(chars.get(*at), Some('+' | '-')) {
            *at += 1;
        }
        digits(at, false);
    }
    let text: String = chars[start..*at].iter().collect();
    if whole {
        text.parse().map(Kind::Int).map_err(|_| wrong(&text))
    } else {
        text.parse().map(Kind::Double).map_err(|_| wrong(&text))
    }
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    /// The position behind the last character.
    end: usize,
    depth: u32,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn position(&self) -> usize {
        self.peek().map_or(self.end, |token| token.position)
    }

    fn keyword(&mut self, word: &str) -> bool {
        let found =
            matches!(self.peek(), Some(Token { kind: Kind::Word(text), .. }) if text.eq_ignore_ascii_case(word));
        self.next += usize::from(found);
        found
    }

    fn mark(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Some(Token { kind: Kind::Mark(text), .. }) if *text == mark);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, mark: &str) -> Result<(), FilterError> {
        if self.mark(mark) { Ok(()) } else { Err(error(self.position(), format!("{mark:?} is missing"))) }
    }

    /// One level deeper; the way back up needs no count where the error ends it all.
    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, FilterError>) -> Result<T, FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(error(self.position(), format!("it is nested more than {MAX_DEPTH} deep")));
        }
        let found = inner(self)?;
        self.depth -= 1;
        Ok(found)
    }

    fn or(&mut self) -> Result<Expression, FilterError> {
        let mut left = self.and()?;
        while self.keyword("OR") {
            left = Expression::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expression, FilterError> {
        let mut left = self.not()?;
        while self.keyword("AND") {
            left = Expression::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expression, FilterError> {
        if self.keyword("NOT") {
            return Ok(Expression::Not(Box::new(self.deeper(Self::not)?)));
        }
        self.test()
    }

    fn test(&mut self) -> Result<Expression, FilterError> {
        let left = Box::new(self.sum()?);
        if self.keyword("IS") {
            let not = self.keyword("NOT");
            return if self.keyword("NULL") {
                Ok(Expression::IsNull { value: left, not })
            } else {
                Err(error(self.position(), "NULL is missing"))
            };
        }
        let not = self.keyword("NOT");
        if self.keyword("LIKE") {
            return self.like(left, not);
        }
        if self.keyword("IN") {
            self.expect("(")?;
            let mut list = vec![self.sum()?];
            while self.mark(",") {
                list.push(self.sum()?);
            }
            self.expect(")")?;
            return Ok(Expression::In { value: left, list, not });
        }
        if not {
            return Err(error(self.position(), "LIKE or IN is missing"));
        }
        let compare = [
            ("=", Compare::Equal),
            ("<>", Compare::NotEqual),
            ("!=", Compare::NotEqual),
            ("<=", Compare::LessOrEqual),
            (">=", Compare::GreaterOrEqual),
            ("<", Compare::Less),
            (">", Compare::Greater),
        ];
        let Some((_, compare)) = compare.into_iter().find(|(mark, _)| self.mark(mark)) else { return Ok(*left) };
        Ok(Expression::Compare(compare, left, Box::new(self.sum()?)))
    }

    fn like(&mut self, text: Box<Expression>, not: bool) -> Result<Expression, FilterError> {
        let position = self.position();
        let pattern = self.text()?;
        let mut escape = None;
        if self.keyword("ESCAPE") {
            let position = self.position();
            let text = self.text()?;
            let mut chars = text.chars();
            escape = match (chars.next(), chars.next()) {
                (Some(c), None) => Some(c),
                _ => return Err(error(position, "ESCAPE takes one character")),
            };
        }
        let mut pieces = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            pieces.push(match c {
                _ if Some(c) == escape => Piece::Is(
                    chars.next().ok_or_else(|| error(position, "the pattern ends with its escape character"))?,
                ),
                '%' => Piece::Any,
                '_' => Piece::One,
                _ => Piece::Is(c),
            });
        }
        Ok(Expression::Like { text, pattern: pieces, not })
    }

    fn text(&mut self) -> Result<String, FilterError> {
        match self.peek() {
            Some(Token { kind: Kind::Text(text), .. }) => {
                let text = text.clone();
                self.next += 1;
                Ok(text)
            }
            Some(token) => Err(error(token.position, "a text in single quotes is missing")),
            None => Err(error(self.end, "it ends where a text in single quotes is missing")),
        }
    }

    fn sum(&mut self) -> Result<Expression, FilterError> {
        let mut left = self.product()?;
        loop {
            let calculate = match () {
                () if self.mark("+") => Calculate::Add,
                () if self.mark("-") => Calculate::Subtract,
                () => return Ok(left),
            };
            left = Expression::Calculate(calculate, Box::new(left), Box::new(self.product()?));
        }
    }

    fn product(&mut self) -> Result<Expression, FilterError> {
        let mut left = self.sign()?;
        loop {
            let calculate = match () {
                () if self.mark("*") => Calculate::Multiply,
                () if self.mark("/") => Calculate::Divide,
                () if self.mark("%") => Calculate::Remainder,
                () => return Ok(left),
            };
            left = Expression::Calculate(calculate, Box::new(left), Box::new(self.sign()?));
        }
    }

    fn sign(&mut self) -> Result<Expression, FilterError> {
        if self.mark("-") {
            return Ok(Expression::Minus(Box::new(self.deeper(Self::sign)?)));
        }
        if self.mark("+") {
            return self.deeper(Self::sign);
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<Expression, FilterError> {
        let Some(token) = self.peek().cloned() else { return Err(error(self.end, "it ends where a value is missing")) };
        let literal = |parser: &mut Self, literal| {
            parser.next += 1;
            Ok(Expression::Literal(literal))
        };
        match token.kind {
            Kind::Text(text) => literal(self, Literal::Text(text)),
            Kind::Int(n) => literal(self, Literal::Int(n)),
            Kind::Double(n) => literal(self, Literal::Double(n)),
            Kind::Mark("(") => {
                self.next += 1;
                let inner = self.deeper(Self::or)?;
                self.expect(")")?;
                Ok(inner)
            }
            Kind::Mark(mark) => Err(error(token.position, format!("{mark:?} stands where a value is missing"))),
            Kind::Word(word) => match word.to_ascii_uppercase().as_str() {
                "TRUE" => literal(self, Literal::Bool(true)),
                "FALSE" => literal(self, Literal::Bool(false)),
                "NULL" => literal(self, Literal::Null),
                "EXISTS" => {
                    self.next += 1;
                    self.expect("(")?;
                    let name = self.name()?;
                    self.expect(")")?;
                    Ok(Expression::Exists(name))
                }
                "AND" | "OR" | "NOT" | "LIKE" | "IN" | "IS" | "ESCAPE" => {
                    Err(error(token.position, format!("{word} stands where a value is missing")))
                }
                _ => Ok(Expression::Name(self.name()?)),
            },
            Kind::Quoted(_) => Ok(Expression::Name(self.name()?)),
        }
    }

    fn name(&mut self) -> Result<Name, FilterError> {
        let scope = match self.peek() {
            Some(Token { kind: Kind::Word(word), .. })
                if matches!(self.tokens.get(self.next + 1), Some(Token { kind: Kind::Mark("."), .. })) =>
            {
                Some(word.to_ascii_lowercase())
            }
            _ => None,
        };
        if let Some(scope) = &scope {
            if !matches!(scope.as_str(), "sys" | "user") {
                return Err(error(self.position(), format!("{scope:?} is no scope: use sys. or user.")));
            }
            self.next += 2;
        }
        let position = self.position();
        let Some(Token { kind: Kind::Word(text) | Kind::Quoted(text), .. }) = self.peek().cloned() else {
            return Err(error(position, "the name of a property is missing"));
        };
        self.next += 1;
        if scope.as_deref() != Some("sys") {
            return Ok(Name::Application(text));
        }
        Ok(Name::System(match text.to_ascii_lowercase().as_str() {
            "messageid" => System::MessageId,
            "sessionid" => System::SessionId,
            "label" | "subject" => System::Subject,
            "contenttype" => System::ContentType,
            "correlationid" => System::CorrelationId,
            "to" => System::To,
            "replyto" => System::ReplyTo,
            "replytosessionid" => System::ReplyToSessionId,
            "partitionkey" => System::PartitionKey,
            _ => return Err(error(position, format!("{text:?} is no system property"))),
        }))
    }
}
