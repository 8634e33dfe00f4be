//! Reads a filter expression: the conditions of SQL-92 as Service Bus takes them; and the statements of a rule's action.
//!
//! ```text
//! action  = statement { [;|,] statement }             statement = SET name = sum | REMOVE name
//! or      = and { OR and }            and  = not { AND not }          not = NOT not | test
//! test    = sum [ compare sum | [NOT] LIKE sum [ESCAPE sum] | [NOT] IN ( sum {, sum} ) | IS [NOT] NULL ]
//! sum     = product { (+|-) product } product = sign { (*|/|%) sign } sign = [+|-] sign | primary
//! primary = number | text | TRUE | FALSE | NULL | EXISTS ( name ) | name | ( or ) | @parameter
//!         | newid() | property( sum ) | p( sum )
//! name    = [sys.|user.] (word | [any text] | "any text")
//! ```

use std::collections::BTreeMap;

use super::{
    FilterError, FilterValue,
    tokens::{Kind, Token, tokens},
};

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
    Like {
        text: Box<Expression>,
        pattern: Pattern,
        not: bool,
    },
    In {
        value: Box<Expression>,
        list: Vec<Expression>,
        not: bool,
    },
    IsNull {
        value: Box<Expression>,
        not: bool,
    },
    /// A fresh UUID.
    NewId,
    /// The application property whose name is computed.
    Property(Box<Expression>),
}

/// One step of an action.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Statement {
    Set(Name, Expression),
    Remove(Name),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Pattern {
    Fixed(Vec<Piece>),
    Computed { pattern: Box<Expression>, escape: Option<Box<Expression>> },
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
    ViaPartitionKey,
    /// Read only; in milliseconds.
    TimeToLive,
    ScheduledEnqueueTime,
    /// What the broker gives a message later: not known when it is filtered.
    Later,
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

/// Values for `@name`, by their names, with or without the at sign.
pub(crate) type Parameters = BTreeMap<String, FilterValue>;

pub(crate) fn parse(text: &str, parameters: &Parameters) -> Result<Expression, FilterError> {
    let mut parser = Parser::new(text, parameters)?;
    let expression = parser.or()?;
    match parser.peek() {
        None => Ok(expression),
        Some(token) => Err(error(token.position, format!("{} was not expected here", token.kind.shown()))),
    }
}

pub(crate) fn parse_action(text: &str, parameters: &Parameters) -> Result<Vec<Statement>, FilterError> {
    let mut parser = Parser::new(text, parameters)?;
    let mut statements = Vec::new();
    while parser.peek().is_some() {
        if parser.mark(";") || parser.mark(",") {
            continue;
        }
        statements.push(parser.statement()?);
    }
    Ok(statements)
}

pub(super) fn error(position: usize, problem: impl Into<String>) -> FilterError {
    FilterError { position, problem: problem.into() }
}

struct Parser<'a> {
    parameters: &'a Parameters,
    tokens: Vec<Token>,
    next: usize,
    /// The position behind the last character.
    end: usize,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn new(text: &str, parameters: &'a Parameters) -> Result<Self, FilterError> {
        Ok(Self { parameters, tokens: tokens(text)?, next: 0, end: text.chars().count() + 1, depth: 0 })
    }

    fn statement(&mut self) -> Result<Statement, FilterError> {
        if self.keyword("REMOVE") {
            return Ok(Statement::Remove(self.changeable()?));
        }
        if !self.keyword("SET") {
            return Err(error(self.position(), "SET or REMOVE is missing"));
        }
        let name = self.changeable()?;
        self.expect("=")?;
        Ok(Statement::Set(name, self.sum()?))
    }

    /// A property that an action may change.
    fn changeable(&mut self) -> Result<Name, FilterError> {
        let position = self.position();
        let name = self.name()?;
        match name {
            Name::System(System::TimeToLive | System::ScheduledEnqueueTime | System::Later) => {
                Err(error(position, "this system property cannot be changed"))
            }
            _ => Ok(name),
        }
    }

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
        let mut escape_position = position;
        if self.keyword("ESCAPE") {
            escape_position = self.position();
            escape = Some(self.text()?);
        }
        // The usual case is read once, here.
        let fixed = |expression: &Expression| match expression {
            Expression::Literal(Literal::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let pattern = match (fixed(&pattern), escape.as_ref().map(fixed)) {
            (Some(text), escape @ (None | Some(Some(_)))) => {
                let escape = escape.flatten().map(|text| escape_of(&text));
                let escape = match escape {
                    Some(None) => return Err(error(escape_position, "ESCAPE takes one character")),
                    escape => escape.flatten(),
                };
                let pieces = pieces(&text, escape);
                Pattern::Fixed(pieces.ok_or_else(|| error(position, "the pattern ends with its escape character"))?)
            }
            _ => Pattern::Computed { pattern: Box::new(pattern), escape: escape.map(Box::new) },
        };
        Ok(Expression::Like { text, pattern, not })
    }

    /// What may give a text.
    fn text(&mut self) -> Result<Expression, FilterError> {
        let position = self.position();
        if self.peek().is_none() {
            return Err(error(self.end, "it ends where a text in single quotes is missing"));
        }
        match self.sum()? {
            Expression::Literal(Literal::Int(_) | Literal::Double(_) | Literal::Bool(_)) => {
                Err(error(position, "a text in single quotes is missing"))
            }
            expression => Ok(expression),
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
            Kind::Parameter(name) => {
                let bare = &name[1..];
                let found = self.parameters.iter().find(|(key, _)| key.trim_start_matches('@') == bare);
                let Some((_, value)) = found else {
                    return Err(error(token.position, format!("the parameter {name} has no value")));
                };
                literal(
                    self,
                    match value {
                        FilterValue::Null => Literal::Null,
                        FilterValue::Bool(value) => Literal::Bool(*value),
                        FilterValue::Int(n) => Literal::Int(*n),
                        // As properties that are times are compared.
                        FilterValue::Time { time } => Literal::Int(time.0),
                        FilterValue::Double(n) => Literal::Double(*n),
                        FilterValue::Text(text) => Literal::Text(text.clone()),
                    },
                )
            }
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
                "NEWID" if self.is_call() => {
                    self.next += 2;
                    self.expect(")")?;
                    Ok(Expression::NewId)
                }
                "PROPERTY" | "P" if self.is_call() => {
                    self.next += 2;
                    let name = self.deeper(Self::sum)?;
                    self.expect(")")?;
                    Ok(Expression::Property(Box::new(name)))
                }
                "AND" | "OR" | "NOT" | "LIKE" | "IN" | "IS" | "ESCAPE" => {
                    Err(error(token.position, format!("{word} stands where a value is missing")))
                }
                _ => Ok(Expression::Name(self.name()?)),
            },
            Kind::Quoted(_) => Ok(Expression::Name(self.name()?)),
        }
    }

    /// An opening parenthesis follows the word.
    fn is_call(&self) -> bool {
        matches!(self.tokens.get(self.next + 1), Some(Token { kind: Kind::Mark("("), .. }))
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
            "viapartitionkey" => System::ViaPartitionKey,
            "timetolive" => System::TimeToLive,
            "scheduledenqueuetimeutc" | "scheduledenqueuetime" => System::ScheduledEnqueueTime,
            "deliverycount"
            | "enqueuedsequencenumber"
            | "enqueuedtimeutc"
            | "expiresatutc"
            | "lockeduntilutc"
            | "locktoken"
            | "sequencenumber"
            | "size"
            | "state"
            | "deadlettersource" => System::Later,
            _ => return Err(error(position, format!("{text:?} is no system property"))),
        }))
    }
}

/// A pattern's pieces. None: it ends with its escape character.
pub(super) fn pieces(pattern: &str, escape: Option<char>) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            _ if Some(c) == escape => Piece::Is(chars.next()?),
            '%' => Piece::Any,
            '_' => Piece::One,
            _ => Piece::Is(c),
        });
    }
    Some(pieces)
}

/// The one character of a text.
pub(super) fn escape_of(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}
